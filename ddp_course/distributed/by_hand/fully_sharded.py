"""Fully sharded training by hand: a rank keeps 1/N of each layer and all-gathers the rest while the layer computes."""

import math

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.utils._pytree import tree_map_only

from ddp_course.base.errors import InputError
from ddp_course.distributed.by_hand.broadcast import broadcast_module
from ddp_course.distributed.torch_versions import all_gather_single, reduce_scatter_single


class FullyShardedLayer(nn.Module):
    """`module` with its trainable parameters flattened into one tensor, of which each rank keeps an equal `shard`.

    Forward all-gathers the whole tensor, computes, and frees it; backward all-gathers it again and reduce-scatters the
    gradients, so that each rank gets the mean gradient of its shard. Optimizer state follows the shard. So a rank
    holds 1/N of weights, gradients and state, and one layer in full while that layer computes. In exchange a layer
    sends its weights twice and its gradients once per step: 1.5 times the bytes of an all-reduce of gradients.

    Every rank must run the same layers in the same order. Nothing is prefetched: a layer waits for its weights.
    Frozen parameters and buffers are replicated. The optimizer sees one long vector per layer, so it has to treat every
    element alike (SGD, Adam; no layer-wise rule), and an unused parameter has a gradient of zeros instead of None.
    Zhao et al., "PyTorch FSDP" (2023); Rajbhandari et al., "ZeRO" (2020), stage 3.
    compute_dtype: the dtype in which weights and gradients are sent and the layer computes; floating inputs are cast
    to it. Shard, gradient and optimizer state keep the parameters' dtype. bfloat16 halves the bytes sent. It is
    `MixedPrecisionPolicy(param_dtype=...)` of torch's fully_shard (2.4). None: the parameters' dtype everywhere.
    Raises InputError unless there are trainable parameters and all have one dtype, ReplicasDiffer as
    `broadcast_module`.
    """

    def __init__(self, module: nn.Module, compute_dtype: torch.dtype | None = None) -> None:
        super().__init__()
        # Inner layers that are already sharded have shards as parameters, different on each rank.
        shards = {part.shard for part in module.modules() if isinstance(part, FullyShardedLayer)}
        broadcast_module(module, except_for=shards)
        # Every module attribute that holds a trainable parameter; a tied parameter has several.
        attributes: dict[nn.Parameter, list[tuple[nn.Module, str]]] = {}
        for part in module.modules():
            for name, parameter in part.named_parameters(recurse=False):
                if parameter.requires_grad and parameter not in shards:
                    attributes.setdefault(parameter, []).append((part, name))
        types = sorted({str(parameter.dtype) for parameter in attributes})
        if len(types) != 1:
            raise InputError(f"A fully sharded layer needs trainable parameters of one dtype, found {types or 'none'}.")
        self.module, self.compute_dtype = module, compute_dtype
        self._attributes = list(attributes.values())
        self._shapes = [parameter.shape for parameter in attributes]
        self._sizes = [parameter.numel() for parameter in attributes]
        flat = torch.cat([parameter.detach().flatten() for parameter in attributes])
        shard_size = math.ceil(len(flat) / dist.get_world_size())  # the last rank's shard may end in padding
        flat = torch.cat([flat, flat.new_zeros(shard_size * dist.get_world_size() - len(flat))])
        self.shard = nn.Parameter(flat[dist.get_rank() * shard_size :][:shard_size].clone())
        for part, name in sum(self._attributes, []):
            del part._parameters[name]
        self._gathered: Tensor | None = None  # the whole tensor, during backward

    def forward(self, *args, **kwargs):
        self._gathered = None  # left over if an earlier backward was interrupted
        if self.compute_dtype:
            args, kwargs = tree_map_only(torch.Tensor, self._cast, (args, kwargs))
        whole = _Gather.apply(self.shard, self)
        storage = whole.untyped_storage().data_ptr()

        # Autograd saves the weights for backward and would keep every layer whole until then. A saved view of `whole`
        # is replaced by its size, stride and offset, and rebuilt from a newly gathered tensor in backward.
        def pack(saved: Tensor):
            if saved.untyped_storage().data_ptr() == storage:
                return saved.size(), saved.stride(), saved.storage_offset()
            return saved

        def unpack(packed):
            return packed if isinstance(packed, Tensor) else self._regather().as_strided(*packed)

        self._set_weights(whole)
        try:
            with saved_tensors_hooks(pack, unpack):
                return self.module(*args, **kwargs)
        finally:
            self._remove_weights()

    @torch.no_grad()
    def full_parameters(self) -> list[Tensor]:
        """All-gather the whole parameters (collective)."""
        return self._views(_all_gather(self.shard))

    def _views(self, whole: Tensor) -> list[Tensor]:
        """The parameters, as views of the gathered tensor."""
        parts = whole[: sum(self._sizes)].split(self._sizes)
        return [part.view(shape) for part, shape in zip(parts, self._shapes, strict=True)]

    def _set_weights(self, whole: Tensor) -> None:
        for tensor, attributes in zip(self._views(whole), self._attributes, strict=True):
            for part, name in attributes:
                part.__dict__[name] = tensor  # a plain attribute: forward uses it, parameters() does not list it

    def _remove_weights(self) -> None:
        for part, name in sum(self._attributes, []):
            part.__dict__.pop(name, None)

    def _cast(self, tensor: Tensor) -> Tensor:
        return tensor.to(self.compute_dtype) if tensor.is_floating_point() else tensor

    def _regather(self) -> Tensor:
        if self._gathered is None:
            self._gathered = _all_gather(self.shard.detach(), self.compute_dtype)
        return self._gathered


class _Gather(torch.autograd.Function):
    """Forward: all-gather the shards. Backward: reduce-scatter the mean gradient."""

    @staticmethod
    def forward(ctx, shard: Tensor, layer: FullyShardedLayer) -> Tensor:
        ctx.layer = layer
        return _all_gather(shard, layer.compute_dtype)

    @staticmethod
    def backward(ctx, gradient: Tensor) -> tuple[Tensor, None]:
        ctx.layer._gathered = None  # all gradients of this layer are computed, so its weights are no longer needed
        shard = torch.empty_like(ctx.layer.shard, dtype=gradient.dtype)
        reduce_scatter_single(shard, gradient.contiguous() / dist.get_world_size())
        return shard.to(ctx.layer.shard.dtype), None


def _all_gather(shard: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    shard = shard.to(dtype or shard.dtype)
    whole = shard.new_empty(len(shard) * dist.get_world_size())
    all_gather_single(whole, shard.contiguous())
    return whole


def fully_shard_by_hand(
    model: nn.Module, blocks: nn.ModuleList, compute_dtype: torch.dtype | None = None
) -> FullyShardedLayer:
    """Shard each of `blocks`, a list inside `model`, by itself, and the rest of `model` as one more layer.

    The outermost layer stays whole during its whole forward or backward; the blocks are gathered and freed within it.
    Make the optimizer afterwards, from `parameters()` of the result: these are the shards.
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
    state = dict(sharded.state_dict())
    prefix = {part: f"{name}." if name else "" for name, part in sharded.named_modules()}
    for layer in layers:
        state.pop(f"{prefix[layer]}shard")
        for tensor, attributes in zip(layer.full_parameters(), layer._attributes, strict=True):
            state |= {prefix[part] + name: tensor for part, name in attributes}
    wrappers = {prefix[layer] + "module." for layer in layers}
    return {_unwrapped_name(wrappers, name): tensor for name, tensor in state.items()}


def _unwrapped_name(wrappers: set[str], name: str) -> str:
    """`name` without each "module." that a FullyShardedLayer adds: "module.blocks.0.module.norm" is "blocks.0.norm"."""
    plain = name
    for wrapper in sorted(wrappers, key=len, reverse=True):  # the innermost first
        if name.startswith(wrapper):
            plain = plain[: len(wrapper) - len("module.")] + plain[len(wrapper) :]
    return plain
