"""The training state: everything that a run needs to resume bit-exactly."""

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from torch import Tensor

from ddp_course.base.errors import InputError
from ddp_course.checkpoint import checkpoint
from ddp_course.distributed.process_group import World
from ddp_course.distributed.sync import from_rank_0, gather_objects, sum_over_ranks


class Part(Protocol):
    """An object that gives its state and loads it again: a module, an optimizer, a gradient scaler."""

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: dict[str, Any], /) -> object: ...


@dataclass(frozen=True)
class TrainingState:
    """The changing parts of a run, by name: the bare model (not its DDP wrapper), the optimizer, the scaler...

    identity: the settings that a resumed run must not change (sizes, seed, tokenizer): a checkpoint with other values
    is refused.
    """

    parts: Mapping[str, Part]
    identity: Mapping[str, object]

    def save(self, world: World, run_dir: Path, step: int, config: Mapping[str, object], keep: int) -> None:
        """Save after `step` optimizer steps (collective). Rank 0 writes. Every rank raises InputError if that fails or
        if a weight is not finite.

        The step is the position in the data as well: the batch of a step is a function of the seed and the step.
        """
        part_states = {name: part.state_dict() for name, part in self.parts.items()}
        assert_finite_weights(world, part_states, step)
        state = {
            "step": step,
            "identity": dict(self.identity),
            "config": dict(config),
            **part_states,
            "random_states": gather_objects(checkpoint.random_state(world.device)),
        }
        from_rank_0(world, lambda: checkpoint.save(run_dir, step, state, keep=keep))

    def restore(self, world: World, path: Path) -> int:
        """Put back what `save` wrote, before the model is wrapped; returns the step.

        Bit-exact at the same number of ranks. At another number the weights, the optimizer and the data continue
        exactly, but each rank's random numbers start anew, and rank 0 prints so.
        Raises InputError for a checkpoint that is damaged, of another kind, or of a run with another identity.
        """
        state = checkpoint.load(path)
        missing = {"step", "identity", "random_states", *self.parts} - state.keys()
        if missing:
            raise InputError(
                f"cannot resume from {path}: expected a checkpoint with {', '.join(self.parts)}, found "
                f"{checkpoint.description(state)} (no {min(missing)!r})"
            )
        with checkpoint.content_errors(path, "this script"):
            for name, value in self.identity.items():
                saved_value = state["identity"].get(name, "nothing")
                if saved_value != value:
                    raise InputError(f"cannot resume from {path}: it has {name} {saved_value}, this run has {value}")
            for name, part in self.parts.items():
                with keep_settings(part):
                    part.load_state_dict(state[name])
            if len(state["random_states"]) == world.size:
                checkpoint.restore_random_state(state["random_states"][world.rank], world.device)
            else:
                saved_by = len(state["random_states"])
                world.say(f"saved by {saved_by} rank(s), resumed by {world.size}: random states start anew")
            if type(state["step"]) is not int or state["step"] < 0:
                raise ValueError(f"step is {state['step']!r}")
            return state["step"]


def assert_finite_weights(world: World, states: Mapping[str, Mapping[str, Any]], step: int) -> None:
    """Raise InputError on every rank if a tensor in one of the state dicts is not finite on any rank (collective).

    Called before a checkpoint is written, because one of NaN would replace a good one. Tensors that lie deeper, as in
    an optimizer's state dict, are not checked.
    """
    broken = [
        f"{part}.{name}"
        for part, state in states.items()
        for name, value in state.items()
        if isinstance(value, Tensor) and value.is_floating_point() and not value.isfinite().all()
    ]
    [ranks] = sum_over_ranks(world, bool(broken))
    if ranks:
        where = f" ({broken[0]})" if broken else ""
        raise InputError(
            f"the run has diverged: after step {step} weights are not finite{where}, so no checkpoint of them is "
            "written; resume from the newest one with a lower --learning-rate"
        )


@contextlib.contextmanager
def keep_settings(part: object) -> Iterator[None]:
    """Keep an optimizer's learning rate, decay and the like as they are while its state is loaded.

    `load_state_dict` would restore the settings of the checkpoint, so a flag that was changed for the resumed run would
    have no effect. Does nothing for a part that is no optimizer.
    """
    settings = [{k: v for k, v in group.items() if k != "params"} for group in getattr(part, "param_groups", [])]
    yield
    for group, current in zip(getattr(part, "param_groups", []), settings, strict=True):
        group.update(current)
