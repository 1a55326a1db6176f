"""Inside a rank, for 09.1: saves for the answer's check, right ones, broken ones, and the answer's own, examined.

Each is a function save(folder, step, state), called on every rank. The broken ones are broken every time: where a
race decides in real life, here the wrong rank wins.
"""

import os
import sys
import time
import uuid
from collections import OrderedDict
from pathlib import Path

import torch
import torch.distributed as dist

SLOW = 0.1  # seconds that a slow write takes


def drive(check_save, name):
    """What the answer's check says about the save called `name`, and whether it tried it; "own" is the answer's."""
    own = sys.modules["answer"].save
    seen = examine(own) if name == "own" else None
    save = Save(name, own)
    return {"verdict": check_save(save, f"checks/{name}"), "calls": save.calls, "seen": seen}


class Save:
    """The save called `name`, one of the methods below."""

    def __init__(self, name, own):
        self.name, self.answers, self.calls = name, own, 0

    def __call__(self, folder, step, state):
        self.calls += 1
        getattr(self, self.name)(Path(folder), step, state)

    # ---- right ----

    def step_names(self, folder, step, state):
        if dist.get_rank() == 0:
            _write(folder, f"step_{step:06d}.pt", state)
        dist.barrier()

    def slow_disk(self, folder, step, state):
        if dist.get_rank() == 0:
            time.sleep(SLOW)
            _write(folder, f"{step}.pt", state)
        dist.barrier()

    def random_names(self, folder, step, state):
        if dist.get_rank() == 0:
            _write(folder, f"model_{uuid.uuid4()}.pt", state)
        dist.barrier()

    # ---- broken ----

    def given(self, folder, step, state):
        """Every rank, named by the second."""
        _write(folder, f"model_{self._second()}.pt", state)

    def by_the_second(self, folder, step, state):
        """Rank 0 alone, and all wait, but two saves of one second have one name."""
        if dist.get_rank() == 0:
            _write(folder, f"model_{self._second()}.pt", state)
        dist.barrier()

    def every_rank(self, folder, step, state):
        """Named by the step, written by all ranks, the last one wins."""
        time.sleep(0.03 * dist.get_rank())
        _write(folder, f"step_{step:06d}.pt", state)
        dist.barrier()

    def nobody_waits(self, folder, step, state):
        """The other ranks are gone before rank 0 has written."""
        folder.mkdir(parents=True, exist_ok=True)
        if dist.get_rank() == 0:
            time.sleep(SLOW)
            _write(folder, f"step_{step:06d}.pt", state)

    def one_name(self, folder, step, state):
        """Each save replaces the one before."""
        if dist.get_rank() == 0:
            _write(folder, "newest.pt", state)
        dist.barrier()

    def torn(self, folder, step, state):
        """One file a save, of which half is missing."""
        if dist.get_rank() == 0:
            path = _write(folder, f"step_{step:06d}.pt", state)
            os.truncate(path, path.stat().st_size // 2)
        dist.barrier()

    # ---- the answer's ----

    def own(self, folder, step, state):
        self.answers(str(folder), step, state)

    def _second(self):
        """As int(time.time()), in seconds that begin with the first save: which second it is is no accident."""
        self.begin = getattr(self, "begin", time.monotonic())
        return int(1_700_000_000 + time.monotonic() - self.begin)


class SlowToWrite:
    """Part of a state; whoever writes it needs a moment."""

    def __reduce__(self):
        time.sleep(SLOW)
        return OrderedDict, ()


def examine(save):
    """What the answer's save does, as this rank sees it (collective)."""
    rank, seen = dist.get_rank(), {}
    mine = Path(f"examined/rank_{rank}")  # one folder a rank: who writes shows
    save(str(mine), 1, {"step": 1, "weights": torch.arange(1000.0)})
    dist.barrier()
    seen["wrote"] = bool(_files(mine))
    shared, seen["after"], seen["content"] = Path("examined/shared"), [], []
    for step in (1, 2, 3):
        save(str(shared), step, {"step": step, "slow": SlowToWrite(), "weights": torch.full((1000,), float(step))})
        seen["after"].append(_files(shared))  # at once, before anybody is waited for
        dist.barrier()
        seen["content"].append(sorted(map(_step_of, shared.iterdir())) if shared.is_dir() else [])
        dist.barrier()
    return seen


def _files(folder):
    return sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []


def _step_of(path):
    """The step of a file that holds what was saved; -1 if it does not."""
    try:
        state = torch.load(path)
        return state["step"] if torch.equal(state["weights"], torch.full((1000,), float(state["step"]))) else -1
    except Exception:
        return -1


def _write(folder, name, state):
    folder.mkdir(parents=True, exist_ok=True)
    # Beside the folder: a check that counts may look into it while another rank is writing.
    temporary = folder.parent / f".{folder.name}.{name}.{dist.get_rank()}.tmp"
    torch.save(state, temporary)
    os.replace(temporary, folder / name)
    return folder / name
