"""Inside a rank, for 18.2: hand the learner's detector losses that keep and break promises, and try the learner's."""

import torch

PROMISES = ("none", "mean", "sum", "cap")


def drive(function, what, *arguments):
    """`function` is the learner's broken_promises or, for what="own", weighted_loss."""
    return try_out(function, *arguments) if what == "own" else function(loss_of(VERSIONS[what][0]))


def loss_of(factors):
    """A weighted_loss from factors(weights, mode, cap)."""

    def weighted_loss(losses, weights, mode, cap):
        return (factors(weights, mode, cap) * losses).mean()

    return weighted_loss


# ---- versions of the factors --------------------------------------------------------------------------------------


def bounded(factors, cap):
    return factors if cap is None else factors.clamp(max=cap)


def same(weights):
    return weights


def relative(weights):
    return weights / weights.mean()


def exact(none=torch.ones_like, mean=relative, plain=same, cap=lambda mode, cap: cap):
    """The factors that are promised. none, mean, plain: what they are in each mode, of the weights; "plain" in the mode
    "sum". cap: the one that holds in a mode."""

    def factors(weights, mode, limit):
        return bounded({"none": none, "mean": mean, "sum": plain}[mode](weights), cap(mode, limit))

    return factors


def as_given(weights, mode, cap):
    weights = bounded(weights, cap)
    return weights if mode == "none" else relative(weights)


def cap_then_mean_again(weights, mode, cap):
    """The cut off part is handed to all: the factors have mean 1, and the cap holds no more."""
    factors = exact()(weights, mode, cap)
    return relative(factors) if mode == "mean" else factors


def cap_is_relative(weights, mode, cap):
    """Divides so that the largest is the cap: bounded, but the others change as well."""
    factors = exact()(weights, mode, None)
    return factors if cap is None else factors * min(1.0, cap / factors.max().item())


VERSIONS = {
    "keeps them all": (exact(), []),
    "mean as losses times softmax of the logarithms": (
        exact(mean=lambda weights: weights.log().softmax(0) * len(weights)),
        [],
    ),
    "the given one": (as_given, ["none", "sum", "cap"]),
    "none uses the weights": (exact(none=same), ["none"]),
    "sum is the weighted mean": (exact(plain=relative), ["sum"]),
    "mean is not divided": (exact(mean=same), ["mean"]),
    "mean is divided by the largest weight": (exact(mean=lambda weights: weights / weights.max()), ["mean"]),
    "mean is divided by the median weight": (exact(mean=lambda weights: weights / weights.median()), ["mean"]),
    "mean and sum exchanged": (exact(mean=same, plain=relative), ["mean", "sum"]),
    "sum is not divided by the number of pairs": (exact(plain=lambda weights: weights * len(weights)), ["sum"]),
    "the weights are cut before they are divided": (
        lambda weights, mode, cap: exact()(bounded(weights, cap), mode, None),
        ["cap"],
    ),
    "what the cap cuts off is handed to all": (cap_then_mean_again, ["cap"]),
    "the cap makes all factors smaller": (cap_is_relative, ["cap"]),
    "the cap holds in mode mean alone": (exact(cap=lambda mode, cap: cap if mode == "mean" else None), ["cap"]),
    "sum is the weighted mean, and ignores the cap": (
        exact(plain=relative, cap=lambda mode, cap: None if mode == "sum" else cap),
        ["sum", "cap"],
    ),
    "the cap is ignored": (exact(cap=lambda mode, cap: None), ["cap"]),
    "the cap does not hold in mode none": (exact(cap=lambda mode, cap: None if mode == "none" else cap), ["cap"]),
    "the cap is lower than asked": (exact(cap=lambda mode, cap: cap and cap * 2 / 3), ["cap"]),
}


# ---- the learner's own loss ---------------------------------------------------------------------------------------

WEIGHTS = {
    "one pair": [7.0],
    "equal weights": [0.002] * 4,
    "one heavy pair": [0.01, 0.01, 0.01, 9.0],
    "many weights": [3.0, 0.5, 1.25, 0.004, 12.0, 2.0, 0.75],
}


def try_out(weighted_loss, scenario, mode, cap):
    """[the factor of each pair, the loss of the losses 1, 2, 3, ..., the weights afterwards]"""
    weights = torch.tensor(WEIGHTS[scenario], dtype=torch.float64)
    losses = torch.arange(1.0, len(weights) + 1, dtype=torch.float64, requires_grad=True)
    loss = weighted_loss(losses, weights, mode, cap)
    [shares] = torch.autograd.grad(loss, losses)
    return [shares * len(weights), loss, weights]


def right(scenario, mode, cap):
    """The right result of try_out."""
    weights = torch.tensor(WEIGHTS[scenario], dtype=torch.float64)
    factors = exact()(weights, mode, cap)
    return factors, (factors * torch.arange(1.0, len(weights) + 1, dtype=torch.float64)).mean()
