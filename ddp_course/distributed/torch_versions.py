"""Differences between the supported versions of torch, 2.11 to 2.15: new names of functions, and behaviour."""

import inspect

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

# 2.11, 2.12: only the names on the right. 2.13, 2.14: both; the names on the right warn that they are deprecated.
# 2.15: both, without a warning.
all_gather_single = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
reduce_scatter_single = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor

# 2.15: each step of a pipeline's schedule may ask all stages, by an all-reduce of 4 bytes, whether shapes are known.
VOTES_PER_PIPELINE_STEP = int(torch.__version__ >= (2, 15))


def forward_sync_buffers(on: bool) -> dict[str, bool]:
    """The keyword argument of DDP that decides whether a forward pass broadcasts rank 0's buffers.

    2.13 and later: `forward_sync_buffers`, and `broadcast_buffers` warns of its deprecation. 2.11, 2.12:
    `broadcast_buffers`; if False, DDP does not broadcast the buffers at its start either.
    """
    exists = "forward_sync_buffers" in inspect.signature(DistributedDataParallel).parameters
    return {"forward_sync_buffers" if exists else "broadcast_buffers": on}


def hides_buffer_copies() -> bool:
    """Whether DDP hides from autograd that a forward pass copies rank 0's buffers over the others'.

    2.12 and later: yes. 2.11: no, and two forward passes before one backward pass raise "modified by an inplace
    operation".
    """
    return "_unsafe_preserve_version_counter" in inspect.getsource(DistributedDataParallel._sync_buffers)


def has_shutdown_timeout() -> bool:
    """Whether torchrun has a flag for the time from SIGTERM to SIGKILL. 2.13 and later: yes. 2.11: always 30 s."""
    from torch.distributed.launcher.api import LaunchConfig  # loads much that no rank needs

    return "shutdown_timeout" in inspect.signature(LaunchConfig).parameters


def without_first_messages(stage):
    """Keep a PipelineStage from sending messages before its first step; returns `stage`, which it changes.

    Needed on a rank that has two neighbouring stages.

    2.11: neighbours exchange a message, and a rank with two stages next to each other, as in a V, sends one to
    itself, which gloo refuses. 2.13 and later: no such message. torch does not document this method.
    """
    stage._get_init_p2p_neighbors_ops = lambda: []
    return stage
