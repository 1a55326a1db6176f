"""23.2: a pipeline of torch's whose gradients are not those of one process: padding, and a table on two stages."""

from ddp_course.grader.answer_record import Call, Job, cases
from ddp_course.grader.verdict import Wrong

from .driver import LENGTH, MICRO_BATCHES, VOCABULARY, WIDTH, WINDOWS

FUNCTION = "Pipeline"
CLOSE = 1e-10
UPDATES = {"no padding": (False, 3), "padded": (True, 4)}
TABLE, ACTIVATIONS = 8 * VOCABULARY * WIDTH, 8 * WINDOWS * LENGTH * WIDTH
SPARE = 4096  # bytes per run: torch tells the neighbours shapes before the first update


def job(world):
    calls = tuple(Call([run] * world, given) for given, run in UPDATES.items())
    loads = ("torch._dynamo", "torch.distributed.pipelining")
    return Job(world, FUNCTION, calls, driver=True, loads=loads)


JOBS = [job(world) for world in (2, 3)]


def the_batch_is_cut(records):
    """Each update runs micro_batches equal micro-batches through every stage, once."""
    for case in cases(records):
        for rank, updates in enumerate(case.results):
            calls = updates[-1]["calls"]
            if calls != [WINDOWS // MICRO_BATCHES] * MICRO_BATCHES:
                raise Wrong(
                    f"{case.where}rank {rank} called its stage with {calls} windows in the last update; the batch has "
                    f"{WINDOWS}, to be cut into {MICRO_BATCHES} micro-batches",
                    "what the schedule is told: without micro-batches all stages but one wait",
                )
    return "each batch goes through the stages in its micro-batches"


def every_target_counts_the_same(records):
    """The first update of all parameters but the table is that of one process."""
    for case in cases(records):
        for rank, updates in enumerate(case.results):
            if not updates[0]["layers"] < CLOSE:
                look = "how often a gradient is divided, and by how many targets: by the loss, and by the schedule"
                if case.given == "padded":
                    look = "a mean of means: how much a target counts in a micro-batch that has few of them"
                raise Wrong(
                    f"{case.where}after the first update the layers of rank {rank} are {updates[0]['layers']:.1e} away "
                    "from one process",
                    look,
                )
    return "every target counts the same, with padding and without"


def both_copies_get_the_whole_gradient(records):
    """After the first update both copies of the table are that of one process."""
    for case in cases(records):
        for rank, updates in enumerate(case.results):
            if not updates[0]["table"] < CLOSE:
                raise Wrong(
                    f"{case.where}after the first update the table of rank {rank} is {updates[0]['table']:.1e} away "
                    "from one process",
                    "in one process the table gets the gradient of the embedding and that of the output layer",
                )
    return "both copies of the table get the whole gradient"


def it_learns_as_one_process_does(records):
    """After every update all parameters are those of one process."""
    for case in cases(records):
        for rank, updates in enumerate(case.results):
            for number, found in enumerate(updates):
                gap = max(found["layers"], found["table"])
                if not gap < CLOSE:
                    raise Wrong(
                        f"{case.where}after update {number} rank {rank} is {gap:.1e} away from one process; the first "
                        "update was right",
                        "what belongs to one batch alone: how many targets it has, and its gradients",
                    )
    return "after every update all weights are those of one process, on 2 and 3 ranks"


def only_the_ends_send_the_table(records):
    """The first rank and the last hand over one table per update, the others none; else activations and gradients."""
    for case in cases(records):
        for rank, operations in enumerate(case.operations):
            updates = len(case.results[rank])
            ends = rank in (0, case.world - 1)
            right = updates * ((1 if ends else 2) * ACTIVATIONS + ends * TABLE)
            sent = sum(one.bytes for one in operations if one.op != "recv")
            if sent > right + SPARE:
                raise Wrong(
                    f"{case.where}rank {rank} handed over {sent // updates} bytes per update; its activations and "
                    f"gradients{' and one table' * ends} are {right // updates}",
                    "who has a copy of the table, and what of it is needed: its gradient, once",
                )
            others = [one.op for one in operations if one.op not in ("send", "recv")]
            if others and not ends:
                raise Wrong(
                    f"{case.where}rank {rank}, between the ends, took part in {others[0]}",
                    "what a rank without a table lacks: every rank has the whole batch, and can count its targets",
                )
    return "the gradient of the table is sent by the two that have one"


CHECKS = [
    the_batch_is_cut,
    every_target_counts_the_same,
    both_copies_get_the_whole_gradient,
    it_learns_as_one_process_does,
    only_the_ends_send_the_table,
]
