"""02.2: an evaluation that hangs, repaired; and a function that reads from logs where ranks part."""

import re
from pathlib import Path

import torch

from ddp_course.grader.vocabulary import Call, Job, LogsOf, Wrong, cases, check, expect

from . import given as given_script

GIVEN = Path(__file__).with_name("given.py")
SECONDS = 4.0  # less than the 5 s after which gloo gives up by itself in the script
FUNCTION = "where_they_part"
PRINTED = re.compile(r"mean loss(.*)", re.IGNORECASE)
MEAN = re.compile(r"-?\d+\.\d+(?:e[-+]?\d+)?|\bnan\b")  # a whole number is a count, or a rank

A, B, C = "all_reduce, line 9", "barrier, line 12", "broadcast, line 15"
MADE_UP = [
    ("all equal", [[A, B], [A, B], [A, B]]),
    ("no rank has started anything", [[], []]),
    ("one rank", [[A, B]]),
    ("rank 1 stopped one early", [[A, B], [A]]),
    ("rank 0 is alone with a second all_reduce", [[A, A], [A, B], [A, B]]),
    ("equally long, apart in the middle", [[A, B, C], [A, C, C]]),
    ("apart twice: the first place counts", [[A, B, A, C], [A, C, A, B], [A, B, A, C]]),
    ("rank 2 never started", [[A], [A], []]),
    ("rank 0's log is the shortest", [[A], [A, B], [A, B]]),
    ("apart at once, and rank 1 stopped early", [[A, B, C], [C, B]]),
    ("one collective, from two lines", [[A, B], ["all_reduce, line 10", B]]),
]
BROKEN = Job(2, script=GIVEN, seconds=2.5, may_fail=True)
REPAIRED = [Job(world, seconds=SECONDS, patience=2.0) for world in (2, 3)]
DETECT = Job(
    1,
    function=FUNCTION,
    calls=tuple(
        Call([(logs,)], scenario)
        for scenario, logs in [
            *MADE_UP,
            ("logs of the broken script", LogsOf(BROKEN)),
            ("logs of your script", LogsOf(REPAIRED[1])),
        ]
    ),
)
JOBS = [BROKEN, *REPAIRED, DETECT]


@check("one rank prints the mean, once", REPAIRED)
def one_line_is_printed(records):
    for record in records:
        printed = printed_means(record)
        who = ", ".join(f"rank {rank}: mean loss {number}" for rank, number in printed) or "nobody printed it"
        expect(
            len(printed) == 1,
            f"with {record.job.world} ranks the mean was printed {len(printed)} times ({who})",
            "which line of the block concerns rank 0 alone?",
        )


@check("the mean is over the samples of all ranks, and every rank ends with exit code 0, on 2 and on 3", REPAIRED)
def the_mean_is_over_all_samples(records):
    for record in records:
        world = record.job.world
        [(rank, text)] = printed_means(record)
        losses = [given_script.losses(each) for each in range(world)]
        right = torch.cat(losses).mean().item()
        if not shows(text, right):
            own, of_means = losses[rank].mean().item(), torch.stack([each.mean() for each in losses]).mean().item()
            like = ", the mean over its own samples" if shows(text, own) else ""
            like = ", the mean of the ranks' means" if shows(text, of_means) else like
            raise Wrong(
                f"with {world} ranks rank {rank} printed {text}{like}; the mean over all samples is {right:.6f}",
                "what reaches rank 0 from the others, sums or means, and how many samples each has",
            )


@check(lambda parted: f"{FUNCTION} reads logs right; of the broken script: {parted[0]}", [BROKEN, REPAIRED[1], DETECT])
def the_logs_are_read_right(records):
    broken, repaired, detection = records
    all_logs = [*(logs for _, logs in MADE_UP), broken.collectives, repaired.collectives]
    for case, logs in zip(cases([detection]), all_logs, strict=True):
        [result], right = case.results, where_they_part(logs)
        if result != (list(right) if right else None):  # a tuple came back as a list
            returned = tuple(result) if isinstance(result, list) else result
            raise Wrong(
                f"{case.scenario}: {FUNCTION}({logs}) returned {returned!r}, not {right!r}", look_at(result, right)
            )
    return where_they_part(broken.collectives)


def where_they_part(logs):
    """The right return value of the learner's function of this name."""
    for position in range(max(map(len, logs), default=0)):
        entries = {rank: log[position] if position < len(log) else None for rank, log in enumerate(logs)}
        if len(set(entries.values())) > 1:
            return position, entries
    return None


def printed_means(record):
    """(rank, mean) of each line that has `mean loss` and then a mean: words, and a count of samples, may be between."""
    return [
        (rank, means[0])
        for rank, rank_record in enumerate(record.ranks)
        for means in map(MEAN.findall, PRINTED.findall(rank_record.stdout))
        if means
    ]


def shows(text, number):
    """Whether `text` is the number, to three decimals or more: print() shows four of a tensor."""
    decimals = len(text.partition(".")[2])
    return 3 <= decimals and abs(float(text) - number) < max(1e-5, 0.51 * 10.0**-decimals)


def look_at(result, right):
    if result is None:
        return "which two entries differ first? Two logs of one length can differ, and a log can end before the others"
    if right is None:
        return "these logs are equal: what does your function take for a difference?"
    return "the return value: (position of the first difference, {rank: its entry there, or None if its log has ended})"
