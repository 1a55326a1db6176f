"""A launchable keeps the memory that its tensors leave: the next step does not ask the system for it anew."""

import ctypes
import json

import pytest
import warm

SCRIPT = """
import dataclasses, json, resource, sys
import torch
from ddp_course.training.command_line import run

@dataclasses.dataclass
class Nothing:
    pass

def main(config=None):
    def fill():
        for size in (1 << 18, 1 << 21, 3 << 22):  # 1, 8 and 48 MiB, all of them alive at once
            tensors.append(torch.zeros(size))
    faults = []
    for _ in range(6):
        before, tensors = resource.getrusage(resource.RUSAGE_SELF).ru_minflt, []
        fill()
        faults.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
    print(json.dumps({"faults": min(faults[1:])}))  # a collection of Python's touches pages, too

run(main, {"nothing": Nothing()}) if sys.argv.pop() == "as a launchable" else main()
"""


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallopt"), reason="only glibc can be told to keep what is freed")
def test_what_a_step_frees_the_next_one_uses_again(tmp_path):
    (tmp_path / "script.py").write_text(SCRIPT)
    faults = {
        how: json.loads(warm.alone(tmp_path / "script.py", how).stdout.splitlines()[-1])["faults"]
        for how in ("as a launchable", "plainly")
    }
    pages = (1 + 8 + 48) << 8  # of 4 KiB
    assert faults["plainly"] > 0.5 * pages > 100 * faults["as a launchable"], faults
