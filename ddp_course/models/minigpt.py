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

LOSS_TOKENS = 1024  # per call of the output layer, in the loss
AttentionKind = Literal["fused", "math"]  # see causal_attention


@dataclass(frozen=True)
class MiniGPTConfig:
    """The hyperparameters of a MiniGPT. `context` counts tokens; `width` is the size of the residual stream."""

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
    """The keys and values of earlier tokens, which a layer needs while text is sampled: see `sampling.LayerCache`."""

    def extend(self, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Add keys and values (batch, heads, new, size); returns all keys, all values and the attention mask."""


def causal_attention(
    query: Tensor, key: Tensor, value: Tensor, dropout: float, attention: AttentionKind = "fused"
) -> Tensor:
    """Attention of each token to itself and earlier tokens. Arguments and result: (batch, heads, length, size).

    fused: torch's kernel. math: two matrix products with a softmax between them, which a CPU can compute faster for
    short texts in half precision. torch's own "math" backend also handles tokens that attend to nothing; under a
    causal mask there are none.
    """
    if attention == "fused":
        return F.scaled_dot_product_attention(query, key, value, dropout_p=dropout, is_causal=True)
    batch, heads, length, size = query.shape
    query, key, value = (part.flatten(0, 1) for part in (query, key, value))
    future = query.new_full((length, length), -torch.inf).triu(1)
    weights = torch.baddbmm(future, query, key.mT, alpha=size**-0.5).softmax(-1)
    return torch.bmm(F.dropout(weights, dropout), value).view(batch, heads, length, size)


def repeat_kv(part: Tensor, heads: int) -> Tensor:
    """Keys or values, repeated for the query heads that share them: (batch, kv heads, ...) -> (batch, heads, ...)."""
    return part if part.shape[1] == heads else part.repeat_interleave(heads // part.shape[1], dim=1)


class Attention(nn.Module):
    """Causal self-attention. No mask is stored: the fused kernel has the causal mask built in.

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
        """x and the result: (batch, length, width). past: earlier keys and values, for sampling."""
        batch, length, width = x.shape
        fused = self.query_key_value(x).view(batch, length, -1, width // self.heads).transpose(1, 2)
        query, key, value = fused.split((self.heads, self.kv_heads, self.kv_heads), dim=1)
        visible = None
        if past is not None:
            key, value, visible = past.extend(key, value)
        key, value = repeat_kv(key, self.heads), repeat_kv(value, self.heads)
        if past is None:
            y = causal_attention(query, key, value, self.dropout if self.training else 0.0, self.kind)
        else:
            y = F.scaled_dot_product_attention(query, key, value, attn_mask=visible)
        y = self.projection(y.transpose(1, 2).reshape(batch, length, width))
        return F.dropout(y, self.dropout, self.training)


class Block(nn.Module):
    """Attention, then a two-layer MLP; each reads the normalised residual stream and adds to it."""

    def __init__(self, config: MiniGPTConfig, attention: AttentionKind = "fused") -> None:
        super().__init__()
        self.dropout = config.dropout
        self.attention_norm = nn.LayerNorm(config.width)
        self.attention = Attention(config, attention)
        self.mlp_norm = nn.LayerNorm(config.width)
        self.expand = nn.Linear(config.width, 4 * config.width)
        self.projection = nn.Linear(4 * config.width, config.width)

    def forward(self, x: Tensor, past: Past | None = None) -> Tensor:
        """As `Attention.forward`."""
        x = x + self.attention(self.attention_norm(x), past)
        y = self.projection(F.gelu(self.expand(self.mlp_norm(x))))
        return x + F.dropout(y, self.dropout, self.training)


class MiniGPT(nn.Module):
    """`model(tokens)` gives logits; `model(tokens, targets)` gives the *summed* loss over the targets.

    A sum, not a mean: sums of micro-batches and of ranks add up to the sum of the global batch, whatever their
    sizes. The caller divides once, by the number of targets in the step's global batch.
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
                # 2 * layers branches add to the residual stream: their sum has the variance of one with std 0.02.
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
        # In pieces: the logits of all tokens would be the largest tensor of the step. In the backward pass each piece
        # adds a gradient of the size of the output layer, so many small pieces would cost more than they save. Targets
        # of -100, the default ignore_index, add nothing.
        pieces = zip(x.flatten(0, 1).split(LOSS_TOKENS), targets.flatten().split(LOSS_TOKENS), strict=True)
        losses = [F.cross_entropy(self.output(piece), target, reduction="sum") for piece, target in pieces]
        return torch.stack(losses).sum()


def set_attention(model: nn.Module, attention: AttentionKind) -> None:
    """Set the kind of attention of each `Attention` in `model`: for a model that is already built."""
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

    The window slides once the context is full. There is no cache: every token costs a forward pass over the whole
    window. The tests compare `sampling.sample`, which has a cache, with this function.
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

    Two for each weight in a matrix product (the position embedding and the norms have none; the tied embedding
    counts once, as the output layer), and 4 * context * width per layer for the attention scores and the weighted
    sums of values, as in Chowdhery et al., "PaLM" (2022), appendix B. Recomputation by activation checkpointing is
    not counted.
    """
    block = (12 * config.width - keys_and_values_saved(config)) * config.width
    matrix_weights = config.layers * block + config.vocab_size * config.width
    attention = config.layers * 4 * config.context * config.width
    return 3 * (2 * matrix_weights + attention)


def activation_bytes(config: MiniGPTConfig, micro_batch_size: int) -> int:
    """A lower bound of the bytes that a micro-batch keeps for the backward pass, with 2 bytes per number."""
    per_token = 4 * config.layers * config.width if not config.activation_checkpointing else config.width
    return 2 * micro_batch_size * config.context * (per_token + 2 * config.vocab_size)


def attention_trial(
    config: MiniGPTConfig, micro_batch_size: int, device: torch.device
) -> Callable[[AttentionKind], Tensor]:
    """A function to time for each kind of attention: it computes the loss of a small model on random tokens.

    The model has one layer of `config` and 1 / layers of its vocabulary, so attention takes the same share of the time
    as in a training step. A micro-batch of much more than 1024 tokens is cut to about that many. The state of the
    random generators does not change.
    """
    windows = min(micro_batch_size, 1 + 1024 // config.context)
    share = replace(config, layers=1, dropout=0.0, vocab_size=-(-config.vocab_size // config.layers))
    with torch.random.fork_rng(devices=[]):
        model = MiniGPT(share).to(device)
        tokens = torch.randint(share.vocab_size, (windows, config.context))
    tokens = tokens.to(device)

    def trial(attention: AttentionKind) -> Tensor:
        set_attention(model, attention)
        return model(tokens, tokens)

    return trial
