# route: the bytes of the file travel and every rank parses them; the detector compares smallest and largest numbers

import json
from pathlib import Path

import torch
import torch.distributed as dist


class Tokenizer:
    def __init__(self, merges):
        self.merges = [(a, b) for a, b in merges]


def one_tokenizer(load, path):
    mine = torch.full((1024,), -1)
    try:
        pairs = [number for pair in load(path).merges for number in pair]
        mine[0] = len(pairs)
        mine[1 : 1 + len(pairs)] = torch.tensor(pairs, dtype=torch.int64)
    except OSError:
        pass
    low, high = mine.clone(), mine.clone()
    dist.all_reduce(low, dist.ReduceOp.MIN)
    dist.all_reduce(high, dist.ReduceOp.MAX)
    return bool((low == high).all() and low[0] >= 0)


def load_tokenizer(path):
    found = [None, None]
    if dist.get_rank() == 0:
        try:
            found = [Path(path).read_bytes(), None]
        except OSError as error:
            found = [None, error]
    dist.broadcast_object_list(found, src=0)
    content, error = found
    if error is not None:
        raise ValueError(f"no tokenizer: {error}") from error
    held = json.loads(content)
    if "merges" not in held:
        raise ValueError(f"the file at {path} on rank 0 has no merges")
    return Tokenizer(held["merges"])
