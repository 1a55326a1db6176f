"""What a run tells while it goes: a bar for the person watching, a line a step for everyone else."""

import contextlib
import sys
import time
from collections.abc import Iterator, Sequence

from tqdm import tqdm

from ddp_course.parallel.run_directory import RunDirectory


class Progress:
    """Logs reduced numbers to the run directory, to TensorBoard if asked, and to the terminal, from rank 0.

    `first`, `last` and `validated` hold the numbers of the first step, of the last one and of the last validation.
    `shown` names the numbers of a step that the terminal shows. An update takes `per_update` of `unit` (tokens,
    pairs), over all ranks: `per_second` is how many of them a second went through since the last entry.
    Speed and seconds count training alone: whatever runs under `paused` stops the clock.
    """

    def __init__(self, run: RunDirectory, *, first_step: int, last_step: int, per_update: int, unit: str,
                 log_every: int, shown: Sequence[str] = ("loss",), tensorboard: bool = False) -> None:  # fmt: skip
        self._run, self._last_step = run, last_step
        self._per_update, self._unit, self._log_every, self._shown = per_update, unit, log_every, shown
        self.first: dict[str, float] = {}
        self.last: dict[str, float] = {}
        self.validated: dict[str, float] = {}
        self.per_second = 0.0
        self._first_step, self._step_at_clock = first_step, first_step
        self._began = self._clock = time.perf_counter()
        self._paused_since_clock = self._paused_in_all = 0.0
        watched = run.world.is_main and sys.stderr.isatty()
        self._lines = run.world.is_main and not watched
        self._bar = tqdm(total=last_step, initial=first_step, unit="step", disable=not watched, dynamic_ncols=True)
        self._tensorboard = _tensorboard_writer(run) if tensorboard and run.world.is_main else None

    @property
    def training_seconds(self) -> float:
        """Seconds since the start, without the pauses."""
        return time.perf_counter() - self._began - self._paused_in_all

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Validation, saving, sampling: work that is not training."""
        start = time.perf_counter()
        yield
        seconds = time.perf_counter() - start
        self._paused_since_clock += seconds
        self._paused_in_all += seconds

    def step(self, step: int, **numbers: float) -> None:
        """Report that update number `step` (counted from 1) is done, with its numbers over all ranks."""
        self.first = self.first or numbers
        self.last = numbers
        shown = "  ".join(f"{name.replace('_', ' ')} {numbers[name]:.4f}" for name in self._shown)
        self._bar.set_postfix_str(shown, refresh=False)
        self._bar.update()
        if step % self._log_every and step not in (self._first_step + 1, self._last_step):
            return
        now = time.perf_counter()
        seconds = now - self._clock - self._paused_since_clock
        self.per_second = (step - self._step_at_clock) * self._per_update / seconds
        self._clock, self._step_at_clock, self._paused_since_clock = now, step, 0.0
        self._write(step, numbers | {f"{self._unit}_per_s": self.per_second, "seconds": self.training_seconds})
        if self._lines:
            print(f"step {step}/{self._last_step}  {shown}  {self.per_second:,.0f} {self._unit}/s", flush=True)

    def validation(self, step: int, **numbers: float) -> None:
        """Report numbers on held-out data after update number `step`; they are logged as val_NAME."""
        self.validated = numbers
        self._write(step, {f"val_{name}": value for name, value in numbers.items()})
        if self._run.world.is_main:
            shown = "  ".join(f"{name.replace('_', ' ')} {value:.4f}" for name, value in numbers.items())
            self._bar.write(f"step {step}/{self._last_step}  validation {shown}")

    def close(self) -> None:
        """End the bar and flush TensorBoard's file."""
        self._bar.close()
        if self._tensorboard:
            self._tensorboard.close()

    def _write(self, step: int, numbers: dict[str, float]) -> None:
        self._run.log({"step": step} | numbers)
        if self._tensorboard:
            for name, value in numbers.items():
                self._tensorboard.add_scalar(name, value, step)
            self._tensorboard.flush()


def _tensorboard_writer(run: RunDirectory):
    from torch.utils.tensorboard import SummaryWriter  # an optional extra

    return SummaryWriter(run.path / "tensorboard")
