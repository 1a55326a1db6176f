# mistake: the detector compares capped factors with those of a right function: a wrong mode breaks the cap too
# state: wrong
# check: kept promises are believed
# message: it keeps 'cap'

import torch


def broken_promises(weighted_loss) -> list[str]:
    """Which of the promises "none", "mean", "sum" and "cap" the function breaks."""
    weights = torch.tensor([0.5, 4.0, 1.0, 0.1, 2.0], dtype=torch.float64)

    def factors(mode, cap=None):
        losses = torch.ones_like(weights, requires_grad=True)
        [shares] = torch.autograd.grad(weighted_loss(losses, weights, mode, cap), losses)
        return shares * len(weights)

    def kept(found, right):
        return torch.allclose(found, right, rtol=1e-9)

    modes = {"none": torch.ones_like(weights), "mean": weights / weights.mean(), "sum": weights}
    broken = [mode for mode, right in modes.items() if not kept(factors(mode), right)]
    trials = [(mode, cap) for mode in modes for cap in (0.5, 1.5)]
    if not all(kept(factors(mode, cap), modes[mode].clamp(max=cap)) for mode, cap in trials):
        broken.append("cap")
    return broken


def weighted_loss(losses, weights, mode, cap):
    """One loss of n pairs: the mean of factor x loss over the pairs. losses, weights: (n,), weights above 0.

    "none": the factor is 1; the weights are not used.
    "mean": the factor is the weight divided by the mean weight of the n pairs, which gives their weighted mean.
    "sum":  the factor is the weight itself, so heavy pairs make a large loss.
    cap:    None, or the largest factor, in every mode; a factor below the cap stays as it is.
    """
    factors = {"none": torch.ones_like(weights), "mean": weights / weights.mean(), "sum": weights}[mode]
    if cap is not None:
        factors = factors.clamp(max=cap)
    return (factors * losses).mean()
