"""Two warnings of the notebooks come true on two ranks, and do not with the line that the notebook gives."""

import pytest
import warm

SCRIPT = """
import json, os, sys, threading, time
from datetime import timedelta
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.distributed.nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils._python_dispatch import TorchDispatchMode

dist.init_process_group("gloo", timeout=timedelta(seconds=120))
rank = dist.get_rank()
shared = torch.empty(3 * 256**2)


def error_of_gradients(own_buffer):
    torch.manual_seed(1)
    layers = torch.nn.Sequential(*(torch.nn.Linear(256, 256, bias=False) for _ in range(3)))
    expected = [torch.zeros(256, 256) for _ in layers]
    for number in range(2):  # the mean, in one process
        layers.zero_grad()
        layers(torch.full((1, 256), number + 1.0)).sum().backward()
        expected = [mean + layer.weight.grad / 2 for mean, layer in zip(expected, layers)]
    replica = DistributedDataParallel(layers, bucket_cap_mb=0.1)

    def hook(_, bucket):
        time.sleep(0.2 * rank)  # rank 1 comes late, and rank 0 has filled the buffer again
        buffer = torch.empty_like(bucket.buffer()) if own_buffer else shared[: bucket.buffer().numel()]
        buffer.copy_(bucket.buffer() / 2)
        return dist.all_reduce(buffer, async_op=True).get_future().then(lambda sent: sent.value()[0])

    replica.register_comm_hook(None, hook)
    for _ in range(2):  # in the first step all gradients are in one bucket
        replica.zero_grad()
        replica(torch.full((1, 256), rank + 1.0)).sum().backward()
    return max((layer.weight.grad - mean).abs().max().item() for layer, mean in zip(layers, expected))


class PlannedWithAMessage(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        if func.namespace == "c10d":
            planned.set()
        return result


class LateOnRank1(dcp.FileSystemWriter):
    def prepare_local_plan(self, plan):
        if rank == 1:
            planned.set()
            sent.wait()  # the thread's first message follows the gradient here, and comes before it on rank 0
        else:
            PlannedWithAMessage().__enter__()  # in this thread alone
        return super().prepare_local_plan(plan)


def sum_of_gradients(own_group):
    training = dist.new_group(timeout=timedelta(seconds=120 if own_group else 5))  # only in one group they wait in vain
    group = dist.new_group(timeout=timedelta(seconds=120)) if own_group else training
    gradient, writer = torch.full((2,), rank + 1.0), LateOnRank1(f"{sys.argv[1]}/{own_group}")
    saved = dcp.async_save({"x": torch.ones(1)}, storage_writer=writer, process_group=group)
    planned.wait()
    work = dist.all_reduce(gradient, group=training, async_op=True)
    sent.set()
    try:
        work.wait()
        saved.result()
        return gradient.tolist()
    except (RuntimeError, dcp.api.CheckpointException) as error:
        return str(error)


report = {"hook": [error_of_gradients(own_buffer) for own_buffer in (True, False)]}
for own_group in (True, False):
    planned, sent = threading.Event(), threading.Event()
    report.setdefault("save", []).append(sum_of_gradients(own_group))
print(json.dumps(report), flush=True)
os._exit(0)  # the thread of the last save still waits
"""


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    folder = tmp_path_factory.mktemp("promises")
    (folder / "script.py").write_text(SCRIPT)
    return warm.ranks(folder / "script.py", folder, nproc=2).results


def test_a_hook_that_fills_a_buffer_again_before_its_message_has_gone_gives_wrong_gradients(results):
    for rank in range(2):
        own, shared = results[rank]["hook"]
        assert own < 1e-5 and shared > 1


def test_a_save_in_the_background_needs_a_process_group_of_its_own(results):
    for rank in range(2):
        own, trainings = results[rank]["save"]
        assert own == [3.0, 3.0] and trainings != own
