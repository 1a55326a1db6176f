"""From what the ranks did to a verdict: first what is wrong with any answer, then the question's own checks.

An answer that raises, hangs, dies or is a stub is told so here, with rank, line and the call in which it happened.
"""

import re
import signal
from pathlib import Path
from types import ModuleType

from ddp_course.lab.answer_record import JobRecord, RankRecord, where
from ddp_course.lab.answer_run import run_answers
from ddp_course.lab.first_failure import SYMPTOMS
from ddp_course.lab.verdict import CRASHED, NOT_ATTEMPTED, PASSED, WRONG, Verdict, Wrong, last_lines

SENDS = ("send", "recv")


def grade(questions: list[tuple[str, ModuleType, Path]]) -> list[Verdict]:
    """Verdicts on several answers, each (id, question module, path), with one start of the harness for all."""
    there = [(name, question, path) for name, question, path in questions if path.is_file()]
    records = iter(run_answers([(path, question.JOBS) for _, question, path in there]) if there else [])
    return [
        _verdict(name, question, path, next(records)) if path.is_file() else _no_file(name, path)
        for name, question, path in questions
    ]


def _no_file(name, path):
    return Verdict(name, NOT_ATTEMPTED, f"there is no file {path}", "the cell that writes it: run it first", "no file")


def _verdict(name: str, question: ModuleType, path: Path, records: list[JobRecord]) -> Verdict:
    for record in records:
        found = None if record.job.may_fail else trouble(record, path)
        if found:
            state, check, observed, look = found
            printed = {rank: last_lines(one.stdout) for rank, one in enumerate(record.ranks) if one.stdout.strip()}
            return Verdict(name, state, observed, look, check, printed=printed)
    facts = []
    for check in question.CHECKS:
        try:
            facts.append(check(records))
        except Wrong as wrong:
            return Verdict(name, WRONG, wrong.observed, wrong.look, check.__name__.replace("_", " "))
    return Verdict(name, PASSED, facts=facts)


def trouble(record: JobRecord, answer: Path) -> tuple[str, str, str, str] | None:
    """(state, check, observed, look) if a rank of the job did not do what was asked to its end, else None."""
    if not record.started:
        return WRONG, "does not end", "the time was used up before all of it had run", "what takes long in your answer"
    ranks = record.ranks
    raised = [rank for rank, one in enumerate(ranks) if one.raised]
    causes = [rank for rank in raised if not is_symptom(ranks[rank])]
    stubs = [rank for rank in causes if ranks[rank].raised["not_implemented"]]
    died = [rank for rank, one in enumerate(ranks) if _died(one)]
    begin = place(record, (causes or died or raised or [0])[0])
    if ranks[0].missing:
        there = ", ".join(ranks[0].missing["there"]) or "no function"
        observed = f"{answer.name} defines no function {ranks[0].missing['missing']}; it defines {there}"
        return WRONG, "function missing", observed, "the name in the question"
    if stubs:
        line = ranks[stubs[0]].raised["line"]
        return NOT_ATTEMPTED, "stub", f"{answer.name}, line {line} still raises NotImplementedError", ""
    if causes:
        error = ranks[causes[0]].raised
        text = _first_line(error["text"])
        if "File too large" in text:
            text += " (a rank may print or write 64 MB)"
        observed = f"{begin}rank {causes[0]} raised {error['type']}: {text}"
        look = f"{answer.name}, line {error['line']}: {error['code']}" if error["line"] else "the call itself"
        return CRASHED, "raises", observed, look
    if died:
        code, last_words = ranks[died[0]].exit_code, ranks[died[0]].stderr.strip().splitlines()[-1:]
        if code < 0:
            said = f": {_first_line(last_words[0])}" if last_words else ""
            killed = f"killed by {signal.Signals(-code).name}{last_operation(ranks[died[0]])}"
            observed = f"{begin}rank {died[0]} was {killed}{said}"
            return CRASHED, "dies", observed, "do all ranks of one operation agree about its size and dtype?"
        observed = f"{begin}rank {died[0]} left with exit code {code} before it was done"
        return CRASHED, "leaves early", observed, "what ends the process there (exit, os._exit)"
    if any(one.stuck or one.ended_by_grader for one in ranks):
        return WRONG, "does not end", f"{begin}no end after {record.job.seconds:g} s: {waits(record)}", _look(record)
    if raised:
        observed = f"{begin}rank {raised[0]} lost contact: {waits(record)}"
        return WRONG, "loses contact", observed, _look(record)
    if not record.finished:
        return CRASHED, "dies", f"{begin}the process that runs the ranks was killed", "what ends processes there"
    return None


def is_symptom(one: RankRecord) -> bool:
    """Whether what the rank raised only says that another one did not come, or is gone."""
    return bool(one.raised) and any(symptom in one.raised["text"] for symptom in SYMPTOMS)


def place(record: JobRecord, rank: int) -> str:
    """How a sentence about the call that `rank` was in begins."""
    done, calls = len(record.ranks[rank].results), record.job.calls
    return where(record.job.world, calls[done].given if done < len(calls) else "")


def waits(record: JobRecord) -> str:
    """Where each rank was when nothing moved any more."""
    texts = []
    for rank, one in enumerate(record.ranks):
        line = one.raised["line"] if one.raised else one.line
        last = one.operations[-1][-1] if one.operations[-1] else None
        if one.ended or (one.left == 0 and not one.stuck):
            texts.append(f"rank {rank} had finished")
        elif len(one.results) == len(record.job.calls) and record.job.function:
            texts.append(f"rank {rank} had returned")
        elif line is None:
            texts.append(f"rank {rank} was in no line of the answer")
        elif last and last.line == line:
            texts.append(f"rank {rank} was{last_operation(one)}")
        else:
            texts.append(f"rank {rank} was in line {line}")
    return ", ".join(texts)


def last_operation(one: RankRecord) -> str:
    """ " in send to rank 1 (line 12)": the collective, send or recv that the rank started last; "" if none."""
    if not one.operations[-1]:
        return ""
    last = one.operations[-1][-1]
    peer = "" if last.peer is None else f" {'to' if last.op == 'send' else 'from'} rank {last.peer}"
    return f" in {last.op}{peer} (line {last.line})"


def _died(one):
    """Whether the rank went of its own: by a signal, with an exit code, or before its work was done."""
    explained = one.raised or one.stuck or one.ended_by_grader
    return not explained and one.exit_code is not None and (one.exit_code != 0 or not one.ended)


def _first_line(text):
    """The first line of an error, without the place in gloo's source that it begins with."""
    line = text.strip().partition("\n")[0]
    return re.sub(r"^(what\(\):\s*)?(\[enforce fail at [^\]]*\]\s*)?", "", line)[:300]


def _look(record):
    """What to ask oneself about a run that stands still."""
    waiting = [one.operations[-1][-1].op for one in record.ranks if one.operations[-1] and not one.ended]
    if waiting and all(op in SENDS for op in waiting):
        return "a send returns when its receiver takes part: who receives while all of them send?"
    if waiting:
        return "a collective waits for every rank of its group: which rank never comes to it, and why?"
    return "the loop or wait in that line"
