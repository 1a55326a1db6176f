"""Start a cluster of namespaces from a shell, and run commands on its machines.

    python -m ddp_course.cluster up --nodes 2 --rate 200mbit      # stays in the foreground; Ctrl-C, or `down`, ends it
    python -m ddp_course.cluster run node1 torchrun --nnodes=2 ... train.py         # in another shell
    python -m ddp_course.cluster run all hostname
    python -m ddp_course.cluster slurm sbatch ddp_course/cluster/templates/minigpt.sbatch     # after `up --slurm`
    python -m ddp_course.cluster status
    python -m ddp_course.cluster down
    python -m ddp_course.cluster check trainjob.yaml         # fields of a Kubernetes manifest or a SkyPilot task

`up` writes its state into the folder --folder for the other commands. All processes on the machines end with `up`.
"""

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil

from ddp_course.base.atomic_file import replacing
from ddp_course.base.command import run_command
from ddp_course.base.errors import InputError, in_one_line
from ddp_course.base.json_file import read_object
from ddp_course.base.parser import Parser
from ddp_course.cluster.machines import Cluster
from ddp_course.cluster.manifest import documents, problems
from ddp_course.cluster.namespaces import entering

FOLDER, STATE = Path("runs/cluster"), "cluster.json"


def main(arguments: list[str] | None = None) -> int:
    parser = Parser(
        prog="python -m ddp_course.cluster", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--folder", type=Path, default=FOLDER, help="where the state is kept (%(default)s)")
    commands = parser.add_subparsers(dest="command", required=True)
    start = commands.add_parser("up", help="start the machines, and stay until Ctrl-C")
    start.add_argument("--nodes", type=int, default=2, help="machines (%(default)s)")
    start.add_argument("--rate", default="200mbit", help='of each cable, both ways (%(default)s); "none": no limit')
    start.add_argument("--slurm", action="store_true", help="start Slurm on them, too")
    slurm = commands.add_parser("slurm", help="run one of Slurm's commands: squeue, sbatch FILE, ...")
    slurm.add_argument("words", nargs=argparse.REMAINDER, metavar="command", help="the command, with its arguments")
    run = commands.add_parser("run", help="run a command on a machine; its exit code is ours")
    run.add_argument("node", help="node1, node2, ..., head, or all")
    run.add_argument("words", nargs=argparse.REMAINDER, metavar="command", help="the command, with its own arguments")
    commands.add_parser("status", help="list the machines; exit code 1 if there are none")
    check = commands.add_parser("check", help="find fields that do not exist; exit code 1 if there are any")
    check.add_argument("files", nargs="+", type=Path, metavar="file", help="Kubernetes manifests, SkyPilot tasks")
    commands.add_parser("down", help="end the machines, and everything on them")
    try:
        options = parser.parse_args(arguments)
        if options.command == "up":
            return up(options.folder, options.nodes, None if options.rate == "none" else options.rate, options.slurm)
        if options.command == "check":
            return check_files(options.files)
        state = read(options.folder)
        if options.command == "status":
            print(state["shown"] if state else f"no cluster is up in {options.folder}")
            return 0 if state else 1
        if options.command == "down":
            return down(options.folder, state)
        if not state:
            raise InputError(f"no cluster is up in {options.folder}; start one with python -m ddp_course.cluster up")
        if options.command == "run":
            return run_on(state["pids"], options.node, options.words)
        if not state["slurm"] or not options.words:
            raise InputError("say which of Slurm's commands, after python -m ddp_course.cluster up --slurm")
        task = state["slurm"] | {"command": [*state["slurm"]["command"], *options.words]}
        return subprocess.run(entering([task])).returncode
    except InputError as error:
        print(f"error: {in_one_line(error)}", file=sys.stderr)
        return 2


def up(folder: Path, nodes: int, rate: str | None, with_slurm: bool) -> int:
    """Run a cluster until SIGINT or SIGTERM; returns the exit code 0."""
    if read(folder):
        raise InputError(f"a cluster is up in {folder}; end it with python -m ddp_course.cluster down")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))  # from here on, because `down` may come at once
    with Cluster(nodes, rate) as cluster:
        folder.mkdir(parents=True, exist_ok=True)
        state = {
            "pid": os.getpid(),
            "since": psutil.Process().create_time(),
            "pids": cluster.pids,
            "shown": str(cluster),
            "slurm": cluster.slurm().task() if with_slurm else None,
        }
        try:
            with replacing(folder / STATE) as file:
                file.write(json.dumps(state))
            print(f"{cluster}\nup, until Ctrl-C or python -m ddp_course.cluster down", flush=True)
            while True:
                signal.pause()
        except KeyboardInterrupt:
            pass
        finally:
            (folder / STATE).unlink(missing_ok=True)
    return 0


def read(folder: Path) -> dict | None:
    """The state that `up` has written; None if there is none, or if its process has ended."""
    if folder.exists() and not folder.is_dir():
        raise InputError(f"--folder is a folder for the cluster's state, and {folder} is a file")
    try:
        state = read_object(folder / STATE)
    except InputError:
        if not (folder / STATE).exists():  # asked only now: `up` may just have removed it
            return None
        raise
    kinds = {"pid": int, "since": float, "pids": dict, "shown": str, "slurm": dict | None}
    if not all(isinstance(state.get(name), kind) for name, kind in kinds.items()):
        raise InputError(f"{folder / STATE} is no state of a cluster; remove it, or give another --folder")
    try:
        return state if psutil.Process(state["pid"]).create_time() == state["since"] else None  # a pid may be reused
    except (ValueError, OverflowError, psutil.NoSuchProcess):  # no pid, or not of a running process
        return None


def down(folder: Path, state: dict | None) -> int:
    """End the process of `up`, and wait until it has ended; returns the exit code 0."""
    if state:
        with contextlib.suppress(ProcessLookupError):  # it has just ended
            os.kill(state["pid"], signal.SIGTERM)
        while read(folder):
            time.sleep(0.05)
    print("the cluster is down" if state else f"no cluster is up in {folder}")
    return 0


def check_files(files: list[Path]) -> int:
    """Print the problems of manifests and tasks; returns the exit code, 1 if there are any."""
    lines = [f"{file}: {problem}" for file in files for document in documents(file) for problem in problems(document)]
    print("\n".join(lines) or "every field exists")
    return 1 if lines else 0


def run_on(pids: dict[str, int], node: str, words: list[str]) -> int:
    """Run a command on a machine, or in parallel on all but the head; returns the first exit code that is not 0."""
    machines = [name for name in pids if name.startswith("node")] if node == "all" else [node]
    if not words or not set(machines) <= pids.keys():
        raise InputError(f"say on which machine, and what: run NODE command ...; there are all, {', '.join(pids)}")
    return subprocess.run(entering([{"pid": pids[name], "command": words} for name in machines])).returncode


if __name__ == "__main__":
    run_command(main)
