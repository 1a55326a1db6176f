"""Judge the ranks' records: first the failures that any answer can have, then the checks of the exercise.

An answer that raises, hangs, dies or is a stub gets its verdict here, with the rank, the line and the call.
"""

import ast
import re
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from ddp_doctor.launch.first_failure import is_symptom

from ddp_course.grader.answer_record import JobRecord, where
from ddp_course.grader.answer_run import run_answers
from ddp_course.grader.exercises import Exercise
from ddp_course.grader.harness.notes import RankRecord
from ddp_course.grader.verdict import CRASHED, NOT_ATTEMPTED, NOT_GRADED, PASSED, WRONG, Verdict, Wrong, last_lines

QUESTION_OF_SENDS = {
    "send": "a send returns when its receiver takes part: who receives while all of them send?",
    "recv": "a receive returns when its sender takes part: who sends while all of them receive?",
}


def grade(answers: list[tuple[Exercise, Path]], lanes: int = 1, sandbox: Sequence[str] = ()) -> list[Verdict]:
    """The verdict on each answer, a file, with one start of the harness for all. lanes, sandbox: see run_answers."""
    verdicts = [_not_attempted(exercise, path) for exercise, path in answers]
    attempted = [number for number, verdict in enumerate(verdicts) if verdict is None]
    to_run = [(path, exercise.jobs, exercise.package) for exercise, path in (answers[number] for number in attempted)]
    if to_run:
        for number, records in zip(attempted, run_answers(to_run, lanes, sandbox), strict=True):
            verdicts[number] = _verdict(*answers[number], records)
    return verdicts


def _not_attempted(exercise: Exercise, path: Path) -> Verdict | None:
    """The verdict "not attempted" if there is no file, or the first job's function is still the stub; else None."""
    if not path.is_file():
        look = "the cell that writes it: run it first"
        return Verdict(exercise.name, NOT_ATTEMPTED, f"there is no file {path}", look, "no file")
    line = _stub_line(path, exercise.jobs[0].function)
    return Verdict(exercise.name, NOT_ATTEMPTED, _still_raises(path, line), check="stub") if line else None


def _stub_line(path: Path, function: str | None) -> int | None:
    """The line of the NotImplementedError if that is the first statement of `function`, defined once in the file.

    None if it is not, or the file cannot be parsed.
    """
    try:
        nodes = list(ast.walk(ast.parse(path.read_bytes())))
    except (SyntaxError, ValueError):
        return None  # the run will report the error
    assigned = [node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)]
    defined = [node for node in nodes if function in (getattr(node, "name", None), getattr(node, "asname", None))]
    if len(defined) != 1 or not isinstance(defined[0], ast.FunctionDef) or function in assigned:
        return None
    body = defined[0].body[1:] if ast.get_docstring(defined[0]) else defined[0].body
    is_stub = body and isinstance(body[0], ast.Raise) and "NotImplementedError" in ast.dump(body[0])
    return body[0].lineno if is_stub else None


def _still_raises(path, line):
    return f"{path.name}, line {line} still raises NotImplementedError"


def _verdict(exercise: Exercise, path: Path, records: list[JobRecord]) -> Verdict:
    for record in records:
        failure = None if record.job.may_fail else run_failure(record, path)
        if failure:
            printed = {
                number: last_lines(rank.stdout) for number, rank in enumerate(record.ranks) if rank.stdout.strip()
            }
            return Verdict(exercise.name, **failure._asdict(), printed=printed)
    facts = []
    for check in exercise.checks:
        try:
            facts.append(check(records))
        except Wrong as wrong:
            look = missing_wait(records) or wrong.look
            return Verdict(exercise.name, WRONG, wrong.observed, look, check.name)
    return Verdict(exercise.name, PASSED, facts=facts)


class RunFailure(NamedTuple):
    """Why the run itself failed: the fields of its Verdict."""

    state: str
    check: str
    observed: str
    look: str


def run_failure(record: JobRecord, answer: Path) -> RunFailure | None:
    """Why the run itself failed; None if it did not.

    It failed if it was not started, or if a rank raised, died, hung, exited early, lacked the function, or changed a
    tensor that was being sent.
    """
    if record.cut_off:
        look = "what else computes on this machine: end it or wait for it, then check again"
        return RunFailure(NOT_GRADED, "not graded", record.cut_off, look)
    if not record.started:
        observed = "the time was used up before all of it had run"
        return RunFailure(WRONG, "does not end", observed, "what takes long in your answer")
    ranks = record.ranks
    raised = [number for number, rank in enumerate(ranks) if rank.raised]
    # Not the ranks whose error only says that another rank was absent or had died.
    causes = [number for number in raised if not is_symptom(ranks[number].raised["text"])]
    stubs = [number for number in causes if ranks[number].raised["not_implemented"]]
    died = [number for number, rank in enumerate(ranks) if _died(rank)]
    prefix = call_prefix(record, (causes or died or [furthest_behind(record)])[0])
    # A rank without the function exits; another one may fail to connect to it before it looks for the function itself.
    missing = next((rank.missing for rank in ranks if rank.missing), None)
    if missing:
        defined = ", ".join(missing["defined"]) or "no function"
        observed = f"{answer.name} defines no function {missing['function']}; it defines {defined}"
        return RunFailure(WRONG, "function missing", observed, "the name in the question")
    if stubs:
        return RunFailure(NOT_ATTEMPTED, "stub", _still_raises(answer, ranks[stubs[0]].raised["line"]), "")
    if causes:
        return _error(record, causes[0], prefix, answer)
    if died:
        return _death(record, died[0], prefix)
    if not record.finished:
        observed = f"{prefix}the process that runs the ranks was killed"
        return RunFailure(CRASHED, "dies", observed, "what ends processes there")
    if record.time_was_up or (not raised and any(rank.stuck or rank.ended_by_grader for rank in ranks)):
        how = "no end, and nothing moves" if record.stood_still else f"no end after {_time_used(record)}"
        return _hang(record, "does not end", f"{prefix}{how}", answer)
    if raised and not _returned(record, raised[0]) and not any(rank.ended for rank in ranks):
        return _hang(record, "does not end", f"{prefix}no end, until rank {raised[0]} would wait no longer", answer)
    if raised:
        return _hang(record, "loses contact", f"{prefix}rank {raised[0]} lost contact", answer)
    for number, rank in enumerate(ranks):
        if rank.changed_sends:
            send = f"line {rank.changed_sends[0]} of {answer.name}"
            observed = f"{prefix}rank {number} changed a tensor before it had waited for the send of it in {send}"
            look = "what isend returns: its wait() comes before the change"
            return RunFailure(WRONG, "changes what it sends", observed, look)
    return None


def _error(record: JobRecord, number: int, prefix: str, answer: Path) -> RunFailure:
    """The failure of a job in which rank `number` raised an error of its own."""
    error = record.ranks[number].raised
    text = _first_line(error["text"])
    if "File too large" in text:
        text += " (a rank may print or write 64 MB)"
    observed = f"{prefix}rank {number} raised {error['type']}: {text}"
    look = f"{answer.name}, line {error['line']}: {error['code']}" if error["line"] else "the call and its result"
    return RunFailure(CRASHED, "raises", observed, look)


def _death(record: JobRecord, number: int, prefix: str) -> RunFailure:
    """The failure of a job in which a signal or an exit code ended rank `number`."""
    rank = record.ranks[number]
    if rank.exit_code >= 0:
        observed = f"{prefix}rank {number} left with exit code {rank.exit_code} before it was done"
        return RunFailure(CRASHED, "leaves early", observed, "what ends the process there (exit, os._exit)")
    if rank.exit_code == -signal.SIGTERM:  # sent at any moment, so the last operation says nothing
        last = ""
        look = "what handles SIGTERM at that moment: the default ends the process"
    else:
        last = last_operation(rank)
        look = "do all ranks start the same operations in one order, each with one size and dtype?"
    last_line = rank.stderr.strip().splitlines()[-1:]
    message = f": {_first_line(last_line[0])}" if last_line else ""
    observed = f"{prefix}rank {number} was killed by {signal.Signals(-rank.exit_code).name}{last}{message}"
    return RunFailure(CRASHED, "dies", observed, look)


def _hang(record: JobRecord, check: str, observed: str, answer: Path) -> RunFailure:
    """The failure of a job whose ranks waited: the verdict names the line or operation of each."""
    return RunFailure(WRONG, check, f"{observed}: {rank_positions(record)}", _where_to_look(record, answer))


def missing_wait(records: list[JobRecord]) -> str:
    """Where to look if the answer did not wait for an operation, which can explain any wrong value; else ""."""
    for record in records:
        if record.job.may_fail:
            continue
        for number, rank in enumerate(record.ranks):
            if rank.unwaited:
                op, line = rank.unwaited[0]
                return f"line {line}: it only starts {op}, and rank {number} never calls wait() on what it returns"
            if rank.early_reads:
                op, line, read_line = rank.early_reads[0]
                started = f"{op} (line {line}) has only started to receive"
                return f"line {read_line}: it reads what {started}; wait() comes first"
    return ""


def call_prefix(record: JobRecord, number: int) -> str:
    """The beginning of a sentence about the call that rank `number` was in."""
    done, calls = len(record.ranks[number].results), record.job.calls
    return where(record.job.world, calls[done].scenario if done < len(calls) else "")


def furthest_behind(record: JobRecord) -> int:
    """The first of the ranks that are in the earliest call: the others may have gone on to the next one."""
    return min(range(record.job.world), key=lambda number: len(record.ranks[number].results))


def _time_used(record: JobRecord) -> str:
    """Such as "8 s, in case 13 of 26": the time of a job is for all its calls together."""
    job, calls = record.job, len(record.job.calls)
    case = min(len(record.ranks[furthest_behind(record)].results) + 1, calls)
    return f"{job.seconds:g} s" + f", in case {case} of {calls}" * (calls > 1)


def rank_positions(record: JobRecord) -> str:
    """Part of a sentence: the line or operation in which each rank was last, or that it had finished."""
    return ", ".join(f"rank {number} {_position(record, number)}" for number in range(record.job.world))


def _position(record: JobRecord, number: int) -> str:
    rank = record.ranks[number]
    line = rank.raised["line"] if rank.raised else rank.line
    if rank.ended or (rank.sys_exit_code == 0 and not rank.stuck):
        return "had finished"
    if _returned(record, number):
        return "had returned"
    if line is None and rank.last_outcome:
        return f"had {rank.last_outcome}"
    if line is None and rank.ended_by_grader:  # before it could note its line
        return f"was last{last_operation(rank)}" if rank.operations[-1] else "did not say in which line it was"
    if line is None:
        return "was in no line of the answer"
    ahead = len(rank.results) > len(record.ranks[furthest_behind(record)].results)
    case = " of the next case" if ahead else ""
    if rank.operations[-1] and rank.operations[-1][-1].line == line:
        return f"was{last_operation(rank)}{case}"
    return f"was in line {line}{case}"


def last_operation(rank: RankRecord) -> str:
    """The operation that the rank started last in this call, such as " in send to rank 1 (line 12)"; "" if none."""
    if not rank.operations[-1]:
        return ""
    last = rank.operations[-1][-1]
    peer = "" if last.peer is None else f" {'to' if last.op == 'send' else 'from'} rank {last.peer}"
    return f" in {last.op}{peer} (line {last.line})"


def _died(rank):
    """Whether a signal, an exit code or an early exit ended the rank, for no reason that its notes give."""
    explained = rank.raised or rank.stuck or rank.ended_by_grader
    return not explained and rank.exit_code is not None and (rank.exit_code != 0 or not rank.ended)


def _returned(record, number):
    """Whether all calls of the answer's function returned on rank `number`: a later error is not the function's."""
    return bool(record.job.function) and len(record.ranks[number].results) == len(record.job.calls)


def _first_line(text):
    """The first line of an error message, without the position in gloo's source that it may begin with."""
    line = text.strip().partition("\n")[0]
    return re.sub(r"^(what\(\):\s*)?(\[enforce fail at [^\]]*\]\s*)?", "", line)[:300]


def _where_to_look(record: JobRecord, answer: Path) -> str:
    """Where to look in a run that hangs: a question or a place."""
    lines = answer.read_text(encoding="utf-8", errors="replace").splitlines()
    unfinished = [rank for rank in record.ranks if not rank.ended]
    if any("new_group(" in lines[rank.line - 1] for rank in unfinished if rank.line and rank.line <= len(lines)):
        return "new_group waits for all ranks, those outside the group too: which of them does not call it?"
    job = record.job
    if record.time_was_up and not record.stood_still and job.patience < job.seconds and len(job.calls) > 1:
        return f"is it slow, or does it loop without end? The {job.seconds:g} s are for all {len(job.calls)} cases"
    last_ops = {rank.operations[-1][-1].op for rank in unfinished if rank.operations[-1]}
    if last_ops and last_ops <= set(QUESTION_OF_SENDS):
        return QUESTION_OF_SENDS[last_ops.pop()] if len(last_ops) == 1 else "which send and which receive never meet?"
    if last_ops:
        return "a collective waits for every rank of its group: which rank never comes to it, and why?"
    return "the loop or wait in that line"
