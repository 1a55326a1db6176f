"""06.3: the mean over all tokens of ragged micro-batches on all ranks; a detector for every other mean."""

import math

import torch

from ddp_course.grader.harness.tensors import largest_gap
from ddp_course.grader.vocabulary import (
    Detector,
    Mistake,
    Wrong,
    by_pattern,
    called_once,
    check,
    driver_job,
    expect_loss,
    expect_shapes,
    norm,
    recognised,
)

from . import driver

DETECTOR, REPAIRED = "is_token_mean", "loss_and_gradients"
RIGHT = ("the mean over all tokens", "the same, computed by every rank")
BROKEN = tuple(what for what in driver.VERSIONS if what not in RIGHT)
CLOSE = 1e-10  # relative, in float64: the order of the sums shifts the numbers by about 1e-16
BY_MICRO_BATCH = "what each micro-batch is divided by: is it the same number for all of them, on every rank?"
BY_DDP = "what DDP does with the gradients on its own, and how often you divide by the number of ranks"
JOB_OPTIONS = {"seconds": 6.0, "loads": ("torch._dynamo",)}
LENGTHS = {  # of the lines in each micro-batch of each rank, by the number of ranks
    2: {
        "equal lengths": [[[4, 4], [4, 4]], [[4, 4], [4, 4]]],
        "ragged lengths": [[[7, 7], [2, 1]], [[3, 1], [5, 6]]],
        "rank 1 has an empty micro-batch at its end": [[[7, 2], [1, 5]], [[3, 1], []]],
        "rank 0 has an empty micro-batch at its start": [[[], [1, 5]], [[3, 1], [6]]],
        "all targets of rank 0 are ignored": [[[0, 0], [0]], [[7, 3], [1]]],
    },
    3: {"ragged lengths": [[[7], [1], [2]], [[6, 5], [0], []], [[1], [1, 1], [7, 7]]]},
}
DETECT = [driver_job(3, DETECTOR, [(what, torch.zeros(1)) for what in RIGHT + BROKEN], **JOB_OPTIONS)]
TRAIN = [
    driver_job(world, REPAIRED, {scenario: ("own", lengths) for scenario, lengths in named.items()}, **JOB_OPTIONS)
    for world, named in LENGTHS.items()
]
JOBS = [*DETECT, *TRAIN]
BLIND_SPOTS = {
    "(loss|gradient) of": "what is compared: the loss and every gradient",
    "NaN": "what your comparison says of NaN: it is neither larger nor smaller than anything",
    "thousand": "how exact the comparison is, and which gradients it looks at",
    "rank 0": "does the verdict depend on the loss and gradients of every rank?",
    "": "the numbers of targets in your test: which two means are equal for them?",
}


detector = Detector(DETECTOR, RIGHT, BROKEN, DETECT)
DETECTOR_CHECKS = [
    detector.agrees("how a rank learns the verdicts of the others"),
    detector.passes(
        ", but that one is exact to rounding",
        "what you compare with, and how exactly: sums in another order differ in the last digits",
        f"the detector lets {len(RIGHT)} exact functions pass",
    ),
    detector.catches(
        lambda scenario: f", but that is {'no number' if 'NaN' in scenario else 'another mean'}",
        by_pattern(BLIND_SPOTS),
        f"and sees that {len(BROKEN)} others are not, the given one among them",
    ),
]


it_is_called_once = called_once(
    DETECTOR,
    "the function",
    DETECT,
    "what it returns: one call gives the loss and the gradients of the same micro-batches",
)


@check(
    "your loss is the mean over all tokens to 1e-10, also with empty micro-batches and a rank without targets", TRAIN
)
def the_loss_is_exact(case):
    right, _ = one_process(case)
    for rank, (loss, _) in enumerate(case.results):
        expect_loss(rank, loss, right, CLOSE, lambda wrong: likeness(wrong, right, case))


@check("and so is its gradient, on 2 and 3 ranks", TRAIN)
def the_gradient_is_exact(case):
    _, right = one_process(case)
    for rank, (_, gradients) in enumerate(case.results):
        expect_shapes(rank, gradients, right, "targets")
        gap = max(map(largest_gap, gradients, right)) / norm(right)
        if not gap < CLOSE:
            factor = norm(gradients) / norm(right)
            parallel = all(torch.allclose(a, factor * b) for a, b in zip(gradients, right, strict=True))
            raise Wrong(
                f"the gradient on rank {rank} is off by {gap:.1e} of its length; it is {factor:.4g} times as long as "
                "that of the loss over all tokens",
                likeness(factor, 1.0, case, BY_DDP)[1] if parallel else BY_MICRO_BATCH,
            )


def one_process(case):
    """(loss, gradients) of one process that has the micro-batches of all ranks."""
    _, lengths = case.args[0]
    batches = [batch for rank in range(case.world) for batch in driver.data(rank, lengths[rank])]
    return driver.one_process(driver.Model(), batches)


def likeness(value, right, case, by_world="is a target counted twice, or the count multiplied by the world size?"):
    """(the end of the message, where to look) for a `value` that should be `right`, by the divisor that would give it.

    by_world  where to look if that is the right divisor, multiplied by the number of ranks
    """
    if math.isnan(value):
        return "", "the mean over no targets at all is 0 / 0"
    if math.isclose(value, right, rel_tol=1e-6):
        return "", "the dtype in which the loss is added up"
    line_lengths = [length for batches in case.args[0][1] for lines in batches for length in lines]
    targets, targets_and_padding = sum(line_lengths), driver.WIDTH * len(line_lengths)
    divisors = {
        targets_and_padding: "which targets the divisor counts: those behind the end of a line are -100, and ignored",
        targets * case.world: by_world,
        targets / case.world: "are the targets of all ranks in the divisor?",
    }
    micro_batches = [sum(lines) for batches in case.args[0][1] for lines in batches]
    ranks = [sum(map(sum, batches)) for batches in case.args[0][1]]
    for parts in (micro_batches, ranks):
        look = "what a rank or a micro-batch without targets adds to the divisor: 0"
        divisors.setdefault(targets + parts.count(0), look)
    mistakes = [
        Mistake(f"that sum divided by {divisor:g}, not by {targets} targets", right * targets / divisor, look)
        for divisor, look in divisors.items()
        if divisor != targets
    ]
    return recognised(value, mistakes, BY_MICRO_BATCH, rel_tol=1e-9)
