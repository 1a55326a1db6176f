"""A mixture of experts that are spread over ranks: tokens travel to their experts, and what these make of them back.

Lepikhin et al., "GShard" (2020); the balance loss as in Fedus et al., "Switch Transformers" (2021).
"""

from collections.abc import Sequence

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from ddp_course.distributed.mesh import Axis
from ddp_course.distributed.tensor_parallel import Cut


class Travel(torch.autograd.Function):
    """`send[i]` rows go to rank i of the axis, `receive[i]` come from it. Backward brings their gradients back."""

    @staticmethod
    def forward(ctx, rows: Tensor, send: list[int], receive: list[int], axis: Axis) -> Tensor:
        ctx.back = receive, send, axis
        return _exchanged(rows, send, receive, axis)

    @staticmethod
    def backward(ctx, gradient: Tensor) -> tuple[Tensor, None, None, None]:
        return _exchanged(gradient, *ctx.back), None, None, None


def _exchanged(rows: Tensor, send: list[int], receive: list[int], axis: Axis) -> Tensor:
    got = rows.new_empty(sum(receive), rows.shape[1])
    dist.all_to_all_single(got, rows.contiguous(), receive, send, group=axis.group)
    return got


class Mixture(nn.Module):
    """A router sends each token to the `best` of the experts, MLPs of two layers. All of them here, until `spread`.

    After a forward pass `choices` has how often each expert was chosen, and `probabilities` the router's, summed over
    the tokens: (experts,) each, of this rank.
    """

    def __init__(self, width: int, hidden: int, experts: int, best: int, std: float = 0.02) -> None:
        super().__init__()
        self.experts, self.best, self.axis, self.cuts = experts, best, None, {}
        self.router = nn.Linear(width, experts, bias=False)
        self.up = nn.Parameter(torch.empty(experts, width, hidden))
        self.down = nn.Parameter(torch.empty(experts, hidden, width))
        for weights in self.parameters():
            nn.init.normal_(weights, std=std)

    def spread(self, axis: Axis) -> None:
        """Keep this rank's experts; `cuts` tells which parameters have become parts. Before an optimizer knows them."""
        self.axis, self.cuts = axis, {"up": Cut(0), "down": Cut(0)}
        self.up, self.down = (
            nn.Parameter(Cut(0).part(whole.detach(), axis.rank, axis.size).clone()) for whole in (self.up, self.down)
        )

    def forward(self, x: Tensor) -> Tensor:
        tokens = x.flatten(0, -2)
        probabilities = self.router(tokens).softmax(-1, torch.promote_types(x.dtype, torch.float32))
        weights, chosen = probabilities.topk(self.best)
        self.choices, self.probabilities = chosen.flatten().bincount(minlength=self.experts), probabilities.sum(0)
        return (weights[..., None] * self.computed(tokens, chosen)).sum(1).view_as(x)

    def computed(self, tokens: Tensor, chosen: Tensor) -> Tensor:
        """(tokens, best, width): what each token's experts make of it.

        Pairs of a token and an expert go to the expert's rank, sorted by expert, and come back. The ranks tell each
        other first how many there will be.
        """
        ranks, own = self.axis.size, self.experts // self.axis.size
        pairs = chosen.flatten()
        order, load = pairs.argsort(stable=True), pairs.bincount(minlength=self.experts)
        arriving = torch.empty_like(load)  # of each rank, for each of my experts
        dist.all_to_all_single(arriving, load, group=self.axis.group)
        send, receive = (counts.view(ranks, -1).sum(1).tolist() for counts in (load, arriving))
        rows = Travel.apply(tokens.repeat_interleave(self.best, 0)[order], send, receive, self.axis)
        expert = torch.arange(own, device=rows.device).repeat(ranks).repeat_interleave(arriving)
        by_expert = expert.argsort(stable=True)
        parts = rows[by_expert].split(expert.bincount(minlength=own).tolist())
        done = torch.cat([F.gelu(part @ up) @ down for part, up, down in zip(parts, self.up, self.down, strict=True)])
        back = Travel.apply(done[by_expert.argsort()], receive, send, self.axis)
        return back[order.argsort()].view(len(tokens), self.best, tokens.shape[1])


def balance_loss(mixtures: Sequence[Mixture], choices: Tensor, tokens: float) -> Tensor:
    """This rank's part of the sum over the layers of experts x sum of f p. The parts of all ranks add up to it.

    f is an expert's share of the choices, p the router's mean probability for it, both over the `tokens` of the global
    batch. A product of means is no mean of products: `choices`, (layers, experts), are of all ranks. Only p has a
    gradient; this rank knows its own tokens' part of it.
    """
    shares = choices.double() / choices.sum(1, keepdim=True)
    parts = [
        mixture.experts * (share.to(mixture.probabilities) * mixture.probabilities / tokens).sum()
        for mixture, share in zip(mixtures, shares, strict=True)
    ]
    return torch.stack(parts).sum()


def add_gradients(parameters: list[nn.Parameter], group: dist.ProcessGroup) -> None:
    """Sum over the ranks of the group, in one message."""
    gradients = [parameter.grad for parameter in parameters]
    together = torch.cat([gradient.flatten() for gradient in gradients])
    dist.all_reduce(together, group=group)
    for gradient, part in zip(gradients, together.split([g.numel() for g in gradients]), strict=True):
        gradient.copy_(part.view_as(gradient))
