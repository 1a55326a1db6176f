"""08.1: an evaluation under `if rank == 0`: predict how it ends, detect calls that not all ranks make, repair it."""

import functools
import re
from decimal import Decimal
from pathlib import Path

import torch

from ddp_course.grader.harness.job import LogsOf
from ddp_course.grader.vocabulary import Wrong, are_close, cases, check, expect, function_job, numbers, plural, where

from . import given as given_script

GIVEN = Path(__file__).with_name("given.py")
HANG_SECONDS = 1.2  # after which a broken run is ended; it crashes or hangs within a fifth of that
REPORT = re.compile(r"held-out loss(.*)")  # to the end of the line; an epoch may be named before the loss
LOSS = re.compile(r"\d*\.\d+(?:e[-+]?\d+)?|\bnan\b")
DETECTOR = "not_on_all"
RELATIVE_ERROR = 1e-4

DDP_MODULES = ("torch._dynamo",)  # loaded by DDP's constructor
VARIANTS = [(2, True), (1, True), (1, False), (2, False)]  # epochs, buffers; the notebook does not run the last one
# How the four variants end. Used where a busy machine was too slow for a run to crash or hang within HANG_SECONDS.
KNOWN_SYMPTOMS = [("crash", "all_reduce"), ("hang", "broadcast"), ("hang", "all_reduce"), ("crash", "all_reduce")]


def train_job(world, *variants, **options):
    calls = {f"{plural(epochs, 'epoch')}, buffers={buffers}": (epochs, buffers) for epochs, buffers in variants}
    return function_job(world, "train", calls, loads=DDP_MODULES, **options)


*BROKEN, HIDDEN = [train_job(2, variant, seconds=HANG_SECONDS, script=GIVEN, may_fail=True) for variant in VARIANTS]
REPAIRED = [train_job(2, *VARIANTS[:3], seconds=3.0), train_job(3, VARIANTS[0], seconds=3.0)]
PREDICT = function_job(1, "symptom", {"epochs={}, buffers={}".format(*variant): variant for variant in VARIANTS})

A, B, C = "all_reduce, line 9", "barrier, line 12", "broadcast, line 15"
MADE_UP = {  # the log of each rank
    "all equal": [[A, B], [A, B], [A, B]],
    "no rank has started anything": [[], []],
    "rank 0 alone called the all_reduce": [[C, A], [C, B]],
    "rank 1 is one step behind, in the same lines": [[C, A, C, A], [C, A]],
    "the same lines in another order": [[A, B], [B, A]],
    "two of three ranks, twice": [[A, C, C], [A], [A, C, C]],
    "the same operation in another line": [[A, "barrier, line 11"], [A, "barrier, line 12"]],
    "one rank has started nothing": [[A, B], []],
    "only the last rank": [[A], [A], [A, B]],
    "lines 6 and 66": [["barrier, line 66"], ["barrier, line 66", "barrier, line 6"]],
}
RECORDED = {f"logs of the script, {job.calls[0].scenario}": LogsOf(job) for job in BROKEN}
RECORDED |= {"logs of your train on 3 ranks": LogsOf(REPAIRED[1])}
DETECT = function_job(1, DETECTOR, {scenario: (logs,) for scenario, logs in (MADE_UP | RECORDED).items()})
JOBS = [*BROKEN, *REPAIRED, PREDICT, DETECT, HIDDEN]


@check(
    "the four variants end as you predicted: " + ", ".join(f"{end} in {op}" for end, op in KNOWN_SYMPTOMS),
    [*BROKEN, PREDICT, HIDDEN],
)
def the_symptoms_are_predicted(records):
    *runs, prediction, hidden_run = records  # in the order of JOBS
    for case, record, known in zip(cases([prediction]), [*runs, hidden_run], KNOWN_SYMPTOMS, strict=True):
        [result], right = case.results, symptom_of(record) or known
        returned = tuple(result) if isinstance(result, list) else result
        if returned != right:
            raise Wrong(
                f"symptom({case.scenario}) returned {returned!r}; the run on 2 ranks ended with {right!r}",
                look_at_run(returned, right),
            )


@check(
    lambda returned: f"{DETECTOR} is right about made-up and real logs; of the first variant: {returned[0]}",
    [*BROKEN, REPAIRED[1], DETECT],
)
def calls_not_on_all_ranks_are_found(records):
    *recorded, detection = records
    all_logs = [*MADE_UP.values(), *(record.collectives for record in recorded)]
    for case, logs in zip(cases([detection]), all_logs, strict=True):
        [result], right = case.results, not_on_all(logs)
        if result != right:
            text = f"({logs})" if sum(map(len, logs)) < 9 else ""
            raise Wrong(
                f"{case.scenario}: {DETECTOR}{text} returned {result!r}, not {right!r}", where_to_look(result, right)
            )
    return not_on_all(recorded[0].collectives)


@check("every rank returns the mean over all held-out points, on 2 and on 3 ranks, with and without buffers", REPAIRED)
def every_rank_returns_the_losses(case, rank, result):
    right = held_out_losses(case.args[0][0], case.world)
    expect(
        are_close(result, right, rel_tol=RELATIVE_ERROR),
        f"rank {rank} returned {show_losses(result)}{right_rank_text(case, rank, right)}; the mean over all "
        f"held-out points is {show_losses(right)}",
        "what is summed over the ranks, which ranks take part in it, and which append to `losses`",
    )


@check("one rank prints the loss, once an epoch", REPAIRED)
def one_rank_reports(records):
    for record in records:
        world = record.job.world
        expected = [loss for call in record.job.calls for loss in held_out_losses(call.args[0][0], world)]
        printed = [printed_losses(rank.stdout) for rank in record.ranks]
        counts = list(map(len, printed))
        expect(
            sorted(counts) == [0] * (world - 1) + [len(expected)],
            f"{where(world)}in {len(expected)} epochs the held-out loss was printed {sum(counts)} times "
            f"({', '.join(f'rank {rank}: {count}' for rank, count in enumerate(counts))})",
            "which line of the block concerns rank 0 alone?",
        )
        [(rank, losses)] = [(rank, losses) for rank, losses in enumerate(printed) if losses]
        for text, right in zip(losses, expected, strict=True):
            expect(
                is_rounded(text, right),
                f"{where(world)}rank {rank} printed a held-out loss of {text}; the mean over all held-out points is "
                f"{right:.5f}",
                "which points are in the number that is printed",
            )


def symptom_of(record):
    """("crash" or "hang", the last collective of rank 0) of a broken run; None if it was ended before it did either."""
    if not record.started or not record.ranks[0].operations[-1]:
        return None
    last = record.ranks[0].operations[-1][-1]
    if any(rank.exit_code is not None and rank.exit_code < 0 and not rank.ended_by_grader for rank in record.ranks):
        return "crash", last.op
    entries = not_on_all(record.collectives)  # of a hang: the call in which rank 0 waits, and that of rank 1
    return ("hang", last.op) if f"{last.op}, line {last.line}" in entries and len(entries) > 1 else None


def not_on_all(logs):
    """The right return value of the learner's function of this name."""
    entries = dict.fromkeys(entry for log in logs for entry in log)
    ranks_of = {entry: [rank for rank, log in enumerate(logs) if entry in log] for entry in entries}
    return {entry: ranks for entry, ranks in ranks_of.items() if len(ranks) < len(logs)}


@functools.cache
def held_out_losses(epochs, world):
    """The losses of one process that trains on the global batches of `world` ranks and evaluates on all points."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        model = given_script.Line()
    x, y = given_script.points(12, seed=2)
    held_out_x, held_out_y = given_script.points(7, seed=3)
    losses = []
    for _ in range(epochs):
        for batch in torch.arange(len(x)).split(2 * world):
            loss = (model(x[batch]) - y[batch]).square().mean()
            gradients = torch.autograd.grad(loss, list(model.parameters()))
            with torch.no_grad():  # SGD by hand: torch.optim would load the compiler, for seconds
                for parameter, gradient in zip(model.parameters(), gradients, strict=True):
                    parameter -= 0.1 * gradient
        losses.append((model(held_out_x) - held_out_y).square().mean().item())
    return losses


def printed_losses(output):
    """The first number after each `held-out loss`, as it was printed."""
    return [losses[0] for losses in map(LOSS.findall, REPORT.findall(output)) if losses]


def is_rounded(text, right):
    """Whether the printed number is `right`, to as many digits as were printed, give or take RELATIVE_ERROR of it."""
    printed = Decimal(text)
    if not printed.is_finite():
        return False
    last_digit = 10.0 ** printed.as_tuple().exponent
    return abs(float(printed) - right) <= 0.51 * last_digit + RELATIVE_ERROR * right


def show_losses(result):
    """The losses with five digits behind the point; the repr of a result that holds no numbers."""
    losses = numbers(result)
    return repr(result) if losses is None else f"[{', '.join(f'{loss:.5f}' for loss in losses)}]"


def right_rank_text(case, rank, right):
    """The words ", while rank 0 is right", if that rank returned the losses `right` and this one did not; else ""."""
    right_ranks = [r for r, result in enumerate(case.results) if are_close(result, right, rel_tol=RELATIVE_ERROR)]
    return f", while rank {right_ranks[0]} is right" if right_ranks and rank not in right_ranks else ""


def look_at_run(returned, right):
    """Where to look after a wrong symptom."""
    if not (isinstance(returned, tuple) and len(returned) == 2):
        return 'the return value: two texts, such as ("hang", "barrier")'
    if returned[0] != right[0]:
        return "what rank 1 does next while rank 0 evaluates: does it send anything, and of what size?"
    return "the calls of rank 0 inside the `if`: which is the first that communicates, and does rank 1 take part in it?"


def where_to_look(result, right):
    """Where to look after a wrong result of the detector."""
    if not isinstance(result, dict):
        return "the return value: a dict {entry: [ranks that started it]}, empty if there is nothing to report"
    if set(result) - set(right):
        return "an entry that is in every log is none to report, however often and in whatever order it is there"
    if set(right) - set(result):
        return "every entry counts that at least one rank never started, whichever rank that is"
    return "the ranks of an entry: those whose log has it, in order, each once"
