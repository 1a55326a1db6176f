"""Inside a rank, for 10.2: windows that count how often they are read, and the ValueError as a result."""

import torch

CONTEXT = 8


def drive(function, tokens_per_update, micro_batch_size, updates):
    """What `train` returned, or the text of its ValueError; and the windows that this rank had read."""
    read = []

    def window(update, number):
        read.append([update, number])
        return some_window(update, number)

    try:
        result, refusal = function(window, tokens_per_update, micro_batch_size, updates), None
    except ValueError as error:
        result, refusal = None, str(error)
    return {"result": list(result) if isinstance(result, tuple) else result, "refusal": refusal, "read": read}


def some_window(update, number):
    """Windows differ: each is noisier than the one before it."""
    generator = torch.Generator().manual_seed(7919 * update + 13 * number + 1)
    inputs, noise = torch.randn(2, CONTEXT, 3, generator=generator, dtype=torch.float64)
    return inputs, inputs @ torch.tensor([2.0, -1.0, 0.5], dtype=torch.float64) + 0.2 * (number + 1) * noise[:, 0]
