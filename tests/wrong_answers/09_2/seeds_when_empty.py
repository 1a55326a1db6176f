# mistake: seeds torch if there is no checkpoint
# state: wrong
# check: without a whole one nothing changes
# message: the folder was empty: `load` returned 0 on rank 0 and changed the random state

import hashlib
import io
import os
from pathlib import Path

import torch
import torch.distributed as dist


def save(folder: str, step: int, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Write everything the run needs to go on after `step` updates. Called on every rank."""
    random_states = [None] * dist.get_world_size()
    dist.all_gather_object(random_states, torch.get_rng_state())  # every rank has its own
    if dist.get_rank() == 0:
        buffer = io.BytesIO()
        state = {"step": step, "model": model.state_dict(), "optimizer": optimizer.state_dict()}
        torch.save(state | {"random_states": random_states}, buffer)
        data = buffer.getvalue()
        final = Path(folder) / f"step_{step:06d}.pt"
        temporary = final.with_suffix(".tmp")  # load never looks at it
        with open(temporary, "wb") as file:
            file.write(hashlib.sha256(data).digest() + data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, final)
    dist.barrier()  # whoever returns finds it there


def load(folder: str, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> int:
    """Put back the newest whole checkpoint and return its step; 0 if there is none. Called on every rank."""
    for path in sorted(Path(folder).glob("step_*.pt"), reverse=True):
        content = path.read_bytes() if path.is_file() else b""
        if hashlib.sha256(content[32:]).digest() != content[:32]:
            continue  # torn, damaged, or somebody else's
        state = torch.load(io.BytesIO(content[32:]), weights_only=True)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        torch.set_rng_state(state["random_states"][dist.get_rank()])
        return state["step"]
    torch.manual_seed(1234 + dist.get_rank())  # a fresh start
    return 0


def train(training):
    """Given: go on from the newest checkpoint and save after every step."""
    step = load(training.folder, training.model, training.optimizer)
    while step < training.until:
        training.step(step)
        step += 1
        save(training.folder, step, training.model, training.optimizer)
