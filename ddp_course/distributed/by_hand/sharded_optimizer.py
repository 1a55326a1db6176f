"""ZeRO stage 1 by hand: every rank has all gradients, but keeps the optimizer state of a share of the parameters."""

from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import Tensor
from torch.optim import Optimizer

from ddp_course.distributed.by_hand.broadcast import broadcast_tensors


class ShardedOptimizer(Optimizer):
    """Any torch optimizer, with its state sharded over the ranks. The steps equal those of the unsharded optimizer.

        optimizer = ShardedOptimizer(model.parameters(), torch.optim.AdamW, lr=1e-3, weight_decay=0.1)

    Each parameter has an owner rank, which steps it and broadcasts the result. A tensor is never divided, so any
    optimizer that handles one parameter at a time works unchanged, also Muon, which needs whole matrices.
    cost: the load that a parameter adds to its owner, by default its number of elements. Owners are chosen so that all
    ranks have about the same load; `load` holds that of each rank. Gradients must already be equal on all ranks.
    `state` and `state_dict()` hold this rank's share; `load_state_dict()` takes such a share or a whole state and
    keeps this rank's part. Learning-rate schedulers, parameter groups and `add_param_group` work as always.
    Rajbhandari et al., "ZeRO: Memory Optimizations Toward Training Trillion Parameter Models" (2020).
    """

    def __init__(
        self, parameters, optimizer_class: type[Optimizer], cost: Callable[[Tensor], int] = Tensor.numel, **options
    ) -> None:
        self._class, self._options, self._cost = optimizer_class, options, cost
        self._local_optimizer: Optimizer | None = None  # the wrapped optimizer, of this rank's share
        self.owner: dict[Tensor, int] = {}
        self.load = [0] * dist.get_world_size()
        super().__init__(parameters, dict(options))
        self.defaults = dict(self._local_optimizer.defaults)
        self.state = self._local_optimizer.state

    def add_param_group(self, param_group: dict) -> None:
        super().add_param_group(param_group)  # checks it, and fills in the options
        group = self.param_groups[-1]
        # The costliest first, each to the rank with the smallest load. Every rank computes the same assignment.
        for parameter in sorted(group["params"], key=self._cost, reverse=True):
            self.owner[parameter] = rank = self.load.index(min(self.load))
            self.load[rank] += self._cost(parameter) if parameter.requires_grad else 0
        local_group = {**group, "params": self._share(group["params"])}
        if self._local_optimizer is None:
            self._local_optimizer = self._class([local_group], **self._options)
        else:
            self._local_optimizer.add_param_group(local_group)
        # Copy the defaults that the class adds (betas, eps...), because schedulers read them here.
        group.update(_settings(self._local_optimizer.param_groups[-1]))

    @torch.no_grad()
    def step(self, closure: Callable[[], Tensor] | None = None) -> Tensor | None:
        """Step this rank's share, then broadcast every parameter from its owner. Call it on every rank."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group, local_group in zip(self.param_groups, self._local_optimizer.param_groups, strict=True):
            local_group.update(_settings(group))  # a scheduler's new lr
        if any(group["params"] for group in self._local_optimizer.param_groups):
            self._local_optimizer.step()
        trainable = [p for group in self.param_groups for p in group["params"] if p.requires_grad]
        broadcast_tensors(trainable, [self.owner[parameter] for parameter in trainable])
        return loss

    def load_state_dict(self, state_dict: dict) -> None:
        super().load_state_dict(state_dict)
        rank = dist.get_rank()
        for parameter in [p for p in self.state if self.owner.get(p, rank) != rank]:
            del self.state[parameter]
        self._local_optimizer.state = self.state  # loading made a new dict

    def _share(self, parameters: list[Tensor]) -> list[Tensor]:
        return [parameter for parameter in parameters if self.owner[parameter] == dist.get_rank()]


def _settings(group: dict) -> dict:
    """A parameter group without its parameters: learning rate, weight decay..."""
    return {name: value for name, value in group.items() if name != "params"}
