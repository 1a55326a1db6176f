"""Inside a rank, for 18.4: run the learner's detector on loaders of a tokenizer, and the learner's loader on files."""

import json
from pathlib import Path

import torch.distributed as dist

from ddp_course.grader.harness.versions import driver_of

from .given import Tokenizer

MERGES = [[114, 101], [256, 116], [116, 117], [257, 117], [120, 10]]
RIGHT = json.dumps({"merges": MERGES})
OTHER = json.dumps({"merges": MERGES[:2] + [[40, 41]]})


# ---- ways to load --------------------------------------------------------------------------------------------------


def by_rank(merges, **exceptions):
    """A loader of `merges`, or one that raises them; exceptions: the same for single ranks, such as rank_1=[]."""

    def load(path):
        outcome = exceptions.get(f"rank_{dist.get_rank()}", merges)
        if isinstance(outcome, Exception):
            raise outcome
        return Tokenizer(outcome)

    return load


def broadcast_by_rank_0(path):
    box = [MERGES if dist.get_rank() == 0 else None]
    dist.broadcast_object_list(box, src=0)
    return Tokenizer(box[0])


GONE = FileNotFoundError(2, "No such file or directory", "tokenizer.json")
VERSIONS = {
    "the same merges on all ranks": by_rank(MERGES),
    "bytes on all ranks": by_rank([]),
    "rank 0 broadcasts its merges": broadcast_by_rank_0,
    "bytes on all ranks but 0": by_rank(MERGES, rank_1=[], rank_2=[]),
    "bytes on rank 1": by_rank(MERGES, rank_1=[]),
    "a merge less on the last rank": by_rank(MERGES, rank_2=MERGES[:-1]),
    "a merge of rare bytes is the other way round on the last rank": by_rank(
        [*MERGES, [226, 136]], rank_2=[*MERGES, [136, 226]]
    ),
    "two merges exchanged on rank 1": by_rank(MERGES, rank_1=[*MERGES[:2], MERGES[3], MERGES[2], MERGES[4]]),
    "rank 0 differs, the others agree": by_rank(MERGES, rank_0=MERGES[:3]),
    "it raises on rank 1": by_rank(MERGES, rank_1=GONE),
    "it raises on rank 0": by_rank(MERGES, rank_0=GONE),
    "it raises a ValueError on rank 2": by_rank(MERGES, rank_2=ValueError("Expecting value: line 1")),
    "it raises on all ranks": by_rank(GONE),
}


# ---- the learner's own loader --------------------------------------------------------------------------------------

# Contents of the file on a rank's machine: (rank 0, the others); None: no file.
FILES = {
    "every rank has the file": (RIGHT, RIGHT),
    "rank 0 alone has the file": (RIGHT, None),
    "the others have another file": (RIGHT, OTHER),
    "the file of the others is cut off": (RIGHT, RIGHT[:20]),
    "no rank has the file": (None, None),
    "the others have the file, rank 0 has none": (None, RIGHT),
    "the file of rank 0 is cut off": (RIGHT[:20], RIGHT),
    "the file of rank 0 holds no merges": (json.dumps({"vocabulary": 300}), RIGHT),
}


def try_out(load, scenario):
    """["loaded", merges] or ["raised", the error's text], where this rank has its file of the scenario."""
    rank = dist.get_rank()
    folder = Path(f"machine_{rank}")
    folder.mkdir(exist_ok=True)
    path, text = folder / "tokenizer.json", FILES[scenario][rank > 0]
    path.unlink(missing_ok=True)
    if text is not None:
        path.write_text(text)
    try:
        outcome = ["loaded", [list(pair) for pair in load(path).merges]]
    except Exception as error:
        outcome = ["raised", f"{type(error).__name__}: {error}"]
    dist.barrier()  # a rank whose loader raised waits for the others
    return outcome


drive = driver_of(VERSIONS, try_out)
