"""The messages of notebooks/symptoms.md that one process on a CPU can make are those of the torch that is installed."""

import json
import os
import subprocess
import sys

import failing_lines
import torch.distributed as dist
from test_symptoms import ENTRIES, comparable


def test_torch_still_says_what_was_made_for_the_page():
    environment = {
        name: value for name, value in os.environ.items() if name not in ("RANK", "LOCAL_RANK", "WORLD_SIZE")
    }
    run = subprocess.run(
        [sys.executable, failing_lines.__file__],
        env=environment | {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert run.returncode == 0, run.stderr
    texts = json.loads(run.stdout.splitlines()[-1])
    if dist.is_nccl_available():
        del texts["Distributed package doesn't have NCCL built in"]
    other = {message: text for message, text in texts.items() if comparable(message) not in comparable(text)}
    assert other == {}


def test_what_is_called_made_is_made():
    made = {message for message, text in ENTRIES.items() if "made for this page" in text}
    assert made <= {*failing_lines.BEFORE, *failing_lines.AFTER} <= set(ENTRIES)
