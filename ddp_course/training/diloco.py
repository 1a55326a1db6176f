"""DiLoCo: each worker takes many inner steps; then the mean change of their weights makes an outer step.

Douillard et al., "DiLoCo: Distributed Low-Communication Training of Language Models" (2023). With an outer learning
rate of 1 and no momentum, an outer step averages the weights: local SGD (Stich, 2019).
"""

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector

from ddp_course.base.errors import InputError
from ddp_course.checkpoint.training_state import keep_settings
from ddp_course.distributed.process_group import World


class DiLoCo:
    """The outer optimizer, `outer`: SGD with Nesterov momentum over the global weights, equal on all workers.

    inner: this worker's own optimizer; an outer step does not change its state. All workers begin with rank 0's weights
    (collective). Save checkpoints right after an outer step: then the model has the global weights.
    """

    def __init__(
        self, world: World, model: nn.Module, inner: torch.optim.Optimizer, lr: float, momentum: float
    ) -> None:
        self._world, self._inner, self._local = world, inner, list(model.parameters())
        self._global_weights = nn.Parameter(self._local_weights())
        dist.broadcast(self._global_weights.detach(), src=0)
        self._copy_to_model()
        self.outer = torch.optim.SGD([self._global_weights], lr, momentum, nesterov=momentum > 0)

    def outer_step(self) -> float:
        """Take an outer step with one all-reduce, and copy the new global weights into the model (collective).

        Returns the norm of the outer gradient.
        """
        gradient = self._global_weights.detach() - self._local_weights()  # minus the change, because SGD subtracts it
        dist.all_reduce(gradient)
        self._global_weights.grad = gradient / self._world.size
        self.outer.step()
        self._copy_to_model()
        return self._global_weights.grad.norm().item()

    def _local_weights(self) -> Tensor:
        return parameters_to_vector(self._local).detach()

    @torch.no_grad()
    def _copy_to_model(self) -> None:
        """Set the model's parameters to copies of the global weights, which inner steps must not change."""
        parts = self._global_weights.split([parameter.numel() for parameter in self._local])
        for parameter, part in zip(self._local, parts, strict=True):
            parameter.copy_(part.view_as(parameter))

    def state_dict(self) -> dict:
        """The states of all inner optimizers and of the outer one on rank 0, {} on the others (collective).

        The state of rank 0's AdamW is at the top level, as in a checkpoint of minigpt_ddp.py, which can resume from it.
        That of another inner optimizer is not: AdamW would find no averages in it and start again without an error.
        """
        states = [None] * self._world.size if self._world.is_main else None
        dist.gather_object(_on_cpu(self._inner.state_dict()), states, dst=0)
        if not states:
            return {}
        momentum = self.outer.state[self._global_weights].get("momentum_buffer")
        more = {"kind": type(self._inner).__name__, "others": states[1:], "outer_momentum": momentum}
        rank_0_state = states[0] if isinstance(self._inner, torch.optim.AdamW) else {"own": states[0]}
        return rank_0_state | more

    def load_state_dict(self, state: dict) -> None:
        """Load a state, after the model's weights.

        From a checkpoint of minigpt_ddp.py all workers begin with its AdamW state, and without outer momentum. Raises
        InputError for another inner optimizer or number of workers.
        """
        saved_inner = state.get("kind", "AdamW")
        others = state.get("others", [state] * (self._world.size - 1))
        if saved_inner != type(self._inner).__name__:
            raise InputError(
                f"cannot resume: the checkpoint's workers used {saved_inner}, --inner has chosen "
                f"{type(self._inner).__name__}"
            )
        if len(others) + 1 != self._world.size:
            raise InputError(
                f"cannot resume: the checkpoint is of {len(others) + 1} worker(s), this run has "
                f"{self._world.size}; each has averages of its own"
            )
        inner_state = [state.get("own", state), *others][self._world.rank]
        with keep_settings(self._inner):
            self._inner.load_state_dict({name: inner_state[name] for name in ("state", "param_groups")})
        with torch.no_grad():
            self._global_weights.copy_(self._local_weights())
        momentum = state.get("outer_momentum")
        if momentum is not None:
            momentum = momentum.to(self._global_weights).view_as(self._global_weights).clone()
        self.outer.state[self._global_weights] = {"momentum_buffer": momentum}


def _on_cpu(state: dict) -> dict:
    """An optimizer's state with all tensors on the CPU, so that any rank can unpickle it."""
    state_by_parameter = {
        number: {name: value.cpu() if isinstance(value, Tensor) else value for name, value in parameter_state.items()}
        for number, parameter_state in state["state"].items()
    }
    return {"state": state_by_parameter, "param_groups": state["param_groups"]}
