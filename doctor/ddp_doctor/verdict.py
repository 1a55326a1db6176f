"""A verdict, its advice, and the parts of sentences that several verdicts share."""

import re
from dataclasses import dataclass

from ddp_doctor import source_lines, words
from ddp_doctor.history import Frame, user_frames
from ddp_doctor.job import Job, Rank

CURES = {
    "missing": "Every rank must start the same collectives in the same order: take it out of what only some ranks do.",
    "uneven": "Give every rank the same number of batches (drop_last, a sampler that pads), or use DDP's join().",
    "leaves": "Let the ranks decide together when to leave: all-reduce the flag, and let each act on the sum.",
    "skips": "Let no rank skip a step alone: all-reduce whether one has to, or take part with a loss of zero.",
    "caught": "Let no rank go on alone after an exception: raise it, so that all end, or tell the others.",
    "module": "Call the wrapped model, not its .module, wherever gradients are to be averaged.",
    "timeout": "Give init_process_group a longer timeout=, or let the ranks do together what one of them does alone.",
    "root": "The src (or dst) of a collective has to be the same number on all ranks, of the default group.",
    "worker": "Workers are killed where memory or /dev/shm runs out (`dmesg`, `df /dev/shm`): start fewer of them.",
    "crash": "Run the dataset over the same samples with num_workers=0, to see the crash in the script itself.",
    "unlike": "The tensors of one collective need one size and dtype on all ranks; pad them, or gather objects.",
    "order": "Start the collectives in one place, in one order.",
    "init": "Every rank of the job has to call init_process_group, with its own rank and the same world size.",
    "memory": "SIGKILL often comes from the system when memory runs out: see `dmesg` or the scheduler's log.",
}


@dataclass(frozen=True)
class Verdict:
    """A diagnosis: `sentence` says what is wrong, and `ranks` are to blame.

    kind    such as "missing", often a key of CURES
    frames  of the user's own code, innermost first: the line to look at, and its callers
    cure    advice; "" if there is none
    """

    kind: str
    ranks: tuple[int, ...]
    sentence: str
    frames: tuple[Frame, ...] = ()
    cure: str = ""

    @property
    def alarm(self) -> bool:
        return self.kind != "well"


def cure_for(frames) -> str:
    """The advice for a rank that missed the collective of these frames (innermost first), by how it got past it."""
    condition = source_lines.deciding_condition(frames)
    if condition.startswith("in the loop"):
        kind, _ = source_lines.way_past(frames)
        return CURES[kind or "uneven"]
    if condition.startswith("in `except"):
        return CURES["caught"]
    way_out = re.search(r": (break|return|continue)\b.*`", condition)
    if way_out is None or source_lines.depends_on_rank(condition):
        return CURES["missing"]
    return CURES["skips" if way_out[1] == "continue" else "leaves"]


def stands(rank: Rank) -> str:
    """Words for where a rank is now, or was when it ended: "stands in `next(loader)` at train.py:35"."""
    if rank.running:
        if not rank.own:
            return f"stands where no stack could be read{': ' + rank.stack_problem if rank.stack_problem else ''}"
        does = "stands"
        if not rank.waits_for_peers():
            does = {"computing": "is at work", "transferring": "transfers data"}.get(rank.state, "stands")
        waits = f", and waits for {rank.waits_for}" if rank.waits_for else ""
        return f"{does} in {words.code_at(rank.own[0])}{words.sleep(rank.sleeps)}{waits}"
    if rank.exit_call and rank.exit_code is not None and rank.exit_code >= 0:
        call, stack = rank.exit_call
        frames = user_frames(stack)
        return f"left with {call}" + (f" {words.where(frames)}" if frames else "")
    frames = (user_frames(rank.error.stack) if rank.error else ()) or rank.own
    if frames:
        trace = f"was last seen in {words.code_at(frames[0])}"
    elif last := rank.history.newest:
        trace = f"was last seen after {words.collective(last)} {words.at(last.own)}"
    else:
        trace = "left no trace of where it stood"
    if rank.exit_code == 0:
        return f"had ended with exit code 0, and {trace}"
    left_with_code = (rank.exit_code or 0) > 0 and not rank.error
    return f"ended with exit code {rank.exit_code}, and {trace}" if left_with_code else trace


def only_lost_contact(job: Job, *culprits: int) -> str:
    """The end of a sentence about the ranks, other than the culprits, whose error is a symptom; "" if there is none."""
    victims = [
        number for number, rank in job.ranks.items() if number not in culprits and rank.error and rank.error.symptom
    ]
    if not victims:
        return ""
    frames = user_frames(job.ranks[victims[0]].error.stack)
    where = f" {words.at(frames)}" if frames else ""
    return f"; {words.ranks(victims)} only lost contact{where}"


def never_came(job: Job, absent: tuple[int, ...], call: str, callers, frames) -> str:
    """rank 1 never answered barrier, which rank 0 called at ...; rank 1 stands in ...; `call`: "answered barrier"."""
    return (
        f"{words.ranks(absent)} never {call}, which {words.ranks(callers)} called {words.where(frames)}; "
        f"{words.ranks(absent[:1])} {stands(job.ranks[absent[0]])}"
    )


def error_at(frames) -> str:
    return f"in {words.code_at(frames[0])}" if frames else "at an unknown line"
