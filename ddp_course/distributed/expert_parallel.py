"""A mixture of experts with the experts sharded over ranks: tokens are sent to their experts and the results back.

Lepikhin et al., "GShard" (2020); the balance loss as in Fedus et al., "Switch Transformers" (2021).
"""

from collections.abc import Sequence

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from ddp_course.distributed.mesh import Axis
from ddp_course.distributed.tensor_parallel import Placement


class AllToAll(torch.autograd.Function):
    """All-to-all: send[i] rows go to rank i of the axis, receive[i] rows come from it. Backward reverses it."""

    @staticmethod
    def forward(ctx, rows: Tensor, send: list[int], receive: list[int], axis: Axis) -> Tensor:
        ctx.reverse = receive, send, axis
        return _exchanged(rows, send, receive, axis)

    @staticmethod
    def backward(ctx, gradient: Tensor) -> tuple[Tensor, None, None, None]:
        return _exchanged(gradient, *ctx.reverse), None, None, None


def _exchanged(rows: Tensor, send: list[int], receive: list[int], axis: Axis) -> Tensor:
    received = rows.new_empty(sum(receive), rows.shape[1])
    dist.all_to_all_single(received, rows.contiguous(), receive, send, group=axis.group)
    return received


class Mixture(nn.Module):
    """A router sends each token to its `best` experts, MLPs of two layers. `spread` shards the experts over ranks.

    After a forward pass, `choices` counts how often each expert was chosen and `probabilities` holds the router's
    probabilities summed over the tokens: (experts,) each, of this rank.
    """

    def __init__(self, width: int, hidden: int, experts: int, best: int, std: float = 0.02) -> None:
        super().__init__()
        self.experts, self.best, self.axis, self.placements = experts, best, None, {}
        self.router = nn.Linear(width, experts, bias=False)
        self.up = nn.Parameter(torch.empty(experts, width, hidden))
        self.down = nn.Parameter(torch.empty(experts, hidden, width))
        for weights in self.parameters():
            nn.init.normal_(weights, std=std)

    def spread(self, axis: Axis) -> None:
        """Keep this rank's experts; `placements` names the sharded parameters. Call it before making the optimizer."""
        self.axis, self.placements = axis, {"up": Placement(0), "down": Placement(0)}
        self.up, self.down = (
            nn.Parameter(Placement(0).shard(whole.detach(), axis.rank, axis.size).clone())
            for whole in (self.up, self.down)
        )

    def forward(self, x: Tensor) -> Tensor:
        tokens = x.flatten(0, -2)
        probabilities = self.router(tokens).softmax(-1, torch.promote_types(x.dtype, torch.float32))
        weights, chosen = probabilities.topk(self.best)
        self.choices, self.probabilities = chosen.flatten().bincount(minlength=self.experts), probabilities.sum(0)
        return (weights[..., None] * self.computed(tokens, chosen)).sum(1).view_as(x)

    def computed(self, tokens: Tensor, chosen: Tensor) -> Tensor:
        """The outputs of each token's experts: (tokens, best, width).

        Pairs of a token and an expert are sent to the expert's rank, sorted by expert, and the outputs are sent back.
        The ranks first exchange the counts.
        """
        ranks, local = self.axis.size, self.experts // self.axis.size
        pairs = chosen.flatten()
        order, load = pairs.argsort(stable=True), pairs.bincount(minlength=self.experts)
        arriving = torch.empty_like(load)  # tokens from each rank for each of this rank's experts
        dist.all_to_all_single(arriving, load, group=self.axis.group)
        send, receive = (counts.view(ranks, -1).sum(1).tolist() for counts in (load, arriving))
        rows = AllToAll.apply(tokens.repeat_interleave(self.best, 0)[order], send, receive, self.axis)
        expert = torch.arange(local, device=rows.device).repeat(ranks).repeat_interleave(arriving)
        by_expert = expert.argsort(stable=True)
        parts = rows[by_expert].split(expert.bincount(minlength=local).tolist())
        done = torch.cat([F.gelu(part @ up) @ down for part, up, down in zip(parts, self.up, self.down, strict=True)])
        outputs = AllToAll.apply(done[by_expert.argsort()], receive, send, self.axis)
        return outputs[order.argsort()].view(len(tokens), self.best, tokens.shape[1])


def balance_loss(mixtures: Sequence[Mixture], choices: Tensor, tokens: float) -> Tensor:
    """This rank's part of the balance loss: the sum over layers of experts x sum of f p. Summed over ranks it is whole.

    f is an expert's share of the choices, p the router's mean probability for it, both over the `tokens` of the global
    batch. `choices`, (layers, experts), has to be summed over all ranks, because a product of means is not a mean of
    products. Only p has a gradient, and this rank adds the part of its own tokens.
    """
    shares = choices.double() / choices.sum(1, keepdim=True)
    parts = [
        mixture.experts * (share.to(mixture.probabilities) * mixture.probabilities / tokens).sum()
        for mixture, share in zip(mixtures, shares, strict=True)
    ]
    return torch.stack(parts).sum()


def add_gradients(parameters: list[nn.Parameter], group: dist.ProcessGroup) -> None:
    """Sum the gradients over the ranks of the group, in one all-reduce."""
    gradients = [parameter.grad for parameter in parameters]
    flat = torch.cat([gradient.flatten() for gradient in gradients])
    dist.all_reduce(flat, group=group)
    for gradient, part in zip(gradients, flat.split([g.numel() for g in gradients]), strict=True):
        gradient.copy_(part.view_as(gradient))
