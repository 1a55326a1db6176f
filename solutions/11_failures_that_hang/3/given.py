"""Rank 0 reads the settings from a file and hands them to the others. What happens if the file is not there?"""

import json
from datetime import timedelta
from pathlib import Path

import torch.distributed as dist


def on_rank_0(work):
    """Calls work() on rank 0 only, and returns its result on every rank."""
    result = [work() if dist.get_rank() == 0 else None]
    dist.broadcast_object_list(result, src=0)
    return result[0]


def main():
    dist.init_process_group("gloo", timeout=timedelta(seconds=600))
    settings = on_rank_0(lambda: json.loads(Path("settings_that_nobody_wrote.json").read_text()))
    print(f"rank {dist.get_rank()} has {settings}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
