"""The margins of a reward head on pairs of texts, and their validation against the backbone's own likelihood."""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

from ddp_course.base.intervals import resampled
from ddp_course.data.pairs import Pair
from ddp_course.distributed.process_group import World
from ddp_course.distributed.sync import sum_over_ranks
from ddp_course.models.reward import RewardHead
from ddp_course.post_training.reward_model import RewardModel


def features_of(model: RewardModel, pairs: list[Pair]) -> Tensor:
    """The head's input, (2 * pairs, features): the chosen texts, then the rejected ones in the same order."""
    prompts = [pair.prompt for pair in pairs]
    return model.features(prompts + prompts, [pair.chosen for pair in pairs] + [pair.rejected for pair in pairs])


def margins_of(head: torch.nn.Module, features: Tensor) -> Tensor:
    """Reward of the chosen text minus that of the rejected one, (pairs,)."""
    rewards = head(features)
    return rewards[: len(rewards) // 2] - rewards[len(rewards) // 2 :]


@torch.no_grad()
def validate(head: RewardHead, features: Tensor, sources: Tensor, world: World) -> dict[str, float]:
    """Loss, accuracy and margin of the held-out pairs, the same at any world size (collective).

    features: of this rank's pairs. sources: the number of its source file for each held-out pair of all ranks.
    baseline: the share of pairs that the backbone ranks correctly, by its mean log-likelihood per token. gained: the
    share that the head ranks correctly and the baseline does not; lost: the reverse. gain_low and gain_high: the
    interval of gained - lost.
    """
    margins = margins_of(head, features)
    right = margins > 0
    chosen_nll, rejected_nll = features[:, -2].chunk(2)  # the mean negative log-likelihoods, see FrozenBackbone.forward
    likelier = chosen_nll < rejected_nll
    names = ("loss", "accuracy", "margin", "baseline", "gained", "lost")
    values = (-F.logsigmoid(margins), right, margins, likelier, right & ~likelier, likelier & ~right)
    *sums, count = sum_over_ranks(world, *(value.sum() for value in values), len(margins))
    # Pairs of one file are alike, so the interval resamples files: their sums and counts, over all ranks.
    by_source = torch.zeros(2, int(sources.max()) + 1, dtype=torch.float64, device=margins.device)
    gains = right.double() - likelier.double()
    local_sources = sources[world.rank :: world.size].to(margins.device)
    by_source.index_add_(1, local_sources, torch.stack([gains, torch.ones_like(gains)]))
    dist.all_reduce(by_source)
    gain = resampled(*by_source.cpu().numpy(), draws=1000)
    interval = {"gain_low": gain.low, "gain_high": gain.high}
    return dict(zip(names, (total / count for total in sums), strict=True)) | interval | {"pairs": count}


def source_numbers(pairs: list[Pair]) -> Tensor:
    """The number of each pair's source file, from 0: (pairs,). A pair without a source gets a number of its own."""
    numbers: dict[str | int, int] = {}
    return torch.tensor([numbers.setdefault(pair.source or index, len(numbers)) for index, pair in enumerate(pairs)])
