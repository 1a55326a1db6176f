"""07.1: clipping in the one place where it means something; and a test that tells right steps from wrong ones."""

import math
from dataclasses import dataclass

import torch

from ddp_course.grader.vocabulary import (
    Call,
    Detector,
    by_pattern,
    check,
    expect,
    function_job,
    is_close,
    jobs_of,
    number,
)

from . import driver
from .given import train_step
from .versions import TrainStep

LOADS = ("torch._dynamo",)  # what optimizers need
DETECTOR = "is_right"
CLOSE = 1e-4  # of a step's length: clip_grad_norm_ adds 1e-6 to the norm


def call(world, size, limit, scenario, overflow=None):
    """Three steps.

    size      of the targets on rank 0; on rank r they are r + 1 times as large
    overflow  the (rank, step) in which a target is inf
    """
    generator = torch.Generator().manual_seed(world)
    arguments = []
    for rank in range(world):
        inputs = torch.randn(3, 4, 2, dtype=torch.float64, generator=generator)
        targets = size * (rank + 1) * torch.randn(3, 4, dtype=torch.float64, generator=generator)
        if overflow and overflow[0] == rank:
            targets[overflow[1], 0] = math.inf
        arguments.append((inputs, targets, limit))
    return Call(arguments, scenario)


TRAIN_CALLS = [
    call(2, 10.0, 1.0, "gradients above the limit"),
    call(2, 0.01, 1.0, "gradients below the limit"),
    call(2, 10.0, 1.0, "rank 1 overflows in step 1", overflow=(1, 0)),
]
DRIVER_CALLS = [
    call(3, 5.0, 0.1, "a limit of 0.1, SGD with momentum"),
    # In step 2 SGD has a momentum, with which a step moves the weights even if the gradient is zero.
    call(3, 5.0, 0.1, "rank 0 overflows in step 2, SGD with momentum", overflow=(0, 1)),
]
TRAIN = jobs_of("train", TRAIN_CALLS, loads=LOADS) + jobs_of("train_step", DRIVER_CALLS, loads=LOADS, driver=True)
RIGHT = {
    "average, unscale, clip": TrainStep(),
    "clips scaled gradients to limit x scale": TrainStep("limit scaled"),
    "clips by clip_grad_norm_": TrainStep(clip="torch"),
    "averages in float32": TrainStep(average="float32"),
}
BROKEN = {
    "the broken script's train_step": train_step,
    "clips before unscale_": TrainStep("scaled"),
    "clips each rank's gradient, then averages": TrainStep("early"),
    "never clips": TrainStep(clip="none"),
    "clips each tensor to the limit": TrainStep(clip="each"),
    "makes short gradients as long as the limit": TrainStep(clip="always"),
    "keeps the length and changes the direction": TrainStep(clip="sign"),
    "clips on rank 0 only": TrainStep(clip="rank 0"),
    "adds up and does not divide, then clips": TrainStep(average="sum"),
    "makes NaN of the last tensor": TrainStep(clip="nan"),
    "adds the gradient of the step before": TrainStep(keep=True),
    "makes steps 0.5 % too long": TrainStep(clip="long"),
}
DETECTOR_CALLS = {scenario: (version,) for scenario, version in (RIGHT | BROKEN).items()}
DETECT = function_job(3, DETECTOR, DETECTOR_CALLS, loads=LOADS)
JOBS = [*TRAIN, DETECT]


@check("every step is that of one process with the global batch, above and below the limit, on 2 and 3 ranks", TRAIN)
def every_step_is_that_of_one_process(case, rank, result):
    for step_number, (weights, step) in enumerate(steps(case, rank, result), start=1):
        if step.skipped:
            return
        distance, right_distance = math.dist(weights, step.start), math.dist(step.weights, step.start)
        look_at = "which norm is compared with the limit: that over all weights together, of the averaged gradient?"
        if momentum(case) and step_number > 1:
            look_at = "what the optimizer adds to the gradient that it is given, and which line moves the weights"
        elif distance < right_distance / 1000:
            look_at = "by what is the gradient multiplied at the moment when it is compared with the limit?"
        expect(
            math.dist(weights, step.weights) <= CLOSE * right_distance,
            f"in step {step_number} the weights on rank {rank} moved by {distance:.3g}; one process with the global "
            f"batch moves them by {right_distance:.3g}{angle_text(weights, step)}",
            look_at,
        )


@check("the norm it returns is that of the averaged gradient, the same on all ranks", TRAIN)
def the_norm_is_that_of_the_mean_gradient(case, rank, result):
    for step_number, ((_, norm), step) in enumerate(zip(result, one_process_steps(case), strict=True), start=1):
        if step.skipped:
            return
        expect(
            is_close(number(norm), step.norm, rel_tol=1e-6),
            f"in step {step_number} train_step returned {number(norm)!r} on rank {rank}; the norm of the averaged "
            f"gradient is {step.norm:.6g}",
            "the norm that is returned: of which gradient, before or after it is clipped, divided by which scale?",
        )


@check("if one rank's gradient is not finite, no rank moves, and the steps after it are right", TRAIN)
def an_overflow_moves_no_rank(case, rank, result):
    overflowed = False
    for step_number, (weights, step) in enumerate(steps(case, rank, result), start=1):
        overflowed |= step.skipped
        if not overflowed:
            continue
        expect(
            all(map(math.isfinite, weights)),
            f"after step {step_number} the weights on rank {rank} are {weights}",
            "which gradients are searched for inf: those of one rank, or the averaged ones that all ranks have?",
        )
        distance = math.dist(weights, step.start)
        should = "stay" if step.skipped else f"move by {math.dist(step.weights, step.start):.3g}"
        expect(
            math.dist(weights, step.weights) <= CLOSE * driver.LEARNING_RATE * case.args[rank][2],
            f"in step {step_number} the weights on rank {rank} moved by {distance:.3g}; they should {should}",
            "what the optimizer makes of a step whose gradient is zero, once it has a momentum"
            if momentum(case)
            else "what each rank does in a step in which the gradient of another rank is not finite",
        )


detector = Detector(DETECTOR, RIGHT, BROKEN, [DETECT])
DETECTOR_CHECKS = [
    detector.agrees("all ranks have to return the same verdict: how does a rank learn what the others found?"),
    detector.passes(
        ", but that version is right",
        "what it takes for a mistake: the norm that train_step returns, which it should not judge, or a rounding?",
        f"{DETECTOR} lets {len(RIGHT)} right versions pass",
    ),
    detector.catches(
        ", but that version is wrong",
        by_pattern(
            {
                "step before": "how many steps your test makes with the same weights: one step or more?",
                "too long": "how far a step may be from the right one, relative to its length",
                "NaN": "what your comparison says of NaN, and which of the weights it looks at",
                "": "which gradients would show the difference: above or below the limit, equal on all ranks or not?",
            }
        ),
        f"and catches {len(BROKEN)} wrong ones, the broken script's among them",
    ),
]


@dataclass(frozen=True)
class Step:
    """A step of one process: the weights before and after it, the norm of its gradient, and whether it was skipped."""

    start: torch.Tensor
    weights: torch.Tensor
    norm: float
    skipped: bool


def one_process_steps(case):
    """Yield the steps of one process with the global batch, its three weights in one tensor."""
    weights = velocity = torch.zeros(3, dtype=torch.float64)
    limit = case.args[0][2]
    for batches in zip(*(zip(inputs, targets, strict=True) for inputs, targets, _ in case.args), strict=True):
        leaf = weights.clone().requires_grad_()
        losses = [(inputs @ leaf[:2] + leaf[2] - targets).square().mean() for inputs, targets in batches]
        [gradient] = torch.autograd.grad(torch.stack(losses).mean(), leaf)
        start, norm = weights, gradient.norm().item()
        skipped = not math.isfinite(norm)
        if not skipped:
            velocity = momentum(case) * velocity + gradient * min(1.0, limit / norm)
            weights = weights - driver.LEARNING_RATE * velocity
        yield Step(start, weights, norm, skipped)


def momentum(case):
    """The momentum of this case's optimizer: `train` uses none, the driver does."""
    return driver.MOMENTUM if "momentum" in case.scenario else 0.0


def steps(case, rank, result):
    """[(the weights on this rank after the step, the Step of one process)] for each step of the case."""
    right = list(one_process_steps(case))
    expect(
        isinstance(result, list) and len(result) == len(right) and all(map(is_entry, result)),
        f"train did not return [three weights, norm] for each of {len(right)} steps",
        "train stays as it was given",
    )
    return [(weights, step) for (weights, _), step in zip(result, right, strict=True)]


def is_entry(entry):
    return isinstance(entry, list) and len(entry) == 2 and isinstance(entry[0], list) and len(entry[0]) == 3


def angle_text(weights, step):
    """The end of a message: the angle between the step to `weights` and the right one, from one degree on."""
    change, right_change = torch.tensor(weights) - step.start, step.weights - step.start
    cosine = torch.nn.functional.cosine_similarity(change, right_change, dim=0).clamp(-1, 1)
    degrees = math.degrees(math.acos(cosine))
    return f", at an angle of {degrees:.0f} degrees to that" if degrees >= 1 else ""
