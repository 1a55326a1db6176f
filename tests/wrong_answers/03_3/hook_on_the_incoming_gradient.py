# mistake: averages what a backward adds: what no_sync has left in .grad stays different on every rank
# state: wrong
# check: equals one process
# message: update 2 (3 micro-batches): the gradient of

from contextlib import contextmanager

import torch
import torch.distributed as dist
from torch import nn


class BucketedDataParallel(nn.Module):
    def __init__(self, module, bucket_megabytes=25.0):
        super().__init__()
        self.module, self.talks, self.under_way = module, True, []
        for tensor in [*module.parameters(), *module.buffers()]:
            dist.broadcast(tensor.detach(), src=0)
        self.buckets, size = [], float("inf")
        for parameter in reversed([p for p in module.parameters() if p.requires_grad]):
            size += parameter.nbytes
            if size > bucket_megabytes * 2**20:
                self.buckets.append([])
                size = parameter.nbytes
            self.buckets[-1].append(parameter)
            bucket = self.buckets[-1]
            parameter.register_hook(lambda gradient, p=parameter, b=bucket: self.gradient_comes(p, b, gradient))
        self.new = {}

    def forward(self, *args, **kwargs):
        return self.module(*args, **kwargs)

    @contextmanager
    def no_sync(self):
        self.talks = False
        yield
        self.talks = True

    def gradient_comes(self, parameter, bucket, gradient):
        if not self.talks:
            return None
        self.new[parameter] = gradient
        if all(p in self.new for p in bucket):
            flat = torch.cat([self.new[p].flatten() for p in bucket]) / dist.get_world_size()
            self.under_way.append((dist.all_reduce(flat, async_op=True), flat, bucket))
        return None

    def finish_gradient_synchronization(self):
        for handle, flat, bucket in self.under_way:
            handle.wait()
            for p, piece in zip(bucket, flat.split([p.numel() for p in bucket]), strict=True):
                p.grad += piece.view_as(p) - self.new[p]  # the own share goes, the mean comes
        self.under_way, self.new = [], {}
