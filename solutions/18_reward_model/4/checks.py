"""18.4: a bare except that gives each rank a tokenizer of its own; a detector for two vocabularies, and the repair."""

import torch

from ddp_course.grader.vocabulary import Detector, called_once, check, driver_job, expect

from . import driver

DETECTOR, REPAIRED = "one_tokenizer", "load_tokenizer"
RIGHT, BROKEN = tuple(driver.VERSIONS)[:3], tuple(driver.VERSIONS)[3:]
# The error has to contain the reason, in the words of what raised it.
REASONS = {
    "no rank has the file": ("No such file", "tokenizer.json"),
    "the others have the file, rank 0 has none": ("No such file", "tokenizer.json"),
    "the file of rank 0 is cut off": ("line 1 column",),
    "the file of rank 0 holds no merges": ("merges",),
}


def load_job(world, *files):
    return driver_job(world, REPAIRED, {scenario: ("own", scenario) for scenario in files}, seconds=4.0)


COUNTED = [
    (version, "tokenizer.json", torch.zeros(1)) for version in driver.VERSIONS
]  # the tensor counts calls of load
DETECT = [driver_job(3, DETECTOR, COUNTED, seconds=4.0)]
LOAD = [load_job(2, *driver.FILES), load_job(3, "rank 0 alone has the file", "no rank has the file")]
JOBS = [*DETECT, *LOAD]


detector = Detector(DETECTOR, RIGHT, BROKEN, DETECT)
DETECTOR_CHECKS = [
    detector.agrees("does every rank have the merges of all ranks when it decides, also rank 0?"),
    detector.passes(
        ", but all ranks hold the same merges",
        "what you compare: two objects with the same content are equal only if their class says so, "
        "and each process salts the hash of a text",
        f"the detector lets {len(RIGHT)} equal tokenizers pass",
    ),
    detector.catches(
        "",
        lambda scenario: (
            "a rank on which load raises has no tokenizer"
            if "raises" in scenario
            else "which texts would have other tokens on that rank, and does your test see it?"
        ),
        f"and sees {len(BROKEN)} others, those where a rank has none among them",
    ),
]


it_is_called_once = called_once(
    DETECTOR, "load", DETECT, "a loader may take minutes, or communicate: keep what it returned"
)


@check("every rank gets the tokenizer of rank 0's file", LOAD, scenarios=driver.FILES.keys() - REASONS.keys())
def the_file_of_rank_0_counts(case, rank, result):
    how, outcome = result
    expect(
        how == "loaded",
        f"rank {rank} raised {outcome[:120]}",
        "which rank reads the file: only on rank 0 it is certain to be there",
    )
    expect(
        outcome == driver.MERGES,
        f"rank {rank} holds a tokenizer with {len(outcome)} merges; that of rank 0's file has {len(driver.MERGES)}",
        "where the merges of that rank come from",
    )


@check("and if it cannot be read, every rank says why", LOAD, scenarios=REASONS)
def what_is_missing_stops_all(case, rank, result):
    how, outcome = result
    expect(
        how == "raised",
        f"rank {rank} returned a tokenizer with {len(outcome)} merges, and no error",
        "a tokenizer without those merges is no fallback: raise the error, on every rank",
    )
    for reason in REASONS[case.scenario]:
        expect(
            reason in outcome,
            f"rank {rank} raised {outcome[:120]!r}; its text does not say {reason!r}",
            "the text of the error that was caught: every rank has to raise it",
        )
