"""The messages of notebooks/symptoms.md that one process on a CPU can cause are those of the installed torch."""

import json
import os
import subprocess
import sys

import failing_lines
import torch.distributed as dist
from test_symptoms import ENTRIES, comparable


def test_torch_still_prints_the_messages_that_were_made_for_the_page():
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


def test_messages_that_the_page_calls_made_have_a_line_here():
    made = {message for message, text in ENTRIES.items() if "made for this page" in text}
    assert made <= {*failing_lines.WITHOUT_GROUP, *failing_lines.WITH_GROUP} <= set(ENTRIES)
