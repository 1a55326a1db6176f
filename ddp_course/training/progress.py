"""The progress of a run: a bar for the person watching, one line per step for everyone else."""

import contextlib
import math
import sys
import threading
import time
from collections.abc import Iterator, Sequence

from torch import Tensor
from tqdm import tqdm

from ddp_course.checkpoint.run_directory import RunDirectory
from ddp_course.training.divergence import LossWatch
from ddp_course.training.settings import RunSettings
from ddp_course.training.trackers import trackers_of


class Progress:
    """Logs reduced numbers to the run directory, to the trackers that were asked for, and to the terminal, from rank 0.

    `first`, `last` and `validated` hold the numbers of the run's first step, its last one and its last validation.
    `shown` names the numbers of a step that the terminal shows. A step takes `per_step` of `unit` (tokens,
    pairs), over all ranks: `per_second` is how many of them a second went through since the last entry.
    `peak`, where it is known, is how many would go through if the GPUs did nothing but matrix products at full speed:
    the share that is reached is the model FLOP utilisation, `mfu`.
    Speed and seconds count training alone: whatever runs under `paused` stops the clock.
    """

    def __init__(
        self,
        run: RunDirectory,
        config: RunSettings,
        *,
        first_step: int,
        per_step: int,
        unit: str,
        shown: Sequence[str] = ("loss",),
        peak: float | None = None,
    ) -> None:
        self._run, self._last_step = run, config.steps
        self._per_step, self._unit, self._log_every, self._shown = per_step, unit, config.log_every, shown
        self.first = run.first_record()
        self.last: dict[str, float] = {}
        self.validated: dict[str, float] = {}
        self.per_second = 0.0
        self._watch = LossWatch(run.world, config.max_nonfinite_steps)
        self._peak, self._first_step, self._step_at_clock = peak, first_step, first_step
        self._began = self._clock = time.perf_counter()
        self._paused_since_clock = self._paused_in_all = 0.0
        watched = run.world.is_main and sys.stderr.isatty()
        self._lines = run.world.is_main and not watched
        tqdm.set_lock(threading.RLock())  # its own is a semaphore of the system, which a killed process leaves there
        self._bar = tqdm(total=config.steps, initial=first_step, unit="step", disable=not watched, dynamic_ncols=True)
        self._trackers = trackers_of(run, config)

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

    def step(self, step: int, own_loss: float | Tensor, *, loss: float, **numbers: float) -> None:
        """Report that step number `step` (counted from 1) is done, with its numbers over all ranks.

        Once per step, or once for several: its numbers are then those of all steps since the last report.
        own_loss: this rank's part of the loss. Call it on every rank. Raises InputError as LossWatch does.
        """
        numbers = {"loss": loss} | numbers
        self.first = self.first or numbers
        self.last = numbers
        shown = "  ".join(f"{name.replace('_', ' ')} {numbers[name]:.4f}" for name in self._shown)
        self._bar.set_postfix_str(shown, refresh=False)
        self._bar.update(step - self._bar.n)
        due = step // self._log_every > self._step_at_clock // self._log_every
        due = due or step in (self._first_step + 1, self._last_step)
        if due or not math.isfinite(loss):
            self._report(step, numbers, shown)
        self._watch.see(step, loss, own_loss)

    def _report(self, step: int, numbers: dict[str, float], shown: str) -> None:
        now = time.perf_counter()
        seconds = now - self._clock - self._paused_since_clock
        self.per_second = (step - self._step_at_clock) * self._per_step / seconds
        self._clock, self._step_at_clock, self._paused_since_clock = now, step, 0.0
        speed, text = {f"{self._unit}_per_s": self.per_second}, f"{self.per_second:,.0f} {self._unit}/s"
        if self._peak:
            speed["mfu"] = self.per_second / self._peak
            text += f"  mfu {speed['mfu']:.1%}"
        self._write(step, numbers | speed | {"seconds": self.training_seconds})
        if self._lines:
            print(f"step {step}/{self._last_step}  {shown}  {text}", flush=True)

    def validation(self, step: int, **numbers: float) -> None:
        """Report numbers on held-out data after step number `step`; they are logged as val_NAME."""
        self.validated = numbers
        self._write(step, {f"val_{name}": value for name, value in numbers.items()})
        if self._run.world.is_main:
            shown = "  ".join(f"{name.replace('_', ' ')} {value:.4f}" for name, value in numbers.items())
            self._bar.write(f"step {step}/{self._last_step}  validation {shown}")

    def close(self) -> None:
        """End the bar, and let the trackers send what they hold."""
        self._bar.close()
        for tracker in self._trackers:
            tracker.close()

    def _write(self, step: int, numbers: dict[str, float]) -> None:
        self._run.log({"step": step} | numbers)
        for tracker in self._trackers:
            tracker.write(step, numbers)
