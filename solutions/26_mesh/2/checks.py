"""26.2: training on a mesh of dp and tp: the windows of a rank, the weight of a replica's loss, how a run resumes."""

import math

from ddp_course.grader.vocabulary import check, driver_job, expect, expect_few_bytes, expect_small_gap, is_close, number

from .driver import PER_UPDATE, STEPS, windows_of
from .given import CONTEXT, WIDTH

FUNCTION = "Training"
CLOSE = 1e-10
# By number of ranks: (dp, tp) of the first mesh, and of the mesh on which the run continues.
RUNS = {1: [((1, 1), (1, 1))], 2: [((1, 2), (2, 1)), ((2, 1), (1, 2))], 4: [((2, 2), (4, 1)), ((4, 1), (2, 2))]}

CALLS = {world: {"dp {} x tp {}".format(*meshes[0]): meshes for meshes in runs} for world, runs in RUNS.items()}
JOBS = [driver_job(world, FUNCTION, CALLS[world], seconds=10.0, loads=("torch._dynamo",)) for world in RUNS]


@check("peers on tp read the same windows")
def peers_on_tp_read_the_same(case):
    for step, mesh, ranks in steps(case):
        for rank, report in enumerate(ranks):
            first = rank // mesh[1] * mesh[1]
            expect(
                report["windows"] == ranks[first]["windows"],
                f"{moment(step, mesh)}rank {rank} read the windows {report['windows']}, and rank {first}, its peer "
                f"on tp, {ranks[first]['windows']}",
                "which of its numbers decides which windows a rank reads: its global rank, or that on an axis",
            )


@check("replicas divide the windows of a step")
def replicas_share_the_windows(case):
    for step, mesh, ranks in steps(case, meshes=[0]):
        read = windows_read(ranks, mesh)
        expect(
            read == windows_of(step) and all(len(report["windows"]) == PER_UPDATE // mesh[0] for report in ranks),
            f"{moment(step, mesh)}the replicas read {read}; the step has the windows {windows_of(step)}",
            "where a step begins, and where each replica's part of it",
        )


@check("the weights are those of one process")
def the_gradient_is_that_of_one_process(case):
    for step, mesh, ranks in steps(case, meshes=[0]):
        for rank, report in enumerate(ranks):
            name, gap = report["gap"]
            look_at = "which ranks hold the same weights, and therefore add up gradients: those of which axis?"
            if mesh[1] == 1:
                look_at = "how much a replica counts that has fewer targets than the others, or none"
            if mesh[1] == 1 and len({peer["gap"][1] for peer in ranks}) > 1:
                look_at = "the replicas differ from each other as well: whose gradients are added up?"
            if len(ranks) == 1:
                look_at = "over which targets the mean is taken"
            if step:
                look_at = (
                    "step 1 was right: what is left of it, such as a count, or gradients that are not set to zero?"
                )
            subject = f"{moment(step, mesh)}{name} on rank {rank}"
            expect_small_gap(gap, CLOSE, subject, look_at, "its part of one process")


@check("the loss is that of one process, on every rank")
def the_loss_is_that_of_one_process(case):
    for step, mesh, ranks in steps(case, meshes=[0]):
        for rank, report in enumerate(ranks):
            loss, right = number(report["loss"]), report["right"]
            expect(
                is_close(loss, right, rel_tol=CLOSE),
                f"{moment(step, mesh)}the loss on rank {rank} is {str(loss)[:12]}; one process has {right:.9g}",
                "what a replica without targets has: a mean of nothing is NaN, and so is 0 times NaN"
                if isinstance(loss, float) and math.isnan(loss)
                else "one sum and one count over all replicas, in float64, the same on every rank",
            )


@check("another mesh goes on with the next windows")
def it_resumes_where_it_stopped(case):
    for step, mesh, ranks in steps(case, meshes=[1]):
        read = windows_read(ranks, mesh)
        expect(
            read == windows_of(step),
            f"{moment(step, mesh)}the replicas read {read}; the step has the windows {windows_of(step)}",
            "what load_state_dict sets, and what reads it"
            if read == windows_of(step - STEPS)
            else "what is saved has to be true on another mesh: neither windows of one rank, nor its position",
        )
        worst = max(range(len(ranks)), key=lambda rank: ranks[rank]["gap"][1])
        name, gap = ranks[worst]["gap"]
        subject, look_at = f"{moment(step, mesh)}{name} on rank {worst}", "what load_state_dict changes besides windows"
        expect_small_gap(gap, CLOSE, subject, look_at, "its part of one process")


@check("each gradient is sent once", [job for job in JOBS if job.world > 1])
def each_gradient_is_sent_once(case, rank, result):
    limit = 0  # bytes
    for _, (dp, _), ranks in steps(case):
        over_tp = 2 * PER_UPDATE // dp * CONTEXT * WIDTH  # numbers, also if a rank is alone on tp
        limit += 8 * (over_tp + ranks[rank]["parameter_count"]) + 64
    own_operations = [operation for operation in case.operations[rank] if operation.line is not None]
    purpose = f" in {len(result)} steps, for its gradients, a few numbers and what the layers send"
    look_at = "how often a gradient goes over dp: once; peers on tp have their own parts, or the same: no sum is needed"
    expect_few_bytes(rank, own_operations, limit, purpose, look_at)


def windows_read(ranks, mesh):
    """The windows that all replicas read, in order: those of the first rank of each tp group."""
    return sorted(window for report in ranks[:: mesh[1]] for window in report["windows"])


def moment(step, mesh):
    """The text for a step, such as "in step 4, after a stop and on dp 4 x tp 1, "."""
    if step < STEPS:
        return f"in step {step + 1} "
    dp, tp = mesh
    return f"in step {step + 1}, after a stop and on dp {dp} x tp {tp}, "


def steps(case, meshes=(0, 1)):
    """(number, (dp, tp), reports by rank) of each step. meshes: 0 for those on the first mesh, 1 on the second."""
    for index in meshes:
        for step in range(index * STEPS, (index + 1) * STEPS):
            yield step, case.args[0][index], [result[step] for result in case.results]
