"""03.1: gradients that are summed where they should be averaged: AdamW hides it, a detector has to find it."""

from ddp_course.grader.vocabulary import Detector, by_pattern, check, driver_job, expect

from . import driver

RIGHT, BROKEN = tuple(driver.VERSIONS)[:5], tuple(driver.VERSIONS)[5:]
DETECTOR, REPAIRED = "gradients_are_right", "synchronize_gradients"
TOLERANCE = 1e-5  # float32
JOB_OPTIONS = {"seconds": 6.0, "loads": ("torch._dynamo",)}  # a detector may train: torch.optim loads torch._dynamo
DETECT = [
    driver_job(2, DETECTOR, RIGHT + BROKEN, **JOB_OPTIONS),
    driver_job(3, DETECTOR, RIGHT[:2] + BROKEN, **JOB_OPTIONS),
]
REPAIR = [driver_job(world, REPAIRED, ["own"], **JOB_OPTIONS) for world in (3, 1)]
JOBS = DETECT + REPAIR
BLIND_SPOTS = {
    "-1|0.5|NaN": "how your detector computes a gap: work it out by hand for these gradients",
    "reverse": "two different gradients can have the same sum and the same norm: compare element by element",
    "^the sum$": "what your detector compares: here the weights after AdamW are right, and all ranks agree",
    "left out": "which parameters are compared, and with what",
    "rank 0": "on which rank you compare, and with what: all ranks can agree and all be wrong",
    "": "what the gradients are compared with, and how large a gap you allow",
}
detector = Detector(DETECTOR, RIGHT, BROKEN, DETECT)
DETECTOR_CHECKS = [
    detector.agrees(
        "each rank sees its own gradients: how do the other ranks learn what it found?",
        f"all ranks come to the same verdict, on {len(RIGHT)} right and {len(BROKEN)} wrong versions",
    ),
    detector.passes(
        ", but that version is right",
        lambda scenario: (
            "when your detector reads .grad: synchronize may replace the tensor"
            if "new tensors" in scenario
            else "the global batch has the samples of all ranks, and the last digits of a sum depend on its order"
        ),
        f"it lets {len(RIGHT)} right versions pass",
    ),
    detector.catches(
        ", but that version is wrong",
        by_pattern(BLIND_SPOTS),
        f"it catches {len(BROKEN)} wrong ones, the sum among them",
    ),
]


@check(f"your {REPAIRED} leaves the mean, on 1 and 3 ranks, in float32 and float64", REPAIR, begin="{ranks}: ")
def gradients_become_the_mean(case, rank, result):
    for name, factors in result.items():
        observed, look_at = "None", "what a sum has to be divided by, and how often"
        if factors is not None:
            smallest, largest = factors
            observed = f"{smallest:.3g} to {largest:.3g} times the mean, by element"
            if largest - smallest < TOLERANCE:
                observed = f"{smallest:.3g} times the mean over the ranks"
            elif all(abs(factor - 1) < 0.02 for factor in factors):
                look_at = "what rounds the gradients: in which dtype are they sent?"
            else:
                look_at = "whether each element comes back to its own place"
        expect(
            factors is not None and all(abs(factor - 1) < TOLERANCE for factor in factors),
            f"after your {REPAIRED} the gradient of {name} on rank {rank} is {observed}",
            look_at,
        )
