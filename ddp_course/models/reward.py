"""A reward model: a language model that only reads, and a small head that turns what it read into one number."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ddp_course.base.errors import InputError

Read = Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]


class FrozenBackbone(nn.Module):
    """A language model whose weights never change: no gradients, and eval mode whatever `train()` says.

    output: its last layer. read: tokens (n, length) and the places (k rows, k columns) where logits are wanted ->
    what the last layer reads of all tokens (n, length, width), and the model's logits at these places
    (k, vocabulary): what the last layer gives, and whatever the model does to that.
    """

    def __init__(self, model: nn.Module, output: nn.Module, read: Read, width: int, context: int) -> None:
        super().__init__()
        self.model, self.output = model, output
        self.read, self.width, self.context = read, width, context
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
        The features: the mean state over the completion, then the mean and the largest negative
        log-likelihood of its tokens.
        """
        position = torch.arange(tokens.shape[1], device=tokens.device)
        inside = (position >= starts[:, None]) & (position < lengths[:, None])
        row, column = inside.nonzero(as_tuple=True)
        # Only where a completion is: the logits of all tokens would be the largest tensor by far.
        states, logits = self.read(tokens, row, (column - 1).clamp(min=0))
        exact = torch.promote_types(states.dtype, torch.float32)  # half precision is for matrix products, not for sums
        nll = F.cross_entropy(logits.to(exact), tokens[row, column], reduction="none")
        count = inside.sum(1)
        read = states[row, column].to(exact)
        mean = read.new_zeros(len(tokens), self.width).index_add_(0, row, read) / count[:, None]
        mean_nll = nll.new_zeros(len(tokens)).index_add_(0, row, nll) / count
        largest_nll = nll.new_zeros(len(tokens)).scatter_reduce_(0, row, nll, "amax")
        return torch.cat([mean, mean_nll[:, None], largest_nll[:, None]], dim=1)

    @torch.no_grad()
    def assert_causal(self) -> None:
        """Raise InputError if what stands on the right of a token changes what the model makes of it, or that is NaN.

        Two texts that differ in the last token alone are read: a model that was trained to look to both sides shows
        it here. Rounding is let pass: experts that get another number of tokens may add up in another order.
        """
        earlier = torch.arange(min(8, self.context) - 1, device=next(self.parameters()).device)
        first, second = (
            self.read(torch.cat([earlier, last + len(earlier)])[None], 0 * earlier, earlier)
            for last in torch.arange(2, device=earlier.device)[:, None]
        )
        for outputs in zip(first, second, strict=True):
            a, b = (values.flatten(0, -2)[: len(earlier)].double() for values in outputs)
            if not a.isfinite().all():
                raise InputError("what it makes of a text is not finite")
            if (a - b).abs().max() > 1e-5 * a.abs().max():
                raise InputError("it is no causal language model: a token changes what it makes of earlier ones")

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
    """An MLP with one hidden layer from features (n, features) to rewards (n,)."""

    def __init__(self, features: int, hidden: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(features)
        self.expand = nn.Linear(features, hidden)
        self.reward = nn.Linear(hidden, 1)

    def forward(self, features: Tensor) -> Tensor:
        return self.reward(F.gelu(self.expand(self.norm(features)))).squeeze(-1)
