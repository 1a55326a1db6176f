"""Inside a rank, for 09.2: a training run that stops, is killed, and finds its files damaged.

In the middle of a file the kernel kills a rank: a limit on the size of files makes a write beyond it fatal, whichever
function writes. At a rename, an audit hook kills it. The answer is judged by what it does: the losses, the step at
which a run starts again, the files, and when they were flushed.
"""

import hashlib
import json
import os
import re
import resource
import signal
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

from ddp_course.grader.harness.tensors import fingerprint

LARGE = 64 * 1024  # bytes; the weights need more, a rank's random state far less
SLOW_SECONDS = 0.15  # for one flush or rename on a slow disk
LONG_AGO = 1e9  # a time, in 2001

_flushed = []  # (inode, mtime, size) of each file when it was flushed
_disk = {"slow": False, "slow_done": 0.0}  # whether it is slow now, and when its last slow operation had ended


def drive(train, name, *start):
    """This rank's report of one start of the answer's `train`; `name` and `start` are the arguments of Training.

    In the runs "nothing_whole" and "large_numbers", the answer's `save` and `load` are called one by one instead.
    """
    training = Training(name, *start)
    if name == "nothing_whole":
        return load_where_nothing_is_whole(training)
    if name == "large_numbers":
        return load_after_each_save(training)
    train(training)
    return training.report()


class Training:
    """One start of a run named `name`: `model`, `optimizer`, `folder`, `until`, and `step(number)`.

    seed        of the initial weights and random states. Each start of a run has another seed, so that what is not
                loaded differs.
    damage      "truncated" or "flipped": the newest file; "foreign": files of others are added to the folder
    kill        ("byte", step): rank 0 dies in the middle of the file while saving `step`
                ("rename", step): rank 0 dies before the second rename after it began to save `step`
    slow        the step whose save meets a slow disk
    """

    def __init__(self, name, seed, until, damage=None, kill=None, slow=None):
        self.name, self.until, self.kill, self.slow = name, until, kill, slow
        self.rank = dist.get_rank()
        answer = hashlib.sha256(sys.modules["answer"].__file__.encode()).hexdigest()[:12]
        self.path = Path.cwd().parents[1] / f"kept_{answer}" / name  # outlives the job
        self.folder = str(self.path)
        self.losses, self.states, self.start, self.saving = {}, {}, None, None
        self.large_files, self.slow_save_returned, self.files = [], None, set()
        torch.manual_seed(seed)
        self.model = nn.Sequential(nn.Linear(64, 256), nn.Tanh(), nn.Dropout(0.5), nn.Linear(256, 64))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01, momentum=0.9)
        torch.manual_seed(100 * seed + self.rank)
        if self.rank == 0:
            self.path.mkdir(parents=True, exist_ok=True)
            if damage:
                self._damage(damage)
        elif kill and kill[0] == "byte":
            _kill_beyond(LARGE)
        dist.barrier()
        files = [list(file[1:]) for file in _listing(self.path)]
        self.kept = [
            entry["saved"] for entry in self._history() if entry.get("files") and entry["files"][0][1:] in files
        ]

    def step(self, number):
        """Step `number`, with this rank's data and dropout and the mean of the gradients. Returns the loss."""
        self._after_save()
        if self.start is None:
            self.start = number
            self._note({"start": number})
        self.states[number] = self._digests()
        generator = torch.Generator().manual_seed(1000 * number + self.rank)
        loss = self.model(torch.randn(8, 64, generator=generator)).square().mean()
        self.optimizer.zero_grad()
        loss.backward()
        for p in self.model.parameters():
            dist.all_reduce(p.grad)
            p.grad /= dist.get_world_size()
        self.optimizer.step()
        self.losses[number] = loss.item()
        self._before_save(number + 1)
        return loss.item()

    def report(self):
        """Losses, states, files and flushes of this rank."""
        self._after_save()
        return {
            "start": self.start,
            "kept": self.kept,
            "losses": self.losses,
            "states": self.states,
            "large_files": self.large_files,
            "flushed": _flushed,
            "slow_save_returned": self.slow_save_returned,
            "disk_done": _disk["slow_done"],
            "history": self._history(),
            "code_was_run": (self.path.parent / "code_was_run").exists(),
        }

    # ---- watching the saves --------------------------------------------------------------------------------------

    def _before_save(self, number):
        """Between a step and the save of `number`: note the files that are there, and arm the kill or the slow disk."""
        self.saving, self.files = number, _listing(self.path)
        self._note({"saving": number})
        _disk["slow"] = number == self.slow
        if self.kill and self.rank == 0 and number == self.kill[1]:
            if self.kill[0] == "byte":
                _kill_beyond(self._history()[-2]["bytes"] // 2)  # [-1] is "saving", [-2] the last "saved"
            else:
                _kill_before_second_rename(self.path)

    def _after_save(self):
        """After a save: note the files that it made, and when it returned if the disk was slow."""
        if self.saving is None:
            return
        if _disk["slow"]:
            self.slow_save_returned, _disk["slow"] = time.monotonic(), False
        new = [file for file in _listing(self.path) if file[1:] not in {old[1:] for old in self.files}]
        new.sort(key=lambda file: file[3], reverse=True)
        self.large_files += [file for file in new if file[3] > LARGE]
        self._note({"saved": self.saving, "files": new, "bytes": new[0][3] if new else 0})
        self.saving = None

    def _note(self, entry):
        if self.rank == 0:
            with open(self.path.with_suffix(".history"), "a") as file:
                file.write(json.dumps(entry) + "\n")

    def _history(self):
        path = self.path.with_suffix(".history")
        lines = path.read_text().split("\n")[:-1] if path.exists() else []  # rank 0 may be writing the last one
        return [json.loads(line) for line in lines]

    def _digests(self):
        """Hashes of the weights, the optimizer's state and the random state, by name."""
        weights = list(self.model.parameters())
        moments = [value for p in weights for _, value in sorted(self.optimizer.state.get(p, {}).items())]
        parts = {"weights": weights, "optimizer": moments, "random": [torch.get_rng_state()]}
        return {name: fingerprint(map(torch.as_tensor, tensors)) for name, tensors in parts.items()}

    def _damage(self, damage):
        saves = [entry for entry in self._history() if entry.get("files")]
        if not saves:
            return
        newest = self.path / saves[-1]["files"][0][0]
        if damage == "foreign":
            self._add_foreign_files(saves[-1]["saved"], [path for path, *_ in saves[-1]["files"]])
        elif newest.is_file():
            content = newest.read_bytes()
            offset = len(content) * 3 // 5
            newest.write_bytes(content[:offset] if damage == "truncated" else _flip_bit(content, offset))

    def _add_foreign_files(self, step, own):
        """Notes, an empty folder, and files named like the answer's `own` of this step, the largest of them first.

        In some of the names another number replaces the step, in some the last number. Some run code if unpickled.
        """
        (self.path / "notes.txt").write_text("the run with the good seed")
        (self.path / "step_000098").mkdir(exist_ok=True)
        (self.path / "step_000099.pt").write_bytes(b"not a checkpoint")
        no_state = {"vocabulary": list(range(100))}
        runs_code = {"step": 97, "model": RunsCode(self.path.parent / "code_was_run")}
        torch.save(runs_code, self.path / "step_000097.pt")
        # More than an answer may keep of its own.
        for number, content in (
            ("000096", runs_code),
            ("999999999", no_state),
            ("999999998", runs_code),
            ("copy", no_state),
        ):
            names = [re.sub(rf"(?<!\d)0*{step}(?!\d)", number, name) for name in own]
            for name in (*names, re.sub(r"\d+(?=\D*$)", number, own[0])):
                path = self.path / name
                if not path.exists():
                    path.parent.mkdir(parents=True, exist_ok=True)
                    torch.save(content, path)


def load_where_nothing_is_whole(training):
    """[scenario, step that `load` returned, names of what it changed] for each folder without a whole checkpoint.

    First the folder is empty, then its only checkpoint is damaged, each time at another offset.
    """
    answer, loads = sys.modules["answer"], []
    model, optimizer = training.model, training.optimizer

    def try_load(scenario, saved=None):
        """saved: the state that `load` may restore all the same; then there is no entry in `loads`."""
        dist.barrier()  # rank 0 has prepared the folder
        initial = training._digests()
        step = answer.load(training.folder, model, optimizer)
        state = training._digests()
        if step != 1 or state != saved:
            loads.append([scenario, step, [name for name, digest in state.items() if digest != initial[name]]])
        dist.barrier()

    try_load("the folder was empty")
    _step(model, optimizer)
    answer.save(training.folder, 1, model, optimizer)
    saved = training._digests()
    dist.barrier()
    large = [training.path / file[0] for file in _listing(training.path) if file[3] > LARGE]
    whole = {path: path.read_bytes() for path in large}
    dist.barrier()  # rank 1 has read them, too

    def flip_a_bit(offset_in):
        _step(model, optimizer)  # now the states differ from those in the checkpoint
        for path, content in whole.items() if training.rank == 0 else ():
            path.write_bytes(_flip_bit(content, offset_in(len(content))))

    for eighth in range(1, 8):
        flip_a_bit(lambda size, eighth=eighth: size * eighth // 8)
        try_load(f"at {eighth / 8:.1%} of the only checkpoint one bit was wrong")
    # At both ends the answer may have a step number, and torch what does not matter.
    for offset in (*range(16), *range(-16, 0)):
        flip_a_bit(lambda size, offset=offset: offset)
        try_load(f"at byte {offset} of the only checkpoint one bit was wrong", saved)
    return loads


def load_after_each_save(training):
    """[step that was saved, step that `load` then returned] at steps where the number gets one more digit.

    The later a file was saved, the older its time: a copy of a folder need not keep the times.
    """
    answer, loads = sys.modules["answer"], []
    for step in (99, 100, 999, 1000):
        _step(training.model, training.optimizer)
        answer.save(training.folder, step, training.model, training.optimizer)
        dist.barrier()
        for path in training.path.rglob("*") if training.rank == 0 else ():
            if path.lstat().st_mtime > LONG_AGO:
                os.utime(path, (LONG_AGO - step, LONG_AGO - step))
        dist.barrier()
        loads.append([step, answer.load(training.folder, training.model, training.optimizer)])
        dist.barrier()
    return loads


def _step(model, optimizer):
    """One step with made-up gradients, equal on all ranks."""
    for p in model.parameters():
        p.grad = p.detach().sign()
    optimizer.step()


class RunsCode:
    """Unpickling it with weights_only=False creates the folder `path`, if there is none."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.makedirs, (str(self.path), 0o777, True)


def _flip_bit(content, offset):
    """A copy of these bytes with one bit flipped, one that changes a digit into another digit."""
    flipped = bytearray(content)
    flipped[offset] ^= 2
    return flipped


def _listing(folder):
    """{(path, inode, mtime, size)} of all files below `folder`."""
    files = set()
    for path in folder.rglob("*"):
        try:
            status = path.lstat()
            if path.is_file():
                files.add((str(path.relative_to(folder)), status.st_ino, status.st_mtime_ns, status.st_size))
        except OSError:
            continue  # another rank has just renamed or removed it
    return files


def _kill_beyond(size):
    """From now on a write beyond the first `size` bytes of a file, or 32 KiB if that is more, kills this process."""
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
    resource.setrlimit(resource.RLIMIT_FSIZE, (max(size, 32 * 1024), resource.getrlimit(resource.RLIMIT_FSIZE)[1]))


def _kill_before_second_rename(folder):
    """From now on this process is killed before the second rename of a file in `folder`."""
    renames = []

    def hook(event, arguments):
        if event == "os.rename" and str(folder) in os.path.abspath(os.fsdecode(arguments[0])):
            renames.append(event)
            if len(renames) == 2:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(hook)


def _recorded(flush):
    """os.fsync or os.fdatasync, but each flush is recorded in _flushed."""

    def recorded(file):
        result = flush(file)
        status = os.fstat(file if isinstance(file, int) else file.fileno())
        _flushed.append((status.st_ino, status.st_mtime_ns, status.st_size))
        _wait_for_disk()
        return result

    return recorded


def _wait_for_disk():
    if _disk["slow"]:
        time.sleep(SLOW_SECONDS)
        _disk["slow_done"] = time.monotonic()


def _slow_renames(event, arguments):
    if event == "os.rename":
        _wait_for_disk()


def _watch_disk():
    """From now on flushes are recorded, also those by `from os import fsync`, and flushes and renames may be slow."""
    for name in ("fsync", "fdatasync"):
        original, recorded = getattr(os, name), _recorded(getattr(os, name))
        setattr(os, name, recorded)
        names = vars(sys.modules["answer"])
        names.update({n: recorded for n, value in names.items() if value is original})
    sys.addaudithook(_slow_renames)


_watch_disk()
