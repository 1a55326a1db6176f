"""18.4: a bare except that gives each rank a tokenizer of its own; a detector for two vocabularies, and the repair."""

import torch

from ddp_course.grader.vocabulary import Call, Detector, Job, called_once, check, driver_job, expect

from . import driver

DETECTOR, REPAIRED = "one_tokenizer", "load_tokenizer"
SOUND, UNSOUND = tuple(driver.VERSIONS)[:3], tuple(driver.VERSIONS)[3:]
# The error has to contain the reason, in the words of what raised it.
REASONS = {
    "nobody has the file": ("No such file", "tokenizer.json"),
    "the others have the file, rank 0 has none": ("No such file", "tokenizer.json"),
    "the file of rank 0 is cut off": ("line 1 column",),
    "the file of rank 0 holds no merges": ("merges",),
}


def own(world, *files):
    return driver_job(world, REPAIRED, {what: ("own", what) for what in files}, seconds=4.0)


# The detector's argument counts its calls, in a tensor of each rank.
COUNTED = tuple(Call([(what, torch.zeros(1)) for _ in range(3)], what) for what in driver.VERSIONS)
DETECT = [Job(3, DETECTOR, COUNTED, seconds=4.0, driver=True)]
LOAD = [own(2, *driver.FILES), own(3, "rank 0 alone has the file", "nobody has the file")]
JOBS = [*DETECT, *LOAD]


detector = Detector(DETECTOR, SOUND, UNSOUND, DETECT)
DETECTED = [
    detector.agrees("what a rank knows of the others when it decides: rank 0 as much as all the others?"),
    detector.passes(
        ", but all ranks hold the same merges",
        "what you compare: two objects with the same content are equal only if their class says so",
        f"the detector lets {len(SOUND)} equal tokenizers pass",
    ),
    detector.catches(
        "",
        lambda scenario: (
            "a rank on which load raises has no tokenizer"
            if "raises" in scenario
            else "which texts would have other tokens on that rank, and does your test see it?"
        ),
        f"and sees {len(UNSOUND)} others, those where a rank has none among them",
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
        "who reads the file: it is there on rank 0, and nowhere else for certain",
    )
    expect(
        outcome == driver.MERGES,
        f"rank {rank} holds a tokenizer with {len(outcome)} merges; that of rank 0's file has {len(driver.MERGES)}",
        "where rank 1 has its merges from",
    )


@check("and if it cannot be read, every rank says why", LOAD, scenarios=REASONS)
def what_is_missing_stops_all(case, rank, result):
    how, outcome = result
    expect(
        how == "raised",
        f"rank {rank} returned a tokenizer with {len(outcome)} merges, and no error",
        "a tokenizer that nobody asked for is worse than none",
    )
    for reason in REASONS[case.scenario]:
        expect(
            reason in outcome,
            f"rank {rank} raised {outcome[:120]!r}; its text does not say {reason!r}",
            "the text of the error that was caught: who needs it most?",
        )
