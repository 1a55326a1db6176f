"""Runs of parallel_ddp.py, one after the other in one process group: given JOBS.json, a list of jobs.

A job is a dict with `flags` and, if it is to go wrong, the name of a FAULT. `copy`: [from, up to step, to], made first.
Rank 0 prints the outcome of each as a line of JSON.
"""

import contextlib
import io
import json
import os
import shutil
import signal
import sys
from contextlib import contextmanager
from pathlib import Path
from unittest import mock

import torch.distributed as dist
import torch.nn.functional as F
from training_runs import one_process_group

from ddp_course import parallel_ddp
from ddp_course.distributed import pieces, tensor_parallel
from ddp_course.distributed.mesh import Mesh
from ddp_course.distributed.pipeline import Pipeline
from ddp_course.distributed.replica_check import ReplicasDiffer
from ddp_course.errors import InputError
from ddp_course.parallel import minigpt_stage
from ddp_course.training.command_line import parse


def own_tokens_only(query, key, value, positions, axis):
    return F.scaled_dot_product_attention(query, key, value, is_causal=True)


@contextmanager
def clipped_locally():
    """As torch's own function would: each rank by the norm of what it holds."""
    with mock.patch.object(pieces.dist, "all_reduce", lambda *_: None):
        yield


@contextmanager
def stopped_in_the_second_update():
    """SIGTERM to the last rank, as a scheduler sends it."""
    clip, calls = parallel_ddp.clip_gradients, []

    def signalled(*arguments):
        calls.append(1)
        if len(calls) == 2 and dist.get_rank() == dist.get_world_size() - 1:
            os.kill(os.getpid(), signal.SIGTERM)
        return clip(*arguments)

    with mock.patch.object(parallel_ddp, "clip_gradients", signalled):
        yield


FAULTS = {
    "tp: gradients of the input are not summed": lambda: mock.patch.object(
        tensor_parallel.Enter, "backward", staticmethod(lambda ctx, gradient: (gradient, None))),
    "tp: queries, keys and values are cut as one": lambda: mock.patch.object(
        minigpt_stage, "Column", lambda whole, axis, groups=1: tensor_parallel.Column(whole, axis)),
    "cp: attention over the own tokens": lambda: mock.patch.object(minigpt_stage, "ring_attention", own_tokens_only),
    "pp: ends of the tied table apart": lambda: mock.patch.object(parallel_ddp, "add_other_end", lambda *_: None),
    "pp: gradients divided by the micro-batches": lambda: mock.patch.object(
        Pipeline, "forward_backward", lambda self, inputs, targets, scale, run=Pipeline.forward_backward: run(
            self, inputs, targets, scale / 4)),
    "dp: windows by rank, not by place": lambda: mock.patch.object(
        Mesh, "replica", property(lambda mesh: mesh.world.rank % mesh.replicas)),
    "shard: norm of the own pieces": clipped_locally,
    "stopped": stopped_in_the_second_update,
}  # fmt: skip


def outcome(job: dict, world) -> str:
    """What became of the job: an exit code, or what it raised."""
    if world.is_main and "copy" in job:
        source, step, target = job["copy"]
        shutil.copytree(source, target)
        for path in (Path(target) / "checkpoints").iterdir():
            if int(path.name.removeprefix("step_")) > step:
                shutil.rmtree(path)
    dist.barrier()
    with FAULTS[job["fault"]]() if "fault" in job else contextlib.nullcontext():
        try:
            with contextlib.redirect_stdout(io.StringIO()):
                return str(parallel_ddp.train(parse(parallel_ddp.PRESETS, job["flags"])))
        except (InputError, ReplicasDiffer) as error:
            return f"{type(error).__name__}: {error}"


def main() -> None:
    with one_process_group() as world:
        jobs = json.loads(Path(sys.argv[1]).read_text())
        outcomes = [outcome(job, world) for job in jobs]
        print(json.dumps({"outcomes": outcomes}))


if __name__ == "__main__":
    main()
