"""05.3: a wrapper that skips the batches of other ranks, replaced; and a function that finds all of its faults."""

from ddp_course.grader.vocabulary import Call, check, expect, function_job, jobs_of, like_neighbours, where

from .given import run

FUNCTION = "diagnose"
BROKEN = "the broken script, 40 samples on 4 ranks"


def rank(*batches, built=None, raised=None):
    """A made-up result of `run` on one rank."""
    return {"batches": list(batches), "built": len(batches) if built is None else built, "raised": raised}


def results_of_the_broken_script(samples, world):
    """The results of the broken script's `run` in epoch 0 with batches of 4, by rank."""
    return [run(samples, 4, 0, rank, world) for rank in range(world)]


def diagnose(ranks):
    """The faults that the learner's function of this name has to find, in any order."""
    read = [sample for rank in ranks for batch in rank["batches"] for sample in batch]
    faults = {
        "raised": any(rank["raised"] for rank in ranks),
        "uneven": len({len(rank["batches"]) for rank in ranks}) > 1,
        "read again": len(read) > len(set(read)),
        "built but unused": any(rank["built"] > len(rank["batches"]) for rank in ranks),
    }
    return [name for name, present in faults.items() if present]


MADE_UP = {
    "nothing is wrong": [rank([0, 4], [2, 6]), rank([1, 5], [3, 7])],
    "nothing is wrong, the last batches are short": [rank([0, 4], [2, 6]), rank([1, 5], [3])],
    "nothing is wrong, some samples are left out": [rank([9, 4]), rank([1, 5]), rank([12, 7])],
    "no rank has a batch": [rank(), rank()],
    "rank 2 of four has a batch more": [rank([0]), rank([1]), rank([2], [3]), rank([4])],
    "rank 0 has a batch fewer": [rank([0, 5]), rank([1], [4]), rank([2], [3])],
    "ranks 0 and 2 read sample 5": [rank([0, 5]), rank([1, 6]), rank([5, 2])],
    "rank 1 reads sample 5 twice": [rank([0], [3]), rank([5], [5])],
    "rank 1 built two and used one": [rank([0]), rank([1], built=2), rank([2])],
    "rank 1 raised in the end": [rank([0]), rank([1], raised="RuntimeError")],
    "all four are wrong": [rank([0], [1]), rank([0], built=2, raised="RuntimeError")],
    "rank 1 reads sample 5 twice in one batch": [rank([0, 3]), rank([5, 5])],
    BROKEN: results_of_the_broken_script(40, 4),
    "the broken script, 32 samples on 2 ranks": results_of_the_broken_script(32, 2),
    "the broken script on 1 rank": results_of_the_broken_script(16, 1),
}
DIAGNOSE = function_job(1, FUNCTION, {scenario: (ranks,) for scenario, ranks in MADE_UP.items()})


def call(world, samples, batch_size, epoch):
    arguments = [(samples, batch_size, epoch, rank, world) for rank in range(world)]
    return Call(arguments, f"{samples} samples, batches of {batch_size}, epoch {epoch}")


# If ranks take every fourth sample, rank 3 has one fewer: of 51 samples, too few for a fourth, short batch; of 47, too
# few for a third whole one. 20 samples fill the batches of one rank, so that it reads the whole order of an epoch.
SIZES = [(4, 40, 4), (4, 64, 4), (4, 51, 4), (4, 47, 4), (3, 50, 3), (2, 30, 4), (1, 18, 4), (1, 20, 4)]
RUNS = jobs_of("run", [call(*sizes, epoch) for sizes in SIZES for epoch in range(3)], driver=True)
JOBS = [DIAGNOSE, *RUNS]


@check(
    f"{FUNCTION} finds what is wrong; with the broken script on 4 ranks: {', '.join(diagnose(MADE_UP[BROKEN]))}",
    [DIAGNOSE],
    begin="{scenario}: ",
)
def the_diagnosis_is_right(case):
    [result], right = case.results, diagnose(case.args[0][0])
    named = sorted(map(str, result)) if isinstance(result, list) else result
    expect(
        named == sorted(right),
        f"{FUNCTION} returned {named!r}, not {sorted(right)}",
        lambda: where_to_look(result, right),
    )


@check("the epoch ends on every rank without an exception", RUNS)
def nothing_is_raised(case, rank, result):
    noted_by_the_driver = {"first batch again", "built for the first"}
    complete = isinstance(result, dict) and set(result) - noted_by_the_driver == {"batches", "built", "raised"}
    expect(complete, f"run returned {str(result)[:60]} on rank {rank}", "run stays as it was given")
    expect(
        not result["raised"],
        f"rank {rank} raised {result['raised']} after {len(result['batches'])} batches",
        "inside a generator, a next() that finds no batch does not end the loop over the generator",
    )


@check("batches hold samples that exist", RUNS)
def batches_hold_existing_samples(case, rank, result):
    samples, batch_size = case.args[0][:2]
    for batch in result["batches"]:
        expect(
            isinstance(batch, list) and 1 <= len(batch) <= batch_size,
            f"rank {rank} trained on the batch {batch!r}; batches hold 1 to {batch_size} samples",
            "what corpus.build is called with",
        )
        exist = all(isinstance(sample, int) and 0 <= sample < samples for sample in batch)
        expect(exist, f"rank {rank} read {batch}, of {samples} samples", "the order you cut")


@check("all ranks have equally many batches", RUNS)
def all_ranks_have_as_many_batches(case):
    counts = [len(result["batches"]) for result in case.results]
    expect(
        len(set(counts)) == 1,
        f"the ranks have {counts} batches: the one with most would wait in its next all-reduce",
        "which ranks get the batches that are left when the global batches are full?",
    )


@check(lambda unread: f"no sample is read twice in an epoch; at most {max(unread)} are left out", RUNS)
def each_sample_is_read_once(case):
    samples, batch_size = case.args[0][:2]
    read = [sample for result in case.results for batch in result["batches"] for sample in batch]
    repeated, unread = len(read) - len(set(read)), samples - len(set(read))
    expect(
        not repeated,
        f"the ranks read {len(read)} samples in this epoch, {len(set(read))} different ones",
        "do all ranks cut their share out of the same order?"
        if unread
        else "is something appended to the order so that the ranks come out even?",
    )
    expect(
        unread < case.world * batch_size,
        f"{unread} samples are read by no rank; a global batch is {case.world * batch_size}",
        "how many global batches are there in these samples?",
    )
    return unread


@check("a rank builds only what it trains on", RUNS)
def only_own_batches_are_built(case, rank, result):
    expect(
        result["built"] == len(result["batches"]),
        f"rank {rank} built {result['built']} batches and trained on {len(result['batches'])}",
        "where does a rank find out that a batch is not its own: before or after it is built?",
    )
    built_for_the_first = result.get("built for the first", 1)
    expect(
        built_for_the_first == 1,
        f"rank {rank} had built {built_for_the_first} batches when the first was handed out: a run that stops there "
        "has built the others for nothing",
        "a generator builds a batch, yields it, and continues when the next one is asked for",
    )


@check("every epoch has a random order of its own", RUNS)
def each_epoch_has_its_own_order(cases):
    """Rank 0 reads its samples in another order in each epoch, and never sorted."""
    orders = {}
    for case in cases:
        samples, _, epoch, _, _ = case.args[0]
        orders[samples, epoch] = [sample for batch in case.results[0]["batches"] for sample in batch]
    for (samples, epoch), order in orders.items():
        begin = f"{where(cases[0].world, f'{samples} samples')}rank 0 read {order[:6]} ..."
        expect(
            order != sorted(order) and not like_neighbours(order, sorted(order)),
            f"{begin} in epoch {epoch}: not shuffled",
            "which line shuffles the samples?",
        )
        for earlier in range(epoch):
            earlier_order = orders[samples, earlier]
            expect(
                order != earlier_order,
                f"{begin} in epoch {earlier} and in epoch {epoch}",
                "which numbers the seed is made of",
            )
            expect(
                not like_neighbours(order, earlier_order),
                f"{begin} in epoch {epoch}: the order of epoch {earlier}, started elsewhere or read backwards",
                "is the order of an epoch drawn, or made from that of another epoch?",
            )


@check("an epoch has the same order when it is run again", RUNS)
def an_epoch_can_be_run_again(case, rank, result):
    for first in result["batches"][:1]:
        again = result["first batch again"]
        expect(
            again == first,
            f"rank {rank} began with the batch {first}, and with {again} when it ran the same epoch again",
            "what does the order depend on besides the arguments? A run that resumes in this epoch needs the same one",
        )


def where_to_look(result, right):
    """Where to look if the learner's function returned `result` instead of the faults `right`."""
    if not isinstance(result, list):
        return "the result is a list of names, empty if nothing is wrong"
    missing, extra = sorted(set(right) - set(map(str, result))), sorted(set(map(str, result)) - set(right))
    if missing:
        return {
            "raised": "the entry 'raised' of each rank",
            "uneven": "the numbers of batches of all ranks",
            "read again": "a sample can be read twice by one rank, or by two ranks",
            "built but unused": "the numbers of batches that each rank built and used",
        }[missing[0]]
    if extra:
        return f"why {extra[0]!r}? The four names mean what the question says, and nothing more"
    return "each name once"
