"""A pipeline's orders on a clock that no machine disturbs, and the bubble that they leave."""

from collections.abc import Sequence
from functools import cache

from ddp_course.base.errors import InputError

LENGTH = {"forward": 1, "input": 1, "weights": 1, "backward": 2}  # a full backward is both of its parts
MOST_MICRO_BATCHES = 64


def gpipe(stages: int, micro_batches: int) -> list[list[dict]]:
    """The events of each rank: all forwards, then all backwards."""
    numbers = range(micro_batches)
    return [[_event(kind, number) for kind in ("forward", "backward") for number in numbers] for _ in range(stages)]


def one_f_one_b(stages: int, micro_batches: int) -> list[list[dict]]:
    """The events of each rank: a forward ahead for each stage behind it; then a forward and a backward in turn."""
    ranks = []
    for rank in range(stages):
        ahead = min(stages - 1 - rank, micro_batches)
        turns = [(("forward", number + ahead), ("backward", number)) for number in range(micro_batches)]
        order = [("forward", number) for number in range(ahead)] + [step for turn in turns for step in turn]
        ranks.append([_event(kind, number) for kind, number in order if number < micro_batches])
    return ranks


SCHEDULES = {"gpipe": gpipe, "1f1b": one_f_one_b}


def _event(kind: str, number: int) -> dict:
    return {"kind": kind, "number": number}


def timed(ranks: Sequence[Sequence[dict]], factors: Sequence[float] = ()) -> list[list[dict]]:
    """The events with their start and end if only the steps took time, and each began as soon as its input was there.

    `ranks` holds the events of each rank in order, with their "kind", the "number" of the micro-batch, and the "stage"
    if that is not the rank. With "sent_with_next" an output leaves when the rank's next event ends. `factors`: how many
    times as long each rank's steps take.
    """
    orders = [[(e.get("stage", rank), e["number"], e["kind"]) for e in events] for rank, events in enumerate(ranks)]
    previous = {step: earlier for order in orders for earlier, step in zip([None, *order], order, strict=False)}

    leaves_after = {
        step: following
        for events, order in zip(ranks, orders, strict=True)
        for event, step, following in zip(events, order, order[1:], strict=False)
        if event.get("sent_with_next")
    }
    lengths = {
        step: LENGTH[step[2]] * factor
        for order, factor in zip(orders, factors or [1] * len(orders), strict=True)
        for step in order
    }

    @cache
    def end(step: tuple[int, int, str]) -> float:
        stage, number, kind = step
        inputs = {"forward": [(stage - 1, number, "forward")], "weights": []}.get(
            kind, [(stage + 1, number, "backward"), (stage + 1, number, "input")]
        )
        needed = [previous[step], *(leaves_after.get(other, other) for other in inputs)]
        return lengths[step] + max((end(other) for other in needed if other in previous), default=0)

    return [
        [event | {"start": end(step) - lengths[step], "end": end(step)} for event, step in zip(*pair, strict=True)]
        for pair in zip(ranks, orders, strict=True)
    ]


def order_bubble(ranks: Sequence[Sequence[dict]], factors: Sequence[float] = ()) -> float:
    """The share of idle time on that clock."""
    lanes = timed(ranks, factors)
    busy = sum(event["end"] - event["start"] for events in lanes for event in events)
    return 1 - busy / max(events[-1]["end"] for events in lanes) / len(lanes)


def most_in_flight(events: Sequence[dict]) -> int:
    """The most micro-batches of which a rank keeps activations, between their forward and their backward."""
    kept = [0]
    for event in events:
        kept.append(kept[-1] + {"forward": 1, "backward": -1}[event["kind"]])
    return max(kept)


def schedule(name: str, stages: int, micro_batches: int) -> list[list[dict]]:
    """The timed events of each rank. Raises InputError for more than a page can draw."""
    for number, what in ((stages, "stages"), (micro_batches, "micro-batches")):
        if not 1 <= number <= MOST_MICRO_BATCHES:
            raise InputError(f"{what} are from 1 to {MOST_MICRO_BATCHES}, got {number}")
    return timed(SCHEDULES[name](stages, micro_batches))
