"""26.2: training on a mesh of dp and tp: who reads which windows, what a replica's loss weighs, where a run goes on."""

import math

from ddp_course.grader.answer_record import Call, Job, cases
from ddp_course.grader.verdict import Wrong
from ddp_course.grader.vocabulary import number

from .driver import CONTEXT, PER_UPDATE, UPDATES, WIDTH

FUNCTION = "Training"
CLOSE = 1e-10
RUNS = {1: [((1, 1), (1, 1))], 2: [((1, 2), (2, 1)), ((2, 1), (1, 2))], 4: [((2, 2), (4, 1)), ((4, 1), (2, 2))]}


def job(world):
    calls = tuple(Call([meshes] * world, f"dp {meshes[0][0]} x tp {meshes[0][1]}") for meshes in RUNS[world])
    return Job(world, FUNCTION, calls, seconds=10.0, driver=True, loads=("torch._dynamo",))


JOBS = [job(world) for world in RUNS]


def peers_on_tp_read_the_same(records):
    """In every update the ranks of one tp group read the same windows."""
    for case, update, (_, tp), ranks in updates(records):
        for rank, found in enumerate(ranks):
            first = rank // tp * tp
            if found["windows"] != ranks[first]["windows"]:
                raise Wrong(
                    f"{place(case, update, ranks)}rank {rank} read the windows {found['windows']}, and rank {first}, "
                    f"its peer on tp, {ranks[first]['windows']}",
                    "which of its numbers a rank takes its windows by: the one among all ranks, or that on an axis",
                )
    return "peers on tp read the same windows"


def replicas_share_the_windows(records):
    """Before the stop, every update's windows are each read by one replica, equally many by each."""
    for case, update, (dp, tp), ranks in updates(records):
        if update >= UPDATES:
            continue
        read = sorted(window for found in ranks[::tp] for window in found["windows"])
        if read != windows_of(update) or any(len(found["windows"]) != PER_UPDATE // dp for found in ranks):
            observed = f"the replicas read {read}; the update has the windows {windows_of(update)}"
            look = "where an update begins, and where each replica's part of it"
            raise Wrong(place(case, update, ranks) + observed, look)
    return "replicas divide the windows of an update"


def the_gradient_is_that_of_one_process(records):
    """After every update before the stop, each rank has its part of the weights of one process."""
    for case, update, (_, tp), ranks in updates(records):
        for rank, found in enumerate(ranks):
            name, gap = found["gap"]
            if update < UPDATES and not gap < CLOSE:
                look = "which ranks hold the same numbers, and therefore add up gradients: those of which axis?"
                if tp == 1:
                    look = "how much a replica counts that has fewer targets than the others, or none"
                if tp == 1 and len({found["gap"][1] for found in ranks}) > 1:
                    look = "the replicas differ from each other as well: whose gradients are added up?"
                if len(ranks) == 1:
                    look = "over which targets the mean is taken"
                observed = f"{name} on rank {rank} is {gap:.1e} away from its part of one process"
                raise Wrong(place(case, update, ranks) + observed, look)
    return "the weights are those of one process"


def the_loss_is_that_of_one_process(records):
    """update() returns, on every rank, the mean over all targets of the update."""
    for case, update, _, ranks in updates(records):
        for rank, found in enumerate(ranks):
            loss, right = number(found["loss"]), found["right"]
            equal = isinstance(loss, int | float) and math.isclose(loss, right, rel_tol=CLOSE)
            if update < UPDATES and not equal:
                observed = f"the loss on rank {rank} is {str(loss)[:12]}; one process has {right:.9g}"
                look = "one sum and one count over all replicas, the same on every rank"
                if isinstance(loss, float) and math.isnan(loss):
                    look = "what a replica without targets has: a mean of nothing is NaN, and so is 0 times NaN"
                raise Wrong(place(case, update, ranks) + observed, look)
    return "the loss is that of one process, on every rank"


def it_goes_on_where_it_stopped(records):
    """With rank 0's state loaded, another mesh goes on with the next windows, as one process would."""
    for case, update, (_, tp), ranks in updates(records):
        if update < UPDATES:
            continue
        read = sorted(window for found in ranks[::tp] for window in found["windows"])
        if read != windows_of(update):
            observed = f"the replicas read {read}; the update has the windows {windows_of(update)}"
            look = "what is saved: it has to hold on another mesh, so neither windows of one rank, nor its place"
            if read == windows_of(update - UPDATES):
                look = "what load_state_dict sets, and who reads it"
            raise Wrong(place(case, update, ranks) + observed, look)
        worst = max(range(len(ranks)), key=lambda rank: ranks[rank]["gap"][1])
        name, gap = ranks[worst]["gap"]
        if not gap < CLOSE:
            raise Wrong(
                f"{place(case, update, ranks)}{name} on rank {worst} is {gap:.1e} away from its part of one process",
                "what load_state_dict changes beside the next windows",
            )
    return "another mesh goes on with the next windows"


def each_gradient_is_sent_once(records):
    """Beside what the layers say to each other, a rank sends each number of its gradients once."""
    for case in cases(records):
        for rank, result in enumerate(case.results):
            limit = 0
            for found in result:
                dp, tp = found["mesh"]
                layers = 2 * 8 * (PER_UPDATE // dp) * CONTEXT * WIDTH if tp > 1 else 0
                limit += layers + 8 * found["numbers"] + 64
            sent = sum(one.bytes for one in case.operations[rank] if one.line is not None)
            if case.world > 1 and sent > limit:
                raise Wrong(
                    f"{case.where}rank {rank} handed over {sent:,} bytes in {len(result)} updates; its gradients, a "
                    f"few numbers and what the layers send make {limit:,}",
                    "how often a gradient goes over dp: once; peers on tp have computed their own parts, or the same: "
                    "nothing to add up there",
                )
    return "each gradient is sent once"


CHECKS = [
    peers_on_tp_read_the_same,
    replicas_share_the_windows,
    the_gradient_is_that_of_one_process,
    the_loss_is_that_of_one_process,
    it_goes_on_where_it_stopped,
    each_gradient_is_sent_once,
]


def windows_of(update):
    return list(range(update * PER_UPDATE, (update + 1) * PER_UPDATE))


def place(case, update, ranks):
    """ "with 4 ranks (dp 2 x tp 2): in update 4, on dp 4 x tp 1, " """
    if update < UPDATES:
        return f"{case.where}in update {update + 1} "
    dp, tp = ranks[0]["mesh"]
    return f"{case.where}in update {update + 1}, after a stop and on dp {dp} x tp {tp}, "


def updates(records):
    """Each case, update, sizes of dp and tp, and what each rank found in it."""
    for case in cases(records):
        for update in range(2 * UPDATES):
            ranks = [result[update] for result in case.results]
            yield case, update, tuple(ranks[0]["mesh"]), ranks
