# route: two files that are overwritten in turn, no rename; each rank keeps its random state in a file of its own

import json
import os
import zlib
from pathlib import Path

import torch
import torch.distributed as dist


def write(path, state):
    torch.save(state, path.with_suffix(".data"))
    content = path.with_suffix(".data").read_bytes()
    with open(path, "wb") as file:
        file.write(json.dumps([state["step"], len(content), zlib.crc32(content)]).encode() + b"\n" + content)
        file.flush()
        os.fdatasync(file.fileno())
    with open(path.with_suffix(".data"), "rb") as file:
        os.fsync(file.fileno())


def read(path):
    try:
        head, _, content = path.read_bytes().partition(b"\n")
        step, size, checksum = json.loads(head)
    except (OSError, ValueError):
        return None
    if len(content) != size or zlib.crc32(content) != checksum:
        return None
    path.with_suffix(f".{os.getpid()}.copy").write_bytes(content)
    state = torch.load(path.with_suffix(f".{os.getpid()}.copy"))
    path.with_suffix(f".{os.getpid()}.copy").unlink()
    return state


def save(folder, step, model, optimizer):
    slot, rank = step % 2, dist.get_rank()
    write(Path(folder) / f"slot_{slot}_random_{rank}", {"step": step, "random": torch.get_rng_state()})
    dist.barrier()
    if rank == 0:
        state = {"step": step, "model": model.state_dict(), "optimizer": optimizer.state_dict()}
        write(Path(folder) / f"slot_{slot}", state)
    dist.barrier()


def load(folder, model, optimizer):
    found = []
    for slot in (0, 1):
        state = read(Path(folder) / f"slot_{slot}")
        random = read(Path(folder) / f"slot_{slot}_random_{dist.get_rank()}")
        if state and random and state["step"] == random["step"]:
            found.append((state["step"], state, random))
    steps = [None] * dist.get_world_size()
    dist.all_gather_object(steps, {step for step, _, _ in found})
    common = set.intersection(*steps)
    if not common:
        return 0
    [(step, state, random)] = [one for one in found if one[0] == max(common)]
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    torch.set_rng_state(random["random"])
    return step


def train(training):
    """Given: go on from the newest checkpoint and save after every step."""
    step = load(training.folder, training.model, training.optimizer)
    while step < training.until:
        training.step(step)
        step += 1
        save(training.folder, step, training.model, training.optimizer)
