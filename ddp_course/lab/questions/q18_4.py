"""18.4: a bare except that gives each rank a tokenizer of its own; a detector for two vocabularies, and the repair."""

from pathlib import Path

from ddp_course.lab.answer_record import Call, Job, cases
from ddp_course.lab.detector import assert_one_verdict
from ddp_course.lab.questions import broken_18_4, drive_18_4
from ddp_course.lab.verdict import Wrong

TITLE = "what the except hides"
GIVEN = Path(broken_18_4.__file__)
HINTS = [
    "Which errors does `except:` catch? A file that is not there, half a file, a typing error in the line above, "
    "Ctrl-C. Which of them did the author think of, and who gets to read the reason?",
    "one_tokenizer: each rank notes its merges, or that load raised, and takes part in one all_gather_object either "
    "way: a rank that leaves early lets the others wait. Then all compare the same list. A text that is encoded alike "
    "shows little: it may not contain the merge that differs.",
    "load_tokenizer: rank 0 reads the file and catches what goes wrong; it broadcasts (merges, None) or (None, the "
    "reason as text) with broadcast_object_list. Then every rank raises, if there is a reason, or returns a tokenizer.",
]
DRIVER = Path(drive_18_4.__file__)
DETECTOR, REPAIRED = "one_tokenizer", "load_tokenizer"
SOUND = tuple(drive_18_4.VERSIONS)[:3]
# What has to be read in the error: the reason, in the words of what raised it.
REASONS = {
    "nobody has the file": ("No such file", "tokenizer.json"),
    "the others have the file, rank 0 has none": ("No such file", "tokenizer.json"),
    "the file of rank 0 is cut off": ("line 1 column",),
    "the file of rank 0 holds no merges": ("merges",),
}


def job(world, function, *arguments):
    calls = tuple(Call([one] * world, one[-1]) for one in arguments)
    return Job(world, function, calls, seconds=4.0, driver=DRIVER)


DETECT = [job(3, DETECTOR, *((what,) for what in drive_18_4.VERSIONS))]
LOAD = [
    job(2, REPAIRED, *(("own", what) for what in drive_18_4.FILES)),
    job(3, REPAIRED, ("own", "rank 0 alone has the file"), ("own", "nobody has the file")),
]
JOBS = [*DETECT, *LOAD]


def all_ranks_say_the_same(records):
    """The detector returns True or False, the same on every rank."""
    for case in cases(records[: len(DETECT)]):
        assert_one_verdict(
            case, DETECTOR, "what a rank knows of the others when it decides: rank 0 as much as all the others?"
        )
    return "all ranks come to the same verdict"


def equal_tokenizers_pass(records):
    """The detector returns True where all ranks hold the same merges."""
    for case in cases(records[: len(DETECT)]):
        if case.given in SOUND and not case.results[0]:
            raise Wrong(
                f"{case.where}{DETECTOR} returned False, but all ranks hold the same merges",
                "what you compare: two objects with the same content are equal only if their class says so",
            )
    return f"the detector lets {len(SOUND)} equal tokenizers pass"


def two_vocabularies_are_seen(records):
    """The detector returns False where two ranks would encode a text differently, or a rank has no tokenizer."""
    for case in cases(records[: len(DETECT)]):
        if case.given not in SOUND and case.results[0]:
            raise Wrong(
                f"{case.where}{DETECTOR} returned True",
                "a rank on which load raises has no tokenizer"
                if "raises" in case.given
                else "which texts would have other tokens on that rank, and does your test see it?",
            )
    return f"and sees {len(drive_18_4.VERSIONS) - len(SOUND)} others, those where a rank has none among them"


def the_file_of_rank_0_counts(records):
    """If rank 0 can read its file, every rank returns that tokenizer, whatever is on its own machine."""
    for case in cases(records[len(DETECT) :]):
        if case.given not in REASONS:
            for rank, (how, found) in enumerate(case.results):
                if how == "raised":
                    raise Wrong(
                        f"{case.where}rank {rank} raised {found[:120]}",
                        "who reads the file: it is there on rank 0, and nowhere else for certain",
                    )
                if found != drive_18_4.MERGES:
                    raise Wrong(
                        f"{case.where}rank {rank} holds a tokenizer with {len(found)} merges; that of rank 0's file "
                        f"has {len(drive_18_4.MERGES)}",
                        "where rank 1 has its merges from",
                    )
    return "every rank gets the tokenizer of rank 0's file"


def what_is_missing_stops_all(records):
    """If rank 0 cannot read its file, every rank raises, with the real reason."""
    for case in cases(records[len(DETECT) :]):
        for rank, (how, found) in enumerate(case.results):
            if case.given in REASONS and how == "loaded":
                raise Wrong(
                    f"{case.where}rank {rank} returned a tokenizer with {len(found)} merges, and no error",
                    "a tokenizer that nobody asked for is worse than none",
                )
            missing = [one for one in REASONS.get(case.given, ()) if one not in found]
            if missing:
                raise Wrong(
                    f"{case.where}rank {rank} raised {found[:120]!r}; its text does not say {missing[0]!r}",
                    "the text of the error that was caught: who needs it most?",
                )
    return "and if it cannot be read, every rank says why"


CHECKS = [
    all_ranks_say_the_same,
    equal_tokenizers_pass,
    two_vocabularies_are_seen,
    the_file_of_rank_0_counts,
    what_is_missing_stops_all,
]
