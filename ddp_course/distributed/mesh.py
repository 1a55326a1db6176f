"""The mesh: ranks as a grid with named axes, this rank's coordinates on it, and a process group per axis.

    mesh = Mesh(world, pp=2, dp=1, shard=1, cp=1, tp=2)    # rank = (pp, dp, shard, cp, tp), row-major

The last axis joins neighbouring ranks, so its messages stay within a machine: `tp`, which sends the most and cannot
overlap it with computation. The first axis joins the ranks that are furthest apart: `pp`, which sends the least, as in
torchtitan; in Llama 3 `dp`, which can be prefetched.
"""

from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from ddp_course.base.errors import InputError
from ddp_course.distributed.process_group import World


@dataclass(frozen=True)
class Axis:
    """One axis of the mesh: this rank's coordinate (`rank`) on it, its size, and the process group of its ranks."""

    size: int
    rank: int
    group: dist.ProcessGroup

    def neighbour(self, step: int) -> int:
        """The rank `step` positions further on this axis, as a ring."""
        return (self.rank + step) % self.size

    def exchange(self, x: Tensor, target: int, source: int) -> Tensor:
        """Send x to the rank `target` of this axis, and return a tensor of the same shape from the rank `source`."""
        x, received = x.contiguous(), torch.empty_like(x, memory_format=torch.contiguous_format)
        send = dist.P2POp(dist.isend, x, group=self.group, group_peer=target)
        receive = dist.P2POp(dist.irecv, received, group=self.group, group_peer=source)
        for work in dist.batch_isend_irecv([send, receive]):
            work.wait()
        return received


def all_reduce_flat(tensors: list[Tensor], group: dist.ProcessGroup) -> None:
    """Sum tensors over the ranks of a group, in place and in one all-reduce."""
    flat = torch.cat([tensor.flatten() for tensor in tensors])
    dist.all_reduce(flat, group=group)
    for tensor, total in zip(tensors, flat.split([tensor.numel() for tensor in tensors]), strict=True):
        tensor.copy_(total.view_as(tensor))


class Mesh:
    """A device mesh with five axes, and a sixth one over the ranks of two of them.

    pp: pipeline stages. dp: replicas. shard: FSDP. cp: parts of each window. tp: parts of each layer.
    The ranks of `cp` use the same weights for different tokens, like those of `dp` and `shard`, so weights are sharded
    over `shard` and `cp` jointly.
    ep: parts of the experts, over the ranks of `shard` and `cp`, of which the neighbouring ones form a group: they have
    different tokens. The other axis of these ranks shards each expert. None: the model has no experts, and no ep.
    Collective. Raises InputError if the product of the sizes is not the world size, or ep does not divide shard x cp.
    """

    def __init__(self, world: World, *, pp: int, dp: int, shard: int, cp: int, tp: int, ep: int | None = None) -> None:
        sizes = {"pp": pp, "dp": dp, "shard": shard, "cp": cp, "tp": tp}
        ranks = pp * dp * shard * cp * tp
        if ranks != world.size:
            product = " x ".join(f"--{name} {size}" for name, size in sizes.items())
            raise InputError(
                f"{product} = {ranks} rank(s), but {world.size} were started; the product must be the "
                "number of processes"
            )
        if ep and shard * cp % ep:
            raise InputError(
                f"--ep {ep} does not divide --shard {shard} x --cp {cp} = {shard * cp} rank(s), over which experts are "
                "spread"
            )
        grid = init_device_mesh(world.device.type, tuple(sizes.values()), mesh_dim_names=tuple(sizes))
        self.world, self.sizes = world, sizes
        self.pp, self.dp, self.shard, self.cp, self.tp = (
            Axis(size, grid.get_local_rank(name), grid.get_group(name)) for name, size in sizes.items()
        )
        # The same grid with shard and cp as one axis. fully_shard replicates over dp and shards over shard x cp.
        names = ("pp", "dp", "shard_cp", "tp")
        joined = init_device_mesh(world.device.type, (pp, dp, shard * cp, tp), mesh_dim_names=names)
        self.weights: DeviceMesh = joined["dp", "shard_cp"] if dp > 1 else joined["shard_cp"]
        self.ep = None
        if ep:  # for experts, shard x cp as two axes: an expert is on one rank of ep, and sharded over expert_shard
            names, split = ("pp", "dp", "expert_shard", "ep", "tp"), (pp, dp, shard * cp // ep, ep, tp)
            joined = init_device_mesh(world.device.type, split, mesh_dim_names=names)
            self.ep = Axis(ep, joined.get_local_rank("ep"), joined.get_group("ep"))
            self.expert_weights: DeviceMesh = joined["dp", "expert_shard"] if dp > 1 else joined["expert_shard"]

    @property
    def replicas(self) -> int:
        """The number of shares that a batch is divided into."""
        return self.dp.size * self.shard.size

    @property
    def replica(self) -> int:
        """The index of this rank's share; its peers on pp, cp and tp work on the same windows."""
        return self.dp.rank * self.shard.size + self.shard.rank

    @property
    def gradient_ranks(self) -> int:
        """The number of ranks over which fully_shard averages a gradient."""
        return self.replicas * self.cp.size

    @property
    def reports_loss(self) -> bool:
        """True on the first tp rank of the last stage: it has the loss, and a sum over such ranks counts it once."""
        return self.pp.rank == self.pp.size - 1 and self.tp.rank == 0

    def __str__(self) -> str:
        sizes = " x ".join(f"{name} {size}" for name, size in self.sizes.items() if size > 1) or "one process"
        return sizes + (f", ep {self.ep.size}" if self.ep and self.ep.size > 1 else "")
