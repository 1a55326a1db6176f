"""MiniGPT: a decoder-only transformer of GPT-2's shape, small enough to train on a laptop.

Radford et al., "Language Models are Unsupervised Multitask Learners" (2019): pre-layer-norm blocks, learned
positions, GELU, input embedding tied to the output layer, residual projections scaled down with depth.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

LOSS_TOKENS = 1024  # whose logits are held at a time
AttentionKind = Literal["fused", "math"]  # see causal_attention


@dataclass(frozen=True)
class MiniGPTConfig:
    """The shape of a MiniGPT. Widths and the context are counted in units and tokens."""

    vocab_size: int = 256
    context: int = 256
    layers: int = 6
    heads: int = 6
    width: int = 384
    dropout: float = 0.0
    activation_checkpointing: bool = False
    kv_heads: int | None = None  # heads of keys and values; None: as many as heads

    def __post_init__(self) -> None:
        if self.width % self.heads:
            raise ValueError(f"width {self.width} does not divide into {self.heads} heads of equal size")
        if self.heads % (self.kv_heads or self.heads):
            raise ValueError(f"{self.heads} heads do not divide over {self.kv_heads} heads of keys and values")


class Past(Protocol):
    """The keys and values that a layer keeps of earlier tokens while text is sampled: see `sampling.KeyValueCache`."""

    def extend(self, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Add keys and values (batch, heads, new, size); return those of all tokens, and who sees whom."""


def causal_attention(
    query: Tensor, key: Tensor, value: Tensor, dropout: float, attention: AttentionKind = "fused"
) -> Tensor:
    """Attention of each token to itself and those before it; all (batch, heads, length, size).

    fused: torch's kernel. math: three operations, of which two are matrix products; a CPU can compute short texts
    faster in this way in half precision. torch's own "math" backend also looks for tokens that see nothing, which a
    causal mask leaves none of.
    """
    if attention == "fused":
        return F.scaled_dot_product_attention(query, key, value, dropout_p=dropout, is_causal=True)
    batch, heads, length, size = query.shape
    query, key, value = (part.flatten(0, 1) for part in (query, key, value))
    future = query.new_full((length, length), -torch.inf).triu(1)
    weights = torch.baddbmm(future, query, key.mT, alpha=size**-0.5).softmax(-1)
    return torch.bmm(F.dropout(weights, dropout), value).view(batch, heads, length, size)


def for_each_query(part: Tensor, heads: int) -> Tensor:
    """Keys or values, repeated for the query heads that share them: (batch, kv heads, ...) -> (batch, heads, ...)."""
    return part if part.shape[1] == heads else part.repeat_interleave(heads // part.shape[1], dim=1)


class Attention(nn.Module):
    """Causal self-attention. Nothing is stored for the mask: the kernel knows what "causal" means.

    With fewer heads of keys and values than of queries it is grouped-query attention (Ainslie et al., 2023).
    """

    def __init__(self, config: MiniGPTConfig, attention: AttentionKind = "fused") -> None:
        super().__init__()
        self.kind = attention
        self.heads, self.kv_heads = config.heads, config.kv_heads or config.heads
        self.dropout = config.dropout
        fused = config.width // config.heads * (self.heads + 2 * self.kv_heads)
        self.query_key_value = nn.Linear(config.width, fused)
        self.projection = nn.Linear(config.width, config.width)

    def forward(self, x: Tensor, past: Past | None = None) -> Tensor:
        batch, length, width = x.shape
        fused = self.query_key_value(x).view(batch, length, -1, width // self.heads).transpose(1, 2)
        query, key, value = fused.split((self.heads, self.kv_heads, self.kv_heads), dim=1)
        visible = None
        if past is not None:
            key, value, visible = past.extend(key, value)
        key, value = for_each_query(key, self.heads), for_each_query(value, self.heads)
        if past is None:
            y = causal_attention(query, key, value, self.dropout if self.training else 0.0, self.kind)
        else:
            y = F.scaled_dot_product_attention(query, key, value, attn_mask=visible)
        y = self.projection(y.transpose(1, 2).reshape(batch, length, width))
        return F.dropout(y, self.dropout, self.training)


class Block(nn.Module):
    """Attention, then a two-layer MLP; each reads a normalised stream and adds to it."""

    def __init__(self, config: MiniGPTConfig, attention: AttentionKind = "fused") -> None:
        super().__init__()
        self.dropout = config.dropout
        self.attention_norm = nn.LayerNorm(config.width)
        self.attention = Attention(config, attention)
        self.mlp_norm = nn.LayerNorm(config.width)
        self.expand = nn.Linear(config.width, 4 * config.width)
        self.projection = nn.Linear(4 * config.width, config.width)

    def forward(self, x: Tensor, past: Past | None = None) -> Tensor:
        x = x + self.attention(self.attention_norm(x), past)
        y = self.projection(F.gelu(self.expand(self.mlp_norm(x))))
        return x + F.dropout(y, self.dropout, self.training)


class MiniGPT(nn.Module):
    """`model(tokens)` gives logits; `model(tokens, targets)` gives the *summed* loss over the targets.

    A sum, not a mean: sums of micro-batches and of ranks add up to the sum of the global batch, whatever their
    sizes. Whoever calls divides once, by the number of tokens in the whole update.
    """

    def __init__(self, config: MiniGPTConfig, attention: AttentionKind = "fused") -> None:
        super().__init__()
        self.config = config
        self.token_embedding = nn.Embedding(config.vocab_size, config.width)
        self.position_embedding = nn.Embedding(config.context, config.width)
        self.blocks = nn.ModuleList(Block(config, attention) for _ in range(config.layers))
        self.final_norm = nn.LayerNorm(config.width)
        self.output = nn.Linear(config.width, config.vocab_size, bias=False)
        self.apply(self._initialise)
        for block in self.blocks:
            for projection in (block.attention.projection, block.projection):
                # 2 * layers branches add to the residual stream: this keeps its variance at 1 layer's.
                nn.init.normal_(projection.weight, std=0.02 / (2 * config.layers) ** 0.5)
        self.output.weight = self.token_embedding.weight

    @staticmethod
    def _initialise(module: nn.Module) -> None:
        if isinstance(module, (nn.Linear, nn.Embedding)):
            nn.init.normal_(module.weight, std=0.02)
        if isinstance(module, nn.Linear) and module.bias is not None:
            nn.init.zeros_(module.bias)

    def forward(self, tokens: Tensor, targets: Tensor | None = None) -> Tensor:
        """tokens, targets: (batch, length) of int64. Returns logits (batch, length, vocab) or a scalar loss sum."""
        length = tokens.shape[1]
        if length > self.config.context:
            raise ValueError(f"{length} tokens do not fit the context of {self.config.context}")
        positions = torch.arange(length, device=tokens.device)
        x = self.token_embedding(tokens) + self.position_embedding(positions)
        x = F.dropout(x, self.config.dropout, self.training)
        for block in self.blocks:
            if self.config.activation_checkpointing and self.training:
                x = checkpoint(block, x, use_reentrant=False)
            else:
                x = block(x)
        x = self.final_norm(x)
        if targets is None:
            return self.output(x)
        # In pieces: the logits of all tokens would be the largest tensor of the whole step. Each piece adds a gradient
        # of the size of the output layer, so many small ones would cost more than they save. Targets of -100 (torch's
        # own default) add nothing.
        pieces = zip(x.flatten(0, 1).split(LOSS_TOKENS), targets.flatten().split(LOSS_TOKENS), strict=True)
        losses = [F.cross_entropy(self.output(piece), target, reduction="sum") for piece, target in pieces]
        return torch.stack(losses).sum()


def set_attention(model: nn.Module, attention: AttentionKind) -> None:
    """Let the MiniGPT in `model`, if there is one, compute attention in this way: for a model that was loaded."""
    for module in model.modules():
        if isinstance(module, Attention):
            module.kind = attention


@torch.no_grad()
def generate(
    model: MiniGPT,
    prompt: Tensor,
    new_tokens: int,
    *,
    temperature: float = 0.8,
    top_k: int = 50,
    generator: torch.Generator | None = None,
) -> Tensor:
    """Continue `prompt` (batch, length) by `new_tokens` sampled tokens; returns (batch, length + new_tokens).

    The window slides once the context is full. Every token costs a full forward pass: there is no cache here, so this
    is the plain text against which `sampling.sample`, which has one, is tested.
    """
    was_training = model.training
    model.eval()
    tokens = prompt
    for _ in range(new_tokens):
        logits = model(tokens[:, -model.config.context :])[:, -1].float() / temperature
        best = logits.topk(min(top_k, logits.shape[-1]))
        choice = torch.multinomial(best.values.softmax(-1), 1, generator=generator)
        tokens = torch.cat([tokens, best.indices.gather(-1, choice)], dim=1)
    model.train(was_training)
    return tokens


def parameter_count(config: MiniGPTConfig) -> int:
    """Parameters of a MiniGPT, the tied embedding counted once. Equal to the sum over `model.parameters()`."""
    per_block = 12 * config.width**2 + 13 * config.width - keys_and_values_saved(config) * (config.width + 1)
    embeddings = (config.vocab_size + config.context) * config.width
    return embeddings + config.layers * per_block + 2 * config.width


def keys_and_values_saved(config: MiniGPTConfig) -> int:
    """Outputs of a block's query-key-value layer that grouped-query attention does without."""
    return 2 * config.width * (config.heads - (config.kv_heads or config.heads)) // config.heads


def flops_per_token(config: MiniGPTConfig) -> int:
    """Floating-point operations to train on one token: forward plus a backward of twice its cost.

    Two for each weight in a matrix product (the position table and the norms do none; the tied embedding
    counts once, as the output layer), and 4 * context * width a layer for the attention scores and their sum,
    as in Chowdhery et al., "PaLM" (2022), appendix B. Recomputation by activation checkpointing is not counted.
    """
    block = (12 * config.width - keys_and_values_saved(config)) * config.width
    matrix_weights = config.layers * block + config.vocab_size * config.width
    attention = config.layers * 4 * config.context * config.width
    return 3 * (2 * matrix_weights + attention)


def activation_bytes(config: MiniGPTConfig, micro_batch_size: int) -> int:
    """A lower bound of what the forward pass of a micro-batch keeps for the backward pass, in 16 bits a number."""
    per_token = 4 * config.layers * config.width if not config.activation_checkpointing else config.width
    return 2 * micro_batch_size * config.context * (per_token + 2 * config.vocab_size)


def piece_of_a_step(
    config: MiniGPTConfig, micro_batch_size: int, device: torch.device
) -> Callable[[AttentionKind], Tensor]:
    """A trial to time, given the kind of attention: the loss of a model with one layer of `config` and that layer's
    share of the vocabulary.

    With its backward pass it takes about 1 / layers of a training step, and the layers and the output take their parts
    of it as they do there. On about 1024 tokens if a micro-batch has more. Random numbers are left as they were.
    """
    windows = min(micro_batch_size, 1 + 1024 // config.context)
    share = replace(config, layers=1, dropout=0.0, vocab_size=-(-config.vocab_size // config.layers))
    with torch.random.fork_rng(devices=[]):
        model, tokens = MiniGPT(share).to(device), torch.randint(share.vocab_size, (windows, config.context))
    tokens = tokens.to(device)

    def trial(attention: AttentionKind) -> Tensor:
        set_attention(model, attention)
        return model(tokens, tokens)

    return trial
