"""02.3: an all-reduce from send and recv only, with no more bytes than a ring sends."""

import math

import torch

from ddp_course.base.quantity import with_prefix
from ddp_course.grader.vocabulary import Call, Mistake, Wrong, cases, check, expect, jobs_of, recognised, total_bytes

LARGE = 60_000  # elements; divisible by 2, 3 and 4
SHAPES = {  # number of ranks: the shapes of the tensors
    4: [(8,), (10,), (5, 7), (3,), (1,), (LARGE,), (9,), (2, 3), ()],
    3: [(10,), (2,), (LARGE,), (4,)],
    2: [(5,), (1,), (LARGE,)],
    1: [(4,)],
}
DTYPES = {(5, 7): torch.float64, (2, 3): torch.int64}  # of these shapes; the others are float32


def call(world, shape):
    """A call with a tensor of `shape` for each rank: values depend on rank and index, and their sums are exact.

    In a dtype of 8 bytes the values are so large that float32 would round them.
    """
    dtype = DTYPES.get(shape, torch.float32)
    base = torch.arange(math.prod(shape), dtype=torch.float64) * 3 + 1
    if dtype.itemsize > 4:
        base *= 2**30 + 1
    scenario = f"shape {shape}, {str(dtype)[6:]}"
    return Call([((base * (rank + 1) + rank).to(dtype).view(shape),) for rank in range(world)], scenario)


JOBS = jobs_of("ring_all_reduce", [call(world, shape) for world, shapes in SHAPES.items() for shape in shapes])


@check("every rank holds the sum in every element, on 1, 2, 3 and 4 ranks, for 1 to 60,000 elements of 3 dtypes")
def every_rank_holds_the_sum(case, rank, returned):
    inputs, [tensor] = [tensor for (tensor,) in case.args], case.tensors_after[rank]
    total = torch.stack([tensor.double() for tensor in inputs]).sum(0)
    wrong_elements = (tensor.double() != total).flatten().nonzero().flatten()
    if not len(wrong_elements):
        return
    first = int(wrong_elements[0])
    value, right = (values.flatten()[first].item() for values in (tensor.double(), total))
    if torch.is_tensor(returned) and returned.shape == total.shape and torch.equal(returned.double(), total):
        raise Wrong(
            f"rank {rank} returned the sum, but the tensor it was given holds {value:.15g} where the sum is "
            f"{right:.15g}",
            "the sum has to be in the tensor itself: which of your lines write into it?",
        )
    words, look_at = recognised(tensor, mistakes(inputs, total), look_at_values(tensor, total, case.world))
    raise Wrong(
        f"on rank {rank} {len(wrong_elements):,} of {total.numel():,} elements are wrong, the first at {first}: "
        f"{value:.15g}, the sum is {right:.15g}{words}",
        look_at,
    )


@check("nothing but send and recv is used")
def only_send_and_recv(case, rank, returned):
    for operation in case.operations[rank]:
        line = f" (line {operation.line})" if operation.line else ""
        expect(
            operation.op in ("send", "recv"), f"rank {rank} called {operation.op}{line}", "what send and recv can do"
        )


@check("each rank communicates with its neighbours only")
def only_neighbours(case, rank, returned):
    left, right = (rank - 1) % case.world, (rank + 1) % case.world
    for operation in case.operations[rank]:
        verb = "sent to" if operation.op == "send" else "received from"
        expect(
            operation.peer in (left, right),
            f"rank {rank} {verb} rank {operation.peer}; its neighbours are {left} and {right}",
            "the ranks that you pass to send and recv: in a ring a rank has two neighbours",
        )


@check(lambda sent: f"a rank sends 2(N-1)/N of the tensor: {', '.join(sent[0])}")
def the_bytes_of_a_ring(records):
    sent_by_world = []
    # The largest tensor first: an excess is clearest there.
    for case in sorted(cases(records), key=lambda case: -case.args[0][0].numel()):
        [tensor] = case.args[0]
        size = with_prefix(tensor.nbytes, "B")
        limit = 2 * (case.world - 1) * math.ceil(tensor.numel() / case.world) * tensor.itemsize
        for rank, operations in enumerate(case.operations):
            sent = total_bytes(operation for operation in operations if operation.op == "send")
            expect(
                sent <= limit,
                f"{case.where}rank {rank} sent {with_prefix(sent, 'B')}; a ring sends 2(N-1)/N of the {size} tensor = "
                f"{with_prefix(limit, 'B')}",
                "how much of the tensor does a rank send in one round?",
            )
        if tensor.numel() == LARGE:
            sent_by_world.append(f"{with_prefix(sent, 'B')} of {size} at N={case.world}")
    return sent_by_world


def mistakes(inputs, total):
    """The known mistakes: the wrong tensor that each leaves, and where to look."""
    yield Mistake(
        "equal but for the last digits",
        total,
        "the last digits are lost: in which dtype are the numbers sent and added?",
    )
    yield Mistake(
        f"the tensor holds the sum divided by {len(inputs)}",
        total / len(inputs),
        "which of your lines divides: an all-reduce with SUM adds up and does not",
    )
    for rank, rank_input in enumerate(inputs):
        yield Mistake(
            f"the tensor holds what rank {rank} was given",
            rank_input,
            "which of your lines write into the tensor, and what",
        )


def look_at_values(tensor, total, world):
    """Where to look if no known mistake gives `tensor`. All inputs are positive: a partial sum is less than the sum."""
    tensor, total = tensor.double().flatten(), total.flatten()
    wrong_elements = (tensor != total).nonzero().flatten()
    if len(wrong_elements) < world and int(wrong_elements[0]) == len(total) - len(wrong_elements):
        return f"{len(total)} elements are not divisible by {world}: which rank sends the rest?"
    if (tensor > total).any():
        return "some values are added twice: a complete chunk is copied, not added"
    return "after the first half each rank has one complete chunk: how do the other ranks get it?"
