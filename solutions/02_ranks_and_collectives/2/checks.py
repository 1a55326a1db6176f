"""02.2: an evaluation that hangs, repaired; and a function that finds where the ranks' logs first differ."""

import re
from itertools import chain
from pathlib import Path

import torch

from ddp_course.grader.harness.job import LogsOf
from ddp_course.grader.vocabulary import Job, Wrong, cases, check, driver_job, expect, function_job, total_bytes

from . import given as given_script

GIVEN = Path(__file__).with_name("given.py")
SECONDS = 4.0  # less than the timeout of the script's group, 5 s
FUNCTION = "first_difference"
PRINTED = re.compile(r"mean loss(.*)", re.IGNORECASE)
MEAN = re.compile(r"-?\d+\.\d+(?:e[-+]?\d+)?|\bnan\b")  # an integer is a count or a rank

A, B, C = "all_reduce, line 9", "barrier, line 12", "broadcast, line 15"
EXAMPLES = {  # the log of each rank
    "all equal": [[A, B], [A, B], [A, B]],
    "no rank has started anything": [[], []],
    "one rank": [[A, B]],
    "rank 1 stopped one early": [[A, B], [A]],
    "only rank 0 has a second all_reduce": [[A, A], [A, B], [A, B]],
    "equally long, different in the middle": [[A, B, C], [A, C, C]],
    "two differences: the first one counts": [[A, B, A, C], [A, C, A, B], [A, B, A, C]],
    "rank 2 never started": [[A], [A], []],
    "rank 0's log is the shortest": [[A], [A, B], [A, B]],
    "the first entries differ, and rank 1 stopped early": [[A, B, C], [C, B]],
    "one collective, from two lines": [[A, B], ["all_reduce, line 10", B]],
}
BROKEN = Job(2, script=GIVEN, seconds=2.5, may_fail=True)
REPAIRED = [Job(world, seconds=SECONDS, patience=2.0) for world in (2, 3)]
ALL_LOGS = EXAMPLES | {"logs of the broken script": LogsOf(BROKEN), "logs of your script": LogsOf(REPAIRED[1])}
DETECT = function_job(1, FUNCTION, {scenario: (logs,) for scenario, logs in ALL_LOGS.items()})
MEASURE = driver_job(2, "main", {"main": ()})
JOBS = [BROKEN, *REPAIRED, MEASURE, DETECT]


@check("one rank prints the mean, once", REPAIRED)
def one_line_is_printed(records):
    for record in records:
        printed = printed_means(record)
        lines = ", ".join(f"rank {rank}: mean loss {text}" for rank, text in printed) or "no rank printed it"
        expect(
            len(printed) == 1,
            f"with {record.job.world} ranks the mean was printed {len(printed)} times ({lines})",
            "which line of the block concerns rank 0 alone?",
        )


@check("the mean is over the samples of all ranks, and every rank ends with exit code 0, on 2 and on 3", REPAIRED)
def the_mean_is_over_all_samples(records):
    for record in records:
        world = record.job.world
        [(rank, text)] = printed_means(record)
        losses = [given_script.losses(peer) for peer in range(world)]
        right = torch.cat(losses).mean().item()
        if not shows(text, right):
            means = torch.stack([rank_losses.mean() for rank_losses in losses])
            likeness = ""
            if shows(text, means.mean().item()):
                likeness = ", the mean of the ranks' means"
            elif shows(text, means[rank].item()):
                likeness = ", the mean over its own samples"
            raise Wrong(
                f"with {world} ranks rank {rank} printed {text}{likeness}; the mean over all samples is {right:.6f}",
                "what reaches rank 0 from the others, sums or means, and how many samples each has",
            )
        for peer, peer_record in enumerate(record.ranks):
            expect(
                peer == rank or total_bytes(chain.from_iterable(peer_record.operations)),
                f"with {world} ranks rank {peer} handed nothing to a collective or send, and the mean is over its "
                "samples too",
                "each rank measures its own samples: how do those of another rank reach the one that prints?",
            )


@check("each rank measures its own samples, once", [MEASURE], begin="")
def each_rank_measures_its_own(case, rank, result):
    expect(
        result == [rank],
        f"rank {rank} calls losses for the ranks {result}; it should call it once, for rank {rank}",
        "each rank measures its own samples: how do those of another rank reach the one that prints?",
    )


@check(lambda values: f"{FUNCTION} reads logs right; of the broken script: {values[0]}", [BROKEN, REPAIRED[1], DETECT])
def the_logs_are_read_right(records):
    broken, repaired, detection = records
    all_logs = [*EXAMPLES.values(), broken.collectives, repaired.collectives]
    for case, logs in zip(cases([detection]), all_logs, strict=True):
        [result], right = case.results, first_difference(logs)
        if result != (list(right) if right else None):  # a tuple came back as a list
            returned = tuple(result) if isinstance(result, list) else result
            raise Wrong(
                f"{case.scenario}: {FUNCTION}({logs}) returned {returned!r}, not {right!r}",
                where_to_look(result, right),
            )
    return first_difference(broken.collectives)


def first_difference(logs):
    """The right return value of the learner's function of this name."""
    for position in range(max(map(len, logs), default=0)):
        entries = {rank: log[position] if position < len(log) else None for rank, log in enumerate(logs)}
        if len(set(entries.values())) > 1:
            return position, entries
    return None


def printed_means(record):
    """(rank, text of the mean) of each line with `mean loss` and then a mean; words and integers may be in between."""
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


def where_to_look(result, right):
    """Where to look if the learner's function returned `result` instead of `right`."""
    if result is None:
        return "which two entries differ first? Two logs of one length can differ, and a log can end before the others"
    if right is None:
        return "these logs are equal: what does your function take for a difference?"
    return "the return value: (position of the first difference, {rank: its entry there, or None if its log has ended})"
