"""Fully sharded training by hand: a rank keeps 1/N of each layer and gathers the rest while the layer computes."""

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.utils._pytree import tree_map_only

from ddp_course.base.errors import InputError
from ddp_course.distributed.by_hand.broadcast import broadcast_module


class FullyShardedLayer(nn.Module):
    """`module` with its trainable parameters as one flat tensor, of which each rank keeps the same length: `shard`.

    Forward gathers the whole tensor, computes, and lets it go; backward gathers it again, and scatters the sum of the
    gradients so that each rank gets the mean gradient of its shard alone. Optimizer state follows the shard. So a
    rank holds 1/N of weights, gradients and state, and one layer in full while that layer computes. In exchange a
    layer sends its weights twice and its gradients once a step: half as much again as an all-reduce of gradients.

    Every rank must run the same layers in the same order. Nothing is fetched ahead: a layer waits for its weights.
    Frozen parameters and buffers stay whole. The optimizer sees one long vector for each layer, so it has to be one
    that treats every element alike (SGD, Adam; no layer-wise rule), and an unused parameter has a gradient of zeros
    instead of None. Zhao et al., "PyTorch FSDP" (2023); Rajbhandari et al., "ZeRO" (2020), stage 3.
    compute_dtype: the number format in which weights and gradients are sent, and the layer computes, with floating
    inputs cast to it; shard, gradient and optimizer state keep the parameters' own. bfloat16 halves what is sent. It is
    `MixedPrecisionPolicy(param_dtype=...)` of torch's fully_shard (2.4). None: all in the parameters' format.
    Raises InputError unless there are trainable parameters, all of one dtype.
    """

    def __init__(self, module: nn.Module, compute_dtype: torch.dtype | None = None) -> None:
        super().__init__()
        # Layers inside this one that are sharded already have shards for parameters, another on each rank.
        shards = {part.shard for part in module.modules() if isinstance(part, FullyShardedLayer)}
        broadcast_module(module, except_for=shards)
        # Every place that holds a trainable parameter; of a tied one there are several.
        places: dict[nn.Parameter, list[tuple[nn.Module, str]]] = {}
        for part in module.modules():
            for name, parameter in part.named_parameters(recurse=False):
                if parameter.requires_grad and parameter not in shards:
                    places.setdefault(parameter, []).append((part, name))
        types = sorted({str(parameter.dtype) for parameter in places})
        if len(types) != 1:
            raise InputError(f"A fully sharded layer needs trainable parameters of one dtype, found {types or 'none'}.")
        self.module, self.compute_dtype = module, compute_dtype
        self._places = list(places.values())
        self._shapes = [parameter.shape for parameter in places]
        self._sizes = [parameter.numel() for parameter in places]
        flat = torch.cat([parameter.detach().flatten() for parameter in places])
        share = -(-len(flat) // dist.get_world_size())  # rounded up: the last rank's shard may end in padding
        flat = torch.cat([flat, flat.new_zeros(share * dist.get_world_size() - len(flat))])
        self.shard = nn.Parameter(flat[dist.get_rank() * share :][:share].clone())
        for part, name in sum(self._places, []):
            del part._parameters[name]
        self._gathered: Tensor | None = None  # the whole tensor, while backward needs it

    def forward(self, *args, **kwargs):
        self._gathered = None  # of an earlier backward that did not come to its end
        if self.compute_dtype:
            args, kwargs = tree_map_only(torch.Tensor, self._cast, (args, kwargs))
        whole = _Gather.apply(self.shard, self)
        storage = whole.untyped_storage().data_ptr()

        # Autograd saves the weights for backward, and would keep every layer whole until then. What lies in `whole`
        # is remembered as a place in it, and looked up in a newly gathered tensor when backward comes by.
        def pack(saved: Tensor):
            if saved.untyped_storage().data_ptr() == storage:
                return saved.size(), saved.stride(), saved.storage_offset()
            return saved

        def unpack(packed):
            return packed if isinstance(packed, Tensor) else self._gather_again().as_strided(*packed)

        self._put(whole)
        try:
            with saved_tensors_hooks(pack, unpack):
                return self.module(*args, **kwargs)
        finally:
            self._take_away()

    @torch.no_grad()
    def full_parameters(self) -> list[Tensor]:
        """The whole parameters, gathered from all ranks: a collective, to be called on every rank."""
        return self._views(_all_gather(self.shard))

    def _views(self, whole: Tensor) -> list[Tensor]:
        pieces = whole[: sum(self._sizes)].split(self._sizes)
        return [piece.view(shape) for piece, shape in zip(pieces, self._shapes, strict=True)]

    def _put(self, whole: Tensor) -> None:
        for tensor, places in zip(self._views(whole), self._places, strict=True):
            for part, name in places:
                part.__dict__[name] = tensor  # a plain attribute: forward finds it, parameters() does not

    def _take_away(self) -> None:
        for part, name in sum(self._places, []):
            part.__dict__.pop(name, None)

    def _cast(self, given: Tensor) -> Tensor:
        return given.to(self.compute_dtype) if given.is_floating_point() else given

    def _gather_again(self) -> Tensor:
        if self._gathered is None:
            self._gathered = _all_gather(self.shard.detach(), self.compute_dtype)
        return self._gathered


class _Gather(torch.autograd.Function):
    """Forward: all shards from all ranks. Backward: the gradients' sum over all ranks, of it this rank's shard."""

    @staticmethod
    def forward(ctx, shard: Tensor, layer: FullyShardedLayer) -> Tensor:
        ctx.layer = layer
        return _all_gather(shard, layer.compute_dtype)

    @staticmethod
    def backward(ctx, gradient: Tensor) -> tuple[Tensor, None]:
        ctx.layer._gathered = None  # all of this layer's gradients are there: its weights may go
        mine = torch.empty_like(ctx.layer.shard, dtype=gradient.dtype)
        dist.reduce_scatter_single(mine, gradient.contiguous() / dist.get_world_size())
        return mine.to(ctx.layer.shard.dtype), None


def _all_gather(shard: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    shard = shard.to(dtype or shard.dtype)
    whole = shard.new_empty(len(shard) * dist.get_world_size())
    dist.all_gather_single(whole, shard.contiguous())
    return whole


def fully_shard_by_hand(
    model: nn.Module, blocks: nn.ModuleList, compute_dtype: torch.dtype | None = None
) -> FullyShardedLayer:
    """Shard each of `blocks`, a list inside `model`, by itself, and what else `model` holds as one more layer.

    The outermost layer stays whole as long as its forward, or its backward, runs; the blocks come and go within it.
    Make the optimizer afterwards, from `parameters()` of what is returned: these are the shards.
    Raises InputError if a parameter is tied across two of these layers: each would train a copy of its own.
    """
    layer_of = {part: number for number, block in enumerate(blocks) for part in block.modules()}
    holders: dict[nn.Parameter, set[int | None]] = {}
    for part in model.modules():
        for parameter in part.parameters(recurse=False):
            holders.setdefault(parameter, set()).add(layer_of.get(part))
    if tied := [parameter for parameter, layers in holders.items() if len(layers) > 1]:
        raise InputError(
            f"A parameter of shape {tuple(tied[0].shape)} is tied across layers that are sharded one by one; leave "
            "these layers out of `blocks`, so that one layer holds it in all its places."
        )
    for number, block in enumerate(blocks):
        blocks[number] = FullyShardedLayer(block, compute_dtype)
    return FullyShardedLayer(model, compute_dtype)


def full_state_dict(sharded: nn.Module) -> dict[str, Tensor]:
    """The weights under the names that the model had before it was sharded. A collective: call it on every rank."""
    layers = [part for part in sharded.modules() if isinstance(part, FullyShardedLayer)]
    found = dict(sharded.state_dict())
    prefix = {part: f"{name}." if name else "" for name, part in sharded.named_modules()}
    for layer in layers:
        found.pop(f"{prefix[layer]}shard")
        for tensor, places in zip(layer.full_parameters(), layer._places, strict=True):
            found |= {prefix[part] + name: tensor for part, name in places}
    wrappers = {prefix[layer] + "module." for layer in layers}
    return {_without(wrappers, name): tensor for name, tensor in found.items()}


def _without(wrappers: set[str], name: str) -> str:
    """`name` without each "module." that is a wrapper's own: "module.blocks.0.module.norm" is "blocks.0.norm"."""
    plain = name
    for wrapper in sorted(wrappers, key=len, reverse=True):  # the innermost first
        if name.startswith(wrapper):
            plain = plain[: len(wrapper) - len("module.")] + plain[len(wrapper) :]
    return plain
