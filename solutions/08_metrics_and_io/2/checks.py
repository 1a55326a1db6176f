"""08.2: a validation loss that depends on the number of ranks: read out the weight of each sample, then make it 1/n."""

import math
from collections import Counter
from numbers import Real

import torch

from ddp_course.grader.vocabulary import Wrong, check, driver_job, expect, number, numbers, plural

from . import driver
from . import given as given_script

RELATIVE_ERROR = 1e-9
SECONDS = 2.5

LOSSES = [3.1, 0.57, 12.3, 7.4, 1.1, 2.7, 40.3, 0.13, 9.2, 6.6, 100.7, 4.9, 0.77]  # none of them is exact in float32


def calls(*sizes, dtype=torch.float64):
    """By scenario, the arguments of driver.drive for each (samples, batch size)."""
    losses, name = torch.tensor(LOSSES, dtype=dtype), "" if dtype == torch.float64 else f", losses in {dtype}"
    return {
        f"{samples} samples in batches of {batch_size}{name}": ("own", samples, batch_size, losses[:samples])
        for samples, batch_size in sizes
    }


GIVEN_CALL = {"the nine samples of the script": ("own", 9, 4, given_script.LOSSES)}
REPAIRED = [
    driver_job(2, "evaluate", calls((13, 3), (8, 4), (1, 4)) | GIVEN_CALL, seconds=SECONDS),
    driver_job(4, "evaluate", calls((13, 2), (5, 1), (3, 8)), seconds=SECONDS),
    driver_job(1, "evaluate", calls((13, 4)) | calls((12, 4), dtype=torch.float32), seconds=SECONDS),
]
EVALUATION_CALLS = {
    f"{name}, {samples} samples in batches of {batch_size}": (name, samples, batch_size)
    for name in driver.EVALUATIONS
    for samples, batch_size in ((10, 3), (7, 2))
}
DETECT = driver_job(3, "weights", EVALUATION_CALLS, seconds=SECONDS)
JOBS = [DETECT, *REPAIRED]


@check(f"weights sees through {len(driver.EVALUATIONS)} evaluations on 3 ranks", [DETECT])
def the_weights_are_found(case, rank, result):
    name, samples, batch_size = case.args[0]
    weights, right = numbers(result), KNOWN_WEIGHTS[name](samples, batch_size, case.world)
    expect(
        weights is not None and len(weights) == samples,
        f"rank {rank} returned {result!r}",
        f"a list of {samples} numbers is expected",
    )
    for sample, (weight, right_weight) in enumerate(zip(weights, right, strict=True)):
        expect(
            math.isclose(weight, right_weight, rel_tol=1e-6, abs_tol=1e-9),
            f"rank {rank} gives sample {sample} the weight {weight:.6g}; it is {right_weight:.6g}",
            "for which losses does the result depend on one sample only? The weights need not add up to 1",
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
        words, look_at = "", "the dtype in which the losses are added up"
        if not math.isclose(mean, right, rel_tol=1e-6):
            words = likeness(case, mean)
            look_at = "run your own weights on your own evaluate: which sample has not the weight 1/n?"
        raise Wrong(f"rank {rank} returned {mean:.9g}{words}; the mean over the samples is {right:.9g}", look_at)


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


@check(lambda counts: f"{plural(max(counts), 'collective')} in all, however many batches there are", REPAIRED)
def few_collectives(case, rank, result):
    operations = case.operations[rank]
    expect(
        len(operations) <= 2,
        lambda: f"rank {rank} started {len(operations)} collectives, the last in line {operations[-1].line}",
        "how many batches does each rank have here, and what if one rank has one batch more?",
    )
    return len(operations)


def weights_of(pad=False, drop_last=False, weight_of_batch=len, ranks=slice(None), divide_by_all=False):
    """A function of (samples, batch_size, world): the weight of each sample in the mean of an evaluation.

    pad              the ranks' shares are padded to one length, as by DistributedSampler
    drop_last        each rank drops a short last batch
    weight_of_batch  the weight of a batch, which its samples share
    ranks            the ranks whose samples are evaluated
    divide_by_all    the sum is divided by the number of all samples, evaluated or not
    """

    def weights_by_sample(samples, batch_size, world):
        order = list(range(samples))
        if pad:
            order += (order * world)[: -samples % world]
        shares = [order[rank::world] for rank in range(world)][ranks]
        batches = [share[first : first + batch_size] for share in shares for first in range(0, len(share), batch_size)]
        if drop_last:
            batches = [batch for batch in batches if len(batch) == batch_size]
        total = samples if divide_by_all else sum(map(weight_of_batch, batches))
        weights = [0.0] * samples
        for batch in batches:
            for sample in batch:
                weights[sample] += weight_of_batch(batch) / len(batch) / total
        return weights

    return weights_by_sample


KNOWN_WEIGHTS = {
    "the broken evaluate": weights_of(pad=True, weight_of_batch=lambda batch: 1),
    "an exact one": weights_of(),
    "one that pads": weights_of(pad=True),
    "one that drops the last batch and divides by all samples": weights_of(drop_last=True, divide_by_all=True),
    "one that asks rank 0 alone": weights_of(ranks=slice(1)),
}
MEAN_OF_BATCHES = weights_of(weight_of_batch=lambda batch: 1)
LIKELY_MISTAKES = {
    "the mean of the batches' means, with repeated samples": KNOWN_WEIGHTS["the broken evaluate"],
    "the mean of the batches' means": MEAN_OF_BATCHES,
    "a mean in which repeated samples count again": KNOWN_WEIGHTS["one that pads"],
    "a mean without the short last batches": weights_of(drop_last=True),
    "the mean of the ranks' means": lambda samples, _, world: MEAN_OF_BATCHES(samples, samples, world),
    "the mean over rank 0's samples": KNOWN_WEIGHTS["one that asks rank 0 alone"],
}


def expected_mean(case):
    return case.args[0][3].double().mean().item()


def likeness(case, result):
    """The first of LIKELY_MISTAKES that gives this wrong result, in words that follow it; "" if none does."""
    _, samples, batch_size, losses = case.args[0]
    for words, weights_by_sample in LIKELY_MISTAKES.items():
        weights = weights_by_sample(samples, batch_size, case.world)
        mistaken_mean = sum(weight * loss for weight, loss in zip(weights, losses, strict=True))
        if math.isclose(result, mistaken_mean, rel_tol=1e-6):
            return f", {words}"
    return ""
