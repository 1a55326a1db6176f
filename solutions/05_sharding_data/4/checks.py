"""05.4: a stream over files for ranks and workers, which resumes exactly where it stopped."""

import json
from itertools import chain

from ddp_course.grader.vocabulary import Call, Job, Wrong, cases, check, expect, like_neighbours, plural, where

SIZES = [17, 0, 5, 31, 11]  # lines of each file
BATCH_SIZE, SEED = 3, 8
SAMPLES = {f"{file}:{line}" for file, size in enumerate(SIZES) for line in range(size)}
LARGEST_STATE = 200  # characters of JSON
PREFETCH_FACTOR = 2  # batches that torch's DataLoader lets each worker build in advance


def stage(ranks, workers, batches=None):
    """A part of a run, which ends after `batches` batches of each rank; None: at the end of the epoch."""
    return {"ranks": ranks, "workers": workers, "batches": batches}


def call(scenario, *stages, seed=SEED, batch_size=BATCH_SIZE):
    """A call of `read` on 4 ranks, of which each stage needs the first ones."""
    return Call([(SIZES, batch_size, seed, list(stages))] * 4, scenario)


WHOLE = call("2 ranks, no workers, two epochs", stage(2, 0), stage(2, 0))
STOPPED = [
    call("2 ranks stop after 3 batches, and continue with 2 workers each", stage(2, 0, 3), stage(2, 2)),
    call("2 ranks with 1 worker stop after 2 and after 5 batches", stage(2, 1, 2), stage(2, 0, 3), stage(2, 0)),
]
CALLS = (
    WHOLE,  # before those with workers: what fails here is no fault of theirs
    call("4 ranks, 2 workers each; then epoch 1 without workers", stage(4, 2), stage(4, 0)),
    call("1 rank, 2 workers; then epoch 1 without workers", stage(1, 2), stage(1, 0)),
    *STOPPED,
    # 3 ranks share the last 4 of the 64 samples: parts of 2, 2 and 0 would leave one without a batch.
    call(
        "in epoch 1, 2 ranks stop after 5 batches, 4 continue for one, 3 to the end",
        *(stage(1, 0), stage(2, 2, 5), stage(4, 0, 1), stage(3, 1)),
    ),
    call("2 ranks, the next seed, two epochs", stage(2, 0), stage(2, 0), seed=SEED + 1),
    # Seed 20 in epoch 10 and seed 201 in epoch 0 have the same digits; 100 * seed + epoch is 2100 for seed 20 in epoch
    # 100 and seed 21 in epoch 0. Batches of 4 divide the 64 samples: the last one ends where the epoch ends.
    call("1 rank, seed 20, 101 epochs", *[stage(1, 0)] * 101, seed=20),
    call("1 rank, seed 21", stage(1, 0), seed=21),
    call("1 rank, seed 201, batches of 4, two epochs", *[stage(1, 0)] * 2, seed=201, batch_size=4),
)
# DataLoader forks its workers from a process with threads: one run in some hundreds hangs, whatever the answer does.
# And it waits up to five seconds for a worker that has not noticed that it is to end.
JOBS = [Job(4, function="read", calls=CALLS, seconds=8.0, patience=6.0, tries=2, driver=True)]


@check(
    f"each of {len(SAMPLES)} samples is read once an epoch, by 1, 2, 3 and 4 ranks, with 0, 1 and 2 workers each",
    begin="{scenario}: ",
)
def every_sample_is_read_once(case):
    for epoch in epochs(stages_of(case)):
        samples = [sample for batches in epoch for batch in batches for sample in batch]
        repeated, unknown = len(samples) - len(set(samples)), set(samples) - SAMPLES
        unread = len(SAMPLES - set(samples))
        faults = {
            f"left out {unread} of {len(SAMPLES)} samples": unread,
            f"had {plural(repeated, 'reading')} of samples read before": repeated,
        }
        if unknown:
            raise Wrong(f"{min(unknown)} was read, which is no sample", "the arguments of load(file, line)")
        expect(
            not any(faults.values()),
            f"an epoch {' and '.join(words for words, count in faults.items() if count)}",
            where_to_look(case, repeated),
        )


@check("all ranks have equally many batches", begin="{scenario}: ")
def all_ranks_have_as_many_batches(case):
    for number, (stage, by_rank) in enumerate(stages_of(case), 1):
        counts = [len(batches) for batches in by_rank]
        expect(
            len(set(counts)) == 1,
            f"the ranks had {counts} batches in part {number}",
            "how many samples are left for the last batches, and which ranks get them?",
        )
        sizes, batch_size = [len(batch) for batches in by_rank for batch in batches] or [1], case.args[0][1]
        expect(
            1 <= min(sizes) <= max(sizes) <= batch_size,
            f"batches of {min(sizes)} to {max(sizes)} samples; batch_size is {batch_size}",
            "what one item of the stream is: a list of 1 to batch_size samples",
        )
        expect(
            stage["batches"] in (None, counts[0]),
            f"part {number} ended after {counts[0]} batches, before the epoch did",
            "when does the stream end: after the last sample of the epoch?",
        )


@check("stops and workers leave every batch of every rank as it is")
def workers_and_stops_change_nothing(records):
    by_call = {case.scenario: [by_rank for _, by_rank in stages_of(case)] for case in cases(records)}
    whole = by_call[WHOLE.scenario][0]
    for scenario in [stopped_call.scenario for stopped_call in STOPPED]:
        batches_by_rank = [list(chain.from_iterable(parts)) for parts in zip(*by_call[scenario], strict=True)]
        for rank, (batches, right_batches) in enumerate(zip(batches_by_rank, whole, strict=True)):
            for number, (batch, right) in enumerate(zip(batches, right_batches, strict=False)):
                expect(
                    batch == right,
                    f"{scenario}: batch {number} of rank {rank} is {batch}; in a run that was neither stopped nor had "
                    f"workers it is {right}",
                    "which batches does worker i have to build, so that taking turns gives the order back?",
                )


@check("every epoch and every seed has a random order of its own")
def the_order_is_random(records):
    orders = {}
    for case in cases(records):
        if is_stopped(case):
            continue
        for epoch, (stage, by_rank) in enumerate(stages_of(case)):
            seed = case.args[0][2]
            samples_by_rank = [list(chain.from_iterable(batches)) for batches in by_rank]
            orders[stage["ranks"], seed, epoch] = samples_by_rank
    for (world, seed, epoch), order in orders.items():
        begin = f"{where(world)[:-2]} and seed {seed}: epoch {epoch}"
        samples = [tuple(map(int, sample.split(":"))) for sample in order[0]]
        expect(
            not like_neighbours(samples, sorted(samples)),
            f"{begin} goes through the files in order",
            "what shuffles the samples?",
        )
        for (other_world, other_seed, other_epoch), other in orders.items():
            if world == other_world and (seed, epoch) != (other_seed, other_epoch):
                observed = f"{begin} has the order of seed {other_seed}, epoch {other_epoch}"
                expect(
                    order != other,
                    observed,
                    "the order is drawn from the pair of seed and epoch: do other pairs make the same number or text?",
                )
                expect(
                    not like_neighbours(order[0], other[0]),
                    f"{observed}, started elsewhere or read backwards",
                    "is the order of an epoch drawn, or made from that of another epoch?",
                )


@check(lambda longest: f"the state has at most {longest[0]} characters and is the same on all ranks")
def the_state_is_small(records):
    longest = 0
    for case in cases(records):
        for rank, result in enumerate(case.results):
            first, second = result[0]["asked twice"]
            expect(
                first == second,
                f"{case.scenario}: on rank {rank} state_after(2) returned {first[:80]}, and {second[:80]} in a second "
                "call",
                "a call of state_after must not change the stream",
            )
        for number, stage in enumerate(case.args[0][3]):
            states = [result[number]["state"] for result in case.results[: stage["ranks"]]]
            expect(
                len({json.dumps(json.loads(state), sort_keys=True) for state in states}) == 1,
                f"{case.scenario}: after part {number + 1} rank 0 has the state {states[0][:80]}, "
                f"rank {len(states) - 1} {states[-1][:80]}",
                "count the samples that all ranks have read: one state is saved for all of them",
            )
            longest = max(longest, *map(len, states))
    expect(
        longest <= LARGEST_STATE,
        f"a state has {longest} characters; {LARGEST_STATE} are enough for a stream of any length",
        "which numbers are needed to draw the order again, and to continue at the right sample?",
    )
    return longest


@check("a rank loads what it reads and nothing else, also after a stop", begin="{scenario}: ")
def nothing_is_loaded_in_vain(case):
    batch_size = case.args[0][1]
    for number, (stage, by_rank) in enumerate(stages_of(case)):
        ahead = PREFETCH_FACTOR * stage["workers"] * batch_size if stage["batches"] else 0
        for rank, batches in enumerate(by_rank):
            used, loaded = sum(map(len, batches)), case.results[rank][number]["loaded"]
            expect(
                loaded <= used + ahead,
                f"in part {number + 1} rank {rank} loaded {loaded} samples for the {used} it read"
                + (f", and {ahead} at most that its workers build ahead" if ahead else ""),
                "when is a batch built: as it is asked for, or before?"
                if stage["batches"] and loaded <= used + ahead + batch_size
                else "is load called only for samples of this rank that were not read before?",
            )
            expect(
                loaded >= used,
                f"rank {rank} read {used} samples and loaded {loaded}",
                "every sample that a rank reads comes from its own call of load",
            )


def stages_of(case):
    """[(stage, the batches of each rank that took part)]; raises Wrong if read returned something else."""
    stages = case.args[0][3]
    parts = []
    for number, stage in enumerate(stages):
        by_rank = []
        for rank, result in enumerate(case.results[: stage["ranks"]]):
            complete = isinstance(result, list) and len(result) == len(stages)
            if not complete or not isinstance(result[number], dict) or "loaded" not in result[number]:
                raise Wrong(f"read returned {str(result)[:60]} on rank {rank}", "read stays as it was given")
            batches = result[number]["batches"]
            for batch in batches:
                expect(
                    isinstance(batch, list) and all(isinstance(sample, str) for sample in batch),
                    f"rank {rank} got {str(batches)[:60]} from its stream",
                    "one item of the stream is a list of what load returned",
                )
            by_rank.append(batches)
        parts.append((stage, by_rank))
    return parts


def epochs(stages):
    """Yield the batches of each epoch, a list for each rank and stage; a stage without a stop ends an epoch."""
    epoch = []
    for stage, by_rank in stages:
        epoch += by_rank
        if stage["batches"] is None:
            yield epoch
            epoch = []


def is_stopped(case):
    return any(stage["batches"] for stage in case.args[0][3])


def where_to_look(case, repeated):
    """Where to look if `repeated` readings were of samples read before, or samples were never read."""
    stages = case.args[0][3]
    if is_stopped(case):
        if len({stage["ranks"] for stage in stages}) > 1:
            return "does the state mean the same on any number of ranks? All samples before it must have been read"
        return "which number the state holds, and which copy of the stream counted it"
    if repeated and any(stage["workers"] for stage in stages):
        return "every worker is a copy of the stream: what does each of them yield?"
    return "the end of the epoch, and whether all ranks cut their share out of the same order"
