# route: a thread of its own does the talking, with blocking calls; no nn.Module

import queue
import threading
from contextlib import contextmanager

import torch
import torch.distributed as dist


class BucketedDataParallel:
    """No nn.Module; a thread of ours does the talking, with blocking calls, so backward need not wait."""

    def __init__(self, module, bucket_megabytes=25.0):
        self.module, self.quiet = module, False
        with torch.no_grad():
            for tensor in [*module.parameters(), *module.buffers()]:
                dist.broadcast(tensor, src=0)
        self.group = dist.new_group()
        groups, room = [], 0
        for parameter in list(module.parameters())[::-1]:
            if not parameter.requires_grad:
                continue
            if parameter.nbytes > room:
                groups.append([])
                room = bucket_megabytes * 1024 * 1024
            groups[-1].append(parameter)
            room -= parameter.nbytes
            parameter.register_post_accumulate_grad_hook(self.on_gradient)
        self.groups, self.counts = groups, [0] * len(groups)
        self.group_of = {p: index for index, group in enumerate(groups) for p in group}
        self.to_send = queue.Queue()
        threading.Thread(target=self.talk, daemon=True).start()

    def __call__(self, *args):
        return self.module(*args)

    @contextmanager
    def no_sync(self):
        self.quiet = True
        yield
        self.quiet = False

    def on_gradient(self, parameter):
        if self.quiet:
            return
        index = self.group_of[parameter]
        self.counts[index] += 1
        if self.counts[index] == len(self.groups[index]):
            self.counts[index] = 0
            flat = torch.nn.utils.parameters_to_vector([p.grad for p in self.groups[index]])
            self.to_send.put((flat, self.groups[index]))

    def talk(self):
        world = dist.get_world_size()
        while True:
            flat, group = self.to_send.get()
            if world > 1:
                dist.all_reduce(flat, group=self.group)
            mean = flat / world
            for parameter in group:
                parameter.grad.copy_(mean[: parameter.numel()].view_as(parameter))
                mean = mean[parameter.numel() :]
            self.to_send.task_done()

    def finish_gradient_synchronization(self):
        self.to_send.join()
