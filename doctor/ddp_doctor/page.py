"""One page in plain words: the verdict first, then each rank."""

import signal
import time

from ddp_doctor import words
from ddp_doctor.diagnosis import Verdict
from ddp_doctor.seen import Job, Rank

DEEPEST = 6  # own frames of a stack on the page


def page(job: Job, verdict: Verdict) -> str:
    """The text, without a newline at its end."""
    lines = [f"VERDICT: {verdict.sentence}."]
    if verdict.cure:
        lines += [f"What to do: {verdict.cure}"]
    lines += ["", _how_it_ended(job)]
    if job.ended != "well" or verdict.alarm:
        for rank in sorted(job.ranks):
            lines += ["", *_rank(job.ranks[rank], job)]
    return "\n".join(lines)


def as_json(job: Job, verdict: Verdict) -> dict:
    """The same for a program."""
    frame = verdict.frame
    return {
        "ended": job.ended,
        "exit_code": job.exit_code,
        "seconds": round(job.seconds, 1),
        "verdict": {
            "kind": verdict.kind,
            "ranks": list(verdict.ranks),
            "sentence": verdict.sentence,
            "what_to_do": verdict.cure,
            "file": frame and frame.file,
            "line": frame and frame.line,
        },
        "ranks": {
            str(rank): {
                "pid": one.pid,
                "state": one.state,
                "exit_code": one.exit_code,
                "last_collective": _last(one),
                "stack": [[frame.file, frame.line, frame.function] for frame in one.stack],
                "first_error": one.error
                and {"text": one.error.text, "time": one.error.when, "symptom": one.error.symptom},
                "notes": [*one.notes, *([one.stack_problem] if one.stack_problem else [])],
            }
            for rank, one in job.ranks.items()
        },
    }


def _how_it_ended(job: Job) -> str:
    if job.ended == "well":
        return f"torchrun ended with exit code 0 after {job.seconds:.0f} s."
    if job.ended == "failed":
        return f"torchrun ended with exit code {job.exit_code} after {job.seconds:.0f} s."
    if job.ended == "hang":
        return f"Nothing moved for {job.quiet:.0f} s; the doctor ended the job after {job.seconds:.0f} s."
    if job.ended == "time":
        return f"The doctor's time limit came after {job.seconds:.0f} s, and it ended the job."
    if job.ended == "interrupt":
        return f"You interrupted after {job.seconds:.0f} s; the doctor looked, and ended the job."
    if job.ended == "still":
        text = "the doctor watches on (Ctrl-C ends the job; --end-after S would, after S such seconds)"
        return f"Nothing has moved for {job.quiet:.0f} s, and {text}."
    return "The job goes on: the doctor only looked."


def _rank(one: Rank, job: Job) -> list[str]:
    lines = [f"rank {one.rank}: {_ending(one, job)}" + (f" (pid {one.pid})" if one.pid else "")]
    last = one.history.newest
    if last is not None:
        started, finished = one.progress.get(last.group, (0, 0))
        open_ = one.running and finished < last.number <= started
        group = "" if last.group == "0" else f" of group {last.group!r}"
        lines.append(
            f"  last collective   {words.collective(last)}{group}, {words.tensors(last)}, {words.at(last.own)}"
            f"{', not finished' if open_ else ''}"
        )
    elif job.ended == "now":
        lines.append("  last collective   not known from outside, without --debug-server")
    else:
        lines.append("  last collective   none was recorded")
    label = "stands in" if one.running else "last seen in"
    raised = one.error is not None and any(frame.is_own() for frame in one.error.stack)
    for number, frame in enumerate(() if raised and not one.running else one.own[:DEEPEST]):
        lines.append(f"  {label if number == 0 else '  called from':<17} {words.code_at(frame)}, in {frame.function}")
    if one.running and one.stack and not one.stack[0].is_own():
        lines.append(f"  {'  and there in':<17} {one.stack[0].function}() at {words.place(one.stack[0])}")
    if counters := _counters(one):
        lines.append(f"  variables         {counters}")
    if one.stack_problem:
        lines.append(f"  note              {one.stack_problem}")
    lines += [f"  note              {note}" for note in one.notes]
    if one.error:
        text = one.error.text.strip().splitlines()
        when = time.strftime("%H:%M:%S", time.localtime(one.error.when)) if one.error.when else "time unknown"
        what = " (a symptom: its peer was gone, or did not come)" if one.error.symptom else ""
        lines.append(f"  first error       {when}{what}: {text[0][:300] if text else ''}")
        own = [frame for frame in one.error.stack if frame.is_own()]
        if own:
            lines.append(f"                    raised in {words.code_at(own[0])}")
    elif any(line.strip() for line in one.last_lines):
        lines.append(f"  last line printed {[line for line in one.last_lines if line.strip()][-1][:200]}")
    return lines


def _counters(one: Rank) -> str:
    """Whole numbers among its variables, such as the step it is in; not those of a module, which py-spy leaves out."""
    found = []
    for frame in one.own[:2] if one.running else ():
        for name, text in one.variables.items():
            function, _, variable = name.partition(".")
            if function == frame.function and text.lstrip("-").isdigit():
                found.append(f"{variable} = {text}")
    return ", ".join(found[:6])


def _ending(one: Rank, job: Job) -> str:
    if one.running:
        if one.waits_for_peers() and one.state != "stopped":
            return "waits for others"
        if one.waits_for:
            return f"waits for {one.waits_for}"
        states = {"computing": "at work", "transferring": "transfers data", "waiting": "idle", "stopped": "stopped"}
        return states[one.state]
    if one.exit_code is None:
        return "ended, how is not known"
    if one.exit_code < 0:
        name = signal.Signals(-one.exit_code).name
        told = " by torchrun, after another rank" if -one.exit_code == signal.SIGTERM else ""
        return f"ended by {name}{told}"
    if job.ended in ("hang", "time", "interrupt") and one.exit_code:
        return "ended with an error"
    return f"ended with exit code {one.exit_code}"


def _last(one: Rank) -> dict | None:
    last = one.history.newest
    if last is None:
        return None
    own = last.own
    return {
        "name": last.name,
        "number": last.number,
        "group": last.group,
        "sizes": [list(sizes) for sizes in last.sizes],
        "dtypes": list(last.dtypes),
        "file": own[0].file if own else None,
        "line": own[0].line if own else None,
    }
