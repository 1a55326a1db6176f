"""Inside a rank, for 10.1: a clock that goes as fast as the question wants, and gradients that count the steps."""

import torch
import torch.distributed as dist


def drive(function, what, *arguments):
    """`what` is "train", with (start, pace) of each rank's clock and the limit, or "rates", with each rank's list."""
    if what == "rates":
        [rates] = arguments
        return function(rates[dist.get_rank()])
    clocks, limit = arguments
    start, pace = clocks[dist.get_rank()]
    steps = 0

    def gradient_of(weights):
        nonlocal steps
        steps += 1
        if steps > 200:
            raise RuntimeError("200 steps were made; the clock had long passed the limit")
        return weights - torch.arange(3.0, dtype=torch.float64) - dist.get_rank()

    result = function(lambda: start + steps * pace, gradient_of, limit)
    return list(result) if isinstance(result, tuple) else result
