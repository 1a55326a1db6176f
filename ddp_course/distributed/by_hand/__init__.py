"""Data parallel training built by hand: three ways to average gradients, and two ways to shard the training state.

Read in this order: broadcast, replica, message, flat, overlapped, bucketed; then sharded_optimizer, sharded_muon,
fully_sharded.
"""

from ddp_course.distributed.by_hand.bucketed import BucketedDataParallel
from ddp_course.distributed.by_hand.flat import FlatDataParallel
from ddp_course.distributed.by_hand.fully_sharded import FullyShardedLayer, full_state_dict, fully_shard_by_hand
from ddp_course.distributed.by_hand.overlapped import OverlappedDataParallel
from ddp_course.distributed.by_hand.sharded_muon import newton_schulz_flops, sharded_muon
from ddp_course.distributed.by_hand.sharded_optimizer import ShardedOptimizer

__all__ = [
    "BucketedDataParallel",
    "FlatDataParallel",
    "FullyShardedLayer",
    "OverlappedDataParallel",
    "ShardedOptimizer",
    "full_state_dict",
    "fully_shard_by_hand",
    "newton_schulz_flops",
    "sharded_muon",
]
