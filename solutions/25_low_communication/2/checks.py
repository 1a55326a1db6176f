"""25.2: the k largest numbers of each gradient are sent, and what was not sent is added to the next gradient."""

import math

import torch

from ddp_course.grader.answer_record import Call, Job, cases
from ddp_course.grader.verdict import Wrong
from ddp_course.grader.vocabulary import Mistake, recognised

from .driver import EVERY_ONE, SHAPES, SOME, TIES, UPDATES, ZEROS, K, gradients

FUNCTION = "TopK"
CLOSE = 1e-12


def job(world):
    calls = tuple(Call([(given,)] * world, given) for given in (EVERY_ONE, SOME, ZEROS, TIES))
    return Job(world, FUNCTION, calls, driver=True)


JOBS = [job(world) for world in (2, 3, 1)]


def the_largest_are_sent(records):
    """In the first update each rank sends the k largest numbers of each gradient, and gets the mean over the ranks."""
    for case, rank, result in untied(records):
        right = next(played(case))["back"]
        for name, gradient in right.items():
            mine = result[0]["back"][name]
            if distance(mine, gradient) < CLOSE:
                continue
            of_all = [gradients(case.given, 0, one)[name] for one in range(case.world)]
            mistakes = [
                Mistake("the sum over the ranks", case.world * gradient, "the mean is wanted, as DDP has it"),
                Mistake("the mean of whole gradients", sum(of_all) / case.world, "which numbers stay at home"),
                Mistake("what this rank sends", largest(of_all[rank])[0], "what the other ranks have sent"),
            ]
            otherwise = "which numbers are the largest (of -3 and 2 it is -3), and at which place each is added"
            words, look = recognised(mine, mistakes, otherwise)
            raise Wrong(f"{case.where}after update 1 the gradient of {name} on rank {rank} is wrong{words}", look)
    return "each rank sends its k largest numbers, and all get the mean"


def a_rank_keeps_what_it_has_not_sent(records):
    """After the first update, each rank keeps its own gradient without the numbers that it sent."""
    for case, rank, result in untied(records):
        for name, right in next(played(case))["kept"][rank].items():
            mine = result[0]["kept"][name]
            if not distance(mine, right) < CLOSE:
                gradient = gradients(case.given, 0, rank)[name]
                mistakes = [
                    Mistake("all of the gradient", gradient, "what was sent would be sent once more"),
                    Mistake("nothing", torch.zeros_like(gradient), "what becomes of the numbers that are not sent"),
                ]
                words, look = recognised(mine, mistakes, "kept[n] is this rank's, and of its own gradient")
                raise Wrong(f"{case.where}after update 1 what rank {rank} keeps of {name} is wrong{words}", look)
    return "each rank keeps the rest of its own"


def nothing_is_lost(records):
    """After every update: what was sent until then plus what is kept is the sum of all gradients."""
    for case in cases(records):
        if case.given not in (EVERY_ONE, TIES):
            continue
        for name, shape in SHAPES.items():
            sent, all_of_it = torch.zeros(shape, dtype=torch.float64), torch.zeros(shape, dtype=torch.float64)
            for update in range(UPDATES):
                sent += case.world * case.results[0][update]["back"][name]
                all_of_it += sum(gradients(case.given, update, rank)[name] for rank in range(case.world))
                kept = sum(result[update]["kept"][name] for result in case.results)
                gap = distance(sent + kept, all_of_it)
                if not gap < 1e3 * CLOSE:
                    raise Wrong(
                        f"{case.where}after update {update + 1}, sent and kept numbers of {name} together are "
                        f"{gap:.1e} away from the sum of its gradients",
                        "what becomes of the numbers that are not sent this time: those that were kept before, and "
                        "those that are as large as one that is sent",
                    )
    return "what was sent and what is kept add up to all gradients"


def what_was_kept_competes(records):
    """At every update the k largest of gradient plus kept numbers are sent, and the rest is kept."""
    for case, rank, result in results(records):
        if case.given == EVERY_ONE:
            assert_as_played(case, rank, result, "the k largest of what: gradient, or gradient plus what is kept")
    return "what was kept competes with the next gradient"


def a_parameter_without_a_gradient_waits(records):
    """Where a parameter has no gradient, it gets none, and what is kept of it stays until it has one again."""
    for case, rank, result in results(records):
        if case.given == SOME:
            assert_as_played(case, rank, result, "which kept numbers belong to which parameter, if one is left out")
    return "a parameter without a gradient waits"


def all_ranks_get_the_same(records):
    """Gradients are bit-equal on all ranks."""
    for case, rank, result in results(records):
        for update, found in enumerate(result):
            for name, gradient in found["back"].items():
                first = case.results[0][update]["back"][name]
                if gradient is not None and not torch.equal(gradient, first):
                    raise Wrong(
                        f"{case.where}after update {update + 1} the gradient of {name} on rank {rank} differs from "
                        "rank 0's by a rounding",
                        "the order in which each rank adds up what the others sent",
                    )
    return "all ranks get the same gradient, to the last bit"


def little_is_sent(records):
    """A rank hands over, per parameter with a gradient, at most k numbers and their places: 16 bytes for each."""
    most = 0
    for case in cases(records):
        for rank, operations in enumerate(case.operations):
            sizes = [
                min(K, gradient.numel())
                for update in range(UPDATES)
                for gradient in gradients(case.given, update, rank).values()
                if gradient is not None
            ]
            sent = sum(one.bytes for one in operations if one.op != "recv")
            most = max(most, sent)
            if sent > 16 * sum(sizes):
                look = "what a message holds: k numbers and k places of 8 bytes; zeros cost as much as other numbers"
                if case.given in (ZEROS, TIES):
                    look = "how many numbers are chosen if several are equally large: k, and not all of them"
                raise Wrong(
                    f"{case.where}rank {rank} handed over {sent:,} bytes for {sum(sizes)} numbers and their places",
                    look,
                )
    return f"{most // UPDATES} bytes per update at most"


CHECKS = [
    the_largest_are_sent,
    a_rank_keeps_what_it_has_not_sent,
    nothing_is_lost,
    what_was_kept_competes,
    a_parameter_without_a_gradient_waits,
    all_ranks_get_the_same,
    little_is_sent,
]


def assert_as_played(case, rank, result, look):
    """Raise Wrong unless after every update gradients and kept numbers are those of ranks played in one process."""
    for update, right in enumerate(played(case)):
        for what, expected in (("gradient", right["back"]), ("kept numbers", right["kept"][rank])):
            for name, tensor in expected.items():
                mine = result[update]["back" if what == "gradient" else "kept"][name]
                if (mine is None) != (tensor is None):
                    how = "is there, though it had none" if tensor is None else "is missing"
                    raise Wrong(
                        f"{case.where}after update {update + 1} the gradient of {name} on rank {rank} {how}",
                        "a parameter whose .grad is None before and stays so",
                    )
                if tensor is not None and not (gap := distance(mine, tensor)) < CLOSE:
                    raise Wrong(
                        f"{case.where}after update {update + 1} the {what} of {name} on rank {rank} "
                        f"{'is' if what == 'gradient' else 'are'} {gap:.1e} away from ranks played in one process",
                        look,
                    )


def played(case):
    """For each update what comes back, by name, and what each rank keeps: ranks played in one process."""
    nothing = {name: torch.zeros(shape, dtype=torch.float64) for name, shape in SHAPES.items()}
    kept = [nothing] * case.world
    for update in range(UPDATES):
        back = dict.fromkeys(SHAPES)
        for rank in range(case.world):
            kept[rank] = dict(kept[rank])
            for name, gradient in gradients(case.given, update, rank).items():
                if gradient is not None:
                    sent, kept[rank][name] = largest(kept[rank][name] + gradient)
                    back[name] = sent / case.world + (0 if rank == 0 else back[name])
        yield {"back": back, "kept": list(kept)}


def largest(total):
    """(the k largest numbers of `total` and zeros, the rest and zeros)"""
    sent = torch.zeros(total.numel(), dtype=total.dtype)
    at = total.flatten().abs().topk(min(K, total.numel())).indices
    sent[at] = total.flatten()[at]
    return sent.view_as(total), total - sent.view_as(total)


def distance(mine, right):
    alike = torch.is_tensor(mine) and mine.shape == right.shape
    return (mine - right).abs().max().item() if alike else math.inf


def untied(records):
    """The results of all cases in which the k largest numbers are settled."""
    return (one for one in results(records) if one[0].given != TIES)


def results(records):
    """Each case, rank and what it found after each update."""
    for case in cases(records):
        yield from ((case, rank, result) for rank, result in enumerate(case.results))
