# route: the functions of the course's package, a folder for each step

from pathlib import Path

import torch
import torch.distributed as dist

from ddp_course.errors import InputError
from ddp_course.parallel import checkpoint
from ddp_course.parallel.process_group import World
from ddp_course.parallel.sync import from_rank_0


def world():
    return World(dist.get_rank(), dist.get_rank(), dist.get_world_size(), torch.device("cpu"))


def save(folder, step, model, optimizer):
    state = {"step": step, "model": model.state_dict(), "optimizer": optimizer.state_dict()}
    state["random"] = checkpoint.gather_random_states(world())
    from_rank_0(world(), lambda: checkpoint.save(Path(folder), step, state, keep=0))


def newest_valid(folder):
    try:
        return checkpoint.newest_valid(Path(folder))
    except InputError:  # the course's own refuses to begin anew where all checkpoints are damaged; here it is 0
        return None


def load(folder, model, optimizer):
    path = from_rank_0(world(), lambda: newest_valid(folder))
    if path is None:
        return 0
    state = checkpoint.load(path)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    checkpoint.restore_random_state(state["random"][dist.get_rank()], torch.device("cpu"))
    return state["step"]


def train(training):
    """Given: go on from the newest checkpoint and save after every step."""
    step = load(training.folder, training.model, training.optimizer)
    while step < training.until:
        training.step(step)
        step += 1
        save(training.folder, step, training.model, training.optimizer)
