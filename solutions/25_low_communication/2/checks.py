"""25.2: the k largest numbers of each gradient are sent, and what was not sent is added to the next gradient."""

import torch

from ddp_course.grader.harness.tensors import largest_gap
from ddp_course.grader.vocabulary import Mistake, Wrong, check, driver_job, expect, expect_few_bytes, recognised

from .driver import EVERY_ONE, SHAPES, SOME, STEPS, TIES, ZEROS, K, gradients

FUNCTION = "TopK"
UNTIED = (EVERY_ONE, SOME, ZEROS)  # the k largest numbers are settled
CLOSE = 1e-12
TITLE = {name: f"parameter {number}" for number, name in enumerate(SHAPES)}  # by its position, as kept[number]
JOBS = [driver_job(world, FUNCTION, [*UNTIED, TIES]) for world in (2, 3, 1)]


@check("each rank sends its k largest numbers, and all get the mean", scenarios=UNTIED)
def the_largest_are_sent(case, rank, result):
    for name, mean in next(simulate(case))["reduced"].items():
        gradient = result[0]["reduced"][name]
        if not largest_gap(gradient, mean) < CLOSE:
            by_rank = [gradients(case.scenario, 0, peer)[name] for peer in range(case.world)]
            sent = [largest(gradient)[0] for gradient in by_rank]
            senders = sum((part != 0).double() for part in sent).clamp(min=1)
            mistakes = [
                Mistake(
                    "a sum divided by the ranks that sent the number",
                    sum(sent) / senders,
                    "the divisor: the number of ranks",
                ),
                Mistake("the sum over the ranks", case.world * mean, "the mean is wanted, as DDP has it"),
                Mistake("the mean of whole gradients", sum(by_rank) / case.world, "which numbers are not sent"),
                Mistake("what this rank sends", sent[rank], "what the other ranks have sent"),
            ]
            otherwise = "which numbers are the largest (of -3 and 2 it is -3), and at which place each is added"
            words, look_at = recognised(gradient, mistakes, otherwise, right=mean)
            raise Wrong(f"after step 1 the gradient of {TITLE[name]} on rank {rank} is wrong{words}", look_at)


@check("each rank keeps the rest of its own", scenarios=UNTIED)
def a_rank_keeps_what_it_has_not_sent(case, rank, result):
    for name, right in next(simulate(case))["kept"][rank].items():
        kept = result[0]["kept"][name]
        if not largest_gap(kept, right) < CLOSE:
            gradient = gradients(case.scenario, 0, rank)[name]
            mistakes = [
                Mistake("all of the gradient", gradient, "what was sent would be sent once more"),
                Mistake("nothing", torch.zeros_like(gradient), "what happens to the numbers that are not sent"),
            ]
            words, look_at = recognised(kept, mistakes, "kept[n] is this rank's, and of its own gradient")
            raise Wrong(f"after step 1 what rank {rank} keeps of {TITLE[name]} is wrong{words}", look_at)


@check("what was sent and what is kept add up to all gradients", scenarios=[EVERY_ONE, TIES])
def nothing_is_lost(case):
    for name, shape in SHAPES.items():
        sent, total = torch.zeros(shape, dtype=torch.float64), torch.zeros(shape, dtype=torch.float64)
        for step in range(STEPS):
            sent += case.world * case.results[0][step]["reduced"][name]
            total += sum(gradients(case.scenario, step, rank)[name] for rank in range(case.world))
            kept = sum(result[step]["kept"][name] for result in case.results)
            gap = largest_gap(sent + kept, total)
            expect(
                gap < 1e3 * CLOSE,
                f"after step {step + 1} the sum of sent and kept numbers of {TITLE[name]} is {gap:.1e} away from that "
                "of its gradients",
                "what happens to the numbers that are not sent this time: those that were kept before, and those that "
                "are as large as one that is sent",
            )


@check("what was kept competes with the next gradient", scenarios=[EVERY_ONE])
def kept_numbers_compete(case, rank, result):
    expect_as_simulated(case, rank, result, "the k largest of what: gradient, or gradient plus what is kept")


@check("a parameter without a gradient waits", scenarios=[SOME])
def a_parameter_without_a_gradient_waits(case, rank, result):
    expect_as_simulated(case, rank, result, "which kept numbers belong to which parameter, if one is left out")


@check("all ranks get the same gradient, to the last bit")
def all_ranks_get_the_same(case, rank, result):
    for step, (report, first) in enumerate(zip(result, case.results[0], strict=True), 1):
        for name, gradient in report["reduced"].items():
            expect(
                gradient is None or torch.equal(gradient, first["reduced"][name]),
                f"after step {step} the gradient of {TITLE[name]} on rank {rank} differs from rank 0's by a rounding",
                "the order in which each rank adds up what the others sent",
            )


@check(lambda sent: f"{max(sent) // STEPS} bytes per step at most")
def little_is_sent(case, rank, result):
    count = sum(
        min(K, gradient.numel())
        for step in range(STEPS)
        for gradient in gradients(case.scenario, step, rank).values()
        if gradient is not None
    )
    purpose = f" for {count} numbers and their places"
    look_at = "what a message holds: k numbers and k places of 8 bytes; zeros cost as much as other numbers"
    if case.scenario in (ZEROS, TIES):
        look_at = "how many numbers are chosen if several are equally large: k, and not all of them"
    return expect_few_bytes(rank, case.operations[rank], 16 * count, purpose, look_at, without=("recv",))


def expect_as_simulated(case, rank, result, look_at):
    """Raise Wrong unless after every step gradients and kept numbers are those of ranks simulated in one process."""
    for step, (report, right) in enumerate(zip(result, simulate(case), strict=True), 1):
        for kind, verb, tensors, right_tensors in (
            ("gradient", "is", report["reduced"], right["reduced"]),
            ("kept numbers", "are", report["kept"], right["kept"][rank]),
        ):
            for name, expected in right_tensors.items():
                begin = f"after step {step} the"
                how = "is there, though it had none" if expected is None else "is missing"
                expect(
                    (tensors[name] is None) == (expected is None),
                    f"{begin} gradient of {TITLE[name]} on rank {rank} {how}",
                    "a parameter without a gradient: its .grad is None before and after",
                )
                gap = 0.0 if expected is None else largest_gap(tensors[name], expected)
                expect(
                    gap < CLOSE,
                    f"{begin} {kind} of {TITLE[name]} on rank {rank} {verb} {gap:.1e} away from ranks "
                    "simulated in one process",
                    look_at,
                )


def simulate(case):
    """After each step the reduced gradients, by name, and what each rank keeps: all ranks in one process."""
    zeros = {name: torch.zeros(shape, dtype=torch.float64) for name, shape in SHAPES.items()}
    kept = [zeros] * case.world
    for step in range(STEPS):
        reduced = dict.fromkeys(SHAPES)
        for rank in range(case.world):
            kept[rank] = dict(kept[rank])
            for name, gradient in gradients(case.scenario, step, rank).items():
                if gradient is not None:
                    sent, kept[rank][name] = largest(kept[rank][name] + gradient)
                    reduced[name] = sent / case.world + (0 if rank == 0 else reduced[name])
        yield {"reduced": reduced, "kept": list(kept)}


def largest(total):
    """(`total` with zeros but for its k largest numbers, `total` with zeros for these)"""
    sent = torch.zeros(total.numel(), dtype=total.dtype)
    at = total.flatten().abs().topk(min(K, total.numel())).indices
    sent[at] = total.flatten()[at]
    return sent.view_as(total), total - sent.view_as(total)
