"""Short runs of the real trainer, shared by the tests that compare or disturb them."""

import contextlib
import io
import json
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
import warm

from ddp_course import minigpt_ddp
from ddp_course.distributed import process_group
from ddp_course.distributed.process_group import World
from ddp_course.launcher import Run, torchrun
from ddp_course.training.command_line import parse

ROOT = Path(__file__).parent.parent
TRAINER = ROOT / "ddp_course" / "minigpt_ddp.py"
RECORDED_LOG = ROOT / "doctor/tests/logs/endpoint_is_away.log"  # a text to train on that nobody edits
# A short text to train on.
CODE = "".join(f"def function_{n}(a, b={n}):\n    c = a + {n} * b\n    return c\n\n\n" for n in range(80))


def arguments(run_dir: Path, *flags: object) -> list[str]:
    """The tiny preset into `run_dir`, and these flags."""
    return merged("--preset", "tiny", "--run-dir", run_dir, "--sample-tokens", 0, *flags)


def merged(*words: object) -> list[str]:
    """A command line with each flag once: of `--flag value`, `--flag=value` and `key=value` the last of a name wins."""
    flags, name = {}, ""
    for word in map(str, words):
        if word.startswith("--") or "=" in word:
            name = word.partition("=")[0].removeprefix("--").replace("_", "-")
            flags[name] = []
        flags[name].append(word)
    return [word for words in flags.values() for word in words]


def launch(run_dir: Path, *flags: object, **more: object) -> Run:
    """Run the trainer on two processes into `run_dir`, by torchrun."""
    return torchrun(TRAINER, *arguments(run_dir, *flags), **{"nproc": 2, "quiet": True, "timeout": 600} | more)


def train(run_dir: Path, *flags: object, nproc: int = 2, exit_code: int = 0) -> Run:
    """Run the trainer on `nproc` processes into `run_dir`, without torchrun."""
    return warm.ranks(TRAINER, *arguments(run_dir, *flags), nproc=nproc, exit_code=exit_code)


def train_here(run_dir: Path, *flags: object) -> str:
    """Run the trainer in this process into `run_dir`. Returns what it printed."""
    return in_this_process(minigpt_ddp.train, parse(minigpt_ddp.PRESETS, arguments(run_dir, *flags)))


def in_this_process(train: Callable[[object], None], config: object) -> str:
    """Call a launchable's `train` as one process, then restore the signal handlers. Returns what it printed."""
    handlers, printed = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}, io.StringIO()
    try:
        with contextlib.redirect_stdout(printed):
            train(config)
    finally:
        process_group.stop()
        for number, handler in handlers.items():
            signal.signal(number, handler)
    return printed.getvalue()


def metrics(run_dir: Path, key: str = "loss") -> dict[int, float]:
    """Step -> value, from metrics.jsonl."""
    records = map(json.loads, (run_dir / "metrics.jsonl").read_text().splitlines())
    return {record["step"]: record[key] for record in records if key in record}


def checkpoint(run_dir: Path, step: int) -> dict:
    """The contents of a checkpoint."""
    return torch.load(run_dir / "checkpoints" / f"step_{step:06d}" / "state.pt", weights_only=True)


def largest_gap(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> float:
    """The largest absolute difference between two state dicts of the same names."""
    assert a.keys() == b.keys()
    return max((a[name].double() - b[name].double()).abs().max().item() for name in a)


def same(left: object, right: object) -> bool:
    """Whether nested dicts and lists of tensors are equal, bit by bit."""
    if isinstance(left, dict):
        return left.keys() == right.keys() and all(same(left[name], right[name]) for name in left)
    if isinstance(left, list):
        return len(left) == len(right) and all(map(same, left, right))
    return torch.equal(left, right) if isinstance(left, torch.Tensor) else left == right


def assert_same_run(
    resumed: Path, whole: Path, steps: int, keys: tuple[str, ...] = ("loss",), after: int = -1, learnt: str = "model"
) -> None:
    """Assert that a resumed run logged what `whole` logged, each step once, and ends with the same checkpoint.

    after: the step at which it began, if it did not begin with a copy of the metrics before. learnt: the weights' name.
    """
    records = map(json.loads, (resumed / "metrics.jsonl").read_text().splitlines())
    logged = [record["step"] for record in records if "loss" in record]
    assert len(logged) == len(set(logged)), "a step was logged twice"
    for key in keys:
        ours, theirs = ({s: value for s, value in metrics(run, key).items() if s > after} for run in (resumed, whole))
        assert ours == theirs and max(theirs) == steps, key
    ours, theirs = checkpoint(resumed, steps), checkpoint(whole, steps)
    assert same(ours[learnt], theirs[learnt]) and same(ours["optimizer"], theirs["optimizer"])


@contextlib.contextmanager
def one_process_group() -> Iterator[World]:
    """A process group for several runs of a launchable in this process."""
    world = process_group.start(600, "cpu")
    yield world
    process_group.stop()
