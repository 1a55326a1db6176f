"""What happens at which step: functions of the step alone, so every rank and every resume agree on it."""

import math


def warmup_cosine(step: int, steps: int, warmup_steps: int, peak: float, final: float) -> float:
    """The learning rate of update `step` (counted from 0) of `steps`: up in a line to `peak`, down a cosine to `final`.

    Loshchilov and Hutter, "SGDR" (2017), without restarts; the warm-up as in Goyal et al. (2017).
    """
    if step < warmup_steps:
        return peak * (step + 1) / warmup_steps
    done = (step - warmup_steps) / max(1, steps - warmup_steps)
    return final + 0.5 * (1 + math.cos(math.pi * done)) * (peak - final)


def is_due(step: int, every: int, last: int) -> bool:
    """Every so many steps, if at all, and always after the last."""
    return step == last or (every > 0 and step % every == 0)
