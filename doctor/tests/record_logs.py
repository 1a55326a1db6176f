"""Runs failing scripts as people start them, and writes what they print to logs/NAME.log, for test_explain.py.

    python doctor/tests/record_logs.py              # all; a few minutes
    python doctor/tests/record_logs.py raises_tee   # this one

logs/README.md says what is expected of each. The paths of this machine are replaced.
"""

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import threading
from pathlib import Path

import torch

FOLDER = Path(__file__).parent
TORCHRUN = [sys.executable, "-m", "torch.distributed.run"]
TWO = ["--standalone", "--nproc-per-node=2"]
THREE = ["--standalone", "--nproc-per-node=3"]
TWO_NODES = ["--nnodes=2", "--nproc-per-node=1", "--rdzv-backend=c10d"]
TEE = ["--tee=3", "--log-dir=LOGS"]
ONE_PIPE = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
SICK, FAILING = FOLDER / "sick", FOLDER / "failing"
# name -> (script, flags of torchrun, further variables). Other starts instead of flags: ["launch", ...] for
# torch.distributed.launch, [] for plain Python, a number of ranks for ranks without torchrun, labelled as by srun.
LAUNCHES = {
    "healthy": (FAILING / "healthy.py", TWO, {}),
    "healthy_tee": (FAILING / "healthy.py", TWO + TEE, {}),
    "raises": (SICK / "raises.py", TWO, {}),
    "raises_tee": (SICK / "raises.py", TWO + TEE, {}),
    "raises_role": (SICK / "raises.py", THREE + TEE + ["--role=trainer"], {}),
    "raises_log_dir": (SICK / "raises.py", TWO + ["--redirects=3", "--log-dir=LOGS"], {}),
    "raises_srun": (SICK / "raises.py", 2, {}),
    "killed": (SICK / "killed.py", TWO, {}),
    "killed_tee": (SICK / "killed.py", TWO + TEE, {}),
    "segfault": (SICK / "segfault.py", TWO, {}),
    "leaves_with_0": (SICK / "leaves_with_0.py", THREE, {}),
    "exits_with_3": (FAILING / "exits_with_3.py", TWO, {}),
    "timeout": (FAILING / "timeout.py", TWO, {}),
    "timeout_srun": (FAILING / "timeout.py", 3, {}),
    "all_time_out": (FAILING / "all_time_out.py", TWO, {}),
    "timeout_while_rank_0_works": (SICK / "timeout_while_rank_0_works.py", TWO, {}),
    "monitored_barrier": (SICK / "monitored_barrier.py", THREE, {}),
    "detail_mismatch": (FAILING / "detail.py", TWO, {"TORCH_DISTRIBUTED_DEBUG": "DETAIL"}),
    "other_sizes": (SICK / "last_batch_is_smaller.py", TWO, {}),
    "different_models": (SICK / "different_models.py", TWO, {}),
    "unused_parameter": (SICK / "unused_parameter.py", TWO, {}),
    "static_graph": (FAILING / "static.py", TWO, {}),
    "ready_twice": (FAILING / "ready_twice.py", TWO, {}),
    "inplace": (FAILING / "inplace.py", TWO, {}),
    "module_keys": (FAILING / "module_keys.py", TWO, {}),
    "attribute": (FAILING / "attribute.py", TWO, {}),
    "dtensor": (FAILING / "dtensor.py", TWO, {}),
    "recomputed": (FAILING / "recomputed.py", TWO, {}),
    "missing_key": (FAILING / "missing_key.py", TWO, {}),
    "no_group": (FAILING / "no_group.py", TWO, {}),
    "no_rank": (FAILING / "no_rank.py", [], {}),
    "no_backend": (FAILING / "no_backend.py", TWO, {}),
    "local_rank": (FAILING / "local_rank.py", ["launch", "--nproc-per-node=2"], {}),
    "master_is_away": (FAILING / "master_is_away.py", [], {}),
    "rendezvous_times_out": (
        FAILING / "healthy.py",
        TWO_NODES + ["--rdzv-endpoint=localhost:29874", "--rdzv-conf=join_timeout=4"],
        {},
    ),
    "endpoint_is_away": (
        FAILING / "healthy.py",
        TWO_NODES + ["--rdzv-endpoint=127.0.0.1:29875", "--rdzv-conf=is_host=0,read_timeout=3"],
        {},
    ),
    "port_in_use": (SICK / "port_in_use.py", TWO, {}),
    "init_times_out": (SICK / "init_times_out.py", TWO, {}),
    "every_rank_misses_a_file": (SICK / "every_rank_misses_a_file.py", THREE, {}),
    "torn_checkpoint": (FAILING / "torn.py", TWO, {}),
    "weights_only": (FAILING / "unpickle.py", TWO, {}),
    "no_grad": (FAILING / "no_grad.py", TWO, {}),
    "frozen_loss": (FAILING / "frozen_loss.py", TWO + TEE, {}),
    "loader_worker_killed": (SICK / "loader_worker_killed.py", TWO, {}),
    "worker_raises": (FAILING / "worker_raises.py", TWO + TEE, {}),
    "record": (FAILING / "recorded.py", TWO, {}),
    "restarts": (FAILING / "restarts.py", TWO + ["--max-restarts=1"], {}),
    "progress_bars": (FAILING / "progress.py", TWO, {}),
    "hidden_by_the_clean_up": (FAILING / "chained.py", TWO, {}),
    "out_of_memory": (FAILING / "out_of_memory.py", TWO, {}),
    "spawn": (FAILING / "spawned.py", [], {}),
    "logging_with_times": (FAILING / "logged.py", THREE, {}),
    "syntax_error": (SICK / "syntax_error_in_a_module.py", TWO, {}),
    "leaves_the_group_early": (SICK / "leaves_the_group_early.py", TWO, {}),
    "nan": (FAILING / "nan.py", TWO, {}),
    "system_exit": (SICK / "raises_system_exit.py", TWO, {}),
}


def record(name: str) -> None:
    """Writes one log; with --redirects a folder with the ranks' logs and torchrun.log."""
    source, launch, variables = LAUNCHES[name]
    with tempfile.TemporaryDirectory() as folder:
        script = source
        if source.parent == FAILING:
            script = Path(shutil.copy(source, Path(folder, "train.py")))
        environment = {**os.environ, **variables, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
        environment.pop("PYTHONPATH", None)
        if isinstance(launch, int):
            text = as_srun_labels(script, launch, environment)
        else:
            start = TORCHRUN if launch[:1] != ["launch"] else [sys.executable, "-m", "torch.distributed.launch"]
            flags = [flag.replace("LOGS", f"{folder}/logs") for flag in launch if flag != "launch"]
            command = [*start, *flags] if launch else [sys.executable]
            text = run([*command, str(script), f"{folder}/"], environment, folder).stdout.decode()
        (FOLDER / "logs" / f"{name}.log").write_text(without_machine(text, folder))
        if isinstance(launch, list) and "--redirects=3" in launch:
            target = FOLDER / "logs" / name
            shutil.rmtree(target, ignore_errors=True)
            for file in Path(folder, "logs").rglob("std*.log"):
                part = Path(*file.parts[-3:])
                (target / part.parent).mkdir(parents=True, exist_ok=True)
                (target / part).write_text(without_machine(file.read_text(), folder))
            (FOLDER / "logs" / f"{name}.log").rename(target / "torchrun.log")


def run(command, environment, folder):
    return subprocess.run(command, env=environment, cwd=folder, timeout=300, **ONE_PIPE)


def as_srun_labels(script: Path, world_size: int, environment: dict) -> str:
    """The output of ranks that are started without torchrun, each line with its rank before it as by `srun --label`."""
    lines, address = [], {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29872"}

    def run_rank(rank):
        variables = {"RANK": str(rank), "WORLD_SIZE": str(world_size)} | address
        process = subprocess.Popen([sys.executable, str(script)], env={**environment, **variables}, **ONE_PIPE)
        lines.extend(f"{rank}: {line.decode()}" for line in process.stdout)
        if process.wait():
            lines.append(f"srun: error: node1: task {rank}: Exited with exit code {process.returncode}\n")

    threads = [threading.Thread(target=run_rank, args=(rank,)) for rank in range(world_size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return "".join(lines)


def without_machine(text: str, folder: str) -> str:
    """The text with this machine's paths and name replaced."""
    replacements = {
        folder: "/home/me/run",
        str(SICK): "/home/me/project",
        str(Path(torch.__file__).parents[1]): "/env/lib/python3.11/site-packages",
        sysconfig.get_path("stdlib"): "/usr/lib/python3.11",
        sys.prefix: "/env",
        os.uname().nodename: "node1",
    }
    for original in sorted(replacements, key=len, reverse=True):
        text = text.replace(original, replacements[original])
    return re.sub(r"/tmp/torchelastic_\w+", "/tmp/torchelastic_x", text)


if __name__ == "__main__":
    for name in sys.argv[1:] or LAUNCHES:
        print(name, flush=True)
        record(name)
