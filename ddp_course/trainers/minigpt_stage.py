"""The part of a MiniGPT that one rank of a mesh holds: some layers, some heads and units of each, for some tokens.

tp also shards the vocabulary (the tied matrix and the logits) and, between the layers, the tokens.
"""

from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.utils.checkpoint import checkpoint

from ddp_course.base.errors import InputError
from ddp_course.distributed.context_parallel import ring_attention, zigzag
from ddp_course.distributed.dropout_masks import Masks
from ddp_course.distributed.expert_parallel import Mixture
from ddp_course.distributed.mesh import Axis, Mesh
from ddp_course.distributed.tensor_parallel import (
    Column,
    GatherTokens,
    JoinTokens,
    Row,
    ScatterTokens,
    TakeTokens,
    VocabularyEmbedding,
    vocabulary_loss_sum,
)
from ddp_course.models.minigpt import LOSS_TOKENS, Attention, Block, MiniGPT, MiniGPTConfig, causal_attention, repeat_kv
from ddp_course.trainers.minigpt_experts import MixtureBlock
from ddp_course.trainers.pretraining import PretrainingConfig

FRONT_AND_END = "each rank takes a part from the front of a window and one of the same length from its end"
TIED = {"output.weight": "token_embedding.weight"}  # one tensor of MiniGPT, under two names


def check_cuts(sizes: MiniGPTConfig | PretrainingConfig, mesh: Mesh) -> None:
    """Raise InputError if a model of these sizes does not divide over the mesh.

    The vocabulary of a PretrainingConfig may be None: it is the tokenizer's, which is not known yet.
    """
    pp, cp, tp = mesh.pp.size, mesh.cp.size, mesh.tp.size
    by_tp, by_cp_and_tp = f"--tp {tp}", f"--cp {cp} x --tp {tp}"
    ends = 2 if cp > 1 else 1
    for what, size, parts, by, reason in (
        ("--heads", sizes.heads, tp, by_tp, "each rank computes as many whole heads"),
        ("--kv-heads", sizes.kv_heads or sizes.heads, tp, by_tp, "each rank computes as many"),
        ("the vocabulary of", sizes.vocab_size or 0, tp, by_tp, "each rank has the rows of as many tokens"),
        ("--layers", sizes.layers, pp, f"--pp {pp}", "all stages have the same number of layers"),
        ("--context", sizes.context, ends * cp, f"2 x --cp {cp}", FRONT_AND_END),
        ("--context", sizes.context, cp * tp, by_cp_and_tp, "between the layers each rank has as many tokens"),
    ):
        if size % parts:
            raise InputError(f"{what} {size} is not a multiple of {by}: {reason}")


class ParallelAttention(nn.Module):
    """MiniGPT's attention with this rank's heads, for this rank's tokens."""

    def __init__(self, whole: Attention, mesh: Mesh, positions: Tensor) -> None:
        super().__init__()
        self.size = whole.projection.in_features // whole.heads  # units per head
        heads = whole.heads, whole.kv_heads, whole.kv_heads
        self.heads = tuple(count // mesh.tp.size for count in heads)  # of queries, keys and values
        self.head_numbers = (mesh.tp.rank * self.heads[0] + torch.arange(self.heads[0])).view(self.heads[1], -1)
        self.query_key_value, self.projection = whole.query_key_value, whole.projection
        if mesh.tp.size > 1:
            groups = tuple(self.size * n for n in heads)
            self.query_key_value = Column(whole.query_key_value, mesh.tp, groups, GatherTokens)
            self.projection = Row(whole.projection, mesh.tp, ScatterTokens)
        self.context_axis, self.positions, self.kind = mesh.cp, positions, whole.kind

    def forward(self, x: Tensor, masks: Masks, site: int) -> Tensor:
        fused = self.query_key_value(x).unflatten(-1, (-1, self.size)).transpose(1, 2)
        query, key, value = fused.split(self.heads, dim=1)
        if self.context_axis.size > 1 or masks.rate:  # torch's kernel draws masks of its own

            def drop(weights: Tensor, key_positions: Tensor) -> Tensor:
                return masks.drop_weights(weights, site, self.head_numbers.to(x.device), key_positions)

            y = ring_attention(query, key, value, self.positions, self.context_axis, drop)
        else:
            key, value = (repeat_kv(part, self.heads[0]) for part in (key, value))
            y = causal_attention(query, key, value, 0.0, self.kind)
        return self.projection(y.transpose(1, 2).flatten(2))


class ParallelBlock(nn.Module):
    """MiniGPT's block with this rank's heads, units and experts; between its layers the tokens are sharded over tp."""

    def __init__(self, whole: Block | MixtureBlock, mesh: Mesh, positions: Tensor, layer: int) -> None:
        super().__init__()
        self.site = 3 * layer  # of this block's first dropout; the embedding has -1
        self.attention_norm, self.mlp_norm = whole.attention_norm, whole.mlp_norm
        self.attention = ParallelAttention(whole.attention, mesh, positions)
        self.mixture, self.tensor = getattr(whole, "mixture", None), mesh.tp
        if self.mixture:
            self.mixture.shard_over(mesh.ep, mesh.tp if mesh.tp.size > 1 else None)
            return
        self.expand, self.projection = whole.expand, whole.projection
        if mesh.tp.size > 1:
            self.expand = Column(whole.expand, mesh.tp, enter=GatherTokens)
            self.projection = Row(whole.projection, mesh.tp, ScatterTokens)

    def forward(self, x: Tensor, masks: Masks, attention_masks: Masks) -> Tensor:
        """masks: for this rank's tokens between the layers. attention_masks: for the tokens that its attention has."""
        x = x + masks.drop(self.attention(self.attention_norm(x), attention_masks, self.site), self.site + 1)
        y = self.mlp_norm(x)
        if self.mixture and self.tensor.size > 1:
            y = TakeTokens.apply(self.mixture(JoinTokens.apply(y, self.tensor.group)), self.tensor.group)
        else:
            y = self.mixture(y) if self.mixture else self.projection(F.gelu(self.expand(y)))
        return x + masks.drop(y, self.site + 2)


class Stage(nn.Module):
    """This rank's part of `whole`, with MiniGPT's names. The first stage embeds, the last one computes the loss.

    Every rank is given whole windows and takes its own positions out of them. FSDP2 shards this part over
    `mesh.weights`. `whole` may be on the meta device: see `allocate`. policy: the formats in which FSDP2 computes and
    reduces, also on a mesh of one rank; None: those of the weights.
    """

    def __init__(self, whole: MiniGPT, mesh: Mesh, policy: MixedPrecisionPolicy | None = None) -> None:
        super().__init__()
        check_cuts(whole.config, mesh)
        self.recompute, self.dropout = whole.config.activation_checkpointing, whole.config.dropout
        positions = zigzag(whole.config.context, mesh.cp.size).to(mesh.world.device)
        self.positions = positions[mesh.cp.rank]  # in attention
        self.own_positions = self.positions.chunk(mesh.tp.size)[mesh.tp.rank]  # between the layers
        deep = len(whole.blocks) // mesh.pp.size
        own = range(mesh.pp.rank * deep, (mesh.pp.rank + 1) * deep)
        self.blocks = nn.ModuleDict(
            {str(layer): ParallelBlock(whole.blocks[layer], mesh, positions, layer) for layer in own}
        )
        self.first, self.last = mesh.pp.rank == 0, mesh.pp.rank == mesh.pp.size - 1
        if self.first:
            self.token_embedding, self.position_embedding = whole.token_embedding, whole.position_embedding
        if self.last:
            self.final_norm, self.output = whole.final_norm, whole.output
        if mesh.tp.size > 1 and self.first:
            self.token_embedding = VocabularyEmbedding(whole.token_embedding, mesh.tp)
        if mesh.tp.size > 1 and self.last:
            self.output = Column(whole.output, mesh.tp, enter=None)
        if self.first and self.last:
            self.output.weight = self.token_embedding.weight
        self.tensor_axis = mesh.tp
        if mesh.gradient_ranks > 1 or policy:
            options = {"reshard_after_forward": mesh.pp.size == 1, "mp_policy": policy or MixedPrecisionPolicy()}
            for mixture in self.mixtures:  # first: what is sharded already is left out of the block
                fully_shard(mixture.experts, mesh=mesh.expert_weights, **options)
            for layer in (*self.blocks.values(), self):
                fully_shard(layer, mesh=mesh.weights, **options)

    def allocate(self, device: torch.device) -> None:
        """Allocate memory for this part of a model on the meta device: uninitialised, but with zero router biases."""
        self.to_empty(device=device)
        if self.first and self.last:
            self.output.weight = self.token_embedding.weight  # to_empty made two tensors of the tied one
        for mixture in self.mixtures:
            mixture.bias.zero_()

    @property
    def mixtures(self) -> list[Mixture]:
        return [block.mixture for block in self.blocks.values() if block.mixture]

    @property
    def table(self) -> nn.Parameter:
        """The tied matrix: the embedding of the first stage and the output layer of the last one."""
        return (self.token_embedding if self.first else self.output).weight

    def forward(self, x: Tensor, targets: Tensor | None = None, keys: Tensor | None = None) -> Tensor:
        """Returns this stage's activations, (windows, this rank's tokens, width); the last stage the summed loss.

        x: token ids of whole windows, (windows, context), on the first stage; on others the previous stage's
        activations. targets: (windows, context), for the last stage. keys: `window_keys` of the windows, for dropout.
        """
        rate = self.dropout if self.training else 0.0
        masks, attention_masks = (Masks(rate, keys, positions) for positions in (self.own_positions, self.positions))
        if self.first:
            x = self.token_embedding(x[:, self.positions]) + self.position_embedding(self.own_positions)
            x = masks.drop(x, -1)
        for block in self.blocks.values():
            recompute = self.recompute and self.training
            run = partial(checkpoint, block, use_reentrant=False) if recompute else block
            x = run(x, masks, attention_masks)
        if not self.last:
            return x
        x, targets = self.final_norm(x), targets[:, self.positions].flatten()
        if self.tensor_axis.size > 1:
            x = GatherTokens.apply(x, self.tensor_axis.group)
        x = x.flatten(0, 1)
        chunks = zip(x.split(LOSS_TOKENS), targets.split(LOSS_TOKENS), strict=True)
        return torch.stack([_loss_sum(self.output(chunk), target, self.tensor_axis) for chunk, target in chunks]).sum()


def _loss_sum(logits: Tensor, targets: Tensor, tensor: Axis) -> Tensor:
    """The summed cross entropy, in float32 at least: half precision has too few digits for a sum over many tokens."""
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    if tensor.size > 1:
        return vocabulary_loss_sum(logits, targets, tensor)
    return F.cross_entropy(logits, targets, reduction="sum")
