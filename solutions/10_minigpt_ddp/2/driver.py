"""Inside a rank, for 10.2: windows that count how often they are read, and the ValueError as a result."""

import torch
import torch.distributed as dist

CONTEXT = 8


def drive(function, tokens_per_update, micro_batch_size, updates):
    """The result of `train`, or the text of its ValueError; and the windows that this rank had read.

    `raised` is another error, where the update does not divide: there it belongs to the answer. Anywhere else it goes
    its way, so that the learner is told the line.
    """
    read, result, refusal, raised = [], None, None, None

    def window(update, number):
        read.append([update, number])
        return some_window(update, number)

    try:
        result = function(window, tokens_per_update, micro_batch_size, updates)
    except ValueError as error:
        refusal = str(error)
    except Exception as error:
        if tokens_per_update % (micro_batch_size * CONTEXT * dist.get_world_size()) == 0:
            raise
        raised = f"{type(error).__name__}: {error}"
    result = list(result) if isinstance(result, tuple) else result
    return {"result": result, "refusal": refusal, "raised": raised, "read": read}


def some_window(update, number):
    """Windows differ: each is noisier than the one before it."""
    generator = torch.Generator().manual_seed(7919 * update + 13 * number + 1)
    inputs, noise = torch.randn(2, CONTEXT, 3, generator=generator, dtype=torch.float64)
    return inputs, inputs @ torch.tensor([2.0, -1.0, 0.5], dtype=torch.float64) + 0.2 * (number + 1) * noise[:, 0]
