"""Rungs about dynamic sampling: ranks draw windows until a batch is full of useful ones; some find more than others.

In GRPO a group of completions is useful if its rewards differ (DAPO, arXiv 2503.14476). Here a window is useful if its
first target is even.
"""

import itertools
from collections.abc import Iterable

import torch
from torch.nn.parallel import DistributedDataParallel as DDP

from ddp_course.distributed.process_group import World
from ddp_course.distributed.sync import gather_objects
from ddp_course.ladder.comparison import Comparison, Rung, mistake, summed_loss, train, train_reference
from ddp_course.ladder.models import build
from ddp_course.ladder.setting import Batch, Setting, global_batch, target_count
from ddp_course.ladder.tolerance import REORDERED

ROUNDS = 1000  # more than a step needs: round r of step s draws global batch s * ROUNDS + r


def dynamic_sampling(setting: Setting, world: World) -> Comparison:
    """All ranks stop after the same round, keep the first useful windows of all ranks, and divide by all targets."""
    replica = DDP(build(setting))

    def gradients(step: int) -> None:
        inputs, targets = own_windows(setting, step, world.rank, world.size)
        divisor = setting.tokens
        if setting.fault == "own_divisor":
            divisor = max(1, world.size * target_count((inputs, targets)))
        (summed_loss(replica, inputs, targets) * world.size / divisor).backward()

    replicas = train(replica, range(setting.steps), gradients)
    global_batches = [own_windows(setting, step, rank=0, ranks=1) for step in range(setting.steps)]
    return Comparison(replicas, train_reference(build(setting), global_batches))


def own_windows(setting: Setting, step: int, rank: int, ranks: int) -> Batch:
    """Draw rounds of windows until `setting.windows` of them are useful; returns this rank's part of the first ones.

    Collective over `ranks` ranks, if there are several.
    """
    own: dict[int, Batch] = {}  # this rank's useful windows, by number
    for round_number in itertools.count():
        inputs, targets = global_batch(setting, step * ROUNDS + round_number)
        useful = [row for row in range(rank, setting.windows, ranks) if targets[row, 0] % 2 == 0]
        own |= {round_number * setting.windows + row: (inputs[row], targets[row]) for row in useful}
        if setting.fault == "own_stop":
            numbers = list(own)
            count = setting.windows * (rank + 1) // ranks - setting.windows * rank // ranks
        else:
            numbers = sorted(numbers_of_all_ranks(own) if ranks > 1 else own)
            count = setting.windows
        if len(numbers) >= count:
            empty = torch.empty(0, setting.context, dtype=torch.int64)
            windows = [own[number] for number in numbers[:count] if number in own]
            return tuple(torch.stack(part) for part in zip(*windows, strict=True)) if windows else (empty, empty)


def numbers_of_all_ranks(own: Iterable[int]) -> list[int]:
    """The numbers of all ranks' useful windows (collective): with them all ranks stop and choose alike."""
    return sum(gather_objects(list(own)), [])


DYNAMIC = Rung("dynamic sampling", "rollouts", dynamic_sampling, REORDERED)
RUNGS = [
    DYNAMIC,
    mistake("own windows as divisor", "own_divisor", DYNAMIC),
    mistake("own decision to stop", "own_stop", DYNAMIC),
]
