"""A mixture of experts with the experts sharded over ranks: tokens are sent to their experts and the results back.

Lepikhin et al., "GShard" (2020); the balance loss as in Fedus et al., "Switch Transformers" (2021).
"""

from collections.abc import Sequence

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from ddp_course.distributed.mesh import Axis, all_reduce_flat
from ddp_course.distributed.tensor_parallel import Enter, Leave, Placement, shard


class AllToAll(torch.autograd.Function):
    """All-to-all: send[i] rows go to rank i of the axis, receive[i] rows come from it. Backward reverses it."""

    @staticmethod
    def forward(ctx, rows: Tensor, send: list[int], receive: list[int], axis: Axis) -> Tensor:
        ctx.reverse = receive, send, axis
        return _exchange(rows, send, receive, axis)

    @staticmethod
    def backward(ctx, gradient: Tensor) -> tuple[Tensor, None, None, None]:
        return _exchange(gradient, *ctx.reverse), None, None, None


def _exchange(rows: Tensor, send: list[int], receive: list[int], axis: Axis) -> Tensor:
    received = rows.new_empty(sum(receive), rows.shape[1])
    dist.all_to_all_single(received, rows.contiguous(), receive, send, group=axis.group)
    return received


class Experts(nn.Module):
    """`count` MLPs of two layers. `shard_over` shards them over ranks."""

    def __init__(self, width: int, hidden: int, count: int) -> None:
        super().__init__()
        self.up = nn.Parameter(torch.empty(count, width, hidden))
        self.down = nn.Parameter(torch.empty(count, hidden, width))
        self.tensor, self.placements = None, {}

    def shard_over(self, axis: Axis, tensor: Axis | None) -> None:
        """Keep this rank's experts of `axis`, and with `tensor` only a part of their units."""
        self.tensor, whole_experts = tensor, {axis: Placement(0)}
        for name, units in {"up": 2, "down": 1}.items():
            self.placements[name] = whole_experts | ({tensor: Placement(units)} if tensor else {})
            setattr(self, name, shard(self.placements[name], getattr(self, name)))

    def forward(self, rows: Tensor, counts: list[int]) -> Tensor:
        """Compute rows (n, width) that are sorted by expert; `counts` has the number of rows of each of its experts."""
        rows = Enter.apply(rows, self.tensor.group) if self.tensor else rows
        parts = zip(rows.split(counts), self.up, self.down, strict=True)
        outputs = torch.cat([F.gelu(part @ up) @ down for part, up, down in parts])
        return Leave.apply(outputs, self.tensor.group) if self.tensor else outputs


class Mixture(nn.Module):
    """A mixture of experts: a router sends each token to some of them. `shard_over` shards the experts over ranks.

    After a forward pass, `choices` counts how often each expert was chosen and `probabilities` holds the router's
    probabilities summed over the tokens: (experts,) each, of this rank. `load` adds up the choices of all forward
    passes that were followed by a backward pass. `bias` is added to the probabilities to choose the experts, not to
    weight their outputs.
    """

    def __init__(self, width: int, hidden: int, experts: int, experts_per_token: int, std: float = 0.02) -> None:
        super().__init__()
        self.count, self.experts_per_token = experts, experts_per_token
        self.axis, self.load = None, 0
        self.experts = Experts(width, hidden, experts)
        self.router = nn.Linear(width, experts, bias=False)
        self.register_buffer("bias", torch.zeros(experts), persistent=False)  # saved by the trainer that changes it
        for weights in self.parameters():
            nn.init.normal_(weights, std=std)

    def shard_over(self, axis: Axis, tensor: Axis | None = None) -> None:
        """Keep this rank's experts, with `tensor` only a part of their units. Make the optimizer afterwards."""
        self.axis = axis
        self.experts.shard_over(axis, tensor)

    def forward(self, x: Tensor) -> Tensor:
        tokens = x.flatten(0, -2)
        weight = self.router.weight.view_as(self.router.weight)  # a view, whose hook belongs to this pass only
        probabilities = F.linear(tokens, weight).softmax(-1, torch.promote_types(x.dtype, torch.float32))
        chosen = (probabilities + self.bias).topk(self.experts_per_token).indices
        # The ranks of `tensor` add up outputs of the same rows. In a pipeline's trial run they have different inputs.
        if self.experts.tensor:
            dist.broadcast(chosen, group=self.experts.tensor.group, group_src=0)
        weights = probabilities.gather(-1, chosen)
        self.choices = chosen.flatten().bincount(minlength=self.count)
        self.probabilities = probabilities.sum(0)
        if weight.requires_grad:  # counted with its gradient: not in recomputed passes, nor in a pipeline's trial run
            weight.register_hook(lambda _, choices=self.choices: self.add_load(choices))
        return (weights[..., None] * self.expert_outputs(tokens, chosen)).sum(1).view_as(x).to(x.dtype)

    def add_load(self, choices: Tensor) -> None:
        """Add the choices of a forward pass to the load of this step."""
        self.load = self.load + choices

    def expert_outputs(self, tokens: Tensor, chosen: Tensor) -> Tensor:
        """The outputs of each token's experts: (tokens, experts_per_token, width).

        Pairs of a token and an expert are sent to the expert's rank, sorted by expert, and the outputs are sent back.
        The ranks first exchange the counts.
        """
        ranks, local = self.axis.size, self.count // self.axis.size
        order = chosen.flatten().argsort(stable=True)
        arriving = torch.empty_like(self.choices)  # rows from each rank for each of this rank's experts
        dist.all_to_all_single(arriving, self.choices, group=self.axis.group)
        send, receive = (counts.view(ranks, -1).sum(1).tolist() for counts in (self.choices, arriving))
        rows = AllToAll.apply(tokens.repeat_interleave(self.experts_per_token, 0)[order], send, receive, self.axis)
        expert = torch.arange(local, device=rows.device).repeat(ranks).repeat_interleave(arriving)
        by_expert = expert.argsort(stable=True)
        computed = self.experts(rows[by_expert], expert.bincount(minlength=local).tolist())
        outputs = AllToAll.apply(computed[by_expert.argsort()], receive, send, self.axis)
        return outputs[order.argsort()].view(len(tokens), self.experts_per_token, tokens.shape[1])


def balance_loss(mixtures: Sequence[Mixture], choices: Tensor, tokens: float) -> Tensor:
    """This rank's part of the balance loss; the sum of the parts over all ranks is the loss.

    The loss is the sum over layers of E * sum(f * p) over the E experts. f is an expert's share of the choices, p the
    router's mean probability for it, both over the `tokens` of the global batch. `choices`, (layers, experts), has to
    be summed over all ranks, because a product of means is not a mean of products. Only p has a gradient, and this
    rank adds the part of its own tokens.
    """
    shares = choices.double() / choices.sum(1, keepdim=True)
    parts = [
        mixture.count * (share.to(mixture.probabilities) * mixture.probabilities / tokens).sum()
        for mixture, share in zip(mixtures, shares, strict=True)
    ]
    return torch.stack(parts).sum()


@torch.no_grad()
def step_router_biases(mixtures: Sequence[Mixture], axes: Sequence[Axis], rate: float) -> float:
    """Lower the bias of experts that were chosen more often than the mean in this step, raise that of the others.

    axes: those over which the tokens of a step are divided. Loads are summed over them, because the biases have to stay
    equal on all ranks. Collective. Returns the largest ratio, over all layers, of an expert's load to the layer's mean.
    DeepSeek-AI, "DeepSeek-V3" (2024), section 2.1.2.
    """
    loads = torch.stack([mixture.load for mixture in mixtures])
    for axis in axes:
        dist.all_reduce(loads, group=axis.group)
    ratios = loads.double() / loads.double().mean(1, keepdim=True)
    for mixture, ratio in zip(mixtures, ratios, strict=True):
        mixture.bias -= rate * (ratio - 1).sign()
        mixture.load = 0
    dist.all_reduce(largest := ratios.max(), dist.ReduceOp.MAX)  # other pipeline stages have other layers
    return largest.item()


def add_gradients(parameters: list[nn.Parameter], group: dist.ProcessGroup) -> None:
    """Sum the gradients over the ranks of the group, in one all-reduce."""
    all_reduce_flat([parameter.grad for parameter in parameters], group)
