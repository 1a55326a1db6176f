"""Inside a rank, for 19.2: call the learner's function with a tiny policy and this rank's completions."""

import torch
import torch.distributed as dist
from torch import nn

VOCABULARY, LENGTH = 8, 10  # LENGTH: tokens of the longest completion
CLIP, EPSILON = 0.2, 1e-4  # EPSILON is added to the spread of a group


class Policy(nn.Module):
    """The log-probability of each token, given the one before: (n, LENGTH) -> (n, LENGTH). The same on every rank."""

    def __init__(self, shift=0.0):
        super().__init__()
        self.table, self.out = nn.Embedding(VOCABULARY, 6).double(), nn.Linear(6, VOCABULARY).double()
        self.rows = 0  # completions that were scored
        with torch.no_grad():
            for parameter in self.parameters():
                shifted = torch.linspace(-1.9, 1.8, parameter.numel()) + shift
                parameter.copy_(shifted.sin().view_as(parameter))

    def forward(self, tokens):
        self.rows += len(tokens)
        previous = torch.cat([torch.zeros_like(tokens[:, :1]), tokens[:, :-1]], dim=1)
        logits = self.out(self.table(previous).tanh())
        return logits.log_softmax(-1).gather(-1, tokens[..., None]).squeeze(-1)


def data(rank, prompts, rewards, lengths, beyond="zeros"):
    """tokens, mask, old, rewards, prompts of one rank: a completion for each entry of the lists.

    Behind the end of a completion `old` is 0; with beyond="minus infinity" it is -inf, on odd ranks nan.
    """
    generator = torch.Generator().manual_seed(800 + rank)
    tokens = torch.randint(VOCABULARY, (len(prompts), LENGTH), generator=generator)
    mask = torch.arange(LENGTH) < torch.tensor(lengths, dtype=torch.int64)[:, None]
    with torch.no_grad():
        old = Policy(0.35)(tokens)
    old = old.masked_fill(~mask, 0.0 if beyond == "zeros" else torch.nan if rank % 2 else -torch.inf)
    return tokens, mask, old, torch.tensor(rewards, dtype=torch.float64), torch.tensor(prompts, dtype=torch.int64)


def drive(function, shares, beyond):
    """(loss, gradients, completions scored) of the learner's function; shares: (prompts, rewards, lengths) by rank."""
    policy = Policy()
    for parameter in policy.parameters():
        parameter.grad = torch.ones_like(parameter)  # of another loss
    loss, gradients = function(policy, *data(dist.get_rank(), *shares[dist.get_rank()], beyond))
    return [loss, list(gradients), policy.rows]


# ---- the right result, and wrong ones by which a wrong answer is recognised -----------------------------------------


def by_group(rewards, prompts, correction=1):
    """The right advantages; with correction=0 the variance is divided by n, not by n - 1."""
    advantages = torch.zeros_like(rewards)
    for prompt in prompts.unique():
        members = prompts == prompt
        group = rewards[members]
        if group.min() < group.max():
            advantages[members] = (group - group.mean()) / (group.std(correction=correction) + EPSILON)
    return advantages


def divided_by_n(rewards, prompts):
    return by_group(rewards, prompts, correction=0)


def not_divided(rewards, prompts):
    return rewards - (prompts[:, None] == prompts).double() @ rewards / (prompts[:, None] == prompts).sum(1)


def over_the_batch(rewards, prompts):
    return (rewards - rewards.mean()) / (rewards.std() + EPSILON)


def clipped(ratio, advantage, choose=torch.minimum):
    return choose(ratio * advantage, ratio.clamp(1 - CLIP, 1 + CLIP) * advantage)


def equal_tokens(mask, ranks, world):
    """The weight of each token of a completion: here 1 / the number of tokens on all ranks."""
    return torch.ones(len(mask), dtype=torch.float64) / mask.sum()


def tokens_of_the_rank(mask, ranks, world):
    counts = torch.stack([mask[ranks == rank].sum() for rank in range(world)])
    return (1 / (counts.clamp(min=1) * world).double())[ranks]


def equal_completions(mask, ranks, world):
    return 1 / (mask.sum(1).clamp(min=1) * len(mask)).double()


def padding_counted(mask, ranks, world):
    return torch.ones(len(mask), dtype=torch.float64) / mask.numel()


def one_process(shares, beyond="zeros", advantages=by_group, token_weights=equal_tokens, surrogate=clipped):
    """(loss, gradients) of one process with the completions of all ranks; a mistake replaces one of the functions."""
    parts = [data(rank, *share, beyond) for rank, share in enumerate(shares)]
    tokens, mask, old, rewards, prompts = (torch.cat(part) for part in zip(*parts, strict=True))
    ranks = torch.cat([torch.full((len(part[0]),), rank) for rank, part in enumerate(parts)])
    policy = Policy()
    ratio = torch.exp(torch.where(mask, policy(tokens) - old, 0.0))
    advantage = advantages(rewards, prompts)[:, None]
    terms = torch.where(mask, surrogate(ratio, advantage), 0.0)
    loss = -(terms * token_weights(mask, ranks, len(shares))[:, None]).sum()
    gradients = torch.autograd.grad(loss, list(policy.parameters()))
    return loss.item(), list(gradients)


MISTAKES = {  # arguments of one_process
    "each rank dividing by its own tokens": {"token_weights": tokens_of_the_rank},
    "each completion counting the same, however long it is": {"token_weights": equal_completions},
    "the padding counted as tokens": {"token_weights": padding_counted},
    "the rewards of the whole batch standardised, not of a group": {"advantages": over_the_batch},
    "advantages that are not divided by the spread": {"advantages": not_divided},
    "a spread whose variance is divided by n, not by n - 1": {"advantages": divided_by_n},
    "no clipping": {"surrogate": lambda ratio, advantage: ratio * advantage},
    "the clipped ratio alone, without the minimum": {
        "surrogate": lambda *factors: clipped(*factors, lambda _, term: term)
    },
    "the maximum in place of the minimum": {"surrogate": lambda *factors: clipped(*factors, torch.maximum)},
}
