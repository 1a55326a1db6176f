"""25.1: DiLoCo, whose outer optimizer has to step from the weights of the last meeting."""

import math

import torch

from ddp_course.grader.answer_record import Call, Job, cases
from ddp_course.grader.verdict import Wrong

FUNCTION = "DiLoCo"
CLOSE = 1e-10
ALONE, MEAN, FIRST, GOES_ON, HALF = (
    "every 4, but 3 updates only",
    "every 4, SGD inside, outer rate 1, no momentum",
    "every 1, SGD inside, outer rate 1, no momentum",
    "every 3, AdamW inside, outer rate 0.7, momentum 0.9",
    "every 2, SGD inside, outer rate 0.5, no momentum",
)
RUNS = {  # what is special: inner optimizer, updates, every, outer rate, outer momentum
    ALONE: ("SGD", 3, 4, 1.0, 0.0),
    MEAN: ("SGD", 12, 4, 1.0, 0.0),
    FIRST: ("SGD", 4, 1, 1.0, 0.0),
    GOES_ON: ("AdamW", 12, 3, 0.7, 0.9),
    HALF: ("SGD", 4, 2, 0.5, 0.0),
}


def job(world):
    calls = tuple(Call([settings] * world, given) for given, settings in RUNS.items())
    return Job(world, FUNCTION, calls, seconds=10.0, driver=True, loads=("torch._dynamo",))


JOBS = [job(2), job(3)]


def they_meet_when_they_should(records):
    """Until the first meeting each worker has the weights of its own optimizer, and sends nothing."""
    for case, rank, result in results(records):
        every = RUNS[case.given][2]
        for step, found in enumerate(result["steps"][: every - 1], 1):
            if not found["gap"] < CLOSE:
                raise Wrong(
                    f"{case.where}after update {step} the weights of rank {rank} are {found['gap']:.1e} away from "
                    "those of a worker that has met nobody yet",
                    "after which updates step() does something; and building DiLoCo changes nothing",
                )
        if case.given == ALONE and (sent := case.operations[rank]):
            look = "what is sent between two meetings, or when DiLoCo is built"
            raise Wrong(f"{case.where}rank {rank} started {len(sent)} operations, {sent[0].op} first", look)
    return "nothing happens between the meetings"


def rate_1_gives_the_mean(records):
    """With outer rate 1 and no momentum, a meeting leaves the mean of the workers' weights."""
    for case, rank, result in results(records, MEAN, FIRST):
        moved, way = result["moved"], result["mean way"]
        if not (moved - way).abs().max().item() < CLOSE:
            times = (moved @ way / (way @ way)).item()
            straight = (moved - times * way).abs().max().item() < CLOSE
            how = f"by {times:.4g} times the mean way" if straight else "in another direction than the mean way"
            moved = f"{case.where}the first meeting moved the weights of rank {rank} {how}"
            raise Wrong(moved, look(times, straight))
        for step, found in enumerate(result["steps"], 1):
            if not found["gap"] < CLOSE:
                raise Wrong(
                    f"{case.where}after update {step} the weights of rank {rank} are {found['gap']:.1e} away from "
                    "workers that are played in one process; the first meeting was right",
                    "when the second one comes, and from which weights",
                )
    return "with outer rate 1 a meeting leaves the mean; met after each update, the workers are DDP"


def look(times, straight):
    if not straight:
        return "which weights the outer optimizer steps from: every worker has others before a meeting"
    if math.isclose(times, 0, abs_tol=1e-9):
        return "what the common weights and the parameter hold when they are subtracted"
    if times < 0:
        return "which way an optimizer goes: it subtracts its gradient"
    return "which weights the outer optimizer steps from, and whether the gradient is a mean or a sum"


def the_own_optimizer_is_left_alone(records):
    """After a meeting each worker's own optimizer still has the state of its own updates."""
    for case, rank, result in results(records, GOES_ON):
        kept = result["steps"][RUNS[case.given][2] - 1]["kept"]
        if kept is None or not kept < CLOSE:
            how = "is gone" if kept is None else f"is {kept:.1e} away from that of its own updates"
            raise Wrong(
                f"{case.where}after the first meeting what AdamW keeps on rank {rank} {how}",
                "what else than weights a meeting changes",
            )
    return "each worker's optimizer keeps what it has"


def the_outer_optimizer_goes_on(records):
    """With another rate and with momentum, weights are at every update those of workers played in one process."""
    for case, rank, result in results(records, GOES_ON, HALF):
        every = RUNS[case.given][2]
        if 0 < (still := result["still"]) < 4:
            raise Wrong(
                f"{case.where}the first meeting left {still} of 4 parameters of rank {rank} as they were",
                "in how many parameter groups the own optimizer has its parameters",
            )
        for step, found in enumerate(result["steps"], 1):
            if not found["gap"] < CLOSE:
                advice = "rate and Nesterov momentum of the outer optimizer, and what it takes for the gradient"
                if step > every:
                    advice = "what of the first meeting has to last: from which weights the way is measured, momentum"
                raise Wrong(
                    f"{case.where}after update {step} the weights of rank {rank} are {found['gap']:.1e} away from "
                    "workers that are played in one process",
                    advice,
                )
    return "outer momentum lives from meeting to meeting"


def the_workers_agree(records):
    """After a meeting all workers have the same weights to the last bit."""
    for case, rank, result in results(records, MEAN, FIRST, GOES_ON):
        if not torch.equal(result["weights"], case.results[0]["weights"]):
            raise Wrong(
                f"{case.where}after the last meeting the weights of rank {rank} differ from rank 0's by a rounding",
                "the order in which each rank adds up what the others sent",
            )
    return "after a meeting all workers are equal to the last bit"


def each_weight_is_sent_once(records):
    """A rank hands over each weight once per meeting."""
    for case, rank, result in results(records):
        _, updates, every, _, _ = RUNS[case.given]
        size = 8 * len(result["weights"])
        sent, meetings = sum(one.bytes for one in case.operations[rank]), updates // every
        if sent > meetings * size:
            raise Wrong(
                f"{case.where}rank {rank} handed over {sent:,} bytes in {meetings} meetings; its weights are {size:,}",
                "what the workers know already when they have the mean",
            )
    return "each weight is sent once per meeting"


CHECKS = [
    they_meet_when_they_should,
    rate_1_gives_the_mean,
    the_own_optimizer_is_left_alone,
    the_outer_optimizer_goes_on,
    the_workers_agree,
    each_weight_is_sent_once,
]


def results(records, *given):
    """Each case (of those `given`), rank and what it found."""
    for case in cases(records):
        if not given or case.given in given:
            yield from ((case, rank, result) for rank, result in enumerate(case.results))
