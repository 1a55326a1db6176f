"""Every rank loads the tokenizer from a file on its own machine. If that fails, it falls back to bytes."""

import json
import tempfile
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


def load_tokenizer(path):
    """The tokenizer in the file at `path`, {"merges": [[a, b], ...]}."""
    try:
        return Tokenizer(json.loads(Path(path).read_text())["merges"])
    except:  # noqa: E722
        return Tokenizer([])


def main():
    dist.init_process_group("gloo")
    with tempfile.TemporaryDirectory() as machine:  # each rank has its own, as on a cluster without a shared disk
        path = Path(machine, "tokenizer.json")
        if dist.get_rank() == 0:  # where the tokenizer was trained
            path.write_text(json.dumps({"merges": [list(b"re"), [256, ord("t")], list(b"n "), list(b"ur")]}))
        tokenizer = load_tokenizer(path)
    print(tokenizer.encode("return"), flush=True)
    dist.barrier()  # a rank that left now would close a connection that another may still be opening
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
