"""Inside a rank, for 10.1: call the learner's functions; a clock advances by a fixed time with each gradient."""

import torch
import torch.distributed as dist


def drive(function, name, *arguments):
    """The result of the learner's function.

    name="train"   `train`; arguments: (start, pace) of each rank's clock, and the limit
    name="rates"   `first_difference`; argument: the learning rates of each rank
    """
    if name == "rates":
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
