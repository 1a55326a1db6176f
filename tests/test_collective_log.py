"""The log of collectives tells which of them met in another line, although gloo raised nothing."""

import warm

from ddp_course.distributed.collective_log import first_difference

TWO_RANKS = """
import json
import torch
import torch.distributed as dist
from ddp_course.distributed import process_group
from ddp_course.distributed.collective_log import collective_log

world = process_group.start(timeout_seconds=30)
first, second = torch.tensor([1.0]), torch.tensor([100.0])
dist.all_reduce(first)
equal = collective_log(__file__)
if world.rank == 1:
    dist.all_reduce(second)
else:
    dist.all_reduce(first)
print(json.dumps({"equal": equal, "mixed": collective_log(__file__), "values": [first.item(), second.item()]}))
process_group.stop()
"""


def test_the_first_collective_that_met_another_line_is_found(tmp_path):
    (tmp_path / "script.py").write_text(TWO_RANKS)
    results = warm.ranks(tmp_path / "script.py", nproc=2).results
    assert results[0]["values"][0] == results[1]["values"][1] == 102  # 2 of the first sum + 100, and no error
    assert results[0]["equal"] == [["all_reduce", [[1]], 10]]
    assert first_difference([results[rank]["equal"] for rank in (0, 1)]) is None
    assert first_difference([results[rank]["mixed"] for rank in (0, 1)]) == 1


def test_a_log_that_goes_on_differs_where_the_other_one_ends():
    assert first_difference([[["barrier", [], 1]], []]) == 0
    assert first_difference([[], []]) is None
