"""18.1: a loop in which every rank trains its own head; a detector of each rank's share in the saved head."""

import torch

from ddp_course.grader.harness.tensors import largest_gap
from ddp_course.grader.vocabulary import (
    Wrong,
    are_close,
    called_once,
    check,
    driver_job,
    expect,
    expect_few_bytes,
    numbers,
    plural,
    show,
)

from . import driver

DETECTOR, REPAIRED = "shares", "train"
CLOSE = 1e-10  # float64: the order of the sums shifts the head by about 1e-16
SMALL = 64  # bytes that are no gradient
HEAD = driver.FEATURES * 8  # bytes of a head, and of its gradient
COUNTED = [(version, torch.zeros(1)) for version in driver.VERSIONS]  # the tensor counts calls of train
DETECT = [driver_job(world, DETECTOR, calls, seconds=4.0) for world, calls in ((3, COUNTED), (2, COUNTED[:2]))]
STEPS = {2: (1, 3), 4: (0, 2), 1: (2,)}  # of train in each call, by the number of ranks
TRAIN = [
    driver_job(world, REPAIRED, {plural(count, "step"): ("own", count) for count in counts}, seconds=4.0)
    for world, counts in STEPS.items()
]
JOBS = [*DETECT, *TRAIN]


@check(f"{DETECTOR} reads the shares in {len(driver.VERSIONS)} loops right; in the given one {show([1, 0, 0])}", DETECT)
def the_shares_are_read_right(case, rank, result):
    shares, right = numbers(result), driver.VERSIONS[case.scenario].shares(case.world)
    expect(
        shares is not None and len(shares) == case.world,
        f"{DETECTOR} returned {str(result)[:80]} on rank {rank}; it should be a list of {case.world} numbers",
        "the value returned on that rank: rank 0 alone is handed a head, and every rank needs the list",
    )
    if not are_close(shares, right, rel_tol=1e-4, abs_tol=1e-4):
        same_on_all_ranks = all(are_close(other, shares, rel_tol=1e-4, abs_tol=1e-4) for other in case.results)
        raise Wrong(
            f"{DETECTOR} returned {show(shares, 3)} on rank {rank}; the shares are {show(right, 3)}",
            where_to_look(shares, right)
            if same_on_all_ranks
            else "is it the head of rank 0 that this rank looked at, and did all ranks begin with the same one?",
        )


it_is_called_once = called_once(
    DETECTOR, "train", DETECT, "what it leaves behind when it has run: one call is enough to look at that"
)


@check("all ranks end with one head, though they begin with different ones", TRAIN)
def replicas_end_equal(case, rank, result):
    gap = largest_gap(result[1], case.results[0][1])
    expect(
        gap == 0,
        f"the head of rank {rank} is {gap:.2g} from rank 0's",
        "with which head each rank begins, and which gradient it steps by",
    )


@check("it is that of one process on all pairs, on 1, 2 and 4 ranks", TRAIN)
def the_global_batch_is_learned(case):
    (_, steps), (_, head) = case.args[0], case.results[0]
    gap = largest_gap(head, driver.one_process(case.world, steps))
    expect(
        gap < CLOSE,
        lambda: f"the head is {gap:.1e} from that of one process on all pairs{likeness(head, case)}",
        "what the gradient is divided by, in which steps the ranks communicate, and whose head they begin with",
    )


@check("rank 0 saves it", TRAIN)
def one_rank_saves(case, rank, result):
    returned, head = result
    what = "a head" if torch.is_tensor(returned) else repr(returned)
    expect(
        torch.is_tensor(returned) and torch.equal(returned, head) if rank == 0 else returned is None,
        f"rank {rank} returned {what}; what rank 0 returns is saved, the others return None",
        "the last line of train",
    )


@check("and every rank's pairs stay where they are", TRAIN)
def pairs_stay_where_they_are(case, rank, result):
    _, steps = case.args[0]
    purpose = f"; a gradient, like a head, has {HEAD}"
    look_at = "what is sent besides gradients and heads: the pairs of a rank can stay where they are"
    if case.world > 1:
        expect_few_bytes(rank, case.operations[rank], (2 * steps + 1) * HEAD + SMALL, purpose, look_at)


def where_to_look(shares, right):
    """Where to look, by how a wrong list of shares is related to the right one."""
    ratios = {a / b for a, b in zip(shares, right, strict=True) if b}
    if abs(sum(shares) - 1) < 1e-4 < abs(sum(right) - 1):
        return "shares need not add up to 1: of summed gradients they are all 1"
    if max(ratios) - min(ratios) < 1e-4:
        return "how far one process with the pairs of that rank alone would have moved the head"
    return (
        "is it the head that was returned? Do the ranks' pairs move it in different directions, and does every rank "
        "begin with the same one?"
    )


def likeness(head, case):
    """The end of the message about a wrong head: its likely cause, or ""."""
    _, steps = case.args[0]
    for text, other in {
        "; it is rank 0's, trained on its own pairs": driver.one_process(case.world, steps, ranks=[0]),
        "; it began as the last rank's head": driver.one_process(case.world, steps, start=case.world - 1),
    }.items():
        if largest_gap(head, other) < CLOSE:
            return text
    return ""
