"""Three ranks train, and one of them needs longer in one part of its steps. Each writes its profile into a folder."""

import json
import random
import sys
import time
from datetime import timedelta

import torch
import torch.distributed as dist
import torch.distributed.nn  # imported later, by the profiler, it would keep the group alive past its end
from torch import nn
from torch.profiler import ProfilerActivity, profile, record_function

STEPS, PARTS = 7, ("input", "forward", "backward")


def train(slow, part):
    """Rank `slow` sleeps 30 ms in `part` of each step."""
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model = nn.Linear(64, 64)

    def work(name, milliseconds):
        time.sleep((milliseconds + 30 * ((rank, name) == (slow, part))) / 1e3)

    for _ in range(STEPS):
        with record_function("step"):
            with record_function("input"):
                inputs = torch.randn(16, 64)
                work("input", 5)
            with record_function("forward"):
                loss = model(inputs).square().mean()
                work("forward", 10)
            with record_function("backward"):  # all messages leave at the end of backward, and then it waits
                loss.backward()
                work("backward", 20)
                sent = [dist.all_reduce(parameter.grad, async_op=True) for parameter in model.parameters()]
                for message in sent:
                    message.wait()
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter -= 0.1 * parameter.grad / world
                    parameter.grad = None


def record(slow, part, path):
    dist.barrier()
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        train(slow, part)
    profiler.export_chrome_trace(path)


def main(folder, seed):
    dist.init_process_group("gloo", timeout=timedelta(seconds=60))
    luck = random.Random(seed)
    slow, part = luck.randrange(dist.get_world_size()), luck.choice(PARTS)
    record(slow, part, f"{folder}/rank{dist.get_rank()}.json")
    if dist.get_rank() == 0:
        print(json.dumps({"slow": slow, "part": part}))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]) if sys.argv[2:] else 5)
