"""A reward model: a frozen language model computes features of a text, and a small head turns them into a number."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ddp_course.base.errors import InputError

Read = Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]


class FrozenBackbone(nn.Module):
    """A language model whose weights never change: it has no gradients, and `train()` leaves it in eval mode.

    output: the model's output layer.
    read: maps tokens (n, length) and k positions, rows (k,) and columns (k,), to the inputs of the output layer for all
    tokens (n, length, width) and the model's logits at the k positions (k, vocabulary). These may differ from what the
    output layer returns: some models scale or cap its result.
    """

    def __init__(self, model: nn.Module, output: nn.Module, read: Read, width: int, context: int) -> None:
        super().__init__()
        self.model, self.output = model, output
        self.read, self.width, self.context = read, width, context
        self.requires_grad_(False)
        self.eval()

    def train(self, mode: bool = True) -> "FrozenBackbone":
        """Keep eval mode for any `mode`: with dropout the same text would have another score each time."""
        return super().train(False)

    # no_grad, not inference_mode: the head's backward has to keep these features, which inference tensors forbid.
    @torch.no_grad()
    def forward(self, tokens: Tensor, starts: Tensor, lengths: Tensor) -> Tensor:
        """The features of one completion per row: (n, width + 2).

        tokens: (n, length) of int64, padded on the right with anything. Row i's completion is
        tokens[i, starts[i]:lengths[i]], and at least one token precedes it. Attention is causal, so what is on the
        right of a completion cannot change its features.
        The features: the mean over the completion of the output layer's inputs, then the mean and the largest negative
        log-likelihood of its tokens.
        """
        position = torch.arange(tokens.shape[1], device=tokens.device)
        inside = (position >= starts[:, None]) & (position < lengths[:, None])
        row, column = inside.nonzero(as_tuple=True)
        # Logits of the completions only: those of all tokens would be the largest tensor by far.
        states, logits = self.read(tokens, row, (column - 1).clamp(min=0))
        dtype = torch.promote_types(states.dtype, torch.float32)  # half precision is for matrix products, not for sums
        nll = F.cross_entropy(logits.to(dtype), tokens[row, column], reduction="none")
        count = inside.sum(1)
        states = states[row, column].to(dtype)
        mean = states.new_zeros(len(tokens), self.width).index_add_(0, row, states) / count[:, None]
        mean_nll = nll.new_zeros(len(tokens)).index_add_(0, row, nll) / count
        largest_nll = nll.new_zeros(len(tokens)).scatter_reduce_(0, row, nll, "amax")
        return torch.cat([mean, mean_nll[:, None], largest_nll[:, None]], dim=1)

    @torch.no_grad()
    def assert_causal(self) -> None:
        """Raise InputError if the model's outputs for a token depend on later tokens, or are not finite.

        It reads two texts that differ only in the last token: a bidirectional model gives other outputs for the earlier
        tokens. Differences by rounding are allowed: experts that get another number of tokens may add up in another
        order.
        """
        count = min(8, self.context) - 1
        earlier = torch.arange(count, device=next(self.parameters()).device)
        first, second = (
            self.read(torch.cat([earlier, earlier.new_tensor([last])])[None], torch.zeros_like(earlier), earlier)
            for last in (count, count + 1)
        )
        for outputs in zip(first, second, strict=True):
            a, b = (values.flatten(0, -2)[:count].double() for values in outputs)
            if not a.isfinite().all():
                raise InputError("its outputs for a text are not finite")
            if (a - b).abs().max() > 1e-5 * a.abs().max():
                raise InputError("it is no causal language model: a token changes its outputs for earlier ones")

    def assert_frozen(self) -> None:
        """Raise RuntimeError if a parameter requires or has a gradient, or a module is in training mode."""
        for name, parameter in self.named_parameters():
            if parameter.requires_grad or parameter.grad is not None:
                raise RuntimeError(f"the backbone is not frozen: {name} takes part in training")
        for name, module in self.named_modules():
            if module.training:
                raise RuntimeError(f"the backbone is not in eval mode: {name or 'all of it'} is in training mode")


def feature_count(width: int) -> int:
    """Features of a completion on a backbone of this width."""
    return width + 2


class RewardHead(nn.Module):
    """An MLP with one hidden layer from features (n, features) to rewards (n,)."""

    def __init__(self, features: int, hidden: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(features)
        self.expand = nn.Linear(features, hidden)
        self.reward = nn.Linear(hidden, 1)

    def forward(self, features: Tensor) -> Tensor:
        return self.reward(F.gelu(self.expand(self.norm(features)))).squeeze(-1)
