"""07.1: clipping in the one place where it means something; and a test that tells right updates from wrong ones."""

import math

import torch

from ddp_course.grader.answer_record import Call, Job, cases
from ddp_course.grader.verdict import Wrong
from ddp_course.grader.vocabulary import number

from . import driver
from . import given as given_script
from .versions import Update

LOADS = ("torch._dynamo",)  # what optimizers need
FUNCTION, DETECTOR = "train", "is_right"
CLOSE = 1e-4  # of a step's length: clip_grad_norm_ adds 1e-6 to the norm
LEARNING_RATE = 0.5


def call(world, size, limit, given, spoiled=None):
    """Three steps on data of `size`, rank r's larger by r + 1; `spoiled`: (rank, step) where a target is inf."""
    generator = torch.Generator().manual_seed(world)
    arguments = []
    for rank in range(world):
        inputs = torch.randn(3, 4, 2, dtype=torch.float64, generator=generator)
        targets = size * (rank + 1) * torch.randn(3, 4, dtype=torch.float64, generator=generator)
        if spoiled and spoiled[0] == rank:
            targets[spoiled[1], 0] = math.inf
        arguments.append((inputs, targets, limit))
    return Call(arguments, given)


TRAIN = [
    Job(
        2,
        function=FUNCTION,
        loads=LOADS,
        calls=(
            call(2, 10.0, 1.0, "gradients above the limit"),
            call(2, 0.01, 1.0, "gradients below the limit"),
            call(2, 10.0, 1.0, "rank 1 overflows in step 1", spoiled=(1, 0)),
        ),
    ),
    Job(
        3,
        function="update",
        loads=LOADS,
        driver=True,
        calls=(
            call(3, 5.0, 0.1, "a limit of 0.1, SGD with momentum"),
            # Not before it has a momentum: along that, a step moves the weights without any gradient.
            call(3, 5.0, 0.1, "rank 0 overflows in step 2, SGD with momentum", spoiled=(0, 1)),
        ),
    ),
]
VERSIONS = [
    ("the broken script's update", given_script.update, False),
    ("average, unscale, clip", Update(), True),
    ("clips scaled gradients to limit x scale", Update("limit scaled"), True),
    ("clips by clip_grad_norm_", Update(clip="torch"), True),
    ("averages in float32", Update(average="float32"), True),
    ("clips before unscale_", Update("scaled"), False),
    ("clips each rank's gradient, then averages", Update("early"), False),
    ("never clips", Update(clip="none"), False),
    ("clips each tensor to the limit", Update(clip="each"), False),
    ("makes short gradients as long as the limit", Update(clip="always"), False),
    ("keeps the length and changes the direction", Update(clip="sign"), False),
    ("clips on rank 0 alone", Update(clip="rank 0"), False),
    ("adds up and does not divide, then clips", Update(average="sum"), False),
    ("makes NaN of the last tensor", Update(clip="nan"), False),
]
DETECT = Job(
    3, function=DETECTOR, loads=LOADS, calls=tuple(Call([(version,)] * 3, given) for given, version, _ in VERSIONS)
)
JOBS = [*TRAIN, DETECT]


def every_step_is_the_joint_one(records):
    """While all gradients are finite, the weights on every rank are those of one process with the global batch."""
    for case, step, rank, weights, right in steps(records):
        if right["skipped"] or not right["finite so far"]:
            continue
        before = right["before"]
        length, moved = distance(right["weights"], before), distance(weights, before)
        if not distance(weights, right["weights"]) <= CLOSE * length:
            raise Wrong(
                f"{case.where}in step {step + 1} the weights on rank {rank} moved by {moved:.3g}; one process with "
                f"the global batch moves them by {length:.3g}{aside(weights, right['weights'], before)}",
                "what the optimizer adds to the gradient that it is given, and who moves the weights"
                if momentum(case) and step
                else look(moved, length),
            )
    return "every step is that of one process with the global batch, above and below the limit, on 2 and 3 ranks"


def the_norm_is_that_of_the_joint_gradient(records):
    """What update returns is the norm of the joint gradient before clipping, on every rank."""
    for case in cases(records[: len(TRAIN)]):
        for rank, path in enumerate(case.results):
            for step, ((_, norm), right) in enumerate(zip(path, reference(case), strict=True)):
                if right["skipped"]:
                    break
                norm = number(norm)
                if not (isinstance(norm, float) and math.isclose(norm, right["norm"], rel_tol=1e-6)):
                    raise Wrong(
                        f"{case.where}in step {step + 1} update returned {norm!r} on rank {rank}; the norm of the "
                        f"joint gradient is {right['norm']:.6g}",
                        "the norm that is logged: of which gradient is it, and before or after it is cut?",
                    )
    return "the norm it returns is that of the joint gradient, the same on all ranks"


def an_overflow_moves_nobody(records):
    """In a step in which one rank's gradient is not finite no rank moves, and afterwards training goes on."""
    for case, step, rank, weights, right in steps(records):
        if right["finite so far"]:
            continue
        if not all(map(math.isfinite, weights)):
            raise Wrong(
                f"{case.where}after step {step + 1} the weights on rank {rank} are {weights}",
                "who looks for inf, and at which gradients: those of one rank, or those that all have?",
            )
        if not distance(weights, right["weights"]) <= CLOSE * LEARNING_RATE * case.args[rank][2]:
            moved = distance(weights, right["before"])
            should = "stay" if right["skipped"] else f"move by {distance(right['weights'], right['before']):.3g}"
            raise Wrong(
                f"{case.where}in step {step + 1} the weights on rank {rank} moved by {moved:.3g}; they should {should}",
                "what the optimizer makes of a step whose gradient is zero, once it has a momentum"
                if momentum(case)
                else "what a rank does with a step that another rank cannot use",
            )
    return "if one rank's gradient is not finite, no rank moves, and the steps after it are right"


def the_detector_tells_right_from_wrong(records):
    """is_right says True of right updates and False of wrong ones, on every rank."""
    for case, (_, _, right) in zip(cases(records[len(TRAIN) :]), VERSIONS, strict=True):
        said = [number(one) for one in case.results]
        for rank, one in enumerate(said):
            if one not in (True, False) or bool(one) != right:
                others = f" (rank by rank: {said})" if len({str(s) for s in said}) > 1 else ""
                raise Wrong(
                    f"{case.where}{DETECTOR} returned {one!r} on rank {rank}{others}; it should be {right}",
                    "all ranks have to come to one answer: how does one hear of what another saw?"
                    if others
                    else "what your comparison says of NaN, and which of the weights it looks at"
                    if "NaN" in case.given
                    else "what it takes for a mistake: what update returns, which is not asked for, or a rounding?"
                    if right
                    else "which gradients, above or below the limit, equal or unlike, would show the difference?",
                )
    return f"{DETECTOR} tells {len(VERSIONS)} versions apart, the broken one among them"


CHECKS = [
    every_step_is_the_joint_one,
    the_norm_is_that_of_the_joint_gradient,
    an_overflow_moves_nobody,
    the_detector_tells_right_from_wrong,
]


def reference(case):
    """By step: what one process with the global batch does."""
    weights, velocity = torch.zeros(2, 3, dtype=torch.float64)
    so_far, result = True, []
    for step in range(len(case.args[0][0])):
        gradients = []
        for inputs, targets, _ in case.args:
            design = torch.cat([inputs[step], torch.ones(len(inputs[step]), 1, dtype=torch.float64)], dim=1)
            gradients.append(2 * design.T @ (design @ weights - targets[step]) / len(design))
        gradient = torch.stack(gradients).mean(0)
        skipped, norm = not bool(gradient.isfinite().all()), gradient.norm().item()
        so_far &= not skipped
        before = weights.tolist()
        if not skipped:
            velocity = momentum(case) * velocity + gradient * min(1.0, case.args[0][2] / norm)
            weights = weights - LEARNING_RATE * velocity
        result.append({"before": before, "weights": weights.tolist(), "norm": norm, "skipped": skipped})
        result[-1]["finite so far"] = so_far
    return result


def momentum(case):
    """That of the optimizer: train's has none, the driver's has."""
    return driver.MOMENTUM if "momentum" in case.given else 0.0


def steps(records):
    """(case, step, rank, weights, reference) of every step; the reference continues from its own last step."""
    for case in cases(records[: len(TRAIN)]):
        right = reference(case)
        for rank, path in enumerate(case.results):
            if not (isinstance(path, list) and len(path) == len(right) and all(map(is_entry, path))):
                raise Wrong(
                    f"{case.where}{FUNCTION} did not return [three weights, norm] for each of {len(right)} steps",
                    f"{FUNCTION} stays as it was given",
                )
            for step, (weights, _) in enumerate(path):
                yield case, step, rank, weights, right[step]


def is_entry(one):
    return isinstance(one, list) and len(one) == 2 and isinstance(one[0], list) and len(one[0]) == 3


def distance(a, b):
    return math.dist(a, b)


def aside(weights, right, before):
    """What else is wrong with a step of about the right length."""
    moved, wanted = (torch.tensor(one) - torch.tensor(before) for one in (weights, right))
    cosine = torch.nn.functional.cosine_similarity(moved, wanted, dim=0).clamp(-1, 1)
    degrees = math.degrees(math.acos(cosine))
    return f", {degrees:.0f} degrees aside" if degrees >= 1 else ""


def look(moved, length):
    if moved < length / 1000:
        return "by what is the gradient multiplied at the moment when it is compared with the limit?"
    return "whose gradient is it that is compared with the limit: this rank's, or the joint one?"
