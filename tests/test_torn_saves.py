"""A save that is killed, at any byte and at any call, never costs the checkpoint before it.

Each killed save runs in a fork of a process that has torch loaded already, so that a hundred of them take seconds.
The same hundred kills are survived by nothing that writes plainly: `test_a_plain_torch_save_does_not_survive`.
"""

import contextlib
import io
import json
import os
import random
import signal
from pathlib import Path

import pytest
import torch
import warm
from training_runs import arguments, assert_same_run, metrics, same, train_here
from training_runs import checkpoint as contents

from ddp_course.checkpoint import checkpoint

KILLS = 100
CALLS = ("mkdir", "fsync", "rename", "replace")  # of the module os: what a save does besides writing


def state(step):
    """Weights, moments and names of a small run; its file has about 200 kB."""
    weights = {f"layer_{n}": torch.full((64, 64), step + n / 10) for n in range(4)}
    moments = {n: {"exp_avg": torch.full((64, 64), float(step)), "step": torch.tensor(step)} for n in range(8)}
    return {"step": step, "model": weights, "optimizer": {"state": moments}}


class SaveCounter:
    """Counts the bytes that a save writes and the calls that it makes; kills this process at a byte or a call.

    byte    kill after so many bytes, counted over all files of the save
    call    kill at this call, counted from 0 over those in CALLS; `after`: when it is done, not before
    """

    def __init__(self, byte=None, call=None, after=False):
        self.byte, self.call, self.after = byte, call, after
        self.bytes, self.calls = 0, []

    def counted(self, name, function):
        def call(*args, **kwargs):
            self.calls.append(name)
            if len(self.calls) - 1 == self.call and not self.after:
                os.kill(os.getpid(), signal.SIGKILL)
            result = function(*args, **kwargs)
            if len(self.calls) - 1 == self.call and self.after:
                os.kill(os.getpid(), signal.SIGKILL)
            return result

        return call

    @contextlib.contextmanager
    def counting(self):
        """Files that are opened for writing are unbuffered and counted; so are the calls."""
        counter, original_calls = self, {name: getattr(os, name) for name in CALLS}

        class CountedFile(io.FileIO):
            def write(self, data):
                data = memoryview(data).cast("B")
                left = len(data) if counter.byte is None else min(len(data), counter.byte - counter.bytes)
                done = 0
                while done < left:
                    done += super().write(data[done:left])
                counter.bytes += left
                if counter.bytes == counter.byte:
                    os.kill(os.getpid(), signal.SIGKILL)
                return len(data)

        def opened(path, mode="r", *args, **kwargs):
            if "w" not in mode:
                return open(path, mode, *args, **kwargs)
            file = CountedFile(path, "w")
            return file if "b" in mode else io.TextIOWrapper(file, write_through=True)

        checkpoint.open = opened
        for name, function in original_calls.items():
            setattr(os, name, counter.counted(name, function))
        try:
            yield self
        finally:
            del checkpoint.open
            for name, function in original_calls.items():
                setattr(os, name, function)


def killed(save, counter):
    """Run `save` in a fork of this process, under `counter`; whether it was killed before its end."""
    child = os.fork()
    if child == 0:
        try:
            with counter.counting():
                save()
        finally:
            os._exit(0)
    _, status = os.waitpid(child, 0)
    return os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL


def length_of_a_save(folder):
    checkpoint.save(folder, 1, state(1))  # makes the folders
    with SaveCounter().counting() as counter:
        checkpoint.save(folder, 2, state(2))
    return counter


def test_the_newest_whole_one_loads_after_a_hundred_kills(tmp_path):
    """All in one run directory: the later saves meet the files that earlier kills left there."""
    length = length_of_a_save(tmp_path / "measured").bytes
    checkpoint.save(tmp_path, 1, state(1))
    choose, newest = random.Random(9), 1
    for step in range(2, KILLS + 2):
        byte = choose.randrange(1, length)
        assert killed(lambda step=step: checkpoint.save(tmp_path, step, state(step), keep=2), SaveCounter(byte=byte))
        newest_path = checkpoint.newest_valid(tmp_path)
        # Only the last bytes, those of `latest`, are written when the checkpoint has its name already.
        assert newest_path.name in (f"step_{newest:06d}", f"step_{step:06d}"), f"killed at byte {byte} of {length}"
        newest = int(newest_path.name[5:])
        assert same(checkpoint.load(newest_path), state(newest)), f"killed at byte {byte} of {length}"
    checkpoint.save(tmp_path, KILLS + 2, state(KILLS + 2), keep=2)
    assert checkpoint.newest_valid(tmp_path).name == f"step_{KILLS + 2:06d}"


def test_the_newest_whole_one_loads_after_a_kill_at_any_call(tmp_path):
    """Before and after each mkdir, fsync and rename of a save."""
    calls = length_of_a_save(tmp_path / "measured").calls
    assert {"fsync", "rename", "replace"} <= set(calls)
    renamed = len(calls) - 1 - calls[::-1].index("rename")
    checkpoint.save(tmp_path, 1, state(1))
    step = newest = 1
    for number, after in ((number, after) for number in range(len(calls)) for after in (False, True)):
        step += 1
        counter = SaveCounter(call=number, after=after)
        was_killed = killed(lambda step=step: checkpoint.save(tmp_path, step, state(step)), counter)
        newest_path = checkpoint.newest_valid(tmp_path)
        newest = step if (number, after) >= (renamed, True) else newest
        assert was_killed and newest_path.name == f"step_{newest:06d}", (
            f"killed {'after' if after else 'before'} call {number}"
        )
        assert same(checkpoint.load(newest_path), state(newest))


def test_a_plain_torch_save_does_not_survive(tmp_path):
    """The kills above would be noticed: the usual way of saving loses what it had in every one of these."""
    path = tmp_path / "ckpt.pt"
    torch.save(state(1), path)
    length, choose, lost = path.stat().st_size, random.Random(9), 0
    for step in range(2, 22):
        torch.save(state(1), path)
        byte = choose.randrange(1, length)

        def save(step=step):
            with checkpoint.open(path, "wb") as file:
                torch.save(state(step), file)

        assert killed(save, SaveCounter(byte=byte))
        try:
            lost += torch.load(path)["step"] not in (1, step)
        except (OSError, RuntimeError, EOFError):
            lost += 1
    assert lost == 20


STEPS = 4
FLAGS = ("--steps", STEPS, "--dropout", 0.1, "--checkpoint-every", 1, "--tokens-per-update", 512)
FLAGS += ("--validation-windows", 8, "--resume", "auto")
# The trainer, whose third save is killed where its first argument says.
KILLED = f"""
import contextlib, itertools, json, sys
sys.path.append({str(Path(__file__).parent)!r})
from test_torn_saves import SaveCounter
from ddp_course import minigpt_ddp
from ddp_course.checkpoint import checkpoint

counter, saves, save = SaveCounter(**json.loads(sys.argv.pop(1))), itertools.count(1), checkpoint.save

def counted(*args, **kwargs):
    with counter.counting() if next(saves) == 3 else contextlib.nullcontext():
        return save(*args, **kwargs)

checkpoint.save = counted
minigpt_ddp.run(minigpt_ddp.train, minigpt_ddp.PRESETS)
"""


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """An uninterrupted run of the trainer."""
    run_dir = tmp_path_factory.mktemp("trainer") / "whole"
    train_here(run_dir, *FLAGS)
    return run_dir


@pytest.mark.parametrize(("kill_point", "step"), [("at 60 %", 2), ("before rename", 2), ("after rename", 3)])
def test_resume_auto_of_the_trainer_ends_bit_equal(whole, tmp_path, kill_point, step):
    """Killed in its third save, it resumes from the checkpoint of `step`."""
    run_dir, script = tmp_path / "run", tmp_path / "killed.py"
    script.write_text(KILLED)
    if kill_point == "at 60 %":
        kill = {"byte": int(0.6 * (whole / "checkpoints" / f"step_{STEPS:06d}" / "state.pt").stat().st_size)}
    else:
        calls = length_of_a_save(tmp_path / "measured").calls
        kill = {"call": calls.index("rename"), "after": kill_point == "after rename"}
    killed = warm.single_process(script, json.dumps(kill), *arguments(run_dir, *FLAGS))
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert f"resuming from {run_dir}/checkpoints/step_{step:06d}" in train_here(run_dir, *FLAGS)
    assert len(metrics(run_dir)) == STEPS
    assert_same_run(run_dir, whole, STEPS)
    states = [contents(folder, STEPS)["random_states"][0]["torch"] for folder in (run_dir, whole)]
    assert torch.equal(*states)
