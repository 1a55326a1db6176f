"""MiniGPT under Ray Train: Ray places the ranks, and restarts all of them when one is lost; the run then resumes.

    python ddp_course/cluster/templates/ray_train.py --preset tiny --run-dir /shared/runs/minigpt --resume auto

Flags are the trainer's; with --device cuda each rank gets a GPU. WORKERS: the number of ranks (default 2). RAY_ADDRESS:
the cluster; without it Ray starts on this machine. All machines must see the run directory and have this course and
`ray[train]` installed, which is not in the course's environment.
"""

import os
import signal
import socket
import sys
import threading
from pathlib import Path

import torch.distributed as dist
from ray.train import FailureConfig, RunConfig, ScalingConfig, report
from ray.train.torch import TorchTrainer

from ddp_course.base.errors import InputError
from ddp_course.distributed import process_group
from ddp_course.minigpt_ddp import PRESETS, train
from ddp_course.training.command_line import parse


def work(loop_config):
    """One rank. Ray has set RANK, LOCAL_RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT."""
    if threading.current_thread() is not threading.main_thread():
        signal.signal = lambda number, handler: None  # Python allows it in the main thread only, and this is another
    if dist.is_initialized():
        leave_rays_group()
    code = train(parse(PRESETS, loop_config["flags"]))
    process_group.stop()
    report({"exit code": code})


def leave_rays_group():
    """The trainer starts one with its own timeout, at another port: the store of Ray's group stays."""
    with socket.create_server(("", 0)) as free:
        port = [str(free.getsockname()[1])]
    dist.broadcast_object_list(port)  # rank 0's, on whose machine the ranks meet
    dist.destroy_process_group()
    os.environ["MASTER_PORT"] = port[0]


def main(flags):
    try:
        config = parse(PRESETS, flags)  # a wrong flag ends here, not on some machine
    except InputError as error:
        sys.exit(f"error: {error}")
    if not Path(config.run_dir).is_absolute() or config.resume != "auto":
        sys.exit("error: needs --run-dir with an absolute path, and --resume auto, by which a restart goes on")
    scaling = ScalingConfig(num_workers=int(os.environ.get("WORKERS", 2)), use_gpu=config.device == "cuda")
    run = RunConfig(storage_path=f"{config.run_dir}-ray", failure_config=FailureConfig(max_failures=3))
    print(TorchTrainer(work, train_loop_config={"flags": flags}, scaling_config=scaling, run_config=run).fit())


if __name__ == "__main__":
    main(sys.argv[1:])
