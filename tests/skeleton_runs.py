"""Runs of skeleton_ddp.py, one after the other in one process group: given RUNS.json with {title: [folder, flags]}.

A rank begins each in its folder, in whose name {rank} stands for its number, and prints {title: exit code or message}.
"""

import json
import os
import sys
from pathlib import Path
from unittest import mock

import torch.distributed as dist

from ddp_course import skeleton_ddp


def exit_code(folder: str, flags: list[str]) -> int | str:
    os.chdir(folder.format(rank=dist.get_rank()))
    sys.argv = ["skeleton_ddp.py", *flags]
    try:
        return skeleton_ddp.main()
    except SystemExit as refused:
        return refused.code


if __name__ == "__main__":
    dist.init_process_group("gloo")
    with mock.patch.multiple(dist, init_process_group=mock.DEFAULT, destroy_process_group=mock.DEFAULT):
        codes = {title: exit_code(*run) for title, run in json.loads(Path(sys.argv[1]).read_text()).items()}
    print(json.dumps(codes))
    dist.destroy_process_group()
