"""The bubble of a pipeline's orders on a clock that no machine disturbs."""

from collections.abc import Sequence
from functools import cache

LENGTH = {"forward": 1, "input": 1, "weights": 1, "backward": 2}  # a full backward is both of its parts


def order_bubble(ranks: Sequence[Sequence[dict]]) -> float:
    """The share of idle time if only the steps took time, and each began as soon as its input was there.

    `ranks` holds the events of each rank in order, with their "kind", the "number" of the micro-batch, and the "stage"
    if that is not the rank.
    """
    orders = [[(e.get("stage", rank), e["number"], e["kind"]) for e in events] for rank, events in enumerate(ranks)]
    previous = {step: earlier for order in orders for earlier, step in zip([None, *order], order, strict=False)}

    @cache
    def end(step: tuple[int, int, str]) -> int:
        stage, number, kind = step
        inputs = {"forward": [(stage - 1, number, "forward")], "weights": []}.get(
            kind, [(stage + 1, number, "backward"), (stage + 1, number, "input")]
        )
        return LENGTH[kind] + max((end(other) for other in (previous[step], *inputs) if other in previous), default=0)

    return 1 - sum(LENGTH[kind] for *_, kind in previous) / max(end(order[-1]) for order in orders) / len(ranks)
