"""Measured steps of DDP on two ranks, in which computation and messages are sleeps of known length.

DDP itself is real: its buckets, its backward, no_sync, all-reduces during backward. But the all-reduce of a bucket is
held back for as long as a ring over `ranks` machines would take, one bucket after the other.
Arguments: the names of cases; default: all.
"""

import json
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.nn  # before there is a process group: notebook 04
from torch import nn
from torch.nn.parallel import DistributedDataParallel

KIB, MIB = 2**10, 2**20
COMMON = {"forward": 0.02, "optimizer": 0.01, "bucket_cap_mb": 0.25, "accumulation": 1}
COMMON |= {"ranks": 2, "latency": 0.0, "bits_per_second": 1e9}
# gradients: (bytes, seconds that backward takes for it), in backward's order
CASES = {
    "one machine": dict(
        COMMON, gradients=[(64 * KIB, 0.02)] * 3, forward=0.03, optimizer=0.08, accumulation=2, ranks=1, latency=0.05
    ),
    "cable and computation equally busy": dict(
        COMMON, gradients=[(256 * KIB, 0.025)] * 8, latency=0.0025, bits_per_second=8 * 12.8 * MIB
    ),
    "a slow cable, 8 machines": dict(
        COMMON, gradients=[(256 * KIB, 0.005)] * 8, bucket_cap_mb=0.5, ranks=8, bits_per_second=8 * 15 * MIB
    ),
    "a long way, 4 machines": dict(
        COMMON, gradients=[(125 * KIB, 0.003)] * 6, ranks=4, latency=0.005, bits_per_second=8 * 150 * MIB
    ),
    "a large gradient comes last": dict(
        COMMON, gradients=[(48 * KIB, 0.02)] * 5 + [(MIB, 0.01)], bucket_cap_mb=0.04, bits_per_second=8 * 10 * MIB
    ),
    "one bucket": dict(COMMON, gradients=[(512 * KIB, 0.02)] * 4, bucket_cap_mb=25, bits_per_second=8 * 20 * MIB),
    "3 micro-batches": dict(
        COMMON, gradients=[(256 * KIB, 0.015)] * 4, forward=0.03, accumulation=3, bits_per_second=8 * 6 * MIB
    ),
    "the default buckets": dict(
        COMMON,
        gradients=[(MIB, 0.02), (24 * MIB, 0.02), (MIB, 0.14), (MIB, 0.02)],
        bucket_cap_mb=None,
        bits_per_second=8 * 140 * MIB,
    ),
}
CERTAIN = 0.03  # a case is repeated until its seconds are known to 3 %
SLOWED = [1, 1, 1, 2, 2, 4, 4]  # factors of all sleeps, by repetition: in a longer step lost seconds weigh less


class Layer(torch.autograd.Function):
    """Changes nothing; its backward takes `seconds`."""

    @staticmethod
    def forward(ctx, x, weight, seconds):
        ctx.weight, ctx.seconds = weight, seconds
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient):
        until = time.perf_counter() + ctx.seconds
        made = torch.ones_like(ctx.weight)
        sleep_until(until)
        return gradient, made, None


class Model(nn.Module):
    def __init__(self, case):
        super().__init__()
        self.case, self.slowed = case, 0  # slowed: how many times as long as in the case a sleep is
        self.late = 0.0  # seconds by which real all-reduces took longer than those of the case
        self.weights = nn.ParameterList(torch.zeros(size // 4) for size, _ in reversed(case["gradients"]))
        self.seconds = [seconds for _, seconds in reversed(case["gradients"])]

    def forward(self, x):
        for weight, seconds in zip(self.weights, self.seconds, strict=True):
            x = Layer.apply(x, weight, seconds * self.slowed)
        time.sleep(self.case["forward"] * self.slowed)
        return x


def sleep_until(when):
    time.sleep(max(0.0, when - time.perf_counter()))


def on_the_cable(model, bucket):
    """Average a bucket over the two real ranks, and hold it back until the ring of the case would be through."""
    case, average = model.case, bucket.buffer()
    hop = case["latency"] + average.nbytes / case["ranks"] / (case["bits_per_second"] / 8)
    until = time.perf_counter() + 2 * (case["ranks"] - 1) * hop * model.slowed
    dist.all_reduce(average)
    average /= dist.get_world_size()
    model.late += max(0.0, time.perf_counter() - until)
    sleep_until(until)
    return average


def step(model, case, threads):
    """The seconds of one optimizer step, and those that it can have lost to other programs, if it were not slowed."""
    dist.barrier()
    model.module.late = 0.0
    start, waited = time.perf_counter(), waited_for_cores(threads)
    for micro in range(case["accumulation"]):
        with nullcontext() if micro == case["accumulation"] - 1 else model.no_sync():
            model(torch.ones(1, requires_grad=True)).backward()
    time.sleep(case["optimizer"] * model.module.slowed)
    model.zero_grad()
    seconds = torch.tensor(time.perf_counter() - start, dtype=torch.float64)
    lost = torch.tensor(waited_for_cores(threads) - waited + model.module.late, dtype=torch.float64)
    dist.all_reduce(seconds, op=dist.ReduceOp.MAX)  # a step is as long as on its slowest rank
    dist.all_reduce(lost)
    return seconds.item() / max(1, model.module.slowed), lost.item() / max(1, model.module.slowed)


def waited_for_cores(threads):
    """Seconds in which these threads could have run and had no core. Linux counts them; elsewhere 0."""
    files = [Path(f"/proc/self/task/{thread}/schedstat") for thread in threads]
    return sum(int(file.read_text().split()[1]) for file in files if file.exists()) / 1e9


def measured(case):
    """The seconds of a step, and how many of them it can have lost to other programs.

    Sleeps last too long at times, never too short: the quickest step counts. What a step took beyond what it lost is
    the least that it could have taken.
    """
    model, cable = Model(case), ThreadPoolExecutor(max_workers=1)  # one message after the other
    threads = [threading.get_native_id(), cable.submit(threading.get_native_id).result()]
    wrapped = DistributedDataParallel(model, bucket_cap_mb=case["bucket_cap_mb"], gradient_as_bucket_view=True)

    def hook(_, bucket):
        sent = torch.futures.Future()
        cable.submit(lambda: sent.set_result(on_the_cable(model, bucket)))
        return sent

    wrapped.register_comm_hook(None, hook)
    step(wrapped, case, threads)  # DDP forms its buckets after the first step
    took, least = [], 0.0
    for model.slowed in SLOWED:
        seconds, lost = step(wrapped, case, threads)
        took, least = sorted([*took, seconds]), max(least, seconds - lost)
        quickest = took[0]
        if len(took) > 1 and max(took[1] - quickest, quickest - least) <= CERTAIN * quickest:
            break
    cable.shutdown()
    return quickest, max(0.0, quickest - least)


def main():
    dist.init_process_group("gloo", timeout=timedelta(seconds=60))
    for name in sys.argv[1:] or CASES:
        seconds, lost = measured(CASES[name])
        if dist.get_rank() == 0:
            print(json.dumps({name: {"seconds": seconds, "lost": lost, "facts": CASES[name]}}), flush=True)


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
    dist.destroy_process_group()  # when main has let go of the models: DDP must not outlive its group
