"""A batch of prompts and completions with log-probabilities and rewards, and its metrics."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from ddp_course.distributed.process_group import World
from ddp_course.distributed.sync import sum_over_ranks
from ddp_course.post_training.grpo import kl_estimate, mean_over_tokens


@dataclass(frozen=True)
class Batch:
    """One rank's sequences of a round of sampling, padded on the right to the `length` of the longest.

    tokens      (sequences, length) of int64: prompt, completion, padding
    counted     (sequences, length - 1) of bool: predictions that belong to the completion
    old         (sequences, length - 1): log-probabilities under the policy before the optimizer steps of the round
    reference   (sequences, length - 1): under the frozen reference
    entropy     (sequences, length - 1): of the policy's distribution, in nats
    rewards     (sequences,)
    advantages  (sequences,)
    better      (sequences,): 1 for what should become likelier, -1 for what should become less likely, 0 for neither
    """

    tokens: Tensor
    counted: Tensor
    old: Tensor
    reference: Tensor
    entropy: Tensor
    rewards: Tensor
    advantages: Tensor
    better: Tensor

    def parts(self, size: int) -> Iterator["Batch"]:
        """Split into micro-batches of at most `size` sequences."""
        for part in zip(*(tensor.split(size) for tensor in vars(self).values()), strict=True):
            yield Batch(*part)


def padded(
    prompts: Sequence[Sequence[int]], completions: Sequence[Sequence[int]], device: torch.device
) -> tuple[Tensor, Tensor]:
    """`tokens` and `counted` of a Batch. Padding is 0 and on the right, where causal attention does not see it."""
    texts = [[*prompt, *completion] for prompt, completion in zip(prompts, completions, strict=True)]
    tokens = pad_sequence([torch.tensor(text, dtype=torch.int64) for text in texts], batch_first=True).to(device)
    predicted = torch.arange(1, tokens.shape[1], device=device)
    starts, ends = (torch.tensor([len(ids) for ids in group], device=device)[:, None] for group in (prompts, texts))
    return tokens, (starts <= predicted) & (predicted < ends)


def compute_metrics(batch: Batch, distinct: int, world: World) -> dict[str, float]:
    """Compute metrics of the global batch (collective): sums and counts are reduced, then divided.

    distinct: this rank's number of completions that differ from all earlier ones of their group.

    sequences, tokens: counts; only tokens of completions. reward, length (in tokens), distinct: means over the
    sequences. kl (to the reference), entropy: means over the tokens. r_margin, lp_margin, kl_margin: the mean over
    the sequences with `better` 1 less that over those with -1, of the reward, of the mean log-probability of a token,
    and of that less the reference's; 0 if either group is empty.
    """
    log_probs = mean_over_tokens(batch.old, batch.counted)
    log_ratios = log_probs - mean_over_tokens(batch.reference, batch.counted)
    kl = kl_estimate(batch.old, batch.reference)
    sums = {
        "sequences": len(batch.tokens),
        "tokens": batch.counted.sum(),
        "reward": batch.rewards.sum(),
        "distinct": distinct,
        "kl": kl.where(batch.counted, 0).sum(),
        "entropy": batch.entropy.where(batch.counted, 0).sum(),
    }
    for side, chosen in (("better", batch.better > 0), ("worse", batch.better < 0)):
        columns = {"count": chosen, "r": batch.rewards, "lp": log_probs, "kl": log_ratios}
        sums |= {f"{side} {name}": values.where(chosen, 0).sum() for name, values in columns.items()}
    total = dict(zip(sums, sum_over_ranks(world, *sums.values()), strict=True))
    sequences = total["sequences"]
    tokens = max(1, total["tokens"])
    metrics = {
        "sequences": sequences,
        "tokens": tokens,
        "reward": total["reward"] / sequences,
        "length": tokens / sequences,
        "distinct": total["distinct"] / sequences,
        "kl": total["kl"] / tokens,
        "entropy": total["entropy"] / tokens,
    }
    both = total["better count"] and total["worse count"]
    for name in ("r", "lp", "kl"):
        better, worse = (total[f"{side} {name}"] / max(1, total[f"{side} count"]) for side in ("better", "worse"))
        metrics[f"{name}_margin"] = better - worse if both else 0.0
    return metrics
