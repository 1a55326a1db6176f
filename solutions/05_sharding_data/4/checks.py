"""05.4: a stream over files that ranks and workers share, and that goes on exactly where it stopped."""

import json
from itertools import chain

from ddp_course.grader.answer_record import Call, Job, cases
from ddp_course.grader.verdict import Wrong
from ddp_course.grader.vocabulary import like_neighbours

SIZES, BATCH, SEED = [17, 0, 5, 31, 11], 3, 8  # lines of each file; samples that a rank reads at a time
ALL = {f"{file}:{line}" for file, size in enumerate(SIZES) for line in range(size)}
LARGEST_STATE = 200  # characters of JSON
AHEAD = 2  # batches that torch's loader lets each worker build in advance


def stage(ranks, workers, batches=None):
    """`batches` None: to the end of the epoch."""
    return {"ranks": ranks, "workers": workers, "batches": batches}


def call(given, *stages, seed=SEED):
    return Call([(SIZES, BATCH, seed, list(stages))] * 4, given)


TWO_EPOCHS = call("4 ranks, 2 workers each; then epoch 1 without workers", stage(4, 2), stage(4, 0))
ALONE = call("1 rank, 2 workers; then epoch 1 without workers", stage(1, 2), stage(1, 0))
WHOLE = call("2 ranks, no workers, two epochs", stage(2, 0), stage(2, 0))
STOPPED = call("2 ranks stop after 3 batches, and go on with 2 workers each", stage(2, 0, 3), stage(2, 2))
AGAIN = call("2 ranks with 1 worker stop after 2 and after 5 batches", stage(2, 1, 2), stage(2, 0, 3), stage(2, 0))
OTHER = call(
    "2 ranks stop after 5 batches, 4 go on for one, 3 go on to the end", stage(2, 2, 5), stage(4, 0, 1), stage(3, 1)
)
# 3 ranks share the last 4 of its 64 samples: parts of 2, 2 and 0 would leave one without a batch.
NEIGHBOUR = call("2 ranks, the next seed, two epochs", stage(2, 0), stage(2, 0), seed=SEED + 1)
# Seed 20 in epoch 10 and seed 201 in epoch 0 have the same digits.
LATE = call("1 rank, seed 20, eleven epochs", *[stage(1, 0)] * 11, seed=20)
ANOTHER = call("1 rank, seed 201", stage(1, 0), seed=201)
CALLS = (TWO_EPOCHS, ALONE, WHOLE, STOPPED, AGAIN, OTHER, NEIGHBOUR, LATE, ANOTHER)
UNSTOPPED = [one.given for one in (TWO_EPOCHS, ALONE, WHOLE, NEIGHBOUR, LATE, ANOTHER)]
# Its workers are forked from a process with threads: one of some hundred such runs hangs through nobody's fault.
# And torch's loader waits up to five seconds for a worker that has not heard that it is to end.
JOBS = [Job(4, function="read", calls=CALLS, seconds=8.0, patience=6.0, tries=2, driver=True)]


def every_sample_is_read_once(records):
    """In each epoch, however it is cut into stages, the ranks together read every sample once."""
    for case, stages in shown(records):
        for epoch in epochs(stages):
            samples = [sample for batches in epoch for batch in batches for sample in batch]
            again, unknown = len(samples) - len(set(samples)), set(samples) - ALL
            if unknown:
                raise Wrong(f"{case.given}: {min(unknown)} was read, which is no sample", "file and line of load(...)")
            if again or set(samples) != ALL:
                raise Wrong(
                    f"{case.given}: of {len(ALL)} samples {len(ALL - set(samples))} were never read in an epoch, and "
                    f"{again} readings were of samples read before",
                    where_to_look(case, again),
                )
    return f"each of {len(ALL)} samples is read once an epoch, by 1, 2, 3 and 4 ranks, with 0, 1 and 2 workers each"


def all_ranks_have_as_many_batches(records):
    """Ranks have equally many batches, each of 1 to batch_size samples."""
    for case, stages in shown(records):
        for number, (one, by_rank) in enumerate(stages):
            counts = [len(batches) for batches in by_rank]
            if len(set(counts)) > 1:
                raise Wrong(
                    f"{case.given}: the ranks had {counts} batches in part {number + 1}",
                    "how many samples are left for the last batches, and who gets them?",
                )
            sizes = [len(batch) for batches in by_rank for batch in batches]
            if sizes and not 1 <= min(sizes) <= max(sizes) <= BATCH:
                raise Wrong(
                    f"{case.given}: batches of {min(sizes)} to {max(sizes)} samples; batch_size is {BATCH}",
                    "what one item of the stream is: a list of 1 to batch_size samples",
                )
            if one["batches"] and counts[0] != one["batches"]:
                raise Wrong(
                    f"{case.given}: part {number + 1} ended after {counts[0]} batches, before the epoch did",
                    "where the stream ends",
                )
    return "all ranks have equally many batches"


def workers_and_stops_change_nothing(records):
    """On the same ranks the batches are the same, in the same order, with workers, without, stopped or not."""
    by_call = {case.given: [by_rank for _, by_rank in stages] for case, stages in shown(records)}
    whole = by_call[WHOLE.given][0]
    for one in (STOPPED, AGAIN):
        joined = [list(chain.from_iterable(parts)) for parts in zip(*by_call[one.given], strict=True)]
        for rank, (found, right) in enumerate(zip(joined, whole, strict=True)):
            if found != right:
                place = next(i for i, (a, b) in enumerate(zip(found, right, strict=False)) if a != b)
                raise Wrong(
                    f"{one.given}: batch {place} of rank {rank} is {found[place]}; in a run that was neither stopped "
                    f"nor had workers it is {right[place]}",
                    "which batches does worker i have to build, so that taking turns gives the order back?",
                )
    return "stops and workers leave every batch of every rank as it is"


def the_order_is_random(records):
    """Epochs and seeds have orders of their own."""
    orders = {}
    for case, stages in shown(records):
        if case.given in UNSTOPPED:
            seed, world = case.args[0][2], stages[0][0]["ranks"]
            for epoch, (_, by_rank) in enumerate(stages):
                orders[world, seed, epoch] = [[sample for batch in batches for sample in batch] for batches in by_rank]
    for (world, seed, epoch), order in orders.items():
        where = f"with {world} rank{'s' * (world > 1)} and seed {seed}: epoch {epoch}"
        mine = [tuple(map(int, sample.split(":"))) for sample in order[0]]
        if like_neighbours(mine, sorted(mine)):
            raise Wrong(f"{where} goes through the files in order", "what shuffles the samples?")
        for (other_world, other_seed, other_epoch), other in orders.items():
            same_key = (seed, epoch) == (other_seed, other_epoch)
            if world != other_world or same_key:
                continue
            if order == other:
                raise Wrong(
                    f"{where} has the order of seed {other_seed}, epoch {other_epoch}",
                    "the order is drawn from the pair of seed and epoch: do other pairs make the same number or text?",
                )
            if like_neighbours(order[0], other[0]):
                raise Wrong(
                    f"{where} has the order of seed {other_seed}, epoch {other_epoch}, begun at another place or read "
                    "backwards",
                    "is the order of an epoch drawn, or made from that of another epoch?",
                )
    return "every epoch and every seed has a random order of its own"


def the_state_is_small(records):
    """The state is a little JSON, the same on all ranks, and the same when it is asked for again."""
    longest = 0
    for case in cases(records):
        for rank, result in enumerate(case.results):
            first, again = result[0]["asked twice"]
            if first != again:
                raise Wrong(
                    f"{case.given}: on rank {rank} state_after(2) is {first[:80]}, and when it is asked again "
                    f"{again[:80]}",
                    "state_after says where the stream would stand; whoever asks moves nothing",
                )
        for number, one in enumerate(case.args[0][3]):
            states = [result[number]["state"] for result in case.results[: one["ranks"]]]
            if len({json.dumps(json.loads(state), sort_keys=True) for state in states}) > 1:
                raise Wrong(
                    f"{case.given}: after part {number + 1} rank 0 has the state {states[0][:80]}, "
                    f"rank {len(states) - 1} {states[-1][:80]}",
                    "count what all ranks have read together: only one state is saved",
                )
            longest = max(longest, *map(len, states))
    if longest > LARGEST_STATE:
        raise Wrong(
            f"a state has {longest} characters; {LARGEST_STATE} are enough for a stream of any length",
            "what has to be known to draw the order again, and the place in it?",
        )
    return f"the state has at most {longest} characters and is the same on all ranks"


def nothing_is_loaded_in_vain(records):
    """A rank loads what it reads, and what its workers build ahead."""
    for case, stages in shown(records):
        for number, (one, by_rank) in enumerate(stages):
            for rank, batches in enumerate(by_rank):
                used, loaded = sum(map(len, batches)), case.results[rank][number]["loaded"]
                ahead = AHEAD * one["workers"] * BATCH if one["batches"] else 0
                if loaded > used + ahead:
                    raise Wrong(
                        f"{case.given}: in part {number + 1} rank {rank} loaded {loaded} samples for the {used} it read"
                        + (f", and {ahead} at most that its workers build ahead" if ahead else ""),
                        "when is a batch built: as it is asked for, or before?"
                        if one["batches"] and loaded <= used + ahead + BATCH
                        else "is it known whose sample it is, and whether it was read before, when load is called?",
                    )
                if loaded < used:
                    raise Wrong(f"{case.given}: rank {rank} read {used} samples and loaded {loaded}", "who calls load?")
    return "a rank loads what it reads and nothing else, also after a stop"


CHECKS = [
    every_sample_is_read_once,
    all_ranks_have_as_many_batches,
    workers_and_stops_change_nothing,
    the_order_is_random,
    the_state_is_small,
    nothing_is_loaded_in_vain,
]


def shown(records):
    """(case, [(stage, the batches of each rank that took part)]) for each call."""
    for case in cases(records):
        stages = case.args[0][3]
        parts = []
        for number, one in enumerate(stages):
            by_rank = []
            for rank, result in enumerate(case.results[: one["ranks"]]):
                whole = isinstance(result, list) and len(result) == len(stages)
                if not whole or not isinstance(result[number], dict) or "loaded" not in result[number]:
                    raise Wrong(f"read returned {str(result)[:60]} on rank {rank}", "read stays as it was given")
                batches = result[number]["batches"]
                if not all(isinstance(b, list) and all(isinstance(s, str) for s in b) for b in batches):
                    raise Wrong(
                        f"{case.given}: rank {rank} got {str(batches)[:60]} from its stream",
                        "one item of the stream is a list of what load returned",
                    )
                by_rank.append(batches)
            parts.append((one, by_rank))
        yield case, parts


def epochs(stages):
    """What was read in each epoch, a list of batches for each rank and stage; a stage without a stop ends an epoch."""
    epoch = []
    for one, by_rank in stages:
        epoch += by_rank
        if one["batches"] is None:
            yield epoch
            epoch = []


def where_to_look(case, again):
    stages = case.args[0][3]
    if any(one["batches"] for one in stages):
        if len({one["ranks"] for one in stages}) > 1:
            return "does the state mean the same on any number of ranks, and were the batches before it the first ones?"
        return "what the state says, and which copy of the stream counted it"
    if again and any(one["workers"] for one in stages):
        return "every worker is a copy of the stream: what does each of them yield?"
    return "the end of the epoch, and whether all ranks cut their share out of the same order"
