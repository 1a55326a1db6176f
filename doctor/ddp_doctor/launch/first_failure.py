"""Finds the rank that broke a run first: torchrun's own "root cause" is often a victim.

When one rank dies, the others fail a moment later, in the middle of a collective, and torchrun reports whichever
of them it happened to notice first. A rank that left early with exit code 0 is not in its report at all. So the
errors that the ranks printed are read: one that only says that a peer is gone is a symptom, any other one is a cause.
"""

import os
import re
import signal
from dataclasses import dataclass, field

from ddp_doctor.explain.log_lines import shortened
from ddp_doctor.explain.messages import SYMPTOMS
from ddp_doctor.explain.reading import CHAINED, HEADER

LOG_LINE = re.compile(r"\[?[WEIF]\d{4} ")  # of torch's C++ code: [W1121 10:45:59 ...
STOPPED = os.EX_TEMPFAIL  # 75: the exit code of a run that was asked to stop, and has saved
MAX_LINES = 40  # of one rank in an error message


@dataclass(frozen=True)
class Failure:
    """Why a run failed, or stopped.

    rank       that broke it first; None: torchrun itself did
    exit_code  of that rank; negative: a signal, None: unknown
    text       says so, with the rank's traceback or last lines
    """

    rank: int | None
    exit_code: int | None
    text: str


@dataclass
class Report:
    """The report on its ranks in one torchrun's log."""

    codes: dict[int, int]  # exit codes, 0 of ranks that are not in the log
    failed: set[int] = field(default_factory=set)
    got_sigterm: set[int] = field(default_factory=set)  # from torchrun
    left_early: list[int] = field(default_factory=list)  # with exit code 0, while others were still working


def first_failure(exit_code, launcher_lines, lines, errors, when):
    """({rank: exit code}, the Failure of the rank that broke the run first, None if torchrun ended with 0).

    exit_code, launcher_lines   torchrun's own
    lines    rank -> the lines that it printed
    errors   rank -> its lines of stderr since its last start
    when     rank -> the time at which its first traceback appeared; only of ranks with one

    The exit codes are those that torchrun reports; {} if it reports none, as when it was killed.
    """
    if exit_code == 0:
        return dict.fromkeys(lines, 0), None
    report = torchruns_report(launcher_lines, {rank: rank for rank in lines})
    if not report.failed:
        return {}, Failure(None, exit_code, launcher_text(exit_code, launcher_lines))
    return report.codes, blame(report, lines, errors, when)


def blame(report, lines, errors, when, name="rank {}".format):
    """The Failure of the rank that broke a run first, where at least one has failed. name(rank): the rank in a text.

    lines, errors, when   as in first_failure
    """
    codes, got_sigterm, left_early = report.codes, report.got_sigterm, report.left_early
    if set(codes.values()) == {STOPPED}:
        first = min(codes)
        text = f"the run stopped before its end: every rank ended with exit code {STOPPED}"
        return Failure(first, STOPPED, text + _last_words(name(first), [], lines[first]))
    errors_of = {rank: first_error(without_prefixes(errors.get(rank, []))) for rank in codes}
    # A rank can need so long to exit after its traceback that torchrun ends it, and then names it a bystander.
    raised = {rank for rank in codes if rank in when and errors[rank][-1:] == lines[rank][-1:]}
    failed = [rank for rank in codes if codes[rank] != 0 and (rank not in got_sigterm or rank in raised)]
    # SIGKILL, SIGSEGV and the like are no consequence of a peer's end; SIGABRT and SIGTERM can be.
    killed = {rank for rank in failed if codes[rank] < 0 and -codes[rank] not in (signal.SIGABRT, signal.SIGTERM)}
    killed -= got_sigterm
    failed.sort(key=lambda rank: (rank not in killed, not errors_of[rank], when.get(rank, float("inf")), rank))
    victims = [rank for rank in failed if rank not in killed and is_symptom(errors_of[rank])]
    culprits = [rank for rank in failed if rank not in victims]

    first = (culprits or left_early or victims or sorted(report.failed))[0]
    if not culprits and left_early:
        text = " and ".join(name(rank) for rank in left_early)
        text += " left with exit code 0 while others were still working"
    elif first in victims:
        text = f"{name(first)} lost contact with the others"
    elif first in got_sigterm or (codes[first] == -signal.SIGABRT and first in raised):
        text = f"{name(first)} failed"  # how it ended is not why: gloo can abort a process that ends with an error
    else:
        text = f"{name(first)} {_ending(codes[first])}"
    text += _last_words(name(first), errors.get(first, []), lines[first])
    for rank in codes:
        if rank != first and rank in victims:
            text += f"\n{name(rank)} lost contact: {shortened(errors_of[rank], 200)}"
        elif not culprits and rank in got_sigterm and rank not in failed:
            text += f"\n{name(rank)} was still running and was ended by torchrun"
    return Failure(first, codes[first], text)


def torchruns_report(launcher_lines, ranks):
    """The Report of one torchrun's log. ranks: {local rank: global rank}."""
    log = "\n".join(launcher_lines)
    entry = r"rank\s+: \d+ \(local_rank: (\d+)\)\s+exitcode\s+: (-?\d+)\s+\(pid: (\d+)\)"
    reported = {ranks.get(int(local), int(local)): (int(code), int(pid)) for local, code, pid in re.findall(entry, log)}
    last_attempt = log.split("failed (exitcode:")[-2:][0]  # that line is the last one about an attempt
    closed = {int(pid) for pid in re.findall(r"Sending process (\d+) closing signal", last_attempt)}
    codes = {rank: reported.get(rank, (0, 0))[0] for rank in ranks.values()}
    got_sigterm = {rank for rank, (_, pid) in reported.items() if pid in closed}
    # torchrun logs each process that it sends SIGTERM to; one that has ended gets none. So a rank with exit code 0
    # was gone before, unless it is one of the processes that got a SIGTERM and are not in the report.
    other_closed = closed - {pid for _, pid in reported.values()}
    left_early = [rank for rank, code in codes.items() if code == 0 and not other_closed]
    return Report(codes, set(reported), got_sigterm, left_early)


def launcher_text(exit_code, launcher_lines):
    """The text for a run that ended without a failed rank."""
    if exit_code is None:
        return "the process that watched over torchrun was killed; torchrun and its ranks were ended"
    if exit_code < 0:
        return f"torchrun {_ending(exit_code)}; its ranks were ended"
    return "\n".join([f"torchrun {_ending(exit_code)}, no rank is to blame", *launcher_lines[-MAX_LINES:]])


def _ending(code):
    if code >= 0:
        return f"failed with exit code {code}"
    if -code == signal.SIGABRT:
        return f"aborted with SIGABRT (exit code {code})"
    return f"was killed by {signal.Signals(-code).name} (exit code {code})"


def is_symptom(cause):
    """Whether this error only says that a peer is gone, or did not join."""
    return any(symptom in cause for symptom in SYMPTOMS)


def without_prefixes(lines):
    """The lines without colours and the "[rank0]: " that torch puts before every line of a traceback."""
    return [re.sub(r"^\[rank\d+\]: ?", "", re.sub(r"\x1b\[[0-9;]*m", "", line)) for line in lines]


def last_traceback(lines):
    """The last traceback in `lines` with everything it was chained to, and what followed; [] if there is none."""
    starts = [i for i, line in enumerate(lines) if line == HEADER]
    if not starts:
        return []
    start = starts.pop()
    while starts and any(line.startswith(CHAINED) for line in lines[starts[-1] : start]):
        start = starts.pop()
    return lines[start:]


def first_error(lines):
    """The text of the last traceback's error, without frames and log lines; of chained errors that of the first.

    The first, because a rank that raises, and then loses a peer in its clean-up, is no victim. Without a traceback the
    text is that of the last ten lines.
    """
    traceback = last_traceback(lines)
    if not traceback:
        return "\n".join(line for line in lines[-10:] if not LOG_LINE.match(line)).strip()
    text = []
    for line in traceback[1:]:
        if line.startswith(CHAINED) or LOG_LINE.match(line):
            break
        if text or not line.startswith(" "):
            text.append(line)
    return "\n".join(text).strip()


def _last_words(name, errors, lines):
    """The rank's traceback, else the end of its stderr, else the last line that it printed."""
    errors = without_prefixes(errors)
    shown = last_traceback(errors) or [line for line in errors if line.strip()]
    if shown:
        return "\n\n" + "\n".join(shown if len(shown) <= MAX_LINES else ["...", *shown[-MAX_LINES:]]).rstrip() + "\n"
    if lines:
        return f"\n\nlast line of {name}: {lines[-1]}\n"
    return f"\n\n{name} printed nothing\n"
