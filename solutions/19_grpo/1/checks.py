"""19.1: advantages and beta from each rank's own samples; a detector for numbers that should be global."""

import math

import torch

from ddp_course.grader.harness.tensors import largest_gap
from ddp_course.grader.vocabulary import Detector, by_pattern, check, driver_job, expect, number, plural

from . import driver

DETECTOR, REPAIRED = "ranks_act_as_one", "train"
RIGHT, BROKEN = tuple(driver.VERSIONS)[:3], tuple(driver.VERSIONS)[3:]
CLOSE = 1e-10  # relative, in float64: the order of the sums shifts the numbers by about 1e-16
NEARLY = 1e-5  # a smaller gap is float32, or a small number added to the spread
NEARLY_RIGHT = "the dtype of the global numbers: torch.tensor makes float32 of a number; or what is added to the spread"
DETECT = [driver_job(2, DETECTOR, RIGHT + BROKEN, seconds=4.0)]
STEPS = {2: (1, 2, 4), 4: (8,), 1: (3,)}  # of train in each call, by the number of ranks
TRAIN = [
    driver_job(world, REPAIRED, {plural(count, "step"): ("own", count) for count in counts}, seconds=4.0)
    for world, counts in STEPS.items()
]
JOBS = [*DETECT, *TRAIN]
BLIND_SPOTS = {
    "thousandth": "how exact the comparison is, and whether it includes the betas",
    "its own KL": "what is compared: the betas too, and on every rank",
    "spread": "what you compare with (equal ranks are not yet one process); the rewards need other means on each rank",
    "not averaged|no gradient": "what is compared: the policy, on every rank",
    "": "the number of steps in your test, how exactly it compares, and with what: ranks that are equal to each "
    "other are not yet one process",
}
detector = Detector(DETECTOR, RIGHT, BROKEN, DETECT)
DETECTOR_CHECKS = [
    detector.agrees("how a rank gets the verdicts of the others, each of which has its own beta"),
    detector.passes(
        ", but that loop gives what one process gives, but for rounding",
        "what you compare with, and how exactly: sums in another order differ in the last digits",
        f"the detector passes {len(RIGHT)} loops with global numbers",
    ),
    detector.catches(
        ", but one process would have come to another policy and beta",
        by_pattern(BLIND_SPOTS),
        f"and detects {len(BROKEN)} others, some with the same beta on all ranks, all but two with equal replicas",
    ),
]


@check("your loop gives the policy and the betas of one process, on 1, 2 and 4 ranks", TRAIN)
def the_run_is_that_of_one_process(case):
    _, steps = case.args[0]
    right_logits, right_betas = driver.one_process(case.world, steps)
    for rank, (logits, betas) in enumerate(case.results):
        beta_numbers = [number(beta) for beta in betas]
        expect(
            len(beta_numbers) == steps and all(isinstance(beta, int | float) for beta in beta_numbers),
            f"rank {rank} returned the betas {str(betas)[:80]}, not {steps} numbers",
            "the value returned: the logits, and a list with beta after each step",
        )
        for step, (beta, right) in enumerate(zip(beta_numbers, right_betas, strict=True), start=1):
            expect(
                math.isclose(beta, right, rel_tol=CLOSE),
                f"beta after step {step} is {beta:.13g} on rank {rank}; one process has {right:.13g}",
                NEARLY_RIGHT
                if math.isclose(beta, right, rel_tol=NEARLY)
                else "the KL that next_beta is given: it has to be the mean over all ranks by then",
            )
        gap = largest_gap(logits, right_logits)
        expect(
            gap < CLOSE,
            f"the logits of rank {rank} are {gap:.1e} from those of one process",
            NEARLY_RIGHT if gap < NEARLY else "what the advantages are made of: mean and spread of whose rewards?",
        )


@check("the same on all ranks, to the last bit", TRAIN)
def replicas_agree_to_the_last_bit(case, rank, result):
    (logits, betas), (first, first_betas) = result, case.results[0]
    expect(
        torch.equal(logits, first) and list(map(float, betas)) == list(map(float, first_betas)),
        f"rank {rank} holds another policy or beta than rank 0, by a rounding",
        "the order in which each rank adds up what it received: it has to be the same one everywhere",
    )
