"""02.2: an evaluation that hangs, repaired; and a function that reads from logs where ranks part."""

import re
from pathlib import Path

import torch

from ddp_course.grader.answer_record import Call, Job, LogsOf, cases
from ddp_course.grader.verdict import Wrong

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
        Call([(logs,)], given)
        for given, logs in [
            *MADE_UP,
            ("logs of the broken script", LogsOf(BROKEN)),
            ("logs of your script", LogsOf(REPAIRED[1])),
        ]
    ),
)
JOBS = [BROKEN, *REPAIRED, DETECT]


def one_line_is_printed(records):
    """Exactly one rank prints `mean loss` and a number, once."""
    for record in records[1:3]:
        lines = [(rank, line) for rank, one in enumerate(record.ranks) for line in found(one.stdout)]
        if len(lines) != 1:
            who = ", ".join(f"rank {rank}: mean loss {number}" for rank, number in lines) or "nobody printed it"
            raise Wrong(
                f"with {record.job.world} ranks the mean was printed {len(lines)} times ({who})",
                "which line of the block concerns rank 0 alone?",
            )
    return "one rank prints the mean, once"


def the_mean_is_over_all_samples(records):
    """What is printed is the mean over the samples of all ranks."""
    for record in records[1:3]:
        world = record.job.world
        [(rank, text)] = [(rank, line) for rank, one in enumerate(record.ranks) for line in found(one.stdout)]
        losses = [given_script.losses(r) for r in range(world)]
        right = torch.cat(losses).mean().item()
        if not shows(text, right):
            own, of_means = losses[rank].mean().item(), torch.stack([one.mean() for one in losses]).mean().item()
            like = ", the mean over its own samples" if shows(text, own) else ""
            like = ", the mean of the ranks' means" if shows(text, of_means) else like
            raise Wrong(
                f"with {world} ranks rank {rank} printed {text}{like}; the mean over all samples is {right:.6f}",
                "what reaches rank 0 from the others, sums or means, and how many samples each has",
            )
    return "the mean is over the samples of all ranks, and every rank ends with exit code 0, on 2 and on 3"


def the_logs_are_read_right(records):
    """where_they_part finds the first place where ranks part, in made-up logs and in those of both scripts."""
    detector = records[3]
    recorded = [records[0].collectives, records[2].collectives]
    all_logs = [logs for _, logs in MADE_UP] + recorded
    for case, logs in zip(cases([detector]), all_logs, strict=True):
        [result], right = case.results, where_they_part(logs)
        if not same(result, right):
            returned = tuple(result) if isinstance(result, list) else result
            raise Wrong(
                f"{case.given}: {FUNCTION}({logs}) returned {returned!r}, not {right!r}", look_at(result, right)
            )
    return f"where_they_part reads logs right; of the broken script: {where_they_part(recorded[0])}"


CHECKS = [one_line_is_printed, the_mean_is_over_all_samples, the_logs_are_read_right]


def where_they_part(logs):
    """What the learner's function of this name has to return."""
    for position in range(max(map(len, logs), default=0)):
        entries = {rank: log[position] if position < len(log) else None for rank, log in enumerate(logs)}
        if len(set(entries.values())) > 1:
            return position, entries
    return None


def found(stdout):
    """The mean of each line that has `mean loss` and then a mean: words, and a count of samples, may be between."""
    return [means[0] for means in map(MEAN.findall, PRINTED.findall(stdout)) if means]


def shows(text, number):
    """Whether `text` is the number, to three decimals or more: print() shows four of a tensor."""
    decimals = len(text.partition(".")[2])
    return 3 <= decimals and abs(float(text) - number) < max(1e-5, 0.51 * 10.0**-decimals)


def same(result, right):
    """Lists pass for tuples: JSON, in which the ranks answer, knows no difference."""
    return result == (list(right) if right else None)


def look_at(result, right):
    if result is None:
        return "which two entries differ first? Two logs of one length can differ, and a log can end before the others"
    if right is None:
        return "these logs are equal: what does your function take for a difference?"
    return "the return value: (position of the first difference, {rank: its entry there, or None if its log has ended})"
