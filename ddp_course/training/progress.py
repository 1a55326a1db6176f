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
    """Logs reduced numbers to the run directory, to the trackers of the settings, and to the terminal, from rank 0.

    `first`, `last` and `validated` hold the numbers of the run's first step, its last one and its last validation.
    shown: the names of a step's numbers that the terminal shows. per_step: how many of `unit` (tokens, pairs) all
    ranks process in a step; `per_second` is their rate since the last entry.
    peak: the rate at which the GPUs would do nothing but matrix products at full speed, None if it is not known. The
    share of it that is reached is the model FLOP utilisation, `mfu`.
    Rates and seconds count training only: the clock stops under `paused`.
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
        self._peak, self._first_step, self._reported_step = peak, first_step, first_step
        self._start_time = self._report_time = time.perf_counter()
        self._paused_since_report = self._paused_in_all = 0.0
        has_bar = run.world.is_main and sys.stderr.isatty()
        self._prints_lines = run.world.is_main and not has_bar
        tqdm.set_lock(threading.RLock())  # tqdm's default is a semaphore of the system, which outlives a killed process
        self._bar = tqdm(total=config.steps, initial=first_step, unit="step", disable=not has_bar, dynamic_ncols=True)
        self._trackers = trackers_of(run, config)

    @property
    def training_seconds(self) -> float:
        """Seconds since the start, without the pauses."""
        return time.perf_counter() - self._start_time - self._paused_in_all

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Stop the clock during work that is not training: validation, saving, sampling."""
        start = time.perf_counter()
        yield
        seconds = time.perf_counter() - start
        self._paused_since_report += seconds
        self._paused_in_all += seconds

    def step(self, step: int, own_loss: float | Tensor, *, loss: float, **numbers: float) -> None:
        """Report that step number `step` (counted from 1) is done, with its numbers over all ranks.

        Call it on every rank, once per step, or once for several, with the numbers of all steps since the last call.
        own_loss: this rank's part of the loss. Raises InputError as `LossWatch.check` does.
        """
        numbers = {"loss": loss} | numbers
        self.first = self.first or numbers
        self.last = numbers
        shown = "  ".join(f"{name.replace('_', ' ')} {numbers[name]:.4f}" for name in self._shown)
        self._bar.set_postfix_str(shown, refresh=False)
        self._bar.update(step - self._bar.n)
        is_due = step // self._log_every > self._reported_step // self._log_every
        if is_due or step in (self._first_step + 1, self._last_step) or not math.isfinite(loss):
            self._report(step, numbers, shown)
        self._watch.check(step, loss, own_loss)

    def _report(self, step: int, numbers: dict[str, float], shown: str) -> None:
        now = time.perf_counter()
        seconds = now - self._report_time - self._paused_since_report
        self.per_second = (step - self._reported_step) * self._per_step / seconds
        self._report_time, self._reported_step, self._paused_since_report = now, step, 0.0
        speed = {f"{self._unit}_per_s": self.per_second}
        text = f"{self.per_second:,.0f} {self._unit}/s"
        if self._peak:
            speed["mfu"] = self.per_second / self._peak
            text += f"  mfu {speed['mfu']:.1%}"
        self._write(step, numbers | speed | {"seconds": self.training_seconds})
        if self._prints_lines:
            print(f"step {step}/{self._last_step}  {shown}  {text}", flush=True)

    def validation(self, step: int, **numbers: float) -> None:
        """Report numbers on held-out data after step number `step`; they are logged as val_NAME."""
        self.validated = numbers
        self._write(step, {f"val_{name}": value for name, value in numbers.items()})
        if self._run.world.is_main:
            shown = "  ".join(f"{name.replace('_', ' ')} {value:.4f}" for name, value in numbers.items())
            self._bar.write(f"step {step}/{self._last_step}  validation {shown}")

    def close(self) -> None:
        """Close the bar and the trackers."""
        self._bar.close()
        for tracker in self._trackers:
            tracker.close()

    def _write(self, step: int, numbers: dict[str, float]) -> None:
        self._run.log({"step": step} | numbers)
        for tracker in self._trackers:
            tracker.write(step, numbers)
