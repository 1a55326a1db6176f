"""Inside a rank, for 20.2: call the learner's detector with ways to share a test set, and the learner's evaluate."""

import math

import torch


def drive(function, version, *arguments):
    """The verdict of the learner's is_sound on this version of shares; for "own" what try_out returns for evaluate."""
    return try_out(function, *arguments) if version == "own" else function(VERSIONS[version])


# ---- versions of shares(total, batch, rank, world) ------------------------------------------------------------------


def by_batch(share):
    """A version that cuts each batch; share(count, rank, world) is (start, end) in a batch of `count` examples."""

    def shares(total, batch, rank, world):
        steps = []
        for first in range(0, total, batch):
            start, end = share(min(batch, total - first), rank, world)
            steps.append((first + start, first + end))
        return steps

    return shares


def even(count, rank, world):
    return count * rank // world, count * (rank + 1) // world


def first_ranks_more(count, rank, world):
    least, more = divmod(count, world)
    return rank * least + min(rank, more), (rank + 1) * least + min(rank + 1, more)


def rest_on_the_last(count, rank, world):
    local = count // world
    return rank * local, count if rank == world - 1 else (rank + 1) * local


def one_run(total, batch, rank, world):
    """A run of the whole test set for each rank, cut into steps."""
    begin, end = even(total, rank, world)
    local = math.ceil(batch / world)
    steps = math.ceil(math.ceil(total / world) / local)
    return [(min(begin + i * local, end), min(begin + (i + 1) * local, end)) for i in range(steps)]


def fixed_size(round_up=False, clamp_start=True, stop_at_batch=True, always_full=False):
    """A version with local batches of one size, whose ends are kept inside.

    round_up       whether the size is rounded up
    clamp_start    whether the start is kept inside, too
    stop_at_batch  whether "inside" ends with the batch, or with the test set
    always_full    whether the start is moved back until the local batch is full
    """

    def shares(total, batch, rank, world):
        local = math.ceil(batch / world) if round_up else batch // world
        steps = []
        for first in range(0, total, batch):
            stop = min(first + batch, total) if stop_at_batch else total
            start = first + rank * local
            if clamp_start:
                start = min(start, stop)
            if always_full:
                start = max(0, min(start, total - local))
            steps.append((start, min(start + local, stop)))
        return steps

    return shares


def as_if_full(total, batch, rank, world):
    full = even(batch, rank, world)
    return [(first + full[0], first + full[1]) for first in range(0, total, batch)]


VERSIONS = {
    "each batch cut evenly": by_batch(even),
    "the first ranks take one more": by_batch(first_ranks_more),
    "a rounded-up local batch, start and end kept inside": fixed_size(round_up=True),
    "one run of the test set for each rank": one_run,
    "a rounded-down local batch, the end kept inside": fixed_size(clamp_start=False, stop_at_batch=False),
    "a rounded-down local batch, start and end kept inside": fixed_size(),
    "a rounded-up local batch, the end kept inside": fixed_size(round_up=True, clamp_start=False, stop_at_batch=False),
    "the short last batch cut as if it were full": as_if_full,
    "the last share begins earlier, so that it is full": fixed_size(round_up=True, always_full=True),
    "the short last batch is left out": lambda total, batch, rank, world: by_batch(even)(
        total // batch * batch, batch, rank, world
    ),
    "a rank without examples makes no step": lambda total, batch, rank, world: [
        (start, end) for start, end in by_batch(first_ranks_more)(total, batch, rank, world) if start < end
    ],
    "the last rank takes what is left over": by_batch(rest_on_the_last),
    "the first example is left out": lambda total, batch, rank, world: [
        (max(1, start), max(1, end)) for start, end in by_batch(even)(total, batch, rank, world)
    ],
    "rank 0 makes a step where there is no example": lambda total, batch, rank, world: (
        by_batch(even)(total, batch, rank, world) if total or rank else [(0, 0)]
    ),
    "a rounded-up local batch, the end kept inside its batch": fixed_size(round_up=True, clamp_start=False),
}


# ---- the learner's own evaluation -----------------------------------------------------------------------------------


def losses_and_solved(total):
    """Losses and successes on `total` test examples, (total,) each; sums of these losses are not exact in float32."""
    examples = torch.arange(total)
    return 2.0 ** (examples % 11).double() + (examples + 1).double() / 7, (examples * 7 + total) % 3 == 0


def try_out(evaluate, total, batch):
    """What evaluate returned, and the [start, end] of each of its calls of score."""
    losses, solved = losses_and_solved(total)
    requests = []

    def score(start, end):
        requests.append([int(start), int(end)])
        return losses[start:end].clone(), solved[start:end].clone()

    return {"returned": evaluate(score, total, batch), "requests": requests}
