# mistake: writes seed and epoch side by side: 20 and 10 are 201 and 0
# state: wrong
# check: the order is random
# message: epoch 10 has the order of seed 201, epoch 0

import json
import os
import random

import torch.distributed as dist
from torch.utils.data import DataLoader, IterableDataset, get_worker_info


class Stream(IterableDataset):
    """One rank's batches of an epoch: lists of 1 to `batch_size` samples, each made by load(file, line).

    sizes: lines of each file. state: what `state_after` returned, here or elsewhere; None: the start of epoch 0.
    """

    def __init__(self, sizes, batch_size, seed, rank, world_size, state=None):
        self.sizes, self.batch_size, self.seed, self.rank, self.world_size = sizes, batch_size, seed, rank, world_size
        self.epoch, self.start = (state["epoch"], state["samples"]) if state else (0, 0)

    def __iter__(self):
        order = [(file, line) for file, size in enumerate(self.sizes) for line in range(size)]
        random.Random(int(f"{self.seed}{self.epoch}")).shuffle(order)
        worker = get_worker_info()
        first, step = (worker.id, worker.num_workers) if worker else (0, 1)
        joint = self.batch_size * self.world_size
        starts = range(self.start, len(order), joint)
        for start in starts[first::step]:
            mine = order[start : start + joint][self.rank :: self.world_size]
            yield [load(file, line) for file, line in mine]

    def state_after(self, batches):
        """Where the stream stands when `batches` of its batches have been trained on; small, plain JSON."""
        samples = self.start + batches * self.batch_size * self.world_size
        if samples >= sum(self.sizes):
            return {"epoch": self.epoch + 1, "samples": 0}
        return {"epoch": self.epoch, "samples": samples}


def load(file, line):
    """The sample in this line. It takes long in real life; here it is written down that it was asked for."""
    with open(f"loaded_{os.environ['RANK']}", "a") as log:
        log.write(".")
    return f"{file}:{line}"


def read(sizes, batch_size, seed, stages):
    """Read in several parts, each on the first ranks only; a part goes on from the state that the last one left."""
    state, parts = None, []
    for stage in stages:
        open(f"loaded_{os.environ['RANK']}", "w").close()
        batches = []
        if dist.get_rank() < stage["ranks"]:
            stream = Stream(sizes, batch_size, seed, dist.get_rank(), stage["ranks"], state)
            fork = "fork" if stage["workers"] else None
            loader = DataLoader(stream, None, num_workers=stage["workers"], multiprocessing_context=fork)
            for batch in loader:
                batches.append(batch)
                if len(batches) == stage["batches"]:
                    break
            state = stream.state_after(len(batches))
        loaded = os.path.getsize(f"loaded_{os.environ['RANK']}")
        parts.append({"batches": batches, "loaded": loaded, "state": json.dumps(state)})
        saved = [json.dumps(state)]
        dist.broadcast_object_list(saved, src=0)
        state = json.loads(saved[0])
    return parts
