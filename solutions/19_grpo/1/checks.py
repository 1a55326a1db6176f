"""19.1: advantages and beta from each rank's own samples; a detector for numbers that should have been joint."""

import math

import torch

from ddp_course.grader.answer_record import Call, Job, cases, where
from ddp_course.grader.verdict import Wrong
from ddp_course.grader.vocabulary import Detector, number

from . import driver

DETECTOR, REPAIRED = "ranks_act_as_one", "train"
RIGHT = ("everything is joint", "everybody gathers all samples", "rank 0 computes the joint numbers and tells them")
BROKEN = tuple(what for what in driver.VERSIONS if what not in RIGHT)
CLOSE = 1e-10  # relative, in float64: the order of the sums shifts the numbers by about 1e-16
NEARLY = 1e-5
LITTLE = "the dtype of what is joint, as torch.tensor makes float32 of a number; or what is added to the spread"


def job(world, function, *arguments):
    calls = tuple(Call([one] * world, str(one[0])) for one in arguments)
    return Job(world, function, calls, seconds=4.0, driver=True)


DETECT = [job(2, DETECTOR, *((what,) for what in RIGHT + BROKEN))]
TRAIN = [
    job(2, REPAIRED, ("own", 1), ("own", 2), ("own", 4)),
    job(4, REPAIRED, ("own", 8)),
    job(1, REPAIRED, ("own", 3)),
]
JOBS = [*DETECT, *TRAIN]


def blind_spot(given):
    if "thousandth" in given or "its own KL" in given:
        return "how exact the comparison is, and whether it includes the betas"
    if "spread" in given:
        return "the rewards in your test: are their means and their spreads different on the ranks?"
    if "not averaged" in given or "no gradient" in given:
        return "what is compared: the policy, on every rank"
    return (
        "the number of updates in your test, how exactly it compares, and with what: ranks that are equal to each "
        "other are not yet one process"
    )


detector = Detector(DETECTOR, RIGHT, BROKEN, DETECT)
DETECTED = [
    detector.agrees("how a rank hears what the others have found, each with its own beta"),
    detector.passes(
        "joint_numbers_pass",
        ", but that loop gives what one process gives, but for rounding",
        "what you compare with, and how exactly: sums in another order differ in the last digits",
        f"the detector lets {len(RIGHT)} loops with joint numbers pass",
    ),
    detector.catches(
        "local_numbers_are_seen",
        ", but one process would have come to another policy and beta",
        blind_spot,
        f"and sees {len(BROKEN)} others, some with one beta on all ranks and all but two with equal replicas",
    ),
]


def the_run_is_that_of_one_process(records):
    """train returns, on every rank, the policy and the betas of one process with the samples of all ranks."""
    for case in cases(records[len(DETECT) :]):
        _, updates = case.args[0]
        logits, betas = driver.alone(case.world, updates)
        for rank, (found, found_betas) in enumerate(case.results):
            plain = [number(one) for one in found_betas]
            if len(plain) != updates or not all(isinstance(one, int | float) for one in plain):
                raise Wrong(
                    f"{told(case)}rank {rank} returned the betas {str(found_betas)[:80]}, not {updates} numbers",
                    "the value returned: the logits, and a list with beta after each update",
                )
            for update, (beta, right) in enumerate(zip(plain, betas, strict=True), start=1):
                if not math.isclose(beta, right, rel_tol=CLOSE):
                    look = "the KL that next_beta is given: it has to be joint before next_beta sees it"
                    if math.isclose(beta, right, rel_tol=NEARLY):
                        look = LITTLE
                    raise Wrong(
                        f"{told(case)}beta after update {update} is {beta:.13g} on rank {rank}; one process has "
                        f"{right:.13g}",
                        look,
                    )
            gap = (found - logits).abs().max().item() if torch.is_tensor(found) else math.nan
            if not gap < CLOSE:
                look = "what the advantages are made of: mean and spread of whose rewards?"
                said = f"{told(case)}the logits of rank {rank} are {gap:.1e} from those of one process"
                raise Wrong(said, LITTLE if gap < NEARLY else look)
    return "your loop gives the policy and the betas of one process, on 1, 2 and 4 ranks"


def replicas_agree_to_the_last_bit(records):
    """Policy and betas are bit-equal on all ranks: a beta that parts by a rounding parts the losses for good."""
    for case in cases(records[len(DETECT) :]):
        for rank, (logits, betas) in enumerate(case.results):
            first, first_betas = case.results[0]
            if not torch.equal(logits, first) or list(map(float, betas)) != list(map(float, first_betas)):
                raise Wrong(
                    f"{told(case)}rank {rank} holds another policy or beta than rank 0, by a rounding",
                    "the order in which each rank adds up what it received: it has to be the same one everywhere",
                )
    return "the same on all ranks, to the last bit"


CHECKS = [*DETECTED, the_run_is_that_of_one_process, replicas_agree_to_the_last_bit]


def told(case):
    _, updates = case.args[0]
    return f"{where(case.world)}{updates} update{'s' * (updates > 1)}: "
