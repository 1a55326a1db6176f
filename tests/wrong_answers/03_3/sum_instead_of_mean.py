# mistake: does not divide by the number of ranks
# state: wrong
# check: equals one process
# message: 2.00 times as large

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
            parameter.register_post_accumulate_grad_hook(self.gradient_is_ready)
        self.bucket_of = {p: number for number, bucket in enumerate(self.buckets) for p in bucket}
        self.get_ready()

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
        for handle, flat, bucket in self.under_way:
            handle.wait()
            for parameter, piece in zip(bucket, flat.split([p.numel() for p in bucket]), strict=True):
                parameter.grad.copy_(piece.view_as(parameter))
        self.get_ready()

    def get_ready(self):
        self.missing = [len(bucket) for bucket in self.buckets]
        self.under_way = []

    def gradient_is_ready(self, parameter):
        if not self.talks:
            return
        number = self.bucket_of[parameter]
        self.missing[number] -= 1
        if self.missing[number] == 0:
            bucket = self.buckets[number]
            flat = torch.cat([p.grad.flatten() for p in bucket])
            self.under_way.append((dist.all_reduce(flat, async_op=True), flat, bucket))
