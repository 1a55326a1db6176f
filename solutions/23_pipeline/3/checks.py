"""23.3: who computes what when, with several stages per rank; the orders of all ranks are run on paper."""

from collections import Counter

from ddp_course.grader.answer_record import Call, Job, cases
from ddp_course.grader.verdict import Wrong

FUNCTION = "order"
FORWARD, BACKWARD = 1, 2  # what they take
SIZES = [(2, 2, 4), (2, 2, 2), (4, 2, 8), (3, 3, 9), (2, 4, 6), (4, 1, 8), (1, 2, 3), (6, 2, 24)]
GIVEN_AS = {f"ranks {p}, per_rank {v}, micro_batches {m}": (p, v, m) for p, v, m in SIZES}
JOBS = [Job(1, FUNCTION, tuple(Call([sizes], given) for given, sizes in GIVEN_AS.items()), driver=True)]


def each_piece_of_work_once(records):
    """A rank's list has a forward and a backward for each of its stages and each micro-batch, and nothing else."""
    for (ranks, per_rank, micro_batches), given, orders in schedules(records):
        for rank, work in enumerate(orders):
            stages = range(rank, ranks * per_rank, ranks)
            right = Counter(
                (kind, stage, number)
                for kind in ("forward", "backward")
                for stage in stages
                for number in range(micro_batches)
            )
            found = Counter(work)
            if found != right:
                wrong = next(iter([*(found - right), *(right - found)]))
                raise Wrong(
                    f"({given}): rank {rank} has {wrong} {times(found[wrong])} in its list, and not {right[wrong]}",
                    "which stages the rank has: round the ranks in a loop; and the form of an entry",
                )
    return "each rank has each piece of its work once"


def no_rank_waits_forever(records):
    """Worked off at the same time, all lists come to their end: what a piece of work needs is done at some time."""
    for (ranks, per_rank, _), given, orders in schedules(records):
        _, waiting = run(orders, ranks * per_rank)
        if waiting:
            (kind, stage, number), needed = waiting
            raise Wrong(
                f"({given}): rank {stage % ranks} waits forever with the {kind} of stage {stage}, micro-batch "
                f"{number}, for the {needed[0]} of stage {needed[1]}",
                "what has to come before it: its own forward, and what the neighbouring stage sends",
            )
    return "no rank waits forever"


def little_is_held(records):
    """At no time has a rank more than per_rank * ranks forwards whose backward is not done."""
    for (ranks, per_rank, _), given, orders in schedules(records):
        limit = per_rank * ranks
        for rank, work in enumerate(orders):
            held = most = 0
            for kind, _, _ in work:
                held += 1 if kind == "forward" else -1
                most = max(most, held)
            if most > limit:
                raise Wrong(
                    f"({given}): rank {rank} holds {most} activations at once, more than {limit}",
                    "how many forwards come before the first backward: as many as are needed until one can come",
                )
    return "what a rank holds does not grow with the micro-batches"


def nobody_idles_longer_than_the_formula(records):
    """All work is done after (per_rank * micro_batches + ranks - 1) times a forward and a backward."""
    for (ranks, per_rank, micro_batches), given, orders in schedules(records):
        end, _ = run(orders, ranks * per_rank)
        right = (per_rank * micro_batches + ranks - 1) * (FORWARD + BACKWARD)
        if end > right:
            raise Wrong(
                f"({given}): with forwards that take 1 and backwards that take 2 all is done after {end}; "
                f"{right} are possible",
                "where a rank waits: draw the lanes of two ranks with two stages each and four micro-batches",
            )
    return "the bubble is that of the formula"


CHECKS = [each_piece_of_work_once, no_rank_waits_forever, little_is_held, nobody_idles_longer_than_the_formula]


def times(count):
    return "once" if count == 1 else f"{count} times"


def schedules(records):
    """For each call its sizes, how it is called, and by rank a list of (kind, stage, micro-batch)."""
    for case in cases(records):
        orders = case.results[0]
        for rank, work in enumerate(orders):
            if not (isinstance(work, list) and all(map(is_a_piece, work))):
                raise Wrong(
                    f"({case.given}): order returned {str(work)[:60]!r} for rank {rank}",
                    'a list of ("forward" or "backward", stage, micro-batch)',
                )
        yield GIVEN_AS[case.given], case.given, [[tuple(piece) for piece in work] for work in orders]


def is_a_piece(entry):
    return isinstance(entry, list) and len(entry) == 3 and all(isinstance(part, str | int) for part in entry)


def run(orders, stages):
    """(time at which the last piece of work is done, None), or (None, (what waits forever, what it waits for))."""
    done, clocks, places = {}, [0] * len(orders), [0] * len(orders)
    waiting = {}
    while sum(places) < sum(map(len, orders)):
        before = sum(places)
        for rank, work in enumerate(orders):
            while places[rank] < len(work):
                piece = work[places[rank]]
                missing = [one for one in needs(*piece, stages) if one not in done]
                if missing:
                    waiting[rank] = piece, missing[0]
                    break
                begin = max([clocks[rank], *(done[one] for one in needs(*piece, stages))])
                clocks[rank] = done[piece] = begin + (FORWARD if piece[0] == "forward" else BACKWARD)
                places[rank] += 1
        if sum(places) == before:
            stuck = next(rank for rank, work in enumerate(orders) if places[rank] < len(work))
            return None, waiting[stuck]
    return max(clocks), None


def needs(kind, stage, number, stages):
    """What has to be done before it."""
    if kind == "forward":
        return [("forward", stage - 1, number)] if stage else []
    return [("forward", stage, number), *([("backward", stage + 1, number)] if stage < stages - 1 else [])]
