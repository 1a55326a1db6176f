"""Inside a rank, for 24.3: the answer sends tokens to experts, and one process that has all of these."""

import torch
import torch.distributed as dist
from torch import nn

WIDTH, INFINITE = 5, float("inf")
CASES = {  # tokens of each rank, the rank of each expert, choices per token, and which experts are chosen (None: any)
    "7 and 4 tokens, experts on ranks 1 0 0 1 0 1": ((7, 4), (1, 0, 0, 1, 0, 1), 2, None),
    "5 and 6 tokens, experts on ranks 1 1 0 1": ((5, 6), (1, 1, 0, 1), 3, None),
    "rank 1 has no tokens": ((6, 0), (0, 1, 1, 0), 2, None),
    "rank 0 has no tokens, one choice": ((0, 5), (1, 0), 1, None),
    "nobody chooses the experts of rank 0": ((3, 4), (1, 0, 1, 0), 2, (0, 2)),
    "no tokens at all": ((0, 0), (0, 1), 2, None),
}


def drive(mixture, scenario):
    """One call and its backward. Returns the input of this rank's experts, and the gaps to one process."""
    rank, world = dist.get_rank(), dist.get_world_size()
    tokens, home, choices, among = of_case(scenario, world)
    batches = [inputs(other, count, len(home), choices, among) for other, count in enumerate(tokens)]
    for x, _, weights in batches:
        x.requires_grad_(), weights.requires_grad_()
    every = [Expert(number) for number in range(len(home))]
    right = [one_process(*batch, every) for batch in batches]
    sum((y * cotangent(other, y)).sum() for other, y in enumerate(right)).backward()
    x, chosen, weights = (tensor.detach().clone() for tensor in batches[rank])
    x.requires_grad_(), weights.requires_grad_()
    experts = {number: Expert(number) for number in range(len(home)) if home[number] == rank}
    y = mixture(x, chosen, weights, dict(reversed(experts.items())), list(home))  # in no order of the numbers
    result = {
        "output": gap(y, right[rank]),
        "y": y,
        "likely": likely(batches[rank], every),
        "tracked": torch.is_tensor(y) and y.requires_grad,
        "handed": {number: expert.calls for number, expert in experts.items()},
        "chosen by": {number: choosers(number, batches) for number in experts},
    }
    fit = torch.tensor(int(result["tracked"] and result["output"] < INFINITE))
    dist.all_reduce(fit, op=dist.ReduceOp.MIN)
    if fit:  # on all ranks, or one would wait for another that has nothing to go back through
        (y * cotangent(rank, y)).sum().backward()
        result |= {"x": gap(x.grad, batches[rank][0].grad), "weights": gap(weights.grad, batches[rank][2].grad)}
        result["experts"] = {number: expert_gap(expert, every[number]) for number, expert in experts.items()}
    return result


def of_case(scenario, world):
    """Tokens of each rank, the rank of each expert, choices per token, experts that are chosen."""
    tokens, home, choices, among = CASES[scenario]
    return tokens[:world], [rank % world for rank in home], choices, among


class Expert(nn.Module):
    """Writes down the tokens that it is handed, and adds its number: each expert does something of its own."""

    def __init__(self, number):
        super().__init__()
        generator = torch.Generator().manual_seed(100 + number)
        self.number, self.calls = number, []
        self.weight = nn.Parameter(torch.randn(WIDTH, WIDTH, generator=generator, dtype=torch.float64))

    def forward(self, x):
        self.calls.append(sorted(round(value, 9) for value in x.detach()[:, 0].tolist()))
        return torch.tanh(x @ self.weight) + self.number


def inputs(rank, tokens, count, choices, among):
    """x, chosen and weights of this rank: chosen are different experts, in any order."""
    generator = torch.Generator().manual_seed(10 * rank + tokens)
    x = torch.randn(tokens, WIDTH, generator=generator, dtype=torch.float64)
    scores = torch.rand(tokens, count, generator=generator, dtype=torch.float64)
    if among is not None:
        scores[:, [number for number in range(count) if number not in among]] -= 2
    weights = torch.rand(tokens, choices, generator=generator, dtype=torch.float64)
    return x, scores.argsort(1, descending=True)[:, :choices].contiguous(), weights


def one_process(x, chosen, weights, experts):
    outputs = torch.stack([expert(x) for expert in experts], 1)
    return (weights[..., None] * outputs[torch.arange(len(x))[:, None], chosen]).sum(1)


def likely(batch, experts):
    """Known wrong outputs: {in words: the output}."""
    x, chosen, weights = batch
    return {
        "that of weights which are all 1": one_process(x, chosen, torch.ones_like(weights), experts),
        "that of weights divided by their sum": one_process(x, chosen, weights / weights.sum(1, keepdim=True), experts),
    }


def choosers(number, batches):
    """The first numbers of all tokens that have chosen this expert."""
    chose = [x.detach()[(chosen == number).any(1), 0] for x, chosen, _ in batches]
    return sorted(round(value, 9) for value in torch.cat(chose).tolist())


def cotangent(rank, y):
    return torch.randn(y.shape, generator=torch.Generator().manual_seed(50 + rank), dtype=torch.float64)


def expert_gap(expert, right):
    """An expert that nobody has chosen may have no gradient."""
    gradient = expert.weight.grad
    return gap(torch.zeros_like(expert.weight) if gradient is None else gradient, right.weight.grad)


def gap(tensor, right):
    """The largest difference; infinite if it is missing, NaN or of another shape."""
    if not torch.is_tensor(tensor) or tensor.shape != right.shape:
        return INFINITE
    gaps = (tensor - right).detach().abs().nan_to_num(nan=INFINITE, posinf=INFINITE)
    return gaps.max().item() if gaps.numel() else 0.0
