"""Inside a rank, for 24.3: the answer's mixture of experts, and one process that has all tokens and experts."""

import math

import torch
import torch.distributed as dist
from torch import nn

from ddp_course.grader.harness.tensors import largest_gap, random_tensor

WIDTH = 5
CASES = {  # tokens of each rank, the rank of each expert, choices per token, and which experts are chosen (None: any)
    "7 and 4 tokens, experts on ranks 1 0 0 1 0 1": ((7, 4), (1, 0, 0, 1, 0, 1), 2, None),
    "5 and 6 tokens, experts on ranks 1 1 0 1": ((5, 6), (1, 1, 0, 1), 3, None),
    "rank 1 has no tokens": ((6, 0), (0, 1, 1, 0), 2, None),
    "rank 0 has no tokens, one choice": ((0, 5), (1, 0), 1, None),
    "no token chooses the experts of rank 0": ((3, 4), (1, 0, 1, 0), 2, (0, 2)),
    "no tokens at all": ((0, 0), (0, 1), 2, None),
}


def drive(mixture, scenario):
    """One call of the answer and its backward: the inputs of this rank's experts, and the gaps to one process."""
    rank, world = dist.get_rank(), dist.get_world_size()
    token_counts, expert_ranks, choices, allowed = settings(scenario, world)
    batches = [inputs(peer, count, len(expert_ranks), choices, allowed) for peer, count in enumerate(token_counts)]
    for x, _, weights in batches:
        x.requires_grad_()
        weights.requires_grad_()
    all_experts = [Expert(number) for number in range(len(expert_ranks))]
    right = [one_process(*batch, all_experts) for batch in batches]
    sum((y * cotangent(peer, y)).sum() for peer, y in enumerate(right)).backward()
    x, chosen, weights = (tensor.detach().clone() for tensor in batches[rank])
    x.requires_grad_()
    weights.requires_grad_()
    experts = {number: Expert(number) for number, expert_rank in enumerate(expert_ranks) if expert_rank == rank}
    y = mixture(x, chosen, weights, dict(reversed(experts.items())), list(expert_ranks))  # not in the numbers' order
    result = {
        "output": largest_gap(y, right[rank]),
        "y": y,
        "mistakes": wrong_outputs(batches[rank], all_experts),
        "has_graph": torch.is_tensor(y) and y.requires_grad,
        "calls": {number: expert.calls for number, expert in experts.items()},
        "chosen by": {number: tokens_that_chose(number, batches) for number in experts},
    }
    all_have_graph = torch.tensor(int(result["has_graph"] and result["output"] < math.inf))
    dist.all_reduce(all_have_graph, op=dist.ReduceOp.MIN)
    if all_have_graph:  # a rank whose backward sends nothing would let the others wait
        (y * cotangent(rank, y)).sum().backward()
        result |= {
            "x": largest_gap(x.grad, batches[rank][0].grad),
            "weights": largest_gap(weights.grad, batches[rank][2].grad),
        }
        result["experts"] = {number: expert_gap(expert, all_experts[number]) for number, expert in experts.items()}
    return result


def settings(scenario, world):
    """The tokens of each rank, the rank of each expert, the choices per token, and the experts that may be chosen."""
    token_counts, expert_ranks, choices, allowed = CASES[scenario]
    return token_counts[:world], [rank % world for rank in expert_ranks], choices, allowed


class Expert(nn.Module):
    """An expert, whose output depends on its number. It notes the first feature of the tokens of each call."""

    def __init__(self, number):
        super().__init__()
        self.number, self.calls = number, []
        self.weight = nn.Parameter(random_tensor(100 + number, WIDTH, WIDTH))

    def forward(self, x):
        self.calls.append(sorted(round(value, 9) for value in x.detach()[:, 0].tolist()))
        return torch.tanh(x @ self.weight) + self.number


def inputs(rank, token_count, expert_count, choices, allowed):
    """x, chosen and weights of this rank: a token has chosen different experts, in any order."""
    generator = torch.Generator().manual_seed(10 * rank + token_count)
    x = torch.randn(token_count, WIDTH, generator=generator, dtype=torch.float64)
    scores = torch.rand(token_count, expert_count, generator=generator, dtype=torch.float64)
    if allowed is not None:
        scores[:, [number for number in range(expert_count) if number not in allowed]] -= 2
    weights = torch.rand(token_count, choices, generator=generator, dtype=torch.float64)
    return x, scores.argsort(1, descending=True)[:, :choices].contiguous(), weights


def one_process(x, chosen, weights, experts):
    outputs = torch.stack([expert(x) for expert in experts], 1)
    return (weights[..., None] * outputs[torch.arange(len(x))[:, None], chosen]).sum(1)


def wrong_outputs(batch, experts):
    """{description: output} of known mistakes."""
    x, chosen, weights = batch
    return {
        "that of weights which are all 1": one_process(x, chosen, torch.ones_like(weights), experts),
        "that of weights after a softmax": one_process(x, chosen, weights.softmax(1), experts),
        "that of weights divided by their sum": one_process(x, chosen, weights / weights.sum(1, keepdim=True), experts),
    }


def tokens_that_chose(number, batches):
    """The first feature of each token, of all ranks, that has chosen this expert; sorted."""
    features = [x.detach()[(chosen == number).any(1), 0] for x, chosen, _ in batches]
    return sorted(round(value, 9) for value in torch.cat(features).tolist())


def cotangent(rank, y):
    return random_tensor(50 + rank, *y.shape)


def expert_gap(expert, right):
    """The gap of the expert's gradient. A missing gradient counts as zeros: perhaps no token chose the expert."""
    gradient = expert.weight.grad
    return largest_gap(torch.zeros_like(expert.weight) if gradient is None else gradient, right.weight.grad)
