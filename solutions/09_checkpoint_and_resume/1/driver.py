"""Inside a rank, for 09.1: call the answer's check_save on right and broken saves, and examine the answer's save.

Each is a function save(folder, step, state), called on every rank. The broken ones fail every time: where a race
decides in real life, here the wrong rank wins.
"""

import io
import os
import shutil
import sys
import time
import uuid
from collections import OrderedDict
from pathlib import Path

import torch
import torch.distributed as dist

SLOW_SECONDS = 0.1  # of a slow write
STEPS = range(1, 11)  # at which the answer's save is called, in one folder
BY_EVERY_RANK = ("given", "every_rank", "early_return", "of_the_last_rank", "own")  # the others: by rank 0 alone


def drive(check_save, name):
    """The verdict of check_save on the save `name`, how it called that, and for "own" the report of `examine`."""
    answer_save = sys.modules["answer"].save
    report = examine(answer_save) if name == "own" else None
    folder = f"checks/{name}"
    save = Save(name, answer_save, Path(folder).resolve())
    verdict = check_save(save, folder)
    return {"verdict": verdict, "calls": save.calls, "own": report, "folder": folder, "elsewhere": save.elsewhere}


class Save:
    """The save `name`, one of the methods below: run by every rank, or by rank 0 while the others wait.

    checks.py says what each of them does.

    elsewhere   the folders with which it was called that are neither `root` nor below it
    """

    def __init__(self, name, answer_save, root):
        self.name, self.answer_save, self.root, self.calls, self.elsewhere = name, answer_save, root, 0, []

    def __call__(self, folder, step, state):
        self.calls += 1
        if not Path(folder).resolve().is_relative_to(self.root):
            self.elsewhere.append(str(folder))
        if self.name in BY_EVERY_RANK or dist.get_rank() == 0:
            getattr(self, self.name)(Path(folder), step, state)
        if self.name not in BY_EVERY_RANK:
            dist.barrier()

    # ---- right ----

    def step_names(self, folder, step, state):
        _write(folder, f"step_{step:06d}.pt", state)

    def slow_disk(self, folder, step, state):
        time.sleep(SLOW_SECONDS)
        _write(folder, f"{step}.pt", state)

    def random_names(self, folder, step, state):
        _write(folder, f"model_{uuid.uuid4()}.pt", state)

    # ---- broken ----

    def given(self, folder, step, state):
        """Named by the second: two saves of one second have one name."""
        _write(folder, f"model_{self._second()}.pt", state)

    by_the_second = given  # but not in BY_EVERY_RANK

    def every_rank(self, folder, step, state):
        for writer in range(dist.get_world_size()):  # the last one wins
            if writer == dist.get_rank():
                _write(folder, f"step_{step:06d}.pt", state)
            dist.barrier()

    def early_return(self, folder, step, state):
        """The other ranks wait until rank 0 has made its folder, and return before it has written the file.

        They make no folder: a check that only looks for folders must not fail this save for that.
        """
        if dist.get_rank() == 0:
            folder.mkdir(parents=True, exist_ok=True)
        dist.barrier()
        if dist.get_rank() == 0:
            time.sleep(SLOW_SECONDS)
            _write(folder, f"step_{step:06d}.pt", state)

    def one_name(self, folder, step, state):
        _write(folder, "newest.pt", state)

    def torn(self, folder, step, state):
        path = _write(folder, f"step_{step:06d}.pt", state)
        os.truncate(path, path.stat().st_size // 2)

    def copies(self, folder, step, state):
        for path in folder.glob("*.pt"):
            shutil.copy(path, path.with_suffix(".copy"))
        _write(folder, f"step_{step:06d}.pt", state)

    def keeps_two(self, folder, step, state):
        _write(folder, f"step_{step:06d}.pt", state)
        for path in sorted(folder.glob("*.pt"))[:-2]:
            path.unlink()

    def rewrites(self, folder, step, state):
        for path in folder.glob("*.pt"):
            _write(folder, path.name, state)
        _write(folder, f"step_{step:06d}.pt", state)

    def no_tensors(self, folder, step, state):
        numbers = {name: value for name, value in state.items() if not torch.is_tensor(value)}
        _write(folder, f"step_{step:06d}.pt", numbers)

    def of_the_last_rank(self, folder, step, state):
        states = [state]
        dist.broadcast_object_list(states, src=dist.get_world_size() - 1)
        if dist.get_rank() == 0:
            self.step_names(folder, step, states[0])
        dist.barrier()

    def adds_the_step(self, folder, step, state):
        _write(folder, f"step_{step:06d}.pt", {**state, "saved_at_step": step})

    def as_double(self, folder, step, state):
        double = {name: value.double() if torch.is_tensor(value) else value for name, value in state.items()}
        _write(folder, f"step_{step:06d}.pt", double)

    def numbered(self, folder, step, state):
        """When a file was removed, the next one takes the name of the newest and replaces it."""
        folder.mkdir(parents=True, exist_ok=True)
        _write(folder, f"{len(list(folder.iterdir()))}.pt", state)

    # ---- the answer's ----

    def own(self, folder, step, state):
        self.answer_save(str(folder), step, state)

    def _second(self):
        """Like int(time.time()), but a second begins with the first save, and waits for a core or a disk take no time.

        So saves that follow each other without a sleep always fall into one second.
        """
        now = time.process_time() + sum(_slept)
        self.begin = getattr(self, "begin", now)
        return int(1_700_000_000 + now - self.begin)


_slept: list[float] = []  # the seconds of each sleep of this process


def _note_sleeps():
    """From now on sleeps are noted, also those by `from time import sleep`."""
    sleep, names = time.sleep, vars(sys.modules["answer"])

    def noted(seconds):
        sleep(seconds)
        _slept.append(seconds)

    time.sleep = noted
    names.update({name: noted for name, value in names.items() if value is sleep})


_note_sleeps()


class SlowToWrite:
    """Part of a state: pickling it takes SLOW_SECONDS, so that the write of the file is slow."""

    def __reduce__(self):
        time.sleep(SLOW_SECONDS)
        return OrderedDict, ()


def examine(save):
    """The effects of the answer's save, as this rank sees them. A collective: every rank calls it.

    steps_at_return   for each save the steps of the files in the folder when it returned on this rank
    steps_after       the same when it had returned on all ranks
    """
    rank, report = dist.get_rank(), {"steps_at_return": [], "steps_after": []}
    rank_folder = Path(f"examined/rank_{rank}")  # it stays empty if the rank writes nothing
    save(str(rank_folder), 1, _state(1, rank))
    dist.barrier()
    report["wrote"] = bool(_contents(rank_folder))
    shared = Path("examined/shared")
    for step in STEPS:
        if step == 4 and rank == 0:  # as a user who removes old files
            for path in shared.iterdir() if shared.is_dir() else []:
                if path.is_file() and _step_of(path.read_bytes()) == 1:
                    path.unlink()
        dist.barrier()
        save(str(shared), step, _state(step, rank))
        contents_at_return = _contents(shared)  # before this rank has waited for the others
        dist.barrier()
        report["steps_at_return"].append(sorted(map(_step_of, contents_at_return)))
        contents = _contents(shared)
        report["steps_after"].append(sorted(map(_step_of, contents)))
        dist.barrier()
    report["folders"] = sum(path.is_dir() for path in shared.iterdir()) if shared.is_dir() else 0
    report["state_entries"] = sorted(_state(1, rank))
    report["entries"] = sorted({name for content in contents for name in _loaded(content)})
    return report


def _state(step, rank):
    """The state of a rank after `step` steps. No entry is named "step", or it would hide that `save` adds one."""
    weights = torch.arange(1000.0, dtype=torch.float64) / 3 + 10 * step + 0.1 * rank
    return {"steps": step, "rank": rank, "weights": weights, "slow": SlowToWrite() if step < 4 else OrderedDict()}


def _contents(folder):
    """The bytes of each file in `folder`, as they are now."""
    contents = []
    for path in folder.iterdir() if folder.is_dir() else []:
        try:
            contents.append(path.read_bytes() if path.is_file() else b"")
        except OSError:
            continue  # another rank has renamed it
    return contents


def _loaded(content):
    """The dict that torch.load finds in the content of a file; {} if it finds none."""
    try:
        state = torch.load(io.BytesIO(content), weights_only=True)
    except Exception:
        return {}
    return state if isinstance(state, dict) else {}


def _step_of(content):
    """The step of a file that holds what rank 0 saved; -1 if it does not."""
    state = _loaded(content)
    if state.keys() != _state(0, 0).keys():
        return -1
    step, weights = state["steps"], state["weights"]
    if step not in STEPS or state["rank"] != 0 or not torch.is_tensor(weights):
        return -1
    right = _state(step, 0)["weights"]
    return step if weights.dtype == right.dtype and torch.equal(weights, right) else -1


def _write(folder, name, state):
    folder.mkdir(parents=True, exist_ok=True)
    # Not in `folder`: a check may count the files there while another rank is writing.
    temporary = folder.parent / f".{folder.name}.{name}.{dist.get_rank()}.tmp"
    torch.save(state, temporary)
    os.replace(temporary, folder / name)
    return folder / name
