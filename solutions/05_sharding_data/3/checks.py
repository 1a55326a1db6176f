"""05.3: a wrapper that skips the batches of other ranks, replaced; and a function that finds all of its faults."""

from ddp_course.grader.answer_record import Call, Job, cases
from ddp_course.grader.verdict import Wrong
from ddp_course.grader.vocabulary import like_neighbours

from . import given as given_script

FUNCTION = "diagnose"
NAMES = ("raised", "uneven", "read again", "built in vain")


def rank(*batches, built=None, raised=None):
    return {"batches": list(batches), "built": len(batches) if built is None else built, "raised": raised}


def of_the_broken_script(samples, world):
    return [given_script.run(samples, 4, 0, r, world) for r in range(world)]


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
DIAGNOSE = Job(1, function=FUNCTION, calls=tuple(Call([(made,)], given) for given, made in MADE_UP))


def run_job(world, *samples, batch=4):
    calls = [
        Call([(n, batch, epoch, r, world) for r in range(world)], f"{n} samples, batches of {batch}, epoch {epoch}")
        for n in samples
        for epoch in (0, 1, 2)
    ]
    return Job(world, function="run", calls=tuple(calls), driver=True)


# 20 samples on one rank are read to the last one, in the order of the epoch. With every fourth of 51 samples, one rank
# has too few for a last short batch; of 47, too few for a third whole one.
JOBS = [DIAGNOSE, run_job(4, 40, 64, 51, 47), run_job(3, 50, batch=3), run_job(2, 30), run_job(1, 18, 20)]


def the_diagnosis_is_right(records):
    """diagnose names exactly the faults there are, in made-up runs and in those of the broken script."""
    for case, (given, made) in zip(cases(records[:1]), MADE_UP, strict=True):
        [result], right = case.results, diagnose(made)
        if not isinstance(result, list) or sorted(map(str, result)) != sorted(right):
            shown = sorted(result) if isinstance(result, list) and all(isinstance(r, str) for r in result) else result
            raise Wrong(f"{given}: {FUNCTION} returned {shown!r}, not {sorted(right)}", advice(result, right))
    return f"{FUNCTION} finds what is wrong; with the broken script on 4 ranks: {', '.join(diagnose(MADE_UP[-3][1]))}"


def nothing_is_raised(records):
    """The epoch ends without an exception."""
    for case in cases(records[1:]):
        for r, result in enumerate(case.results):
            if not isinstance(result, dict) or set(result) - {"built for one"} != {"batches", "built", "raised"}:
                raise Wrong(f"{case.where}run returned {str(result)[:60]} on rank {r}", "run stays as it was given")
            if result["raised"]:
                raise Wrong(
                    f"{case.where}rank {r} raised {result['raised']} after {len(result['batches'])} batches",
                    "inside a generator, a next() that finds nothing does not end the loop outside",
                )
    return "the epoch ends on every rank without an exception"


def every_batch_is_one(records):
    """A batch is what corpus.build returned: 1 to batch_size samples that exist."""
    for case in cases(records[1:]):
        samples, most = case.args[0][:2]
        for r, result in enumerate(case.results):
            for batch in result["batches"]:
                if not isinstance(batch, list) or not 1 <= len(batch) <= most:
                    raise Wrong(
                        f"{case.where}rank {r} trained on the batch {batch!r}; batches hold 1 to {most} samples",
                        "what corpus.build is called with",
                    )
                if not all(isinstance(one, int) and 0 <= one < samples for one in batch):
                    raise Wrong(f"{case.where}rank {r} read {batch}, of {samples} samples", "the order you cut")
    return "batches hold samples that exist"


def all_ranks_have_as_many(records):
    """Every rank has the same number of batches."""
    for case in cases(records[1:]):
        counts = [len(result["batches"]) for result in case.results]
        if len(set(counts)) > 1:
            raise Wrong(
                f"{case.where}the ranks have {counts} batches: the one with most would wait in its next all-reduce",
                "who gets the batches that are left when the global batches are full?",
            )
    return "all ranks have equally many batches"


def nothing_is_read_twice_and_little_left_out(records):
    """No sample is read twice in an epoch, and fewer than one global batch is left out."""
    most = 0
    for case in cases(records[1:]):
        samples, batch_size = case.args[0][:2]
        read = [sample for result in case.results for batch in result["batches"] for sample in batch]
        again, left = len(read) - len(set(read)), samples - len(set(read))
        most = max(most, left)
        if again:
            raise Wrong(
                f"{case.where}{again} readings are of samples that were read before in this epoch",
                "do all ranks cut their share out of the same order?",
            )
        if left >= case.world * batch_size:
            raise Wrong(
                f"{case.where}{left} samples are read by nobody; a global batch is {case.world * batch_size}",
                "how many global batches are there in these samples?",
            )
    return f"no sample is read twice in an epoch; at most {most} are left out"


def only_own_batches_are_built(records):
    """A rank builds the batches that it trains on, and no other, each when it is asked for."""
    for case in cases(records[1:]):
        for r, result in enumerate(case.results):
            if result["built"] != len(result["batches"]):
                raise Wrong(
                    f"{case.where}rank {r} built {result['built']} batches and trained on {len(result['batches'])}",
                    "where does a rank find out that a batch is not its own: before or after it is built?",
                )
            if result.get("built for one", 1) != 1:
                raise Wrong(
                    f"{case.where}rank {r} had built {result['built for one']} batches when the first was handed out: "
                    "a run that stops there has built the others in vain",
                    "a generator builds a batch, yields it, and goes on when the next one is asked for",
                )
    return "a rank builds only what it trains on"


def epochs_are_shuffled_anew(records):
    """The order is random, another in each epoch, and not the order of the numbers."""
    for record in records[1:]:
        read = {}
        for case in cases([record]):
            samples, _, epoch, _, _ = case.args[0]
            read[samples, epoch] = [[one for batch in result["batches"] for one in batch] for result in case.results]
        for (samples, epoch), by_rank in read.items():
            where = f"with {record.job.world} rank{'s' * (record.job.world > 1)}, {samples} samples: rank 0"
            mine = by_rank[0]
            if mine == sorted(mine) or like_neighbours(mine, sorted(mine)):
                raise Wrong(f"{where} read {mine[:6]} ... in epoch {epoch}: not shuffled", "what shuffles, and what")
            for earlier in range(epoch):
                other = read[samples, earlier][0]
                if mine == other:
                    raise Wrong(
                        f"{where} read {mine[:6]} ... in epoch {earlier} and in epoch {epoch}",
                        "what the seed is made of",
                    )
                if like_neighbours(mine, other):
                    raise Wrong(
                        f"{where} read {mine[:6]} ... in epoch {epoch}: the order of epoch {earlier}, begun at another "
                        "place or read backwards",
                        "is the order of an epoch drawn, or made from that of another epoch?",
                    )
    return "every epoch has a random order of its own"


CHECKS = [
    the_diagnosis_is_right,
    nothing_is_raised,
    every_batch_is_one,
    all_ranks_have_as_many,
    nothing_is_read_twice_and_little_left_out,
    only_own_batches_are_built,
    epochs_are_shuffled_anew,
]


def diagnose(ranks):
    """What the learner's function of this name has to return, in any order."""
    read = [sample for one in ranks for batch in one["batches"] for sample in batch]
    found = {
        "raised": any(one["raised"] for one in ranks),
        "uneven": len({len(one["batches"]) for one in ranks}) > 1,
        "read again": len(read) > len(set(read)),
        "built in vain": any(one["built"] > len(one["batches"]) for one in ranks),
    }
    return [name for name in NAMES if found[name]]


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
