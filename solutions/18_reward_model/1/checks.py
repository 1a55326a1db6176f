"""18.1: a head trained by every rank for itself; a detector that reads out of the saved head whose pairs are in it."""

import math

import torch

from ddp_course.grader.answer_record import Call, Job, cases, where
from ddp_course.grader.verdict import Wrong
from ddp_course.grader.vocabulary import called_once, numbers

from . import driver

DETECTOR, REPAIRED = "shares", "train"
CLOSE = 1e-10  # float64: the order of the sums shifts the head by about 1e-16
SMALL = 64  # bytes that are no gradient
HEAD = driver.FEATURES * 8  # bytes of a head, and of its gradient


def job(world, function, *arguments):
    calls = tuple(Call([one] * world, str(one[0])) for one in arguments)
    return Job(world, function, calls, seconds=4.0, driver=True)


DETECT = [
    job(3, DETECTOR, *((what, torch.zeros(1)) for what in driver.VERSIONS)),
    job(2, DETECTOR, *((what, torch.zeros(1)) for what in list(driver.VERSIONS)[:2])),
]
TRAIN = [
    job(2, REPAIRED, ("own", 1), ("own", 3)),
    job(4, REPAIRED, ("own", 0), ("own", 2)),
    job(1, REPAIRED, ("own", 2)),
]
JOBS = [*DETECT, *TRAIN]


def the_shares_are_read_right(records):
    """shares returns, on every rank, the share of each rank in the saved head."""
    for case in cases(records[: len(DETECT)]):
        right = driver.shares(case.given, case.world)
        for rank, result in enumerate(case.results):
            found = numbers(result)
            if found is None or len(found) != case.world:
                raise Wrong(
                    f"{case.where}{DETECTOR} returned {str(result)[:80]} on rank {rank}; it should be a list of "
                    f"{case.world} numbers",
                    "the value returned on that rank: rank 0 alone is handed a head, and every rank needs the list",
                )
            if not all(math.isclose(a, b, rel_tol=1e-4, abs_tol=1e-4) for a, b in zip(found, right, strict=True)):
                others = [one for one in map(numbers, case.results) if one != found]
                raise Wrong(
                    f"{case.where}{DETECTOR} returned {shown(found)} on rank {rank}; the shares are {shown(right)}",
                    "what this rank looked at: is it the head that rank 0 saves?" if others else look_at(found, right),
                )
    return f"{DETECTOR} reads the shares in {len(driver.VERSIONS)} loops right; in the given one {shown([1, 0, 0])}"


def replicas_end_equal(records):
    """After train every rank's head is rank 0's, to the last bit."""
    for case in cases(records[len(DETECT) :]):
        for rank, (_, head) in enumerate(case.results):
            gap = (head - case.results[0][1]).abs().max().item()
            if not gap == 0:
                raise Wrong(
                    f"{told(case)}the head of rank {rank} is {gap:.2g} from rank 0's",
                    "where the two heads begin, and by what each of them is moved",
                )
    return "all ranks end with one head, though they begin with different ones"


def the_global_batch_is_learned(records):
    """The head is that of one process which begins with rank 0's and takes the pairs of all ranks."""
    for case in cases(records[len(DETECT) :]):
        _, steps = case.args[0]
        right = driver.joint(case.world, steps)
        head = case.results[0][1]
        gap = (head - right).abs().max().item()
        if not gap < CLOSE:
            raise Wrong(
                f"{told(case)}the head is {gap:.1e} from that of one process on all pairs{likeness(head, case)}",
                "what the gradient is divided by, in which steps the ranks talk, and whose start they take",
            )
    return "it is that of one process on all pairs, on 1, 2 and 4 ranks"


def one_rank_saves(records):
    """train returns the head on rank 0 and None elsewhere."""
    for case in cases(records[len(DETECT) :]):
        for rank, (returned, head) in enumerate(case.results):
            fits = torch.is_tensor(returned) and torch.equal(returned, head) if rank == 0 else returned is None
            if not fits:
                what = "a head" if torch.is_tensor(returned) else repr(returned)
                raise Wrong(
                    f"{told(case)}rank {rank} returned {what}; what rank 0 returns is saved, the others return None",
                    "the last line of train",
                )
    return "rank 0 saves it"


def pairs_stay_where_they_are(records):
    """A rank hands over no more than a head in the beginning, and a gradient and a head each step."""
    for case in cases(records[len(DETECT) :]):
        _, steps = case.args[0]
        for rank, mine in enumerate(case.operations):
            sent = sum(one.bytes for one in mine)
            if case.world > 1 and sent > (2 * steps + 1) * HEAD + SMALL:
                raise Wrong(
                    f"{told(case)}rank {rank} handed over {sent:,} bytes; a gradient, like a head, has {HEAD}",
                    "what travels beside gradients and heads: the pairs of a rank can stay where they are",
                )
    return "and every rank's pairs stay where they are"


it_is_called_once = called_once(
    "it_is_called_once",
    DETECTOR,
    "train",
    DETECT,
    "what it leaves behind when it has run: one call is enough to look at that",
)


CHECKS = [
    the_shares_are_read_right,
    it_is_called_once,
    replicas_end_equal,
    the_global_batch_is_learned,
    one_rank_saves,
    pairs_stay_where_they_are,
]


def told(case):
    _, steps = case.args[0]
    return f"{where(case.world)}after {steps} step{'s' * (steps != 1)} "


def shown(found):
    return f"[{', '.join(f'{one:.3g}' for one in found)}]"


def look_at(found, right):
    """What a wrong list of shares has in common with the right one."""
    total, times = sum(found), {a / b for a, b in zip(found, right, strict=True) if b}
    if abs(total - 1) < 1e-4:
        return "shares need not add up to 1: of summed gradients they are all 1"
    if len(times) == 1 or max(times) - min(times) < 1e-4:
        return "how far one process with the pairs of that rank alone would have moved the head"
    return "are the marks of the ranks apart, and does every rank start with the same head?"


def likeness(head, case):
    """What a wrong head looks like, in words that can be put behind it."""
    _, steps = case.args[0]
    for text, other in {
        "; it is rank 0's, trained on its own pairs": driver.joint(case.world, steps, take=[0]),
        "; it begins at the last rank's start": driver.joint(case.world, steps, start=case.world - 1),
    }.items():
        if (head - other).abs().max() < CLOSE:
            return text
    return ""
