"""Two machines of one rank each, with disks of their own: each rank plays one. The data set is downloaded first."""

import os
from datetime import timedelta
from pathlib import Path

import torch.distributed as dist


def prepare(folder, download):
    """The path of the data set on this machine's disk. download(path) fetches it, in parts, and writes it there."""
    target = Path(folder) / "data.bin"
    if os.environ["RANK"] == "0":
        download(target)
    dist.barrier()  # the others wait until it is there
    return target


def main():
    dist.init_process_group("gloo", timeout=timedelta(seconds=60))
    rank = dist.get_rank()
    os.environ |= {"LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1", "GROUP_RANK": str(rank)}  # as on two machines
    folder = Path(f"runs/16_3/disk_of_machine_{rank}")
    folder.mkdir(parents=True, exist_ok=True)

    def download(path):
        print(f"rank {rank} downloads", flush=True)
        Path(path).write_bytes(bytes(1000))

    path = prepare(folder, download)
    print(f"rank {rank} reads {len(path.read_bytes())} bytes", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
