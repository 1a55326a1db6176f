"""07.2: all ranks skip together, or the replicas part; and a function that finds the step at which they do."""

import math

import torch
from torch.nn.functional import linear

from ddp_course.grader.answer_record import Call, Job, cases
from ddp_course.grader.verdict import Wrong
from ddp_course.grader.vocabulary import number

from . import given as given_script
from .versions import Loop, Recorded

LOADS = ("torch._dynamo",)  # what optimizers need
FUNCTION, DETECTOR = "train", "where_replicas_part"
LEARNING_RATE, CLOSE = 0.05, 1e-3  # of the weights: float16 rounds the products
LARGE = 1e6  # float16 ends at 65,504


def call(world, scale, given, too_large=(), far=(), steps=5):
    """too_large: (rank, step) whose inputs overflow; far: those with targets far off, whose gradient overflows if
    it is scaled by much, while the loss is finite."""
    generator = torch.Generator().manual_seed(world)
    arguments = []
    for rank in range(world):
        batches = []
        for step in range(steps):
            inputs = torch.randn(4, 2, generator=generator)
            targets = inputs @ torch.tensor([[1.0], [-0.5]]) + 0.1 * rank
            if (rank, step) in too_large:
                inputs[0, 0] = LARGE
            if (rank, step) in far:
                targets = targets + 30.0
            batches.append((inputs, targets))
        arguments.append((batches, scale))
    return Call(arguments, given)


TRAIN = [
    Job(
        2,
        function=FUNCTION,
        loads=LOADS,
        calls=(
            call(2, 1024.0, "no overflow"),
            call(2, 1024.0, "rank 1 overflows in step 3", too_large={(1, 2)}),
            call(2, 1024.0, "rank 0 overflows in step 2", too_large={(0, 1)}),
            call(2, 4096.0, "rank 1's gradient overflows in step 2, its loss does not", far={(1, 1)}),
            call(2, 1024.0, "both overflow in step 4, rank 0 in step 2 too", too_large={(0, 1), (0, 3), (1, 3)}),
        ),
    ),
    Job(
        3,
        function=FUNCTION,
        loads=LOADS,
        calls=(call(3, 1.0, "a scale of 1, and rank 2 overflows in step 1", too_large={(2, 0)}),),
    ),
]
A, B, C, D = [[1.0, 2.0], 1024.0], [[1.5, 2.0], 1024.0], [[1.5, 2.5], 1024.0], [[1.5, 2.5], 512.0]
PLUS, MINUS = [[0.0, 2.0], 1024.0], [[-0.0, 2.0], 1024.0]
NEARLY_B = [[1.5, math.nextafter(2.0, 3.0)], 1024.0]
LOST = [[math.nan, math.nan], 1024.0]
DETECTED = [
    ("the broken script's train", given_script.train, 2),
    ("a loop without the if", Loop(), None),
    ("ranks with other scales from the start", Loop((1024.0, 512.0, 1024.0)), 0),
    ("the weights part in step 2", Recorded([[A, B, C], [A, C, C], [A, B, C]]), 1),
    ("only the scale parts, in step 3", Recorded([[A, B, D], [A, B, C], [A, B, D]]), 2),
    ("equal to the end", Recorded([[A, B, C, D]] * 3), None),
    ("NaN on all ranks from step 2 on", Recorded([[A, LOST, LOST]] * 3), None),
    ("apart by the last bit in step 2", Recorded([[A, B, C], [A, NEARLY_B, C], [A, B, C]]), 1),
    ("rank 1 left after two steps", Recorded([[A, B, C], [A, B], [A, B, C]]), 2),
    ("rank 2 of three parts in step 1", Recorded([[A, B], [A, B], [B, B]]), 0),
    ("apart twice: the first step counts", Recorded([[A, B, C, C], [A, C, C, D], [A, B, C, C]]), 1),
    ("rank 0 left after two steps", Recorded([[A, B], [A, B, C], [A, B, C]]), 2),
    ("0.0 on two ranks and -0.0 on one, in step 2", Recorded([[A, PLUS, B], [A, PLUS, B], [A, MINUS, B]]), 1),
]
# Rank 1 overflows in step 3, counted from one: where the broken script's train has to be caught.
BATCHES = call(3, 1024.0, "", too_large={(1, 2)}).args
DETECT = Job(
    3,
    function=DETECTOR,
    loads=LOADS,
    calls=tuple(Call([(train, *mine) for mine in BATCHES], given) for given, train, _ in DETECTED),
)
JOBS = [*TRAIN, DETECT]


def an_overflow_moves_nobody(records):
    """In a step in which any rank's gradient is not finite, the weights stay as they are on every rank."""
    for case, step, rank, (weights, _), right in steps(records):
        if not all(map(math.isfinite, weights)):
            raise Wrong(
                f"{case.where}after step {step + 1} the weights on rank {rank} are {weights}",
                "when a rank looks for inf, are the gradients averaged already?",
            )
        before = case.results[rank][step - 1][0] if step else [0.0, 0.0]
        if right["skipped"] and weights != before:
            raise Wrong(
                f"{case.where}in step {step + 1} the weights on rank {rank} went from {before} to {weights}; "
                "a step with an overflow is no step",
                "what is left of a gradient in which an inf was replaced, or left out?",
            )
    return "where one rank overflows, no rank moves"


def the_ranks_stay_equal(records):
    """After every step all ranks hold the same weights and the same scale, to the last bit."""
    for case, step, rank, entry, _ in steps(records):
        first = case.results[0][step]
        if entry != first:
            what, place = ("weights", 0) if entry[0] != first[0] else ("scale", 1)
            raise Wrong(
                f"{case.where}after step {step + 1} the {what} on rank {rank}: {entry[place]}, on rank 0: "
                f"{first[place]}",
                "which line runs on one rank and not on another, and what does it depend on?",
            )
    return "all ranks hold the same weights and the same scale after every step"


def a_skipped_step_halves_the_scale(records):
    """The scale is halved by each skipped step, and by nothing else."""
    for case, step, rank, (_, scale), right in steps(records):
        if scale != right["scale"]:
            was = case.results[rank][step - 1][1] if step else case.args[rank][1]
            what = "was skipped" if right["skipped"] else "had no overflow"
            raise Wrong(
                f"{case.where}step {step + 1} {what}, and the scale on rank {rank} went from {was:g} to {scale:g}; it "
                f"should be {right['scale']:g}",
                "scaler.update() is what finds a scale that fits: who calls it after a skipped step?",
            )
    return "a skipped step halves the scale on every rank, also if only the gradient overflowed and no loss"


def the_other_steps_are_right(records):
    """Every other step is that of one process with the global batch."""
    for case, step, rank, (weights, _), right in steps(records):
        gap = math.dist(weights, right["weights"])
        if not gap <= CLOSE * max(1e-2, math.hypot(*right["weights"])):
            raise Wrong(
                f"{case.where}after step {step + 1} the weights on rank {rank} are {rounded(weights)}; one process "
                f"with the global batch has {rounded(right['weights'])}",
                "what the gradient is divided by before the step",
            )
    return "every other step is that of one process with the global batch"


def the_detector_finds_the_step(records):
    """where_replicas_part returns the first step at which ranks differ, on every rank."""
    for case, (_, _, right) in zip(cases(records[len(TRAIN) :]), DETECTED, strict=True):
        for rank, said in enumerate(case.results):
            said = number(said)
            if said != right or isinstance(said, bool):
                others = " (other ranks said otherwise)" if len(set(map(repr, case.results))) > 1 else ""
                raise Wrong(
                    f"{case.where}{DETECTOR} returned {said!r} on rank {rank}{others}; it should be {right!r}",
                    detector_advice(said, right),
                )
    return f"{DETECTOR} finds the step; of the broken loop it is {DETECTED[0][2]}, from 0, where the scale parts"


CHECKS = [
    an_overflow_moves_nobody,
    the_ranks_stay_equal,
    a_skipped_step_halves_the_scale,
    the_other_steps_are_right,
    the_detector_finds_the_step,
]


def reference(case):
    """By step: what one process does that has the batches of all ranks."""
    weight, scale, result = torch.zeros(1, 2), case.args[0][1], []
    for batches in zip(*(mine for mine, _ in case.args), strict=True):
        gradients = []
        for inputs, targets in batches:
            leaf = weight.clone().requires_grad_()
            with torch.autocast("cpu", torch.float16):
                loss = (linear(inputs, leaf) - targets).square().mean()
            (loss * scale).backward()
            gradients.append(leaf.grad)
        gradient = torch.stack(gradients).mean(0)
        skipped = not bool(gradient.isfinite().all())
        weight = weight if skipped else weight - LEARNING_RATE * gradient / scale
        scale = scale / 2 if skipped else scale
        result.append({"weights": weight[0].tolist(), "scale": scale, "skipped": skipped})
    return result


def steps(records):
    """(case, step, rank, [weights, scale], reference) of every step of every rank."""
    for case in cases(records[: len(TRAIN)]):
        right = reference(case)
        for rank, history in enumerate(case.results):
            if not (isinstance(history, list) and len(history) == len(right) and all(map(is_entry, history))):
                raise Wrong(
                    f"{case.where}{FUNCTION} did not return [weights, scale] for each of {len(right)} steps on "
                    f"rank {rank}",
                    "a step that is skipped is a step: what does the loop write down for it?",
                )
        for step in range(len(right)):
            for rank, history in enumerate(case.results):
                yield case, step, rank, history[step], right[step]


def is_entry(one):
    return isinstance(one, list) and len(one) == 2 and isinstance(one[0], list) and len(one[0]) == 2


def rounded(weights):
    return [round(one, 4) for one in weights]


def detector_advice(said, right):
    if right is None:
        return "NaN is not equal to itself; the bits are"
    if said is None:
        return "what do you compare: both weights and the scale, to the last bit, of all ranks, up to the longest?"
    return "steps count from 0, the first difference counts, and a history that ends early parts where it ends"
