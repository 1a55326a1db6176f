"""Rungs about expert parallelism: each rank has some of the experts, and tokens travel to them. Notebook 24."""

from functools import partial

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from ddp_course.distributed.mesh import Axis
from ddp_course.distributed.process_group import World
from ddp_course.ladder.axes import CUT, add_gradients, all_ranks, divided, share_along, up_to_multiple, updates
from ddp_course.ladder.comparison import Comparison, Rung, Weights, alone, batches, mistake, weights
from ddp_course.ladder.setting import VOCABULARY, Batch, Setting
from ddp_course.ladder.tolerance import reordered

EXPERTS, BEST = 4, 2  # at least so many experts, and how many of them a token takes
BALANCE = 0.1  # weight of the balance loss
EXPERT_WEIGHTS = ("up", "down")


class Travel(torch.autograd.Function):
    """`send[i]` rows go to rank i, `receive[i]` come from it. Backward brings their gradients back."""

    @staticmethod
    def forward(ctx, rows: Tensor, send: list[int], receive: list[int], axis: Axis) -> Tensor:
        ctx.back = receive, send, axis
        return _exchanged(rows, send, receive, axis)

    @staticmethod
    def backward(ctx, gradient: Tensor):
        return _exchanged(gradient, *ctx.back), None, None, None


def _exchanged(rows: Tensor, send: list[int], receive: list[int], axis: Axis) -> Tensor:
    got = rows.new_empty(sum(receive), rows.shape[1])
    dist.all_to_all_single(got, rows.contiguous(), receive, send, group=axis.group)
    return got


class Mixture(nn.Module):
    """A router sends each token to the best of the experts. With an axis, this rank has its part of them."""

    def __init__(self, width: int, experts: int, axis: Axis | None) -> None:
        super().__init__()
        shapes = (width, experts), (experts, width, 2 * width), (experts, 2 * width, width)
        router, up, down = (torch.randn(shape, dtype=torch.float64) / shape[-2] ** 0.5 for shape in shapes)
        self.axis, self.experts, self.own = axis, experts, experts // axis.size if axis else experts
        first = axis.rank * self.own if axis else 0
        held = slice(first, first + self.own)
        self.router, self.up, self.down = (nn.Parameter(tensor.clone()) for tensor in (router, up[held], down[held]))

    def forward(self, x: Tensor) -> Tensor:
        self.probabilities = (x @ self.router).softmax(-1)
        weight, self.chosen = self.probabilities.topk(BEST)
        return (weight[..., None] * (self.travelled(x) if self.axis else self.every(x))).sum(1)

    def every(self, x: Tensor) -> Tensor:
        """(tokens, BEST, width): all experts compute all tokens, and the chosen ones count."""
        outputs = torch.stack([F.gelu(x @ up) @ down for up, down in zip(self.up, self.down, strict=True)], 1)
        return outputs[torch.arange(len(x))[:, None], self.chosen]

    def travelled(self, x: Tensor) -> Tensor:
        """The same: pairs of a token and an expert go to the expert's rank, sorted by expert, and come back."""
        pairs, ranks = self.chosen.flatten(), self.axis.size
        order, load = pairs.argsort(stable=True), pairs.bincount(minlength=self.experts)
        arriving = torch.empty_like(load)
        dist.all_to_all_single(arriving, load, group=self.axis.group)
        send, receive = (counts.view(ranks, -1).sum(1).tolist() for counts in (load, arriving))
        rows = Travel.apply(x.repeat_interleave(BEST, 0)[order], send, receive, self.axis)
        expert = torch.arange(self.own).repeat(ranks).repeat_interleave(arriving)
        by_expert = expert.argsort(stable=True)
        parts = rows[by_expert].split(expert.bincount(minlength=self.own).tolist())
        done = torch.cat([F.gelu(part @ up) @ down for part, up, down in zip(parts, self.up, self.down, strict=True)])
        back = Travel.apply(done[by_expert.argsort()], receive, send, self.axis)
        return back[order.argsort()].view(len(x), BEST, x.shape[1])

    def balance(self, per_rank: bool = False) -> Tensor:
        """This rank's part of experts x sum of f p: f is each expert's share of the choices, p its mean probability.

        Both are means over the global batch: the counts of all ranks are added. The parts add up to the whole.
        """
        counts = torch.cat([self.chosen.flatten().bincount(minlength=self.experts), torch.tensor([len(self.chosen)])])
        if self.axis and not per_rank:
            dist.all_reduce(counts, group=self.axis.group)
        tokens, parts = counts[-1].double(), self.axis.size if per_rank else 1
        return self.experts * (counts[:-1] / (BEST * tokens) * self.probabilities.sum(0) / tokens).sum() / parts


class ExpertModel(nn.Module):
    """Embedding, residual mixtures of experts, and an output layer tied to the embedding."""

    def __init__(self, setting: Setting, experts: int, balance: float, axis: Axis | None = None) -> None:
        super().__init__()
        torch.manual_seed(setting.seed)
        self.table = nn.Parameter(0.3 * torch.randn(VOCABULARY, setting.width, dtype=torch.float64))
        self.mixtures = nn.ModuleList(Mixture(setting.width, experts, axis) for _ in range(setting.layers))
        self.weight, self.per_rank = balance, axis is not None and setting.fault == "balance_per_rank"
        self.global_tokens = setting.tokens

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        """The summed loss, and what the balance adds to its mean, times the tokens of the global batch."""
        x = F.embedding(tokens.flatten(), self.table)
        for mixture in self.mixtures:
            x = x + mixture(x)
        loss = F.cross_entropy(x @ self.table.T, targets.flatten(), reduction="sum")
        balance = sum(mixture.balance(self.per_rank) for mixture in self.mixtures) if self.weight else 0
        return loss + self.weight * self.global_tokens * balance


def experts(setting: Setting, world: World, balance: float = 0.0) -> Comparison:
    """Windows and experts are both spread over the same ranks."""
    joint, axis = batches(setting), all_ranks(world)
    count = up_to_multiple(EXPERTS, axis.size)
    model, one = ExpertModel(setting, count, balance, axis), ExpertModel(setting, count, balance)
    own = [parameter for name, parameter in model.named_parameters() if name.endswith(EXPERT_WEIGHTS)]
    replicated = [parameter for name, parameter in model.named_parameters() if not name.endswith(EXPERT_WEIGHTS)]

    def gradients(batch: Batch) -> None:
        divided(setting, model(*share_along(setting, world, batch, axis)), batch, axis.size).backward()
        add_gradients(setting, replicated, axis)  # not those of the experts: they have seen the tokens of all ranks
        if setting.fault == "experts_divided":
            for parameter in own:
                parameter.grad /= axis.size

    several = updates(joint, model.parameters(), gradients, lambda: gathered(model, axis))
    return Comparison(several, alone(one, joint))


def gathered(model: ExpertModel, axis: Axis) -> Weights:
    """All weights, with the experts of all ranks (collective)."""
    whole = weights(model)
    for name in (name for name in whole if name.endswith(EXPERT_WEIGHTS)):
        parts = [torch.empty_like(whole[name]) for _ in range(axis.size)]
        dist.all_gather(parts, whole[name], group=axis.group)
        whole[name] = torch.cat(parts)
    return whole


TOPIC = "experts"
TRAVELLING = Rung("experts: all-to-all", TOPIC, experts, reordered, CUT)
BALANCED = Rung("experts: balance loss", TOPIC, partial(experts, balance=BALANCE), reordered, CUT)
RUNGS = [
    TRAVELLING,
    BALANCED,
    mistake("experts divided by N", "experts_divided", TRAVELLING,
            "an expert's gradient is complete: its tokens came from all ranks, and the loss was divided by all tokens"),
    mistake("balance loss per rank", "balance_per_rank", BALANCED,
            "the balance loss is a product of means over the batch, and a mean of products is another number"),
]  # fmt: skip
