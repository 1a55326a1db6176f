# Each rank's samples come from a pipe that delivers a few bytes now and then, as a busy network disk does.
import os
import tempfile
import threading
import time

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, Dataset


class Slow(Dataset):
    def __init__(self, path):
        self.path, self.file = path, None

    def __len__(self):
        return 3

    def __getitem__(self, index):
        self.file = self.file or open(self.path, "rb", buffering=0)
        content = b"".join(self.file.read(1) for _ in range(8))
        return torch.tensor(list(content), dtype=torch.float32)


def deliver(path, samples):
    with open(path, "wb", buffering=0) as file:
        for _ in range(8 * samples):
            time.sleep(0.8)
            file.write(b"7")


dist.init_process_group("gloo")
with tempfile.TemporaryDirectory() as folder:
    path = os.path.join(folder, "samples")
    os.mkfifo(path)
    threading.Thread(target=deliver, args=(path, 3), daemon=True).start()
    for batch in DataLoader(Slow(path), batch_size=1, num_workers=1):
        dist.all_reduce(batch)
dist.destroy_process_group()
