"""One finding of a check, the titles of the checks, and the names of the known kinds of failure."""

from dataclasses import dataclass

from ddp_doctor.history import Frame

TITLES = {
    "replicas": "replicas equal after every step",
    "averaged": "gradients averaged over the ranks",
    "accumulated": "every backward pass reaches a step",
    "scale": "steps as large as on one process",
    "tokens": "each value of the loss weighs the same",
    "once": "gradients sent once per step",
    "unused": "every parameter used",
    "buffers": "buffers equal on all ranks",
    "state": "what is evaluated or saved is equal on all ranks",
    "samples": "each rank reads its own samples",
    "split": "no rank trains on another's validation data",
    "reshuffled": "reshuffled in every epoch",
    "dropout": "dropout masks differ between ranks",
    "draws": "samples are augmented differently on each rank",
    "validation": "validation reads each sample once",
    "metrics": "metrics reduced over the ranks",
    "writers": "one writer per file",
    "atomic": "checkpoints written atomically",
    "loadable": "checkpoints load with weights_only=True",
    "resume": "a second start goes on where the first ended",
    "exit": "process group destroyed at the end",
    "timeout": "a timeout chosen",
    "threads": "threads x processes within the cores",
}
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
    "S18": "resume is not exact (accelerate#4195)",
}


@dataclass(frozen=True)
class Finding:
    """One line of the checklist.

    check   a key of TITLES
    status  "ok", "wrong", "note" (a defect in some scripts, not in all) or "unknown" (cannot be decided)
    frames  of the user's own code, innermost first
    entry   a key of CATALOGUE
    cure    what to do
    """

    check: str
    status: str
    text: str
    frames: tuple[Frame, ...] = ()
    entry: str = ""
    cure: str = ""

    @property
    def title(self) -> str:
        return TITLES[self.check]
