"""Inside a rank, for 18.2: run the learner's detector on losses that keep or break promises, and the learner's loss."""

import torch

from ddp_course.grader.harness.versions import driver_of

from .given import MODES


def loss_of(factors):
    """A weighted_loss from factors(weights, mode, cap)."""

    def weighted_loss(losses, weights, mode, cap):
        return (factors(weights, mode, cap) * losses).mean()

    return weighted_loss


# ---- versions of the factors --------------------------------------------------------------------------------------


def capped(factors, cap):
    return factors if cap is None else factors.clamp(max=cap)


def unchanged(weights):
    return weights


def over_mean(weights):
    return weights / weights.mean()


def by_mode(none=torch.ones_like, mean=over_mean, sum_=unchanged, uncapped=()):
    """A function of (weights, mode, cap) that returns the factors; with the defaults, the factors that are promised.

    none, mean, sum_  the factors of each mode, as functions of the weights
    uncapped          the modes that ignore the cap
    """

    def factors(weights, mode, cap):
        result = {"none": none, "mean": mean, "sum": sum_}[mode](weights)
        return result if mode in uncapped else capped(result, cap)

    return factors


promised = by_mode()


def as_given(weights, mode, cap):
    weights = capped(weights, cap)
    return weights if mode == "none" else over_mean(weights)


def cap_then_mean_again(weights, mode, cap):
    """Divides by the mean once more after the cap: the factors have mean 1, and the largest is above the cap again."""
    factors = promised(weights, mode, cap)
    return over_mean(factors) if mode == "mean" else factors


def scaled_down_to_cap(weights, mode, cap):
    """Divides all factors so that the largest is the cap: bounded, but the others change as well."""
    factors = promised(weights, mode, None)
    return factors if cap is None else factors * min(1.0, cap / factors.max().item())


def cap_before_mean(weights, mode, cap):
    return promised(capped(weights, cap), mode, None)


def lower_cap(weights, mode, cap):
    return promised(weights, mode, cap and cap * 2 / 3)


def mean_by_softmax(weights):
    return weights.log().softmax(0) * len(weights)


VERSIONS = {  # the factors, and the promises that they break
    "keeps them all": (promised, []),
    "mean as losses times softmax of the logarithms": (by_mode(mean=mean_by_softmax), []),
    "the given one": (as_given, ["none", "sum", "cap"]),
    "none uses the weights": (by_mode(none=unchanged), ["none"]),
    "sum is the weighted mean": (by_mode(sum_=over_mean), ["sum"]),
    "mean is not divided": (by_mode(mean=unchanged), ["mean"]),
    "mean is divided by the largest weight": (by_mode(mean=lambda weights: weights / weights.max()), ["mean"]),
    "mean is divided by the median weight": (by_mode(mean=lambda weights: weights / weights.median()), ["mean"]),
    "mean and sum exchanged": (by_mode(mean=unchanged, sum_=over_mean), ["mean", "sum"]),
    "sum is not divided by the number of pairs": (by_mode(sum_=lambda weights: weights * len(weights)), ["sum"]),
    "the weights are cut before they are divided": (cap_before_mean, ["cap"]),
    "what the cap cuts off is handed to all": (cap_then_mean_again, ["cap"]),
    "the cap makes all factors smaller": (scaled_down_to_cap, ["cap"]),
    "the cap holds in mode mean alone": (by_mode(uncapped=("none", "sum")), ["cap"]),
    "the cap does not hold in mode none": (by_mode(uncapped=("none",)), ["cap"]),
    "the cap is ignored": (by_mode(uncapped=MODES), ["cap"]),
    "the cap is lower than asked": (lower_cap, ["cap"]),
    "sum is the weighted mean, and ignores the cap": (by_mode(sum_=over_mean, uncapped=("sum",)), ["sum", "cap"]),
}


# ---- the learner's own loss ---------------------------------------------------------------------------------------

WEIGHTS = {
    "one pair": [7.0],
    "equal weights": [0.002] * 4,
    "one heavy pair": [0.01, 0.01, 0.01, 9.0],
    "many weights": [3.0, 0.5, 1.25, 0.004, 12.0, 0.75],
}


def data(scenario):
    """Weights and losses, (n,) each."""
    weights = torch.tensor(WEIGHTS[scenario], dtype=torch.float64)
    return weights, torch.arange(1.0, len(weights) + 1, dtype=torch.float64)


def try_out(weighted_loss, scenario, mode, cap):
    """[the factor of each pair, the weighted loss, the weights after the call]"""
    weights, losses = data(scenario)
    loss = weighted_loss(losses.requires_grad_(), weights, mode, cap)
    [gradient] = torch.autograd.grad(loss, losses)
    return [gradient * len(weights), loss, weights]


def right(scenario, mode, cap):
    """The right factors and loss of try_out."""
    weights, losses = data(scenario)
    factors = promised(weights, mode, cap)
    return factors, (factors * losses).mean()


drive = driver_of({name: loss_of(factors) for name, (factors, _) in VERSIONS.items()}, try_out)
