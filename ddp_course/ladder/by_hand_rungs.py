"""Rungs about the course's own data parallel wrappers, each with accumulation, tied and frozen weights."""

from ddp_course.distributed.by_hand import BucketedDataParallel, FlatDataParallel, OverlappedDataParallel
from ddp_course.distributed.process_group import World
from ddp_course.ladder.comparison import Comparison, Rung, compare
from ddp_course.ladder.models import build_part_frozen
from ddp_course.ladder.setting import Setting
from ddp_course.ladder.tolerance import REORDERED, reordered

BUCKET_MEGABYTES = 0.004  # small enough for several buckets in the smallest model


def flat(setting: Setting, world: World) -> Comparison:
    """All gradients in one message, after backward."""
    return by_hand(setting, world, FlatDataParallel)


def overlapped(setting: Setting, world: World) -> Comparison:
    """One message per parameter, sent while backward is still running."""
    return by_hand(setting, world, OverlappedDataParallel)


def bucketed(setting: Setting, world: World) -> Comparison:
    """One message per bucket, sent when the bucket is full."""
    return by_hand(setting, world, lambda model: BucketedDataParallel(model, bucket_megabytes=BUCKET_MEGABYTES))


def by_hand(setting: Setting, world: World, wrap) -> Comparison:
    return compare(setting, world, wrap(build_part_frozen(setting)), build_part_frozen(setting), accumulate=2)


RUNGS = [
    Rung("by hand: flat", "by hand", flat, reordered, REORDERED),
    Rung("by hand: overlapped", "by hand", overlapped, reordered, REORDERED),
    Rung("by hand: bucketed", "by hand", bucketed, reordered, REORDERED),
]
