"""Runs the lines that cause the messages of notebooks/symptoms.md, and prints {message: torch's text} as JSON."""

import json
import os
import subprocess
import sys
import threading
import warnings
from datetime import timedelta
from pathlib import Path
from tempfile import mkdtemp

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.tensor import distribute_tensor
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, default_collate
from torch.utils.data.distributed import DistributedSampler

FOLDER = Path(mkdtemp())


def join(backend="gloo"):
    dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)


def on_gpus_only():
    join("cuda:gloo")
    try:
        dist.all_reduce(torch.ones(1))
    finally:
        dist.destroy_process_group()


def spawned():
    script = FOLDER / "spawn.py"
    script.write_text("import torch.multiprocessing as mp\n\n\ndef work(rank):\n    pass\n\n\nmp.spawn(work)\n")
    raise RuntimeError(subprocess.run([sys.executable, script], capture_output=True, text=True).stderr)


def after_a_timeout():
    store, groups = dist.HashStore(), {}

    def meet(rank):
        groups[rank] = dist.ProcessGroupGloo(store, rank, 2, timedelta(seconds=1))

    threads = [threading.Thread(target=meet, args=(rank,)) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    try:
        groups[0].allreduce([torch.ones(1)]).wait()
    except RuntimeError:
        groups[0].allreduce([torch.ones(1)]).wait()


class TwoHeads(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(1, 1), nn.Linear(1, 1)

    def forward(self, x, both):
        return self.first(x) + self.second(x) if both else self.first(x)


def changing(**options):
    replica = DistributedDataParallel(TwoHeads(), **options)
    for both in (True, False, False):
        replica(torch.ones(1, 1), both).sum().backward()


def scaled(parameter, call):
    scaler = torch.amp.GradScaler("cpu")
    scaler.scale(torch.ones(1))
    getattr(scaler, call)(torch.optim.SGD([parameter], lr=1))


def half():
    weight = nn.Parameter(torch.ones(1, dtype=torch.float16))
    weight.grad = torch.ones_like(weight)
    return weight


def adamw(count):
    return torch.optim.AdamW([nn.Parameter(torch.ones(1)) for _ in range(count)])


def added_to_a_shard():
    layer = nn.Linear(4, 4)
    fully_shard(layer, mesh=dist.init_device_mesh("cpu", (1,)))
    return layer.weight + torch.ones(4, 4)


def read(content):
    (FOLDER / "file.pt").write_bytes(content)
    torch.load(FOLDER / "file.pt", weights_only=True)


def configuration():
    torch.save({"path": FOLDER}, FOLDER / "object.pt")
    torch.load(FOLDER / "object.pt", weights_only=True)


def other_shape_in_backward():
    rows, weight = [4, 3], torch.ones(4, 4, requires_grad=True)
    checkpoint(lambda x: (x[: rows.pop(0)] @ weight).relu().sum(), torch.ones(4, 4), use_reentrant=False).backward()


def two_dtypes():
    blocks = nn.Sequential(nn.Linear(1, 1, dtype=torch.bfloat16), nn.Linear(1, 1))
    FullyShardedDataParallel(blocks, device_id=torch.device("cpu"))


def norm_over_two_meshes():
    meshes = dist.init_device_mesh("cpu", (1,)), dist.init_device_mesh("cpu", (1, 1))
    weights = [nn.Parameter(distribute_tensor(torch.ones(1), mesh)) for mesh in meshes]
    for weight in weights:
        weight.grad = torch.ones_like(weight)
    nn.utils.clip_grad_norm_(weights, 1.0)


def other_keys():
    dcp.save({"a": torch.ones(1)}, checkpoint_id=FOLDER / "keys")
    dcp.load({"b": torch.ones(1)}, checkpoint_id=FOLDER / "keys")


def frozen():
    return nn.Linear(1, 1).requires_grad_(False)


WITHOUT_GROUP = {  # without an initialized process group
    "Default process group has not been initialized, please make sure to call init_process_group.": lambda: (
        DistributedSampler(range(4))
    ),
    "Error initializing torch.distributed using env:// rendezvous: environment variable RANK expected, but not set": (
        lambda: dist.init_process_group("gloo")
    ),
    "KeyError: 'LOCAL_RANK'": lambda: os.environ["LOCAL_RANK"],
    "Distributed package doesn't have NCCL built in": lambda: join("nccl"),
    "No backend type associated with device type cpu": on_gpus_only,
    "An attempt has been made to start a new process before the current process has finished its bootstrapping "
    "phase.": spawned,
    "Application timeout caused pair closure": after_a_timeout,
    "CheckpointException ranks:dict_keys([0])": lambda: dcp.load({}, checkpoint_id=FOLDER),
}
WITH_GROUP = {
    "trying to initialize the default process group twice!": join,
    "DistributedDataParallel device_ids and output_device arguments only work with single-device/multiple-device GPU "
    "modules or CPU modules, but got device_ids [0], output_device None, and module parameters {device(type='cpu')}.": (
        lambda: DistributedDataParallel(nn.Linear(1, 1), device_ids=[0])
    ),
    "This error indicates that your training graph has changed in this iteration, e.g., one parameter is used in first "
    "iteration, but then got unused in the second iteration. this is not compatible with static_graph set to True.": (
        lambda: changing(static_graph=True)
    ),
    "Expected to have finished reduction in the prior iteration before starting a new one. This error indicates that "
    "your module has parameters that were not used in producing loss.": changing,
    "element 0 of tensors does not require grad and does not have a grad_fn": lambda: frozen()(
        torch.ones(1, 1)
    ).backward(),
    "DistributedDataParallel is not needed when a module doesn't have any parameter that requires a gradient.": (
        lambda: DistributedDataParallel(frozen())
    ),
    "SyncBatchNorm layers only work with GPU modules": lambda: DistributedDataParallel(nn.SyncBatchNorm(1)),
    "'DistributedDataParallel' object has no attribute 'generate'": lambda: (
        DistributedDataParallel(nn.Linear(1, 1)).generate
    ),
    "got mixed torch.Tensor and DTensor, need to convert all torch.Tensor to DTensor before calling distributed "
    "operators!": added_to_a_shard,
    "All operands in aten.stack.default must have the same mesh": norm_over_two_meshes,
    "mat1 and mat2 must have the same dtype, but got Float and BFloat16": lambda: nn.Linear(1, 1, dtype=torch.bfloat16)(
        torch.ones(1, 1)
    ),
    "Must flatten tensors with uniform dtype but got torch.bfloat16 and torch.float32": two_dtypes,
    "Only Tensors of floating point and complex dtype can require gradients": lambda: nn.Parameter(
        torch.ones(1, dtype=torch.uint8)
    ),
    "Recomputed values for the following tensors have different metadata than during the forward "
    "pass.": other_shape_in_backward,
    "FSDP needs a non-CPU accelerator device, but no accelerator device is detected.": lambda: FullyShardedDataParallel(
        nn.Linear(1, 1)
    ),
    "stack expects each tensor to be equal size, but got [2] at entry 0 and [3] at entry 1": lambda: default_collate(
        [torch.ones(2), torch.ones(3)]
    ),
    "No inf checks were recorded for this optimizer.": lambda: scaled(nn.Parameter(torch.ones(1)), "step"),
    "Attempting to unscale FP16 gradients.": lambda: scaled(half(), "unscale_"),
    "None of the inputs have requires_grad=True. Gradients will be None": lambda: checkpoint(
        nn.Linear(1, 1), torch.ones(1, 1), use_reentrant=True
    ),
    "Detected call of `lr_scheduler.step()` before `optimizer.step()`.": lambda: torch.optim.lr_scheduler.StepLR(
        adamw(1), 1
    ).step(),
    "This DataLoader will create 8 worker processes in total. Our suggested max number of worker in current system is "
    "2, which is smaller than what this DataLoader is going to create.": lambda: DataLoader(
        [0], num_workers=4 * os.cpu_count()
    ),
    "Cannot copy out of meta tensor; no data! Please use torch.nn.Module.to_empty() instead of torch.nn.Module.to() "
    "when moving module from meta to a different device.": lambda: nn.Linear(1, 1, device="meta").to("cpu"),
    'Unexpected key(s) in state_dict: "module.weight", "module.bias".': lambda: nn.Linear(1, 1).load_state_dict(
        DistributedDataParallel(nn.Linear(1, 1)).state_dict()
    ),
    "size mismatch for weight: copying a param with shape torch.Size([1, 1]) from checkpoint, the shape in current "
    "model is torch.Size([1, 2]).": lambda: nn.Linear(2, 1).load_state_dict(nn.Linear(1, 1).state_dict()),
    "copying a param with shape torch.Size([0]) from checkpoint": lambda: nn.Linear(1, 1).load_state_dict(
        {"weight": torch.ones(0), "bias": torch.ones(1)}
    ),
    "Missing key in checkpoint state_dict": other_keys,
    "loaded state dict contains a parameter group that doesn't match the size of optimizer's group": lambda: adamw(
        1
    ).load_state_dict(adamw(2).state_dict()),
    "PytorchStreamReader failed reading zip archive: failed finding central directory.": lambda: read(
        b"PK\3\4" + bytes(1000)
    ),
    "Weights only load failed.": configuration,
}


def output_of(line) -> str:
    """The exception and the warnings of a call, as Python prints them."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            line()
            texts = []
        except (Exception, dcp.api.CheckpointException) as error:
            texts = [f"{type(error).__name__}: {error}"]
    return " ".join([*texts, *(str(warning.message) for warning in caught)])


if __name__ == "__main__":
    texts = {message: output_of(line) for message, line in WITHOUT_GROUP.items()}
    join()
    texts |= {message: output_of(line) for message, line in WITH_GROUP.items()}
    print(json.dumps(texts), flush=True)
    os._exit(0)  # DDP's replicas still hold the group
