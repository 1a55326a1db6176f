"""08.2: a validation loss that depends on the number of ranks: read out the weight of each sample, then make it 1/n."""

import math
from collections import Counter
from numbers import Real

import torch

from ddp_course.grader.answer_record import Call, Job, cases
from ddp_course.grader.verdict import Wrong
from ddp_course.grader.vocabulary import number

from . import driver
from . import given as given_script

RELATIVE_ERROR = 1e-9
SECONDS = 2.5

SOME = [3.1, 0.57, 12.3, 7.4, 1.1, 2.7, 40.3, 0.13, 9.2, 6.6, 100.7, 4.9, 0.77]  # none of them is exact in float32


def call(world, samples, batch_size, values=SOME):
    many = (values * (samples // len(values) + 1))[:samples]
    return Call([("own", samples, batch_size, many)] * world, f"{samples} samples in batches of {batch_size}")


def job(world, *sizes):
    return Job(world, "evaluate", tuple(call(world, *one) for one in sizes), SECONDS, driver=True)


NINE = Call([("own", 9, 4, given_script.LOSSES.tolist())] * 2, "the nine samples of the script")
REPAIRED = [
    Job(2, "evaluate", (NINE, call(2, 13, 3), call(2, 8, 4), call(2, 1, 4)), SECONDS, driver=True),
    job(4, (13, 2), (5, 1), (3, 8)),
    job(1, (13, 4)),
]
DETECT = Job(
    3,
    "weights",
    tuple(
        Call([(what, samples, batch_size)] * 3, f"{what}, {samples} samples in batches of {batch_size}")
        for what in driver.EVALUATIONS
        for samples, batch_size in ((10, 3), (7, 2))
    ),
    SECONDS,
    driver=True,
)
JOBS = [DETECT, *REPAIRED]


def the_weights_are_found(records):
    """weights returns the weight of each sample in what evaluate returns, of the broken one and of four others."""
    for case in cases(records[:1]):
        what, samples, batch_size = case.args[0]
        right = KNOWN_WEIGHTS[what](samples, batch_size, case.world)
        for rank, result in enumerate(case.results):
            values = [number(one) for one in result] if isinstance(result, (list, torch.Tensor)) else None
            if values is None or len(values) != samples or not all(isinstance(one, Real) for one in values):
                raise Wrong(f"{case.where}rank {rank} returned {result!r}", f"a list of {samples} numbers is expected")
            for sample, (value, wanted) in enumerate(zip(values, right, strict=True)):
                if not math.isclose(value, wanted, rel_tol=1e-6, abs_tol=1e-9):
                    raise Wrong(
                        f"{case.where}rank {rank} gives sample {sample} the weight {value:.6g}; it is {wanted:.6g}",
                        "which losses make everything in the mean vanish but the one sample you ask for?",
                    )
    return f"weights sees through {len(driver.EVALUATIONS)} evaluations on 3 ranks"


def every_rank_returns_a_number(records):
    """The repaired evaluate returns one finite number on every rank, also where a rank has no sample."""
    for case in cases(records[1:]):
        for rank, result in enumerate(returned(case)):
            if not isinstance(number(result), Real) or not math.isfinite(number(result)):
                raise Wrong(
                    f"{case.where}rank {rank} returned {number(result)!r}; it should be {expected(case):.6g}",
                    "what a rank adds that has no samples, and the line that returns",
                )
    return "every rank returns a number, also one that has no samples"


def the_mean_is_exact(records):
    """It is the mean over all samples, each counted once, on 1, 2 and 4 ranks and for any batch size."""
    for case in cases(records[1:]):
        for rank, result in enumerate(returned(case)):
            if not math.isclose(number(result), expected(case), rel_tol=RELATIVE_ERROR):
                raise Wrong(
                    f"{case.where}rank {rank} returned {number(result):.9g}{likeness(case, number(result))}; the mean "
                    f"over the samples is {expected(case):.9g}",
                    "the dtype in which the losses are added up"
                    if math.isclose(number(result), expected(case), rel_tol=1e-6)
                    else "run your own weights on your own evaluate: which sample has not the weight 1/n?",
                )
    return "it is the mean over the samples on 1, 2 and 4 ranks, whatever the batch size"


def each_sample_is_evaluated_once(records):
    """Each sample is evaluated by one rank, once, in batches of at most batch_size."""
    for case in cases(records[1:]):
        _, samples, batch_size, _ = case.args[0]
        asked = [[batch for batch in result["asked"] if batch] for result in case.results]
        for rank, mine in enumerate(asked):
            if max(map(len, mine), default=0) > batch_size:
                raise Wrong(
                    f"{case.where}rank {rank} asked for {max(map(len, mine))} losses at once",
                    "how a rank cuts its samples into batches",
                )
        times = Counter(sample for mine in asked for batch in mine for sample in batch)
        for sample in range(samples):
            if times[sample] != 1:
                raise Wrong(
                    f"{case.where}sample {sample} was evaluated {times[sample]} times in all",
                    "which samples a rank takes: N ranks that each evaluate everything are no faster than one",
                )
    return "each sample is evaluated once, by one rank"


def no_message_in_the_loop(records):
    """The number of collectives does not grow with the number of batches: ranks may have different ones."""
    most = 0
    for case in cases(records[1:]):
        for rank, mine in enumerate(case.operations):
            most = max(most, len(mine))
            if len(mine) > 2:
                raise Wrong(
                    f"{case.where}rank {rank} started {len(mine)} collectives, the last in line {mine[-1].line}",
                    "how many batches does each rank have here, and what if one rank has one batch more?",
                )
    return f"{most} collective{'s' * (most > 1)} in all, however many batches there are"


CHECKS = [
    the_weights_are_found,
    every_rank_returns_a_number,
    the_mean_is_exact,
    each_sample_is_evaluated_once,
    no_message_in_the_loop,
]


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
    return [mine[first : first + batch_size] for mine in ranks for first in range(0, len(mine), batch_size)]


def weights_of(pad=False, keep=lambda mine, batch_size: mine, weight_of_batch=len, ranks=slice(None)):
    def known(samples, batch_size, world):
        mine = [keep(one, batch_size) for one in shares(samples, world, pad)[ranks]]
        found = from_batches(batches_of(mine, batch_size), weight_of_batch)
        return [found.get(sample, 0.0) for sample in range(samples)]

    return known


KNOWN_WEIGHTS = {
    "the broken evaluate": weights_of(pad=True, weight_of_batch=lambda batch: 1),
    "an exact one": weights_of(),
    "one that pads": weights_of(pad=True),
    "one that drops the last batch": weights_of(keep=lambda mine, size: mine[: len(mine) // size * size]),
    "one that asks rank 0 alone": weights_of(ranks=slice(1)),
}
LIKENESSES = {
    "the mean of the batches' means, with repeated samples": KNOWN_WEIGHTS["the broken evaluate"],
    "the mean of the batches' means": weights_of(weight_of_batch=lambda batch: 1),
    "a mean in which repeated samples count again": KNOWN_WEIGHTS["one that pads"],
    "a mean without the short last batches": KNOWN_WEIGHTS["one that drops the last batch"],
    "the mean over rank 0's samples": KNOWN_WEIGHTS["one that asks rank 0 alone"],
}


def returned(case):
    """What the learner's evaluate returned, by rank."""
    return [result["returned"] for result in case.results]


def expected(case):
    values = case.args[0][3]
    return math.fsum(values) / len(values)


def likeness(case, result):
    """What a wrong result looks like, in words that can be put behind it."""
    _, samples, batch_size, losses = case.args[0]
    for text, known in LIKENESSES.items():
        try:
            weights = known(samples, batch_size, case.world)
        except ZeroDivisionError:  # nothing is left
            continue
        like = sum(weight * loss for weight, loss in zip(weights, losses, strict=True))
        if math.isclose(result, like, rel_tol=1e-6):
            return f", {text}"
    return ""
