"""06.3: the mean over all tokens of ragged micro-batches on all ranks; a test that sees every other mean."""

import math
from pathlib import Path

import torch

from ddp_course.lab.answer_record import Call, Job, cases
from ddp_course.lab.detector import assert_one_verdict
from ddp_course.lab.questions import broken_06_3, drive_06_3
from ddp_course.lab.verdict import Wrong

TITLE = "one divisor for all"
GIVEN = Path(broken_06_3.__file__)
HINTS = [
    "Of 38 targets in one update, 3 are in a micro-batch of their own. What share of the gradient do these 3 decide "
    "in the given function, and what share should they?",
    'F.cross_entropy(..., reduction="sum") adds up and divides by nothing, and is 0 where there is nothing to add. '
    "One number of targets, over all micro-batches and ranks, can then divide everything. DDP divides by the world "
    "size on its own; what undoes that?",
    "is_token_mean: micro-batches with different numbers of targets, on one rank and between ranks. Every rank can "
    "make those of all ranks, so every rank can compute the mean in one process and compare: the loss and each "
    "gradient. Let the ranks agree on the answer with an all-reduce (MIN).",
]
DRIVER = Path(drive_06_3.__file__)
DETECTOR, REPAIRED = "is_token_mean", "loss_and_gradients"
RIGHT = ("the mean over all tokens", "the same, computed by every rank")
BROKEN = tuple(what for what in drive_06_3.VERSIONS if what not in RIGHT)
CLOSE = 1e-10  # relative, in float64: the order of the sums shifts the numbers by about 1e-16


def job(world, function, *calls):
    return Job(
        world,
        function,
        tuple(Call([arguments] * world, given) for given, *arguments in map(tuple, calls)),
        seconds=6.0,
        driver=DRIVER,
        loads=("torch._dynamo",),
    )


def own(given, *lengths):
    return given, "own", list(lengths)


DETECT = [job(3, DETECTOR, *((what, what) for what in RIGHT + BROKEN))]
TRAIN = [
    job(
        2,
        REPAIRED,
        own("equal lengths", [[4, 4], [4, 4]], [[4, 4], [4, 4]]),
        own("ragged lengths", [[7, 7], [2, 1]], [[3, 1], [5, 6]]),
        own("rank 1 has an empty micro-batch at its end", [[7, 2], [1, 5]], [[3, 1], []]),
        own("rank 0 has an empty micro-batch at its start", [[], [1, 5]], [[3, 1], [6]]),
        own("all targets of rank 0 are ignored", [[0, 0], [0]], [[7, 3], [1]]),
    ),
    job(3, REPAIRED, own("ragged lengths", [[7], [1], [2]], [[6, 5], [0], []], [[1], [1, 1], [7, 7]])),
]
JOBS = [*DETECT, *TRAIN]


def all_ranks_say_the_same(records):
    """The detector returns True or False, the same on every rank."""
    for case in cases(records[: len(DETECT)]):
        assert_one_verdict(case, DETECTOR, "how a rank hears what the others have found")
    return "all ranks come to the same verdict"


def exact_means_pass(records):
    """The detector returns True where loss and gradients are those of the mean over all tokens."""
    for case in cases(records[: len(DETECT)]):
        if case.given in RIGHT and not case.results[0]:
            raise Wrong(
                f"{case.where}{DETECTOR} returned False, but that one is exact to rounding",
                "what you compare with, and how exactly: sums in another order differ in the last digits",
            )
    return f"the detector lets {len(RIGHT)} exact functions pass"


def other_means_are_seen(records):
    """The detector returns False where the loss or a gradient is another mean."""
    for case in cases(records[: len(DETECT)]):
        if case.given in BROKEN and case.results[0]:
            what = "no number" if "NaN" in case.given else "another mean"
            raise Wrong(f"{case.where}{DETECTOR} returned True, but that is {what}", blind_spot(case.given))
    return f"and sees that {len(BROKEN)} others are not, the given one among them"


def the_loss_is_exact(records):
    """loss_and_gradients returns the loss a token over all micro-batches and ranks, on every rank."""
    for case in cases(records[len(DETECT) :]):
        right, _ = expected(case)
        for rank, (loss, _) in enumerate(case.results):
            loss = loss.item() if torch.is_tensor(loss) and loss.numel() == 1 else loss
            if not isinstance(loss, int | float):
                raise Wrong(
                    f"{case.where}the loss on rank {rank} is {str(loss)[:60]!r}, not a number", "the value returned"
                )
            if not math.isclose(loss, right, rel_tol=CLOSE):
                raise Wrong(
                    f"{case.where}the loss on rank {rank} is {loss:.12g}; over all tokens it is {right:.12g}",
                    "the dtype in which the loss is added up"
                    if math.isclose(loss, right, rel_tol=1e-6)
                    else advice(loss, case),
                )
    return "your loss is the mean over all tokens to 1e-10, also with empty micro-batches and a rank without targets"


def the_gradient_is_exact(records):
    """The returned gradients are those of that loss, on every rank."""
    for case in cases(records[len(DETECT) :]):
        _, right = expected(case)
        length = math.sqrt(sum(one.square().sum().item() for one in right))
        for rank, (_, gradients) in enumerate(case.results):
            shapes = [tuple(one.shape) if torch.is_tensor(one) else one for one in gradients]
            if shapes != [tuple(one.shape) for one in right]:
                raise Wrong(
                    f"{case.where}rank {rank} returned gradients of shapes {str(shapes)[:100]}, not one for "
                    f"each of the {len(right)} parameters, shaped like it",
                    "the list that is returned, also on a rank that had nothing to learn from",
                )
            gap = max((a - b).abs().max().item() for a, b in zip(gradients, right, strict=True)) / length
            if not gap < CLOSE:
                times = math.sqrt(sum(one.square().sum().item() for one in gradients)) / length
                raise Wrong(
                    f"{case.where}the gradient on rank {rank} is off by {gap:.1e} of its length; it is {times:.4g} "
                    f"times as long as that of the loss over all tokens",
                    advice(times, case),
                )
    return "and so is its gradient, on 2 and 3 ranks"


CHECKS = [all_ranks_say_the_same, exact_means_pass, other_means_are_seen, the_loss_is_exact, the_gradient_is_exact]


def expected(case):
    _, lengths = case.args[0]
    batches = [batch for rank in range(case.world) for batch in drive_06_3.data(rank, lengths[rank])]
    return drive_06_3.alone(drive_06_3.Model(), batches)


def blind_spot(given):
    if "loss of" in given or "gradient of" in given:
        return "what is compared: the loss and every gradient"
    if "NaN" in given:
        return "what your comparison says of NaN: it is neither larger nor smaller than anything"
    if "thousand" in given:
        return "how exact the comparison is, and which gradients it looks at"
    if "rank 0" in given:
        return "whose loss and gradients the common answer rests on"
    return "the numbers of targets in your test: which two means are equal for them?"


def advice(number, case):
    if math.isnan(number):
        return "the mean over no targets at all is 0 / 0"
    if case.given == "equal lengths":
        return "what DDP does with the gradients on its own, and how often you divide by the number of ranks"
    return "what each micro-batch is divided by: is it the same number for all of them, on every rank?"
