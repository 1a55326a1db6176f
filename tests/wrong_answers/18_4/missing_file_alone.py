# mistake: thinks of a file that is not there, and of no other error
# state: wrong
# check: does not end
# message: rank 1 was in broadcast

import json
from pathlib import Path

import torch.distributed as dist


class Tokenizer:
    """The bytes of a text, after merges: merge number i makes token 256 + i of two tokens that follow each other."""

    def __init__(self, merges):
        self.merges = [tuple(pair) for pair in merges]

    def encode(self, text):
        tokens = list(text.encode())
        for number, pair in enumerate(self.merges):
            merged = []
            for token in tokens:
                if merged and (merged[-1], token) == pair:
                    merged[-1] = 256 + number
                else:
                    merged.append(token)
            tokens = merged
        return tokens


def one_tokenizer(load, path) -> bool:
    """Whether `load(path)` gives all ranks a tokenizer, and the same one."""
    try:
        found = load(path).merges
    except Exception:
        found = None
    everyones = [None] * dist.get_world_size()
    dist.all_gather_object(everyones, found)
    return found is not None and all(one == everyones[0] for one in everyones)


def load_tokenizer(path):
    """The tokenizer in rank 0's file at `path`, {"merges": [[a, b], ...]}, on every rank."""
    message = [(None, None)]
    if dist.get_rank() == 0:
        try:
            message = [(Tokenizer(json.loads(Path(path).read_text())["merges"]).merges, None)]
        except FileNotFoundError as error:
            message = [(None, f"cannot read the tokenizer {path}: {type(error).__name__}: {error}")]
    dist.broadcast_object_list(message, src=0)
    merges, reason = message[0]
    if reason is not None:
        raise RuntimeError(reason)
    return Tokenizer(merges)
