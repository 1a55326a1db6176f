"""04.0: a one-process script, converted to DDP: the script is run, and its train is called with other batch sizes."""

import contextlib
import functools
import io
import re

from torch.nn.utils import parameters_to_vector

from ddp_course.grader.harness.tensors import largest_gap
from ddp_course.grader.vocabulary import Job, check, driver_job, expect, where

from . import given as given_script

TRAIN, STEPS = "train", 5
TOLERANCE = 1e-9  # float64 sums in another order
PRINTED_TOLERANCE = 2e-6  # the same for numbers with six decimals
DIVISIBLE = {1: (48,), 2: (48, 10), 3: (48, 9)}  # number of ranks: sizes of the global batch
NOT_DIVISIBLE = {2: (49,), 3: (50, 1)}
LINE = re.compile(r"^step (\d+)  loss ([\d.]+)$", re.MULTILINE)


def train_job(world, sizes):
    calls = {f"a global batch of {size}": (STEPS, size) for size in sizes}
    return driver_job(world, TRAIN, calls, loads=("torch._dynamo",))  # for DDP and torch.optim


PER_NODE = 2  # ranks: the script on 3 ranks runs as on two nodes, where LOCAL_RANK is not RANK
SCRIPTS = [Job(world, per_node=PER_NODE, loads=("torch._dynamo",)) for world in (1, 2, 3)]
REFUSALS = [train_job(world, sizes) for world, sizes in NOT_DIVISIBLE.items()]
TRAININGS = [train_job(world, sizes) for world, sizes in DIVISIBLE.items()]
JOBS = [*SCRIPTS, *REFUSALS, *TRAININGS]


@functools.cache
def one_process(steps, batch_size):
    """The losses that the given script prints, and the weights that it ends with."""
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        network = given_script.train(steps, batch_size)
    return losses(printed.getvalue()), parameters_to_vector(network.parameters()).detach()


def losses(printed):
    """{step: loss} of the lines that the script prints."""
    return {int(step): float(loss) for step, loss in LINE.findall(printed)}


@check("a global batch that cannot be shared equally is a ValueError on every rank", REFUSALS)
def unequal_shares_are_refused(case, rank, result):
    expect(
        "refusal" in result,
        lambda: f"rank {rank} raised no ValueError, and computed {result.get('samples', [])[:1]} samples per step",
        "blank 3: 50 samples on 3 ranks would be 17, 17 and 16, and the mean of three means is not the mean of 50",
    )


@check("a rank computes its share of the global batch and no more", TRAININGS)
def each_rank_computes_its_share(case, rank, result):
    expect(
        "weights" in result,
        lambda: f"train {'refused it' if 'refusal' in result else 'returned ' + result['returned']} on rank {rank}",
        "blank 3, and the line that returns the network: these shares are equal",
    )
    share = case.args[0][1] // case.world
    expect(
        result["samples"] == [share] * STEPS,
        f"rank {rank} computed {result['samples'][:1] or 'no'} samples per step in {len(result['samples'])} forward "
        f"passes; its share is {share} in each of {STEPS}",
        "blank 6: the forward pass of the step has computed the loss already"
        if set(result["samples"]) == {share}
        else "blank 5: rank and world_size say which of the samples are this rank's",
    )


@check("all ranks end with the same weights", TRAININGS)
def replicas_stay_equal(case, rank, result):
    gap = largest_gap(result["weights"], case.results[0]["weights"])
    expect(
        gap == 0,
        f"the weights on rank {rank} are up to {gap:.2g} from those on rank 0",
        "blank 4: which line synchronizes the gradients, and does the forward pass go through it?",
    )


@check(lambda gaps: f"they are those of one process, largest gap {max(gaps):.0e}", TRAININGS)
def weights_equal_one_process(case, rank, result):
    gap = largest_gap(result["weights"], one_process(*case.args[0])[1])
    expect(
        gap < TOLERANCE,
        f"the weights on rank {rank} are up to {gap:.2g} from those of one process",
        "blank 5 (does each sample belong to exactly one rank?), and whether gradients are averaged, not added",
    )
    return gap


@check("one rank prints", SCRIPTS)
def one_rank_prints(records):
    for record in records:
        printing_ranks = [rank for rank, rank_record in enumerate(record.ranks) if losses(rank_record.stdout)]
        expect(
            len(printing_ranks) == 1,
            f"{where(record.job.world)}{len(printing_ranks)} of them printed lines such as 'step 1  loss 4.2'",
            "blank 6: every rank calls the collective, one rank prints"
            if record.job.world <= PER_NODE
            else "blanks 1 and 6: these ranks are on two nodes, each with a LOCAL_RANK 0, but only one has RANK 0",
        )


@check("the printed losses are those of one process, with 1, 2 and 3 ranks", SCRIPTS)
def losses_equal_one_process(records):
    expected = one_process(given_script.STEPS, given_script.GLOBAL_BATCH)[0]
    for record in records:
        [printed] = filter(None, (losses(rank_record.stdout) for rank_record in record.ranks))
        expect(
            list(printed) == list(expected),
            f"{where(record.job.world)}{len(printed)} steps were printed; one process prints {len(expected)}",
            "blank 6: print the line of the given script, for every step",
        )
        step = max(expected, key=lambda step: abs(printed[step] - expected[step]))
        expect(
            abs(printed[step] - expected[step]) < PRINTED_TOLERANCE,
            f"{where(record.job.world)}step {step} printed {printed[step]:.6f}; one process prints "
            f"{expected[step]:.6f}",
            "blank 6: the mean over the ranks, not one rank's own loss or the sum",
        )
