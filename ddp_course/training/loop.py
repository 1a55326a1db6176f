"""The loop that all trainers share: resume from a checkpoint, report, save, validate, stop.

    loop = TrainingLoop(run_directory, config, state)
    if not loop.begin(checkpoint, settings):
        return 0
    for step in loop.steps(unit="tokens", per_step=config.tokens_per_update):
        for micro_step in range(gradient_accumulation_steps):
            if micro_step and loop.abandons_step():
                break
            ...                                            # forward, backward
        if loop.abandoned:
            continue
        ...                                                # clip, optimizer.step()
        [total] = loop.sum_over_ranks(loss_sum)
        loop.report(loss_sum, loss=total / target_count)
        loop.save_and_validate(lambda: {"loss": validate(model)})
    if loop.stopped_early:
        return loop.leave()

A trainer writes the step itself. Every method is collective: all ranks call it.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from torch import Tensor

from ddp_course.checkpoint import checkpoint
from ddp_course.checkpoint.run_directory import RunDirectory
from ddp_course.checkpoint.training_state import TrainingState
from ddp_course.distributed.sync import sum_over_ranks
from ddp_course.training.progress import Progress
from ddp_course.training.settings import RunSettings
from ddp_course.training.stop_request import StopRequest

LONGEST_SILENCE = 2.0  # seconds within a step, after which the ranks ask each other whether one has to stop


class TrainingLoop:
    """A run's loop. step: the optimizer steps done so far. progress: the reported numbers, once `steps` has begun."""

    progress: Progress
    _stop_request: StopRequest

    def __init__(self, run_directory: RunDirectory, config: RunSettings, state: TrainingState) -> None:
        self.step = 0
        self._world, self._run_directory = run_directory.world, run_directory
        self._config, self._state = config, state
        self._settings: dict[str, object] = {}
        self._previous_step, self._stopping = 0, False
        self.abandoned = False  # whether a stop request has ended the current step before its last micro-batch
        self._micro_steps, self._ask_every = 0, 1

    def begin(
        self,
        resume_from: Path | None,
        settings: Mapping[str, object],
        checkpoint_settings: Mapping[str, object] | None = None,
    ) -> bool:
        """Restore the checkpoint `resume_from`, if there is one, and write config.json. False if no step is left to do.

        settings: added to the config in config.json and in checkpoints. checkpoint_settings: added in checkpoints only.
        """
        if resume_from:
            self.step = self._state.restore(self._world, resume_from)
        if self.step >= self._config.steps:
            self._world.say(
                f"nothing left to do: step {self.step} of {self._config.steps} is done; --steps takes the run further"
            )
            return False
        settings = asdict(self._config) | dict(settings) | {"world_size": self._world.size}
        self._settings = self._run_directory.begin(self.step, settings) | dict(checkpoint_settings or {})
        return True

    def steps(
        self, *, unit: str, per_step: int, shown: Sequence[str] = ("loss",), peak: float | None = None
    ) -> Iterator[int]:
        """Yield the number of each step to do, counted from 0, to the last one or until a rank was asked to stop.

        The arguments are those of `Progress`.
        """
        self.progress = Progress(
            self._run_directory,
            self._config,
            first_step=self.step,
            unit=unit,
            per_step=per_step,
            shown=shown,
            peak=peak,
        )
        self._stop_request = StopRequest(self._world, self._config)
        while self.step < self._config.steps and not self._stopping:
            if self._ask_every <= max(1, self._micro_steps):  # the last step was long: this one may be abandoned
                self._random_state = checkpoint.random_state(self._world.device)
            self._previous_step, self._micro_steps = self.step, 0
            self._step_began = time.monotonic()
            yield self.step
        self.progress.close()

    def sum_over_ranks(self, *values: float | Tensor) -> list[float]:
        """The sum of each value, as `sync.sum_over_ranks`; the same all-reduce asks whether a rank has to stop."""
        seconds = time.monotonic() - self._step_began
        *sums, requests, seconds = sum_over_ranks(self._world, *values, self._stop_request.asked(), seconds)
        self._stopping = requests > 0
        # The same sum on all ranks, so that all ask before the same micro-batch.
        self._ask_every = max(1, int(LONGEST_SILENCE * self._world.size * (self._micro_steps + 1) / seconds))
        return sums

    def abandons_step(self) -> bool:
        """Whether a rank has to stop before this step is complete. If so, saves the state before the step.

        Called before each micro-batch but the first; asks the ranks about every LONGEST_SILENCE seconds, and not at
        all in a shorter step. The random states are put back to the start of the step, which the resumed run repeats.
        """
        self._micro_steps += 1
        if self._micro_steps % self._ask_every == 0:
            [requests] = sum_over_ranks(self._world, self._stop_request.asked())
            if requests:
                self._stopping = self.abandoned = True
                checkpoint.restore_random_state(self._random_state, self._world.device)
                self.save()
        return self.abandoned

    def passes(self, every: int, step: int | None = None) -> bool:
        """Whether a multiple of `every` is among the steps of this iteration, up to `step`; 0: never.

        step: the number of the last one, if an iteration takes several; None if it takes one.
        For a check that has to come before `report`, so that a step that fails it is not reported.
        """
        step = self.step + 1 if step is None else step
        return every > 0 and step // every > self._previous_step // every

    def report(self, own_loss: float | Tensor, *, loss: float, step: int | None = None, **numbers: float) -> None:
        """Count the step as done, and log its numbers as `Progress.step`. step: the last one, if several are done."""
        self.step = self.step + 1 if step is None else step
        self.progress.step(self.step, own_loss, loss=loss, **numbers)

    def save_and_validate(self, validate: Callable[[], dict[str, float]]) -> dict[str, float]:
        """Save and validate if the settings say so, always after the last step. Returns validation's numbers or {}."""
        numbers: dict[str, float] = {}
        with self.progress.paused():
            # Save first: a scheduler that has sent SIGTERM may send SIGKILL before a validation is over.
            if self._stopping or self._is_due(self._config.checkpoint_every):
                self.save()
            if self._is_due(self._config.validate_every):
                numbers = validate()
                self.progress.validation(self.step, **numbers)
        return numbers

    def save(self) -> None:
        """Save a checkpoint of the current step."""
        keep = self._config.keep_checkpoints
        self._state.save(self._world, self._run_directory.path, self.step, self._settings, keep=keep)

    @property
    def stopped_early(self) -> bool:
        """Whether the run was stopped before its last step."""
        return self._stopping and self.step < self._config.steps

    def leave(self) -> int:
        """Print why the run has stopped and how to resume it; returns the exit code."""
        return self._stop_request.leave(self.step, self._run_directory.path)

    def _is_due(self, every: int) -> bool:
        return self.step == self._config.steps or self.passes(every, self.step)
