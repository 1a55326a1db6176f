"""23.3: the order of work of each rank with several stages per rank; the orders of all ranks are simulated."""

from collections import Counter
from itertools import accumulate

from ddp_course.grader.vocabulary import Wrong, check, driver_job, expect

FUNCTION = "order"
FORWARD, BACKWARD = 1, 2  # the time that each takes
SIZES = [(2, 2, 4), (2, 2, 2), (4, 2, 8), (3, 3, 9), (2, 4, 6), (4, 1, 8), (1, 2, 3), (6, 2, 24)]
CALLS = {"ranks {}, per_rank {}, micro_batches {}".format(*sizes): sizes for sizes in SIZES}
JOBS = [driver_job(1, FUNCTION, CALLS)]


@check("each rank has each piece of its work once", begin="({scenario}): ")
def each_piece_of_work_once(case):
    ranks, per_rank, micro_batches = case.args[0]
    for rank, work in enumerate(orders_of(case)):
        right = Counter(
            (kind, stage, number)
            for kind in ("forward", "backward")
            for stage in range(rank, ranks * per_rank, ranks)
            for number in range(micro_batches)
        )
        counts = Counter(work)
        for piece in [*(counts - right), *(right - counts)]:
            times = "once" if counts[piece] == 1 else f"{counts[piece]} times"
            raise Wrong(
                f"rank {rank} has {piece} {times} in its list, and not {right[piece]}",
                "which stages the rank has (they go round the ranks in a loop), and the form of an entry",
            )


@check("no rank waits forever", begin="({scenario}): ")
def no_rank_waits_forever(case):
    ranks, per_rank, _ = case.args[0]
    _, waiting = run(orders_of(case), ranks * per_rank)
    if waiting:
        (kind, stage, number), needed = waiting
        raise Wrong(
            f"rank {stage % ranks} waits forever with the {kind} of stage {stage}, micro-batch {number}, for the "
            f"{needed[0]} of stage {needed[1]}",
            "what has to come before it: its own forward, and what the neighbouring stage sends",
        )


@check("what a rank holds does not grow with the micro-batches", begin="({scenario}): ")
def little_is_held(case):
    ranks, per_rank, _ = case.args[0]
    for rank, work in enumerate(orders_of(case)):
        most = max(accumulate(1 if kind == "forward" else -1 for kind, _, _ in work))
        expect(
            most <= per_rank * ranks,
            f"rank {rank} holds {most} activations at once, more than {per_rank * ranks}",
            "how many forwards come before the first backward: as many as are needed until one can come",
        )


@check("the bubble is that of the formula", begin="({scenario}): ")
def the_bubble_is_that_of_the_formula(case):
    ranks, per_rank, micro_batches = case.args[0]
    end, _ = run(orders_of(case), ranks * per_rank)
    right = (per_rank * micro_batches + ranks - 1) * (FORWARD + BACKWARD)
    expect(
        end <= right,
        f"with forwards that take 1 and backwards that take 2 all is done after {end}; {right} are possible",
        "where a rank waits: draw the lanes of two ranks with two stages each and four micro-batches",
    )


def orders_of(case):
    """For each rank the list of (kind, stage, micro-batch) that `order` returned."""
    orders = case.results[0]
    for rank, work in enumerate(orders):
        expect(
            isinstance(work, list) and all(map(is_a_piece, work)),
            f"order returned {str(work)[:60]!r} for rank {rank}",
            'a list of ("forward" or "backward", stage, micro-batch)',
        )
    return [[tuple(piece) for piece in work] for work in orders]


def is_a_piece(entry):
    return isinstance(entry, list) and len(entry) == 3 and all(isinstance(part, str | int) for part in entry)


def run(orders, stages):
    """(time when the last piece of work ends, None), or (None, (piece that waits forever, piece it waits for))."""
    end_times, clocks, counts = {}, [0] * len(orders), [0] * len(orders)
    waiting = {}
    while sum(counts) < sum(map(len, orders)):
        old_count = sum(counts)
        for rank, work in enumerate(orders):
            while counts[rank] < len(work):
                piece = work[counts[rank]]
                missing = [need for need in needs(*piece, stages) if need not in end_times]
                if missing:
                    waiting[rank] = piece, missing[0]
                    break
                begin = max([clocks[rank], *(end_times[need] for need in needs(*piece, stages))])
                clocks[rank] = end_times[piece] = begin + (FORWARD if piece[0] == "forward" else BACKWARD)
                counts[rank] += 1
        if sum(counts) == old_count:
            stuck = next(rank for rank, work in enumerate(orders) if counts[rank] < len(work))
            return None, waiting[stuck]
    return max(clocks), None


def needs(kind, stage, number, stages):
    """The pieces of work that have to be done before this one."""
    if kind == "forward":
        return [("forward", stage - 1, number)] if stage else []
    return [("forward", stage, number), *([("backward", stage + 1, number)] if stage < stages - 1 else [])]
