"""Inside a rank, for 12.3: call indices in the middle of a run, and report whether it changes random states."""

import random

import torch
import torch.distributed as dist


def drive(indices, weights, *arguments):
    """The result of `indices` on this rank, and what it left untouched: its weights, and what torch and Python draw."""
    torch.manual_seed(100 + dist.get_rank())  # for dropout: another one on each rank
    random.seed(200 + dist.get_rank())
    # After a draw no generator is in the state that a seed gives it: if indices seeds one, its state changes.
    torch.rand(1)
    random.random()
    old = torch.get_rng_state(), random.getstate()
    returned = indices(passed := torch.tensor(weights), *arguments)  # in float32, as in the script
    new = torch.get_rng_state(), random.getstate()
    drawn = [draw.tolist() if torch.is_tensor(draw) else draw for draw in returned]
    return {"drawn": drawn, "untouched": [passed.tolist() == weights, torch.equal(old[0], new[0]), old[1] == new[1]]}
