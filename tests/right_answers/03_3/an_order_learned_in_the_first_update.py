# route: the first update is sent after backward and teaches the order; gradients then live in the flat tensors

import contextlib

import torch
import torch.distributed as dist
from torch import nn


class BucketedDataParallel(nn.Module):
    """The first synchronized backward tells in which order gradients come; buckets are filled in that order."""

    def __init__(self, module, bucket_megabytes=25.0):
        super().__init__()
        self.module, self.room = module, int(bucket_megabytes * 2**20)
        for tensor in list(module.parameters()) + list(module.buffers()):
            dist.broadcast(tensor.data, 0)
        self.came, self.plan, self.sync = [], None, True
        self.handles = []
        for parameter in module.parameters():
            if parameter.requires_grad:
                parameter.register_post_accumulate_grad_hook(self.hook)

    def forward(self, x):
        self.came = []
        return self.module(x)

    @contextlib.contextmanager
    def no_sync(self):
        self.sync = False
        yield
        self.sync = True

    def hook(self, parameter):
        if self.sync:
            self.came.append(parameter)
            if self.plan and len(self.came) == self.plan[len(self.handles)]:
                self.send(self.came[sum(map(len, (b for _, _, b in self.handles))) :])

    def send(self, bucket):
        flat = torch.cat([p.grad.reshape(-1) for p in bucket]).div_(dist.get_world_size())
        self.handles.append((dist.all_reduce(flat, async_op=True), flat, bucket))

    def finish_gradient_synchronization(self):
        if self.plan is None:
            self.plan, used, buckets = [], 0, [[]]
            for number, parameter in enumerate(self.came):
                if used + parameter.nbytes > self.room and buckets[-1]:
                    self.plan.append(number)
                    buckets.append([])
                    used = 0
                buckets[-1].append(parameter)
                used += parameter.nbytes
            self.plan.append(len(self.came))
            for bucket in buckets:
                self.send(bucket)
        for handle, flat, bucket in self.handles:
            handle.wait()
            start = 0
            for parameter in bucket:
                parameter.grad = flat[start : start + parameter.numel()].view(parameter.shape)
                start += parameter.numel()
        self.handles = []
