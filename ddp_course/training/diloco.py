"""DiLoCo: workers train alone and meet seldom. How far they have come is a gradient for an outer optimizer.

Douillard et al., "DiLoCo: Distributed Low-Communication Training of Language Models" (2023). With an outer rate of 1
and no momentum a meeting takes the mean of the weights: local SGD (Stich, 2019).
"""

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector

from ddp_course.base.errors import InputError
from ddp_course.checkpoint.training_state import keep_settings
from ddp_course.distributed.process_group import World


class DiLoCo:
    """`outer`: Nesterov's momentum over the weights that all workers had after the last meeting, the common ones.

    `inner` is this worker's own optimizer, whose averages no meeting touches. All workers begin with rank 0's weights
    (collective). A checkpoint is of a meeting, when the model's weights are the common ones.
    """

    def __init__(
        self, world: World, model: nn.Module, inner: torch.optim.Optimizer, lr: float, momentum: float
    ) -> None:
        self._world, self._inner, self._local = world, inner, list(model.parameters())
        self._common = nn.Parameter(self._own_weights())
        dist.broadcast(self._common.detach(), src=0)
        self._take_over()
        self.outer = torch.optim.SGD([self._common], lr, momentum, nesterov=momentum > 0)

    def meet(self) -> float:
        """Send how far this worker has come, once; go on from the common weights (collective).

        Returns the norm of the outer gradient.
        """
        gradient = self._common.detach() - self._own_weights()  # downhill is where the workers went
        dist.all_reduce(gradient)
        self._common.grad = gradient / self._world.size
        self.outer.step()
        self._take_over()
        return self._common.grad.norm().item()

    def _own_weights(self) -> Tensor:
        return parameters_to_vector(self._local).detach()

    @torch.no_grad()
    def _take_over(self) -> None:
        """Copy, not refer: else the next updates would move the common weights as well."""
        parts = self._common.split([parameter.numel() for parameter in self._local])
        for parameter, part in zip(self._local, parts, strict=True):
            parameter.copy_(part.view_as(parameter))

    def state_dict(self) -> dict:
        """On rank 0 everything but the weights, on the others nothing (collective).

        Rank 0's AdamW stands where minigpt_ddp.py has its only one, so that it can go on from here. Another inner
        optimizer does not: without averages AdamW would go on as if it had just begun.
        """
        states = [None] * self._world.size if self._world.is_main else None
        dist.gather_object(_on_cpu(self._inner.state_dict()), states, dst=0)
        if not states:
            return {}
        momentum = self.outer.state[self._common].get("momentum_buffer")
        more = {"kind": type(self._inner).__name__, "others": states[1:], "outer_momentum": momentum}
        own = states[0] if isinstance(self._inner, torch.optim.AdamW) else {"own": states[0]}
        return own | more

    def load_state_dict(self, state: dict) -> None:
        """After the model's. From a checkpoint of one optimizer all begin with its averages, and without momentum."""
        inner, others = state.get("kind", "AdamW"), state.get("others", [state] * (self._world.size - 1))
        if inner != type(self._inner).__name__:
            raise InputError(
                f"cannot resume: the checkpoint's workers used {inner}, --inner has chosen {type(self._inner).__name__}"
            )
        if len(others) + 1 != self._world.size:
            raise InputError(
                f"cannot resume: the checkpoint is of {len(others) + 1} worker(s), this run has "
                f"{self._world.size}; each has averages of its own"
            )
        own = [state.get("own", state), *others][self._world.rank]
        with keep_settings(self._inner):
            self._inner.load_state_dict({name: own[name] for name in ("state", "param_groups")})
        with torch.no_grad():
            self._common.copy_(self._own_weights())
        momentum = state.get("outer_momentum")
        if momentum is not None:
            momentum = momentum.to(self._common).view_as(self._common).clone()
        self.outer.state[self._common] = {"momentum_buffer": momentum}


def _on_cpu(state: dict) -> dict:
    """An optimizer's state that any rank can read, whatever device it comes from."""
    of_parameters = {
        number: {name: value.cpu() if isinstance(value, Tensor) else value for name, value in parameter_state.items()}
        for number, parameter_state in state["state"].items()
    }
    return {"state": of_parameters, "param_groups": state["param_groups"]}
