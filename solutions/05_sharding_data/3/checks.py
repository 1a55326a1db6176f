"""05.3: a wrapper that skips the batches of other ranks, replaced; and a function that finds all of its faults."""

from ddp_course.grader.vocabulary import Call, Job, check, expect, like_neighbours

from .given import run

FUNCTION = "diagnose"


def rank(*batches, built=None, raised=None):
    return {"batches": list(batches), "built": len(batches) if built is None else built, "raised": raised}


def of_the_broken_script(samples, world):
    return [run(samples, 4, 0, number, world) for number in range(world)]


def diagnose(ranks):
    """The faults that the learner's function of this name has to find, in any order."""
    read = [sample for rank in ranks for batch in rank["batches"] for sample in batch]
    faults = {
        "raised": any(rank["raised"] for rank in ranks),
        "uneven": len({len(rank["batches"]) for rank in ranks}) > 1,
        "read again": len(read) > len(set(read)),
        "built in vain": any(rank["built"] > len(rank["batches"]) for rank in ranks),
    }
    return [name for name, present in faults.items() if present]


MADE_UP = [
    ("nothing is wrong", [rank([0, 4], [2, 6]), rank([1, 5], [3, 7])]),
    ("nothing is wrong, the last batches are short", [rank([0, 4], [2, 6]), rank([1, 5], [3])]),
    ("nothing is wrong, some samples are left out", [rank([9, 4]), rank([1, 5]), rank([12, 7])]),
    ("no rank has a batch", [rank(), rank()]),
    ("rank 2 of four has a batch more", [rank([0]), rank([1]), rank([2], [3]), rank([4])]),
    ("rank 0 has a batch fewer", [rank([0, 5]), rank([1], [4]), rank([2], [3])]),
    ("ranks 0 and 2 read sample 5", [rank([0, 5]), rank([1, 6]), rank([5, 2])]),
    ("rank 1 reads sample 5 twice", [rank([0], [3]), rank([5], [5])]),
    ("rank 1 built two and used one", [rank([0]), rank([1], built=2), rank([2])]),
    ("rank 1 raised in the end", [rank([0]), rank([1], raised="RuntimeError")]),
    ("all four are wrong", [rank([0], [1]), rank([0], built=2, raised="RuntimeError")]),
    ("rank 1 reads sample 5 twice in one batch", [rank([0, 3]), rank([5, 5])]),
    ("the broken script, 40 samples on 4 ranks", of_the_broken_script(40, 4)),
    ("the broken script, 32 samples on 2 ranks", of_the_broken_script(32, 2)),
    ("the broken script on 1 rank", of_the_broken_script(16, 1)),
]
DIAGNOSE = Job(1, function=FUNCTION, calls=tuple(Call([(made,)], scenario) for scenario, made in MADE_UP))


def run_job(world, *samples, batch=4):
    calls = [
        Call([(n, batch, epoch, r, world) for r in range(world)], f"{n} samples, batches of {batch}, epoch {epoch}")
        for n in samples
        for epoch in (0, 1, 2)
    ]
    return Job(world, function="run", calls=tuple(calls), driver=True)


# 20 samples on one rank are read to the last one, in the order of the epoch. With every fourth of 51 samples, one rank
# has too few for a last short batch; of 47, too few for a third whole one.
RUNS = [run_job(4, 40, 64, 51, 47), run_job(3, 50, batch=3), run_job(2, 30), run_job(1, 18, 20)]
JOBS = [DIAGNOSE, *RUNS]


@check(
    f"{FUNCTION} finds what is wrong; with the broken script on 4 ranks: {', '.join(diagnose(MADE_UP[-3][1]))}",
    [DIAGNOSE],
    begin="{scenario}: ",
)
def the_diagnosis_is_right(case):
    [result], right = case.results, diagnose(case.args[0][0])
    named = sorted(map(str, result)) if isinstance(result, list) else result
    expect(named == sorted(right), f"{FUNCTION} returned {named!r}, not {sorted(right)}", lambda: advice(result, right))


@check("the epoch ends on every rank without an exception", RUNS)
def nothing_is_raised(case, rank, result):
    whole = isinstance(result, dict) and set(result) - {"built for one"} == {"batches", "built", "raised"}
    expect(whole, f"run returned {str(result)[:60]} on rank {rank}", "run stays as it was given")
    expect(
        not result["raised"],
        f"rank {rank} raised {result['raised']} after {len(result['batches'])} batches",
        "inside a generator, a next() that finds nothing does not end the loop outside",
    )


@check("batches hold samples that exist", RUNS)
def every_batch_is_one(case, rank, result):
    samples, most = case.args[0][:2]
    for batch in result["batches"]:
        expect(
            isinstance(batch, list) and 1 <= len(batch) <= most,
            f"rank {rank} trained on the batch {batch!r}; batches hold 1 to {most} samples",
            "what corpus.build is called with",
        )
        exist = all(isinstance(sample, int) and 0 <= sample < samples for sample in batch)
        expect(exist, f"rank {rank} read {batch}, of {samples} samples", "the order you cut")


@check("all ranks have equally many batches", RUNS)
def all_ranks_have_as_many(case):
    counts = [len(result["batches"]) for result in case.results]
    expect(
        len(set(counts)) == 1,
        f"the ranks have {counts} batches: the one with most would wait in its next all-reduce",
        "who gets the batches that are left when the global batches are full?",
    )


@check(lambda left: f"no sample is read twice in an epoch; at most {max(left)} are left out", RUNS)
def each_sample_is_read_once(case):
    samples, batch_size = case.args[0][:2]
    read = [sample for result in case.results for batch in result["batches"] for sample in batch]
    repeated, left = len(read) - len(set(read)), samples - len(set(read))
    expect(
        not repeated,
        f"{repeated} readings are of samples that were read before in this epoch",
        "do all ranks cut their share out of the same order?",
    )
    expect(
        left < case.world * batch_size,
        f"{left} samples are read by nobody; a global batch is {case.world * batch_size}",
        "how many global batches are there in these samples?",
    )
    return left


@check("a rank builds only what it trains on", RUNS)
def only_own_batches_are_built(case, rank, result):
    expect(
        result["built"] == len(result["batches"]),
        f"rank {rank} built {result['built']} batches and trained on {len(result['batches'])}",
        "where does a rank find out that a batch is not its own: before or after it is built?",
    )
    at_first = result.get("built for one", 1)
    expect(
        at_first == 1,
        f"rank {rank} had built {at_first} batches when the first was handed out: a run that stops there has built the "
        "others in vain",
        "a generator builds a batch, yields it, and goes on when the next one is asked for",
    )


@check("every epoch has a random order of its own", RUNS)
def epochs_are_shuffled_anew(cases):
    """Looks at what rank 0 read: another order in each epoch, and not the order of the numbers."""
    orders = {}
    for case in cases:
        samples, _, epoch, _, _ = case.args[0]
        orders[samples, epoch] = [sample for batch in case.results[0]["batches"] for sample in batch]
    for (samples, epoch), order in orders.items():
        begin = (
            f"with {cases[0].world} rank{'s' * (cases[0].world > 1)}, {samples} samples: rank 0 read {order[:6]} ..."
        )
        expect(
            order != sorted(order) and not like_neighbours(order, sorted(order)),
            f"{begin} in epoch {epoch}: not shuffled",
            "what shuffles, and what",
        )
        for earlier in range(epoch):
            other = orders[samples, earlier]
            expect(order != other, f"{begin} in epoch {earlier} and in epoch {epoch}", "what the seed is made of")
            expect(
                not like_neighbours(order, other),
                f"{begin} in epoch {epoch}: the order of epoch {earlier}, begun at another place or read backwards",
                "is the order of an epoch drawn, or made from that of another epoch?",
            )


def advice(result, right):
    if not isinstance(result, list):
        return "the result is a list of names, empty if nothing is wrong"
    missing, extra = sorted(set(right) - set(map(str, result))), sorted(set(map(str, result)) - set(right))
    if missing:
        return {
            "raised": "the entry 'raised' of each rank",
            "uneven": "the number of batches, of all ranks",
            "read again": "samples of one rank and of several: who could have read it before?",
            "built in vain": "each rank by itself: built against used",
        }[missing[0]]
    if extra:
        return f"why {extra[0]!r}? The four names mean what the question says, and nothing more"
    return "each name once"
