"""Short runs of the real trainer, shared by the tests that compare or disturb them."""

import json
import subprocess
import sys
from pathlib import Path

import torch

from ddp_course.lab.launch import Run, torchrun

ROOT = Path(__file__).parent.parent
TRAINER = ROOT / "ddp_course" / "minigpt_ddp.py"


def train(run_dir: Path, *flags: object, nproc: int = 2, **launch: object) -> Run:
    """Run the tiny preset on `nproc` processes into `run_dir`; later flags win over the preset."""
    arguments = ["--preset", "tiny", "--run-dir", run_dir, "--sample-tokens", 0, *flags]
    return torchrun(TRAINER, *arguments, **{"nproc": nproc, "quiet": True, "timeout": 120} | launch)


def train_alone(run_dir: Path, *flags: object) -> subprocess.CompletedProcess:
    """The same on one process, without torchrun."""
    arguments = ["--preset", "tiny", "--run-dir", run_dir, "--sample-tokens", 0, *flags]
    command = [sys.executable, TRAINER, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


def metrics(run_dir: Path, key: str = "loss") -> dict[int, float]:
    """Step -> value, from metrics.jsonl."""
    records = map(json.loads, (run_dir / "metrics.jsonl").read_text().splitlines())
    return {record["step"]: record[key] for record in records if key in record}


def checkpoint(run_dir: Path, step: int) -> dict:
    """The contents of a checkpoint."""
    return torch.load(run_dir / "checkpoints" / f"step_{step:06d}" / "state.pt", weights_only=True)


def largest_gap(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> float:
    """The largest absolute difference between two state dicts of the same names."""
    assert a.keys() == b.keys()
    return max((a[name].double() - b[name].double()).abs().max().item() for name in a)
