"""Pairs of texts through a reward head: its margins, and their validation against the backbone's own likelihood."""

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
    """The head's input: (2 * pairs, features), the chosen first, then the rejected in the same order."""
    prompts = [pair.prompt for pair in pairs]
    return model.features(prompts + prompts, [pair.chosen for pair in pairs] + [pair.rejected for pair in pairs])


def margins_of(head: torch.nn.Module, features: Tensor) -> Tensor:
    """Reward of the chosen minus that of the rejected, (pairs,)."""
    rewards = head(features)
    return rewards[: len(rewards) // 2] - rewards[len(rewards) // 2 :]


@torch.no_grad()
def validate(head: RewardHead, features: Tensor, sources: Tensor, world: World) -> dict[str, float]:
    """Loss, accuracy and margin of held-out pairs, each pair counted once; the same at any world size.

    baseline: the share that needs no head, where the backbone finds the chosen text likelier, by the mean over its
    tokens. gained: the share that the head ranks correctly and the baseline does not; lost: the reverse. gain_low and
    gain_high: the interval of gained - lost. sources: of each held-out pair, the number of the file it comes from.
    """
    margins = margins_of(head, features)
    right = margins > 0
    chosen, rejected = features[:, -2].chunk(2)
    likelier = chosen < rejected  # of negative log-likelihoods
    names = ("loss", "accuracy", "margin", "baseline", "gained", "lost")
    values = (-F.logsigmoid(margins), right, margins, likelier, right & ~likelier, likelier & ~right)
    *sums, count = sum_over_ranks(world, *(value.sum() for value in values), len(margins))
    # Pairs of one file are alike, so the interval resamples files: their sums and counts, over all ranks.
    by_source = torch.zeros(2, int(sources.max()) + 1, dtype=torch.float64, device=margins.device)
    gains = right.double() - likelier.double()
    own = sources[world.rank :: world.size].to(margins.device)
    by_source.index_add_(1, own, torch.stack([gains, torch.ones_like(gains)]))
    dist.all_reduce(by_source)
    gain = resampled(*by_source.cpu().numpy(), draws=1000)
    interval = {"gain_low": gain.low, "gain_high": gain.high}
    return dict(zip(names, (total / count for total in sums), strict=True)) | interval | {"pairs": count}


def source_numbers(pairs: list[Pair]) -> Tensor:
    """The number of each pair's source, from 0; a pair without one is a source of its own."""
    numbers: dict[str | int, int] = {}
    return torch.tensor([numbers.setdefault(pair.source or index, len(numbers)) for index, pair in enumerate(pairs)])
