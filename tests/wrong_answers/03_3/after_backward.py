# mistake: starts the buckets when backward has ended
# state: wrong
# check: talks during backward
# message: started its first message after backward had ended

from contextlib import contextmanager

import torch
import torch.distributed as dist
from torch import nn


class BucketedDataParallel(nn.Module):
    def __init__(self, module, bucket_megabytes=25.0):
        super().__init__()
        self.module, self.talks = module, True
        for tensor in [*module.parameters(), *module.buffers()]:
            dist.broadcast(tensor.detach(), src=0)
        self.buckets, size = [], float("inf")
        for parameter in reversed([p for p in module.parameters() if p.requires_grad]):
            size += parameter.nbytes
            if size > bucket_megabytes * 2**20:
                self.buckets.append([])
                size = parameter.nbytes
            self.buckets[-1].append(parameter)

    def forward(self, *args, **kwargs):
        return self.module(*args, **kwargs)

    @contextmanager
    def no_sync(self):
        self.talks = False
        try:
            yield
        finally:
            self.talks = True

    def finish_gradient_synchronization(self):
        under_way = []
        for bucket in self.buckets:
            flat = torch.cat([p.grad.flatten() for p in bucket])
            under_way.append((dist.all_reduce(flat, async_op=True), flat, bucket))
        for handle, flat, bucket in under_way:
            handle.wait()
            flat /= dist.get_world_size()
            for parameter, piece in zip(bucket, flat.split([p.numel() for p in bucket]), strict=True):
                parameter.grad.copy_(piece.view_as(parameter))
