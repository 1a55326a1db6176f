"""08.2: a validation loss that depends on the number of ranks: read out the weight of each sample, then make it 1/n."""

import math
from collections import Counter
from numbers import Real

from ddp_course.grader.vocabulary import Call, Job, Wrong, check, driver_job, expect, number, numbers

from . import driver
from . import given as given_script

RELATIVE_ERROR = 1e-9
SECONDS = 2.5

SOME = [3.1, 0.57, 12.3, 7.4, 1.1, 2.7, 40.3, 0.13, 9.2, 6.6, 100.7, 4.9, 0.77]  # none of them is exact in float32


def call(world, samples, batch_size, values=SOME):
    many = (values * (samples // len(values) + 1))[:samples]
    return Call([("own", samples, batch_size, many)] * world, f"{samples} samples in batches of {batch_size}")


def job(world, *sizes):
    return Job(world, "evaluate", tuple(call(world, *size) for size in sizes), SECONDS, driver=True)


NINE = Call([("own", 9, 4, given_script.LOSSES.tolist())] * 2, "the nine samples of the script")
REPAIRED = [
    Job(2, "evaluate", (NINE, call(2, 13, 3), call(2, 8, 4), call(2, 1, 4)), SECONDS, driver=True),
    job(4, (13, 2), (5, 1), (3, 8)),
    job(1, (13, 4)),
]
SEEN_THROUGH = {
    f"{what}, {samples} samples in batches of {batch_size}": (what, samples, batch_size)
    for what in driver.EVALUATIONS
    for samples, batch_size in ((10, 3), (7, 2))
}
DETECT = driver_job(3, "weights", SEEN_THROUGH, seconds=SECONDS)
JOBS = [DETECT, *REPAIRED]


@check(f"weights sees through {len(driver.EVALUATIONS)} evaluations on 3 ranks", [DETECT])
def the_weights_are_found(case, rank, result):
    what, samples, batch_size = case.args[0]
    weights, right = numbers(result), KNOWN_WEIGHTS[what](samples, batch_size, case.world)
    expect(
        weights is not None and len(weights) == samples,
        f"rank {rank} returned {result!r}",
        f"a list of {samples} numbers is expected",
    )
    for sample, (weight, wanted) in enumerate(zip(weights, right, strict=True)):
        expect(
            math.isclose(weight, wanted, rel_tol=1e-6, abs_tol=1e-9),
            f"rank {rank} gives sample {sample} the weight {weight:.6g}; it is {wanted:.6g}",
            "which losses make everything in the mean vanish but the one sample you ask for?",
        )


@check("every rank returns a number, also one that has no samples", REPAIRED)
def every_rank_returns_a_number(case, rank, result):
    mean = number(result["returned"])
    expect(
        isinstance(mean, Real) and math.isfinite(mean),
        f"rank {rank} returned {mean!r}; it should be {expected_mean(case):.6g}",
        "what a rank adds that has no samples, and the line that returns",
    )


@check("it is the mean over the samples on 1, 2 and 4 ranks, whatever the batch size", REPAIRED)
def the_mean_is_exact(case, rank, result):
    mean, right = number(result["returned"]), expected_mean(case)
    if not math.isclose(mean, right, rel_tol=RELATIVE_ERROR):
        raise Wrong(
            f"rank {rank} returned {mean:.9g}{likeness(case, mean)}; the mean over the samples is {right:.9g}",
            "the dtype in which the losses are added up"
            if math.isclose(mean, right, rel_tol=1e-6)
            else "run your own weights on your own evaluate: which sample has not the weight 1/n?",
        )


@check("each sample is evaluated once, by one rank", REPAIRED)
def each_sample_is_evaluated_once(case):
    _, samples, batch_size, _ = case.args[0]
    for rank, result in enumerate(case.results):
        largest = max(map(len, result["asked"]), default=0)
        expect(
            largest <= batch_size,
            f"rank {rank} asked for {largest} losses at once",
            "how a rank cuts its samples into batches",
        )
    times = Counter(sample for result in case.results for batch in result["asked"] for sample in batch)
    for sample in range(samples):
        expect(
            times[sample] == 1,
            f"sample {sample} was evaluated {times[sample]} times in all",
            "which samples a rank takes: N ranks that each evaluate everything are no faster than one",
        )


@check(
    lambda counts: f"{max(counts)} collective{'s' * (max(counts) > 1)} in all, however many batches there are", REPAIRED
)
def no_message_in_the_loop(case, rank, result):
    operations = case.operations[rank]
    expect(
        len(operations) <= 2,
        lambda: f"rank {rank} started {len(operations)} collectives, the last in line {operations[-1].line}",
        "how many batches does each rank have here, and what if one rank has one batch more?",
    )
    return len(operations)


def shares(samples, world, pad):
    """Which samples each rank takes; with `pad`, as DistributedSampler does."""
    dealt = list(range(samples))
    if pad:
        dealt += (dealt * world)[: -samples % world]
    return [dealt[rank::world] for rank in range(world)]


def from_batches(batches, weight_of_batch):
    """The weight of each sample, if a batch counts `weight_of_batch` and its samples share that."""
    weights = {}
    total = sum(weight_of_batch(batch) for batch in batches)
    for batch in batches:
        for sample in batch:
            weights[sample] = weights.get(sample, 0.0) + weight_of_batch(batch) / len(batch) / total
    return weights


def batches_of(ranks, batch_size):
    return [own[first : first + batch_size] for own in ranks for first in range(0, len(own), batch_size)]


def weights_of(pad=False, keep=lambda own, batch_size: own, weight_of_batch=len, ranks=slice(None)):
    def weights_by_sample(samples, batch_size, world):
        kept = [keep(own, batch_size) for own in shares(samples, world, pad)[ranks]]
        weights = from_batches(batches_of(kept, batch_size), weight_of_batch)
        return [weights.get(sample, 0.0) for sample in range(samples)]

    return weights_by_sample


KNOWN_WEIGHTS = {
    "the broken evaluate": weights_of(pad=True, weight_of_batch=lambda batch: 1),
    "an exact one": weights_of(),
    "one that pads": weights_of(pad=True),
    "one that drops the last batch": weights_of(keep=lambda own, size: own[: len(own) // size * size]),
    "one that asks rank 0 alone": weights_of(ranks=slice(1)),
}
LIKENESSES = {
    "the mean of the batches' means, with repeated samples": KNOWN_WEIGHTS["the broken evaluate"],
    "the mean of the batches' means": weights_of(weight_of_batch=lambda batch: 1),
    "a mean in which repeated samples count again": KNOWN_WEIGHTS["one that pads"],
    "a mean without the short last batches": KNOWN_WEIGHTS["one that drops the last batch"],
    "the mean over rank 0's samples": KNOWN_WEIGHTS["one that asks rank 0 alone"],
}


def expected_mean(case):
    values = case.args[0][3]
    return math.fsum(values) / len(values)


def likeness(case, result):
    """A likely cause of a wrong result, in words that can be put behind it."""
    _, samples, batch_size, losses = case.args[0]
    for text, weights_by_sample in LIKENESSES.items():
        try:
            weights = weights_by_sample(samples, batch_size, case.world)
        except ZeroDivisionError:  # nothing is left
            continue
        like = sum(weight * loss for weight, loss in zip(weights, losses, strict=True))
        if math.isclose(result, like, rel_tol=1e-6):
            return f", {text}"
    return ""
