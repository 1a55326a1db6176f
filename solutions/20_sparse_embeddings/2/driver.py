"""Inside a rank, for 20.2: call the learner's detector with ways to share a test set, and the learner's evaluate."""

import math

import torch

from ddp_course.grader.harness.versions import driver_of

# ---- versions of shares(total, batch, rank, world) ------------------------------------------------------------------


def by_batch(share):
    """A version that cuts each batch: share(batch, left, rank, world) is (start, end), counted from its first example.

    left: how many examples the test set has from there on; fewer than `batch` in a short last batch
    """

    def shares(total, batch, rank, world):
        cuts = [(first, share(batch, total - first, rank, world)) for first in range(0, total, batch)]
        return [(first + start, first + end) for first, (start, end) in cuts]

    return shares


def even(batch, left, rank, world):
    count = min(batch, left)
    return count * rank // world, count * (rank + 1) // world


def as_if_full(batch, left, rank, world):
    return even(batch, batch, rank, world)


def empty_behind_the_end(batch, left, rank, world):
    """Rounded-up local batches. One that would begin behind the last example is empty there."""
    size = math.ceil(batch / world)
    return rank * size, max(rank * size, min((rank + 1) * size, batch, left))


def one_more(batch, left, rank, world):
    """The first ranks take one example more."""
    size, rest = divmod(min(batch, left), world)
    return rank * size + min(rank, rest), (rank + 1) * size + min(rank + 1, rest)


def one_more_at_old_starts(batch, left, rank, world):
    """The first ranks take one example more, which the next rank takes too; the last examples are left out."""
    size, rest = divmod(min(batch, left), world)
    return rank * size, (rank + 1) * size + (rank < rest)


def rest_on_the_last(batch, left, rank, world):
    count = min(batch, left)
    size = count // world
    return rank * size, count if rank == world - 1 else (rank + 1) * size


def for_even_worlds(batch, left, rank, world):
    return even(batch, left, rank, world + (world > 1 and world % 2))


def without_small_batches(batch, left, rank, world):
    return even(batch, left if batch >= world else 0, rank, world)


def fixed_size(rounded, clamp_start=True, stop_of=min):
    """A version with local batches of one size: batch / world, `rounded`.

    clamp_start            whether the start is kept inside, as the end is
    stop_of(batch, left)   where "inside" ends; default: with the batch
    """

    def share(batch, left, rank, world):
        size, stop = rounded(batch / world), stop_of(batch, left)
        start = rank * size
        return min(start, stop) if clamp_start else start, min(start + size, stop)

    return by_batch(share)


def always_full(total, batch, rank, world):
    """Rounded-up local batches, whose start is moved back until they are full."""
    size, steps = math.ceil(batch / world), []
    for first in range(0, total, batch):
        stop = min(first + batch, total)
        start = max(0, min(first + rank * size, stop, total - size))
        steps.append((start, min(start + size, stop)))
    return steps


def one_run(total, batch, rank, world):
    """A run of the whole test set for each rank, cut into steps."""
    begin, end = even(total, total, rank, world)
    size = math.ceil(batch / world)
    steps = math.ceil(math.ceil(total / world) / size)
    return [(min(begin + i * size, end), min(begin + (i + 1) * size, end)) for i in range(steps)]


cut_evenly = by_batch(even)
SOUND = {
    "each batch cut evenly": cut_evenly,
    "the first ranks take one more": by_batch(one_more),
    "a rounded-up local batch, start and end kept inside": fixed_size(math.ceil),
    "one run of the test set for each rank": one_run,
}
UNSOUND = {
    "a rounded-down local batch, the end kept inside": fixed_size(math.floor, clamp_start=False),
    "an odd number of ranks rounded up to an even one": by_batch(for_even_worlds),
    "a rounded-up local batch, the end kept inside": fixed_size(
        math.ceil, clamp_start=False, stop_of=lambda batch, left: left
    ),
    "the short last batch cut as if it were full": by_batch(as_if_full),
    "the last share begins earlier, so that it is full": always_full,
    "the last rank takes what is left over": by_batch(rest_on_the_last),
    "the first ranks take one more, and all ranks begin as before": by_batch(one_more_at_old_starts),
    "all batches after the fourth are left out": lambda total, batch, *rank: cut_evenly(
        min(total, 4 * batch), batch, *rank
    ),
    "a rank without examples makes no step": lambda *sizes: [
        (start, end) for start, end in by_batch(one_more)(*sizes) if start < end
    ],
    "a batch smaller than the number of ranks is left out": by_batch(without_small_batches),
    "rank 0 makes a step where there is no example": lambda total, batch, rank, world: (
        cut_evenly(total, batch, rank, world) if total or rank else [(0, 0)]
    ),
    "a rounded-up local batch, the end kept inside its batch": fixed_size(math.ceil, clamp_start=False),
    "a local batch of batch // world + 1, start and end kept inside": fixed_size(lambda share: math.floor(share) + 1),
    "an empty pair that begins behind the last example": by_batch(empty_behind_the_end),
}
VERSIONS = SOUND | UNSOUND


# ---- the learner's own evaluation -----------------------------------------------------------------------------------


def losses_and_solved(total):
    """Losses and successes on `total` test examples, (total,) each; sums of these losses are not exact in float32."""
    examples = torch.arange(total)
    return 2.0 ** (examples % 11).double() + (examples + 1).double() / 7, (examples * 7 + total) % 3 == 0


def try_out(evaluate, total, batch):
    """The result of evaluate, and the [start, end] of each of its calls of score."""
    losses, solved = losses_and_solved(total)
    requests = []

    def score(start, end):
        requests.append([int(start), int(end)])
        return losses[start:end].clone(), solved[start:end].clone()

    return {"returned": evaluate(score, total, batch), "requests": requests}


drive = driver_of(VERSIONS, try_out)
