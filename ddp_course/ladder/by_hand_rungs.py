"""Rungs about the course's own data parallel wrappers, each with accumulation, tied and frozen weights."""

from collections.abc import Callable
from functools import partial

from torch import nn

from ddp_course.distributed.by_hand import BucketedDataParallel, FlatDataParallel, OverlappedDataParallel
from ddp_course.distributed.process_group import World
from ddp_course.ladder.comparison import Comparison, Rung, compare
from ddp_course.ladder.models import build_part_frozen
from ddp_course.ladder.setting import Setting
from ddp_course.ladder.tolerance import REORDERED

BUCKET_MEGABYTES = 0.004  # small enough for several buckets in the smallest model


def by_hand(setting: Setting, world: World, wrap: Callable[[nn.Module], nn.Module]) -> Comparison:
    """Wrap a model with tied weights and a frozen block by `wrap`, and accumulate two micro-batches."""
    return compare(setting, world, wrap(build_part_frozen(setting)), build_part_frozen(setting), accumulate=2)


def rung(name: str, wrap: Callable[[nn.Module], nn.Module]) -> Rung:
    return Rung(name, "by hand", partial(by_hand, wrap=wrap), REORDERED)


RUNGS = [
    rung("by hand: flat", FlatDataParallel),
    rung("by hand: overlapped", OverlappedDataParallel),
    rung("by hand: bucketed", partial(BucketedDataParallel, bucket_megabytes=BUCKET_MEGABYTES)),
]
