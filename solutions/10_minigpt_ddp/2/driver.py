"""Inside a rank, for 10.2: call the learner's `train`, and note which windows it reads and the error that it raises."""

import torch
import torch.distributed as dist

CONTEXT = 8


def drive(function, tokens_per_update, micro_batch_size, steps):
    """The report on a call of the learner's `train` on this rank.

    result    what it returned
    refusal   the text of its ValueError
    raised    another error, if the step does not divide. If it does, the error is raised again, and the grader tells
              the learner its line.
    read      [step, number] of each window that it read
    """
    read, result, refusal, raised = [], None, None, None

    def window(step, number):
        read.append([step, number])
        return some_window(step, number)

    try:
        result = function(window, tokens_per_update, micro_batch_size, steps)
    except ValueError as error:
        refusal = str(error)
    except Exception as error:
        if tokens_per_update % (micro_batch_size * CONTEXT * dist.get_world_size()) == 0:
            raise
        raised = f"{type(error).__name__}: {error}"
    result = list(result) if isinstance(result, tuple) else result
    return {"result": result, "refusal": refusal, "raised": raised, "read": read}


def some_window(step, number):
    """Inputs and targets of a window. The noise in the targets grows with `number`, so that losses differ by window."""
    generator = torch.Generator().manual_seed(7919 * step + 13 * number + 1)
    inputs, noise = torch.randn(2, CONTEXT, 3, generator=generator, dtype=torch.float64)
    return inputs, inputs @ torch.tensor([2.0, -1.0, 0.5], dtype=torch.float64) + 0.2 * (number + 1) * noise[:, 0]
