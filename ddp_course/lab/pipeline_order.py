"""Pipeline schedules on an ideal clock, on which only computation takes time, and their bubbles.

An event is a dict: its "kind", a key of LENGTH, and the "number" of its micro-batch.
"""

from collections.abc import Sequence
from functools import cache

from ddp_course.base.errors import InputError

LENGTH = {"forward": 1, "input": 1, "weights": 1, "backward": 2}  # a backward is its parts "input" and "weights"
MOST_MICRO_BATCHES = 64  # and most stages, that a page can draw


def gpipe(stages: int, micro_batches: int) -> list[list[dict]]:
    """The events of each rank: all forwards, then all backwards."""
    numbers = range(micro_batches)
    order = [{"kind": kind, "number": number} for kind in ("forward", "backward") for number in numbers]
    return [order] * stages


def one_f_one_b(stages: int, micro_batches: int) -> list[list[dict]]:
    """The events of each rank: one forward for each later stage, then a forward and a backward in turn."""
    ranks = []
    for rank in range(stages):
        ahead = min(stages - 1 - rank, micro_batches)
        order = [("forward", number) for number in range(ahead)]
        for number in range(micro_batches):
            order += [("forward", number + ahead), ("backward", number)]
        ranks.append([{"kind": kind, "number": number} for kind, number in order if number < micro_batches])
    return ranks


SCHEDULES = {"gpipe": gpipe, "1f1b": one_f_one_b}


def timed(ranks: Sequence[Sequence[dict]], factors: Sequence[float] = ()) -> list[list[dict]]:
    """The events of each rank with "start" and "end": each starts as soon as the previous one and its input are there.

    ranks     the events of each rank in order, with "stage" if that is not the rank. The output of an event with
              "sent_with_next" is sent when the rank's next event ends.
    factors   for each rank, a factor for the LENGTH of its events; default: 1
    """
    orders = [[(e.get("stage", rank), e["number"], e["kind"]) for e in events] for rank, events in enumerate(ranks)]
    previous = {action: earlier for order in orders for earlier, action in zip([None, *order], order, strict=False)}
    sent_after = {
        action: following
        for events, order in zip(ranks, orders, strict=True)
        for event, action, following in zip(events, order, order[1:], strict=False)
        if event.get("sent_with_next")
    }
    lengths = {
        action: LENGTH[action[2]] * factor
        for order, factor in zip(orders, factors or [1] * len(orders), strict=True)
        for action in order
    }

    @cache
    def end(action: tuple[int, int, str]) -> float:
        stage, number, kind = action
        inputs = []
        if kind == "forward":
            inputs = [(stage - 1, number, "forward")]
        elif kind != "weights":
            inputs = [(stage + 1, number, "backward"), (stage + 1, number, "input")]
        needed = [previous[action], *(sent_after.get(source, source) for source in inputs)]
        return lengths[action] + max((end(earlier) for earlier in needed if earlier in previous), default=0)

    return [
        [
            event | {"start": end(action) - lengths[action], "end": end(action)}
            for event, action in zip(events, order, strict=True)
        ]
        for events, order in zip(ranks, orders, strict=True)
    ]


def order_bubble(ranks: Sequence[Sequence[dict]], factors: Sequence[float] = ()) -> float:
    """The share of the ranks' time, from 0 to the last end, in which they are idle on the clock of `timed`."""
    lanes = timed(ranks, factors)
    busy = sum(event["end"] - event["start"] for events in lanes for event in events)
    return 1 - busy / max(events[-1]["end"] for events in lanes) / len(lanes)


def most_in_flight(events: Sequence[dict]) -> int:
    """The most micro-batches whose activations a rank holds at once, between their forward and their backward."""
    in_flight = [0]
    for event in events:
        in_flight.append(in_flight[-1] + {"forward": 1, "backward": -1}[event["kind"]])
    return max(in_flight)


def schedule(name: str, stages: int, micro_batches: int) -> list[list[dict]]:
    """The timed events of each rank in schedule "gpipe" or "1f1b". Raises InputError for more than a page can draw."""
    for name_of_count, count in (("stages", stages), ("micro-batches", micro_batches)):
        if not 1 <= count <= MOST_MICRO_BATCHES:
            raise InputError(f"{name_of_count} are from 1 to {MOST_MICRO_BATCHES}, got {count}")
    return timed(SCHEDULES[name](stages, micro_batches))
