"""Draw the metrics of a speedrun's stages, each result with its baseline."""

from collections.abc import Sequence

from ddp_course.base.errors import InputError
from ddp_course.base.intervals import wilson_interval
from ddp_course.base.quantity import format_number, is_number
from ddp_course.lab import figures
from ddp_course.lab.figures.style import MUTED, RANK_COLOURS, new_figure

Records = list[dict]
POLICY, REAL = RANK_COLOURS[0], RANK_COLOURS[2]


def values(records: Records, key: str) -> dict[int, float]:
    """{step: value} of the records with a number under `key`; a later record of a step replaces an earlier one.

    A loss that was NaN is null in the metrics, and is left out.
    """
    return {record["step"]: record[key] for record in records if is_number(record.get(key)) and "step" in record}


def last_of(records: Records, key: str) -> float:
    """The value at the last step that has one. Raises InputError if none has."""
    series = _existing_values(records, key)
    return series[max(series)]


def best_of(records: Records) -> int:
    """The step with the lowest held-out loss; of equals, the earliest. Raises InputError if there is none."""
    losses = _existing_values(records, "val_loss")
    return min(sorted(losses), key=losses.__getitem__)


def _existing_values(records: Records, key: str) -> dict[int, float]:
    """As `values`. Raises InputError if there are none."""
    series = values(records, key)
    if not series:
        raise InputError(f"the metrics hold no {key.replace('_', ' ')} that is a number")
    return series


def first_to_last(name: str, series: dict[int, float]) -> str:
    """The first and the last value of {step: value}, in words. Raises InputError if it is empty."""
    steps = sorted(series)
    if not steps:
        raise InputError(f"the metrics hold no {name} that is a number")
    first, last = format_number(series[steps[0]]), format_number(series[steps[-1]])
    if len(steps) == 1:
        return f"{name} {last} at step {steps[0]}"
    return f"{name} {first} at step {steps[0]}, {last} at step {steps[-1]}"


def draw_pretrain(records: Records):
    """Draw the training loss; the title has its first and its last value."""
    return figures.loss_curves({"training": records}, "Pre-training: " + first_to_last("loss", values(records, "loss")))


def draw_reward(records: Records):
    """Draw loss and accuracy on held-out pairs, with the interval of the gain over the backbone's likelihood."""
    loss, series, best = values(records, "val_loss"), values(records, "val_accuracy"), best_of(records)
    baseline = last_of(records, "val_baseline")
    figure, (left, right) = new_figure(
        f"Reward model: the lowest held-out loss {loss[best]:.3f} at step {best}, with {series[best]:.1%} of the "
        f"pairs; the backbone's likelihood alone {baseline:.1%}",
        3.0,
        ncols=2,
    )
    left.plot(list(loss), list(loss.values()), marker="o", color=POLICY)
    left.plot(best, loss[best], "*", markersize=15, color=RANK_COLOURS[1], zorder=5, label="kept as the best")
    low = [baseline + gain for gain in values(records, "val_gain_low").values()]
    high = [baseline + gain for gain in values(records, "val_gain_high").values()]
    draw_shares(right, series, low, high, "with the head, 95 % over files")
    right.axhline(baseline, color=MUTED, linestyle="--", label="likelihood alone, no training")
    right.set_ylim(0.5, 1)  # from chance to always correct
    for axes, shown in ((left, "held-out loss"), (right, "held-out pair accuracy")):
        axes.set(xlabel="optimizer step", ylabel=shown)
        axes.legend(fontsize=9)
    return figure


def draw_grpo(records: Records):
    """Draw the judge's reward and the share of completions that parse; lines: the values of real code."""
    reward, parse_rate = values(records, "val_reward"), values(records, "val_parses")
    real, real_rate = last_of(records, "val_real"), last_of(records, "val_real_parses")
    last = max(reward)
    figure, (left, right) = new_figure(
        f"GRPO: the judge's reward {reward[0]:.2f} to {reward[last]:.2f}, real code {real:.2f}; "
        f"what parses {parse_rate[0]:.1%} to {parse_rate[last]:.1%}, real code {real_rate:.1%}",
        3.0,
        ncols=2,
    )
    left.plot(list(reward), list(reward.values()), marker="o", color=POLICY, label="policy")
    prompts = last_of(records, "val_prompts")
    low, high = zip(*(wilson_interval(share * prompts, prompts) for share in parse_rate.values()), strict=True)
    draw_shares(right, parse_rate, low, high, "policy, 95 % over prompts")
    for axes, level, shown in (
        (left, real, "mean reward, given by the judge"),
        (right, real_rate, "share that parses"),
    ):
        axes.axhline(level, color=REAL, label="real code after the same prompts")
        axes.set(xlabel="step", ylabel=shown)
    right.set_ylim(0, 1.5 * right.get_ylim()[1])  # room for the legend of both: on the left it would cover a line
    right.legend(fontsize=8)
    return figure


def draw_shares(axes, shares: dict[int, float], low: Sequence[float], high: Sequence[float], label: str) -> None:
    """Draw shares, {step: share}, each with its interval from `low` to `high`."""
    middle = list(shares.values())
    below = [max(0.0, share - end) for share, end in zip(middle, low, strict=True)]
    above = [max(0.0, end - share) for share, end in zip(middle, high, strict=True)]
    axes.errorbar(list(shares), middle, [below, above], color=POLICY, marker="o", capsize=3, label=label)
