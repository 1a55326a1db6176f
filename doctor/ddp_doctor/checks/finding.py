"""One finding of a check, and the names of the known kinds of failure."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from ddp_doctor.audited import AuditedRun
from ddp_doctor.history import Frame

CATALOGUE = {  # kind of failure -> its name, and a report of it
    "C1": "unused parameter; its error comes one step late",
    "K1": "torn checkpoint (Lightning#19970)",
    "K2": "ranks race on a path (pytorch#194614)",
    "K4": "default of weights_only (torch 2.6)",
    "F2": "end without a clean-up (pytorch#190489)",
    "H2": "a hang lasts until the timeout",
    "P1": "accumulation without no_sync (nanochat#33)",
    "P3": "too many threads (pytorch#22260)",
    "S1": "no set_epoch (pytorch#31771)",
    "S2": "padding bias (pytorch#25162)",
    "S6": "gradients of micro-batches lost (ms-swift#10165)",
    "S5": "a mean of means (transformers#34191)",
    "S4": "ranks shard differently (accelerate#4204)",
    "S9": "clipped before the sync (tt-metal#17672)",
    "S11": "the model called past its DDP wrapper (icefall#226)",
    "S12": "replicas apart",
    "S13": "per-rank seeds without a broadcast (tutorials#973)",
    "S14": "BatchNorm buffers",
    "S15": "same dropout mask on all ranks",
    "S16": "a parameter that only some ranks use (pytorch#69031)",
    "S20": "metric of rank 0 only (Lightning#2398)",
    "S23": "gradient summed, or divided twice: effective learning rate",
    "S25": "gloo misreads a view (pytorch#192920)",
    "S18": "resume is not exact (accelerate#4195)",
}


FAILED = "this check itself failed"
MARKS = {"wrong": "WRONG", "note": "note ", "ok": "ok   ", "unknown": "?    "}  # of a status in a checklist


@dataclass(frozen=True)
class Finding:
    """One line of a checklist.

    status  "ok", "wrong", "note" (a defect in some scripts, not in all) or "unknown" (cannot be decided)
    frames  of the user's own code, innermost first
    entry   a key of CATALOGUE
    cure    what to do
    check   a key of CHECKS; `findings` sets it
    title   of what was checked
    """

    status: str
    text: str
    frames: tuple[Frame, ...] = ()
    entry: str = ""
    cure: str = ""
    check: str = ""
    title: str = ""

    @property
    def headline(self) -> str:
        return f"{MARKS[self.status]}  {self.title}: {self.text}"


ok, unknown, note, wrong = (partial(Finding, status) for status in ("ok", "unknown", "note", "wrong"))


class Undecided(Exception):
    """Raised where a check cannot be decided; its text says why."""


def require(condition: object, why_not: str) -> None:
    """Raises Undecided, with the text `why_not`, unless the condition is true."""
    if not condition:
        raise Undecided(why_not)


def result_of(check: Callable[[AuditedRun], Finding], run: AuditedRun) -> Finding:
    """The check's finding, "unknown" if the check raises: the records of a script may be unlike any foreseen."""
    try:
        return check(run)
    except Undecided as why_not:
        return unknown(str(why_not))
    except Exception as error:
        return unknown(f"{FAILED}: {error!r}")
