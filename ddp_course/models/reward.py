"""A reward model: a language model that only reads, and a small head that turns what it read into one number."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class FrozenBackbone(nn.Module):
    """A language model whose weights never change: no gradients, and eval mode whatever `train()` says.

    states: tokens (n, length) -> what the output layer reads, (n, length, width). output: that layer.
    """

    def __init__(self, model: nn.Module, states: Callable[[Tensor], Tensor], output: nn.Module, width: int,
                 context: int) -> None:  # fmt: skip
        super().__init__()
        self.model, self.output = model, output
        self.states, self.width, self.context = states, width, context
        self.requires_grad_(False)
        self.eval()

    def train(self, mode: bool = True) -> "FrozenBackbone":
        """Stays in eval mode: with dropout the same text would have another score each time."""
        return super().train(False)

    # no_grad, not inference_mode: the head's backward has to keep these features, which inference tensors forbid.
    @torch.no_grad()
    def forward(self, tokens: Tensor, starts: Tensor, lengths: Tensor) -> Tensor:
        """Features of one completion a row: (n, width + 2).

        tokens: (n, length) of int64, padded on the right with anything. Row i's completion is its tokens `starts[i]`
        up to `lengths[i]`; something stands before it. Attention looks to the left alone, so what is on the right of
        a completion cannot change its features.
        The features: the mean state over the completion, then the mean and the largest surprise (minus the
        log-probability) of its tokens.
        """
        states = self.states(tokens)
        exact = torch.promote_types(states.dtype, torch.float32)  # half precision is for matrix products, not for sums
        place = torch.arange(tokens.shape[1], device=tokens.device)
        inside = (place >= starts[:, None]) & (place < lengths[:, None])
        row, column = inside.nonzero(as_tuple=True)
        # Only where a completion is: the logits of all tokens would be the largest tensor by far.
        logits = self.output(states[row, (column - 1).clamp(min=0)])
        surprise = F.cross_entropy(logits.to(exact), tokens[row, column], reduction="none")
        count = inside.sum(1)
        read = states[row, column].to(exact)
        mean = read.new_zeros(len(tokens), self.width).index_add_(0, row, read) / count[:, None]
        mean_surprise = surprise.new_zeros(len(tokens)).index_add_(0, row, surprise) / count
        most_surprise = surprise.new_zeros(len(tokens)).scatter_reduce_(0, row, surprise, "amax")
        return torch.cat([mean, mean_surprise[:, None], most_surprise[:, None]], dim=1)

    def assert_frozen(self) -> None:
        """Raise RuntimeError if a weight could learn, has a gradient, or a part is in training mode."""
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
    """A perceptron with one hidden layer from features (n, features) to rewards (n,)."""

    def __init__(self, features: int, hidden: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(features)
        self.expand = nn.Linear(features, hidden)
        self.reward = nn.Linear(hidden, 1)

    def forward(self, features: Tensor) -> Tensor:
        return self.reward(F.gelu(self.expand(self.norm(features)))).squeeze(-1)
