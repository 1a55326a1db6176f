"""Weights for the losses of pairs: three modes and a cap. What the docstring promises, the code does not do."""

import torch

MODES = ("none", "mean", "sum")


def weighted_loss(losses, weights, mode, cap):
    """One loss of n pairs: the mean of factor x loss over the pairs. losses, weights: (n,), weights above 0.

    "none": the factor is 1; the weights are not used.
    "mean": the factor is the weight divided by the mean weight of the n pairs, which gives their weighted mean.
    "sum":  the factor is the weight itself, so heavy pairs make a large loss.
    cap:    None, or the largest factor, in every mode; a factor below the cap stays as it is.
    """
    if cap is not None:
        weights = weights.clamp(max=cap)
    if mode == "mean":
        factors = weights / (weights.mean() + 1e-12)
    elif mode == "sum":
        factors = weights * (weights.numel() / (weights.sum() + 1e-12))
    else:
        factors = weights
    return (factors * losses).mean()


def main():
    losses = torch.tensor([0.1, 0.2, 0.3, 2.0], dtype=torch.float64)
    weights = torch.tensor([0.01, 0.01, 0.01, 9.0], dtype=torch.float64)
    for mode in MODES:
        for cap in (None, 2.0):
            print(f"mode {mode}, cap {cap}: loss {weighted_loss(losses, weights, mode, cap):.4f}")


if __name__ == "__main__":
    main()
