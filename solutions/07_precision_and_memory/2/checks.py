"""07.2: all ranks skip together, or the replicas diverge; and a function that finds the step at which they do.

Steps count from 0, as in the history that `train` returns.
"""

import math
from dataclasses import dataclass

import torch
from torch.nn.functional import linear

from ddp_course.grader.vocabulary import Call, check, expect, jobs_of, number

from . import given as given_script
from .versions import Loop, Recorded

LOADS = ("torch._dynamo",)  # what optimizers need
FUNCTION, DETECTOR = "train", "where_replicas_diverge"
LEARNING_RATE = 0.05
CLOSE = 1e-3  # relative to the weights: float16 rounds the products
STEPS = 5
TOO_LARGE = 1e6  # for float16, which ends at 65,504


def call(world, scale, scenario, overflow=(), gradient_overflow=()):
    """A call of train with STEPS batches for each rank.

    overflow           the (rank, step) in which an input is too large
    gradient_overflow  the (rank, step) in which the gradient is too large at a scale of 4096, and the loss is finite
    """
    generator = torch.Generator().manual_seed(world)
    arguments = []
    for rank in range(world):
        batches = []
        for step in range(STEPS):
            inputs = torch.randn(4, 2, generator=generator)
            targets = inputs @ torch.tensor([[1.0], [-0.5]]) + 0.1 * rank
            if (rank, step) in overflow:
                inputs[0, 0] = TOO_LARGE
            if (rank, step) in gradient_overflow:
                targets = targets + 30.0
            batches.append((inputs, targets))
        arguments.append((batches, scale))
    return Call(arguments, scenario)


TRAIN_CALLS = [
    call(2, 1024.0, "no overflow"),
    call(2, 1024.0, "rank 1 overflows in step 2", overflow={(1, 2)}),
    call(2, 1024.0, "rank 0 overflows in step 1", overflow={(0, 1)}),
    call(2, 4096.0, "rank 1's gradient overflows in step 1, its loss does not", gradient_overflow={(1, 1)}),
    call(2, 1024.0, "both overflow in step 3, rank 0 in step 1 too", overflow={(0, 1), (0, 3), (1, 3)}),
    call(3, 1.0, "a scale of 1, and rank 2 overflows in step 0", overflow={(2, 0)}),
]
# Entries of made-up histories: [weights, scale].
A, B, C, D = [[1.0, 2.0], 1024.0], [[1.5, 2.0], 1024.0], [[1.5, 2.5], 1024.0], [[1.5, 2.5], 512.0]
PLUS, MINUS = [[0.0, 2.0], 1024.0], [[-0.0, 2.0], 1024.0]
NEARLY_B = [[1.5, math.nextafter(2.0, 3.0)], 1024.0]
NANS = [[math.nan, math.nan], 1024.0]
BROKEN_TRAIN = "the broken script's train"
LOOPS = {  # a train, and the step at which the replicas diverge
    BROKEN_TRAIN: (given_script.train, 2),
    "a loop without the if": (Loop(), None),
    "ranks with other scales from the start": (Loop((1024.0, 512.0, 1024.0)), 0),
    "the weights diverge in step 1": (Recorded([[A, B, C], [A, C, C], [A, B, C]]), 1),
    "only the scale diverges, in step 2": (Recorded([[A, B, D], [A, B, C], [A, B, D]]), 2),
    "equal to the end": (Recorded([[A, B, C, D]] * 3), None),
    "NaN on all ranks from step 1 on": (Recorded([[A, NANS, NANS]] * 3), None),
    "unequal by the last bit in step 1": (Recorded([[A, B, C], [A, NEARLY_B, C], [A, B, C]]), 1),
    "rank 1 left after two steps": (Recorded([[A, B, C], [A, B], [A, B, C]]), 2),
    "rank 2 of three diverges in step 0, to NaN": (Recorded([[A, B], [A, B], [NANS, B]]), 0),
    "unequal twice: the first step counts": (Recorded([[A, B, C, C], [A, C, C, D], [A, B, C, C]]), 1),
    "rank 0 left after two steps": (Recorded([[A, B], [A, B, C, D], [A, B, C, D]]), 2),
    "0.0 on two ranks and -0.0 on one, in step 1": (Recorded([[A, PLUS, B], [A, PLUS, B], [A, MINUS, B]]), 1),
}
# Rank 1 overflows in step 2: there the replicas of the broken script diverge.
ARGUMENTS = call(3, 1024.0, "", overflow={(1, 2)}).args
DETECT_CALLS = [
    Call([(train, *arguments) for arguments in ARGUMENTS], scenario) for scenario, (train, _) in LOOPS.items()
]
TRAIN, DETECT = jobs_of(FUNCTION, TRAIN_CALLS, loads=LOADS), jobs_of(DETECTOR, DETECT_CALLS, loads=LOADS)
JOBS = TRAIN + DETECT


@check("where one rank overflows, no rank moves", TRAIN)
def an_overflow_moves_no_rank(case):
    for step, rank, (weights, _), right in steps(case):
        expect(
            all(map(math.isfinite, weights)),
            f"after step {step} the weights on rank {rank} are {weights}",
            "when a rank looks for inf, are the gradients averaged already?",
        )
        old = case.results[rank][step - 1][0] if step else [0.0, 0.0]
        expect(
            not right.skipped or weights == old,
            f"in step {step} the weights on rank {rank} went from {old} to {weights}; a step with an overflow is "
            "no step",
            "does the optimizer step along a gradient in which an inf was replaced, or left out?",
        )


@check("all ranks hold the same weights and the same scale after every step", TRAIN)
def the_ranks_stay_equal(case):
    for step, rank, entry, _ in steps(case):
        for name, value, value_on_rank_0 in zip(("weights", "scale"), entry, case.results[0][step], strict=True):
            expect(
                value == value_on_rank_0,
                f"after step {step} the {name} on rank {rank}: {value}, on rank 0: {value_on_rank_0}",
                "which line runs on one rank and not on another, and what does it depend on?",
            )


@check("a skipped step halves the scale on every rank, also if only the gradient overflowed and no loss", TRAIN)
def a_skipped_step_halves_the_scale(case):
    for step, rank, (_, scale), right in steps(case):
        old = case.results[rank][step - 1][1] if step else case.args[rank][1]
        what = "was skipped" if right.skipped else "had no overflow"
        expect(
            scale == right.scale,
            f"step {step} {what}, and the scale on rank {rank} went from {old:g} to {scale:g}; it should be "
            f"{right.scale:g}",
            "scaler.update() adapts the scale: which ranks call it after a skipped step?"
            if right.skipped
            else "what weight.grad holds: the inf of a skipped step, or a gradient still multiplied by the scale?",
        )


@check("every other step is that of one process with the global batch", TRAIN)
def the_other_steps_are_right(case):
    for step, rank, (weights, _), right in steps(case):
        expect(
            math.dist(weights, right.weights) <= CLOSE * max(1e-2, math.hypot(*right.weights)),
            f"after step {step} the weights on rank {rank} are {rounded(weights)}; one process with the global "
            f"batch has {rounded(right.weights)}",
            "what the gradient is divided by before the step",
        )


@check(
    f"{DETECTOR} finds the step; of the broken loop it is {LOOPS[BROKEN_TRAIN][1]}, from 0, where the scales differ",
    DETECT,
)
def the_detector_finds_the_step(case, rank, result):
    step, (_, right) = number(result), LOOPS[case.scenario]
    disagreement = " (other ranks returned something else)" if len(set(map(repr, case.results))) > 1 else ""
    expect(
        step == right and not isinstance(step, bool),
        f"{DETECTOR} returned {step!r} on rank {rank}{disagreement}; it should be {right!r}",
        where_to_look(step, right),
    )


@dataclass
class Step:
    """A step of one process: the weights and the scale after it, and whether it was skipped."""

    weights: list[float]
    scale: float
    skipped: bool


def one_process(case):
    """The steps of one process that has the batches of all ranks, in float16 as the ranks compute."""
    weight, scale, history = torch.zeros(1, 2), case.args[0][1], []
    for rank_batches in zip(*(batches for batches, _ in case.args), strict=True):
        gradients = []
        for inputs, targets in rank_batches:
            leaf = weight.clone().requires_grad_()
            with torch.autocast("cpu", torch.float16):
                loss = (linear(inputs, leaf) - targets).square().mean()
            (loss * scale).backward()
            gradients.append(leaf.grad)
        gradient = torch.stack(gradients).mean(0)
        skipped = not bool(gradient.isfinite().all())
        weight = weight if skipped else weight - LEARNING_RATE * gradient / scale
        scale = scale / 2 if skipped else scale
        history.append(Step(weight[0].tolist(), scale, skipped))
    return history


def steps(case):
    """Yield (step, rank, [weights, scale], the Step of one process) for every step and every rank."""
    right = one_process(case)
    for rank, history in enumerate(case.results):
        expect(
            isinstance(history, list) and len(history) == len(right) and all(map(is_entry, history)),
            f"{FUNCTION} did not return [weights, scale] for each of {len(right)} steps on rank {rank}",
            "a step that is skipped is a step: what does the loop write down for it?",
        )
    for step, entries in enumerate(zip(*case.results, strict=True)):
        for rank, entry in enumerate(entries):
            yield step, rank, entry, right[step]


def is_entry(entry):
    return isinstance(entry, list) and len(entry) == 2 and isinstance(entry[0], list) and len(entry[0]) == 2


def rounded(weights):
    return [round(weight, 4) for weight in weights]


def where_to_look(step, right):
    """Where to look if the detector returned `step` instead of `right`."""
    if right is None:
        return "NaN is not equal to itself, but its bits are"
    if step is None:
        return "do you compare both weights and the scale, to the last bit, on all ranks, up to the longest history?"
    return "do you compare both weights and the scale, count the steps from 0, and return the first that differs?"
