# mistake: broadcasts what a checkpoint holds: not every buffer is in it
# state: wrong
# check: starts as rank 0
# message: after construction shift on rank 1 is

from contextlib import contextmanager

import torch
import torch.distributed as dist
from torch import nn


class BucketedDataParallel(nn.Module):
    """Averages the gradients of `module` over the ranks, bucket by bucket, while backward is running."""

    def __init__(self, module, bucket_megabytes=25.0):
        super().__init__()
        self.module = module
        for tensor in module.state_dict().values():
            dist.broadcast(tensor, src=0)
        self.talks = True
        self.buckets, size = [], float("inf")
        for parameter in reversed([p for p in module.parameters() if p.requires_grad]):  # backward starts at the end
            size += parameter.nbytes
            if size > bucket_megabytes * 2**20:
                self.buckets.append([])
                size = parameter.nbytes
            self.buckets[-1].append(parameter)
            parameter.register_post_accumulate_grad_hook(self.gradient_is_ready)
        self.bucket_of = {p: number for number, bucket in enumerate(self.buckets) for p in bucket}
        self.get_ready()

    def forward(self, *args, **kwargs):
        return self.module(*args, **kwargs)

    @contextmanager
    def no_sync(self):
        """Backward passes inside add to .grad and send nothing."""
        self.talks = False
        try:
            yield
        finally:
            self.talks = True

    def finish_gradient_synchronization(self):
        """After the last backward of an update: return when every .grad is the mean over the ranks."""
        for handle, flat, bucket in self.under_way:
            handle.wait()
            flat /= dist.get_world_size()
            for parameter, piece in zip(bucket, flat.split([p.numel() for p in bucket]), strict=True):
                parameter.grad.copy_(piece.view_as(parameter))
        self.get_ready()

    def get_ready(self):
        self.missing = [len(bucket) for bucket in self.buckets]
        self.under_way = []

    def gradient_is_ready(self, parameter):
        """Called by autograd, in the middle of backward, when parameter.grad is complete."""
        if not self.talks:
            return
        number = self.bucket_of[parameter]
        self.missing[number] -= 1
        if self.missing[number] == 0:
            bucket = self.buckets[number]
            flat = torch.cat([p.grad.flatten() for p in bucket])
            self.under_way.append((dist.all_reduce(flat, async_op=True), flat, bucket))
