"""One page in plain words: the verdict first, then each rank."""

import signal
import time

from ddp_doctor import words
from ddp_doctor.history import position, user_frames
from ddp_doctor.job import Job, Rank
from ddp_doctor.verdict import Verdict

DEEPEST = 6  # own frames of a stack on the page


def page(job: Job, verdict: Verdict) -> str:
    """The verdict, how the job ended, and unless it ended well each rank; without a newline at the end."""
    lines = [f"VERDICT: {verdict.sentence}."]
    if verdict.cure:
        lines += [f"What to do: {verdict.cure}"]
    lines += ["", _how_it_ended(job)]
    if job.ended != "well" or verdict.alarm:
        for rank in sorted(job.ranks):
            lines += ["", *_rank(job.ranks[rank], job)]
    return "\n".join(lines)


def as_json(job: Job, verdict: Verdict) -> dict:
    """The page's facts for a program, each rank with its whole stack."""
    return {
        "ended": job.ended,
        "exit_code": job.exit_code,
        "seconds": round(job.seconds, 1),
        "verdict": {
            "kind": verdict.kind,
            "ranks": list(verdict.ranks),
            "sentence": verdict.sentence,
            "what_to_do": verdict.cure,
            **position(verdict.frames),
        },
        "ranks": {
            str(number): {
                "pid": rank.pid,
                "state": rank.state,
                "exit_code": rank.exit_code,
                "last_collective": _last(rank),
                "stack": [[frame.file, frame.line, frame.function] for frame in rank.stack],
                "first_error": rank.error
                and {"text": rank.error.text, "time": rank.error.when, "symptom": rank.error.symptom},
                "notes": [*rank.notes, *filter(None, [rank.stack_problem])],
            }
            for number, rank in job.ranks.items()
        },
    }


def _how_it_ended(job: Job) -> str:
    after, quiet = f"after {job.seconds:.0f} s", f"for {job.quiet:.0f} s"
    return {
        "well": f"torchrun ended with exit code {job.exit_code} {after}.",
        "failed": f"torchrun ended with exit code {job.exit_code} {after}.",
        "hang": f"Nothing moved {quiet}; the doctor ended the job {after}.",
        "time": f"The doctor's time limit came {after}, and it ended the job.",
        "interrupt": f"You interrupted {after}; the doctor looked, and ended the job.",
        "still": f"Nothing has moved {quiet}, and the doctor watches on (Ctrl-C ends the job; --end-after S would, "
        "after S such seconds).",
    }.get(job.ended, "The job goes on: the doctor only looked.")


def _rank(rank: Rank, job: Job) -> list[str]:
    rows = [("last collective", _last_collective(rank, job))]
    raised_in = user_frames(rank.error.stack) if rank.error else ()
    own = () if raised_in and not rank.running else rank.own[:DEEPEST]
    labels = ["stands in" if rank.running else "last seen in", *["  called from"] * DEEPEST]
    rows += [(label, f"{words.code_at(frame)}, in {frame.function}") for label, frame in zip(labels, own, strict=False)]
    if rank.running and rank.stack and not rank.stack[0].is_own():
        rows.append(("  and there in", f"{rank.stack[0].function}() at {words.location(rank.stack[0])}"))
    rows.append(("variables", _counters(rank)))
    rows += [("note", note) for note in (rank.stack_problem, *rank.notes)]
    printed = [line for line in rank.last_lines if line.strip()]
    if rank.error:
        text = rank.error.text.strip().partition("\n")[0]
        when = time.strftime("%H:%M:%S", time.localtime(rank.error.when)) if rank.error.when else "time unknown"
        symptom = " (a symptom: its peer was gone, or did not come)" if rank.error.symptom else ""
        rows.append(("first error", f"{when}{symptom}: {text[:300]}"))
        rows += [("", f"raised in {words.code_at(frame)}") for frame in raised_in[:1]]
    elif printed:
        rows.append(("last line printed", printed[-1][:200]))
    title = f"rank {rank.rank}: {_ending(rank, job)}" + (f" (pid {rank.pid})" if rank.pid else "")
    return [title, *(f"  {label:<17} {text}" for label, text in rows if text)]


def _last_collective(rank: Rank, job: Job) -> str:
    last = rank.history.newest
    if last is None:
        return "not known from outside, without --debug-server" if job.ended == "now" else "none was recorded"
    started, finished = rank.progress.get(last.group, (0, 0))
    unfinished = ", not finished" if rank.running and finished < last.number <= started else ""
    return f"{words.collective_of_group(last)}, {words.tensors(last)}, {words.at(last.own)}{unfinished}"


def _counters(rank: Rank) -> str:
    """Up to six whole numbers among the variables of its two innermost own frames, such as the step it is in.

    Not of code at module level, whose variables py-spy does not give.
    """
    counters = []
    for frame in rank.own[:2] if rank.running else ():
        for name, text in rank.variables.items():
            function, _, variable = name.partition(".")
            if function == frame.function and text.lstrip("-").isdigit():
                counters.append(f"{variable} = {text}")
    return ", ".join(counters[:6])


def _ending(rank: Rank, job: Job) -> str:
    if rank.running:
        if rank.waits_for_peers() and rank.state != "stopped":
            return "waits for others"
        if rank.waits_for:
            return f"waits for {rank.waits_for}"
        states = {"computing": "at work", "transferring": "transfers data", "waiting": "idle", "stopped": "stopped"}
        return states[rank.state]
    if rank.exit_code is None:
        return "ended, how is not known"
    if rank.exit_code < 0:
        name = signal.Signals(-rank.exit_code).name
        by_whom = " by torchrun, after another rank" if -rank.exit_code == signal.SIGTERM else ""
        return f"ended by {name}{by_whom}"
    if job.ended in ("hang", "time", "interrupt") and rank.exit_code:
        return "ended with an error"
    return f"ended with exit code {rank.exit_code}"


def _last(rank: Rank) -> dict | None:
    last = rank.history.newest
    if last is None:
        return None
    facts = {name: getattr(last, name) for name in ("name", "number", "group", "sizes", "dtypes")}
    return facts | position(last.own)
