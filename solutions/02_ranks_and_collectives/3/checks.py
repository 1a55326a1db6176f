"""02.3: an all-reduce from send and recv alone, at the cost of a ring."""

import math

import torch

from ddp_course.base.quantity import with_prefix
from ddp_course.grader.answer_record import Call, Job, cases
from ddp_course.grader.verdict import Wrong
from ddp_course.grader.vocabulary import Mistake, recognised

POINT_TO_POINT = {"send", "recv"}
LARGE = 60_000  # elements; divisible by 2, 3 and 4


def call(world, shape, dtype=torch.float32):
    """Values that depend on rank and place, and whose sums `dtype` holds without rounding; float32 holds no others."""
    count = torch.Size(shape).numel()
    base = torch.arange(count, dtype=torch.float64) * 3 + 1
    if dtype.itemsize > 4:
        base *= 2**30 + 1
    given = f"shape {tuple(shape)}, {str(dtype)[6:]}"
    return Call([((base * (rank + 1) + rank).to(dtype).view(shape),) for rank in range(world)], given)


JOBS = [
    Job(
        4,
        function="ring_all_reduce",
        calls=(
            call(4, (8,)),
            call(4, (10,)),
            call(4, (5, 7), torch.float64),
            call(4, (3,)),
            call(4, (1,)),
            call(4, (LARGE,)),
            call(4, (9,)),
            call(4, (2, 3), torch.int64),
            call(4, ()),
        ),
    ),
    Job(3, function="ring_all_reduce", calls=(call(3, (10,)), call(3, (2,)), call(3, (LARGE,)), call(3, (4,)))),
    Job(2, function="ring_all_reduce", calls=(call(2, (5,)), call(2, (1,)), call(2, (LARGE,)))),
    Job(1, function="ring_all_reduce", calls=(call(1, (4,)),)),
]


def every_rank_holds_the_sum(records):
    """The tensor itself holds the sum over all ranks afterwards, on every rank, in every element."""
    for case in cases(records):
        inputs = [tensor for (tensor,) in case.args]
        total = torch.stack([tensor.double() for tensor in inputs]).sum(0)
        for rank, (tensor,) in enumerate(case.after):
            wrong = (tensor.double() != total).flatten().nonzero().flatten()
            if not len(wrong):
                continue
            first, count = int(wrong[0]), total.numel()
            got, right = (one.flatten()[first].item() for one in (tensor.double(), total))
            returned = case.results[rank]
            if torch.is_tensor(returned) and returned.shape == total.shape and torch.equal(returned.double(), total):
                raise Wrong(
                    f"{case.where}rank {rank} returned the sum, but the tensor it was given holds {got:.15g} "
                    f"where the sum is {right:.15g}",
                    "the sum has to be in the tensor itself: which of your lines write into it?",
                )
            words, look = recognised(tensor, mistakes(inputs, total), place_to_look(tensor, total, case.world))
            raise Wrong(
                f"{case.where}on rank {rank} {len(wrong):,} of {count:,} elements are wrong, the first at "
                f"{first}: {got:.15g}, the sum is {right:.15g}{words}",
                look,
            )
    return "every rank holds the sum in every element, on 1, 2, 3 and 4 ranks, for 1 to 60,000 elements of 3 dtypes"


def only_send_and_recv(records):
    """No collective is called."""
    for case in cases(records):
        for rank, mine in enumerate(case.operations):
            for one in mine:
                if one.op not in POINT_TO_POINT:
                    line = f" (line {one.line})" if one.line else ""
                    raise Wrong(f"{case.where}rank {rank} called {one.op}{line}", "what send and recv can do")
    return "nothing but send and recv is used"


def only_neighbours(records):
    """A rank talks to its two neighbours in the ring and to nobody else."""
    for case in cases(records):
        for rank, mine in enumerate(case.operations):
            left, right = (rank - 1) % case.world, (rank + 1) % case.world
            for one in mine:
                if one.peer not in (left, right):
                    way = "sent to" if one.op == "send" else "received from"
                    raise Wrong(
                        f"{case.where}rank {rank} {way} rank {one.peer}; its neighbours are {left} and {right}",
                        "the ranks you name in send and recv: one link that all use is what a ring avoids",
                    )
    return "each rank talks to its neighbours only"


def the_bytes_of_a_ring(records):
    """A rank sends 2(N-1) chunks of ceil(size / N) elements at most."""
    seen = []
    for case in sorted(cases(records), key=lambda case: -case.args[0][0].numel()):  # the largest tells most
        [tensor] = case.args[0]
        size = tensor.numel() * tensor.itemsize
        limit = 2 * (case.world - 1) * math.ceil(tensor.numel() / case.world) * tensor.itemsize
        for rank, mine in enumerate(case.operations):
            sent = sum(one.bytes for one in mine if one.op == "send")
            if sent > limit:
                raise Wrong(
                    f"{case.where}rank {rank} sent {with_prefix(sent, 'B')}; a ring sends 2(N-1)/N of the "
                    f"{with_prefix(size, 'B')} tensor = {with_prefix(limit, 'B')}",
                    "how much of the tensor leaves a rank in one round?",
                )
        if tensor.numel() == LARGE:
            seen.append(f"{with_prefix(sent, 'B')} of {with_prefix(size, 'B')} at N={case.world}")
    return f"a rank sends 2(N-1)/N of the tensor: {', '.join(seen)}"


CHECKS = [every_rank_holds_the_sum, only_send_and_recv, only_neighbours, the_bytes_of_a_ring]


def mistakes(inputs, total):
    """What a wrong tensor may be as a whole."""
    digits = "the last digits are gone: in which dtype do the numbers travel, and are they added?"
    yield Mistake("all but its last digits", total, digits)
    yield Mistake(
        f"what is there is the sum divided by {len(inputs)}",
        total / len(inputs),
        "which of your lines divides: an all-reduce with SUM adds up and does not",
    )
    for rank, own in enumerate(inputs):
        yield Mistake(
            f"what is there is what rank {rank} was given", own, "which of your lines write into the tensor, and what"
        )


def place_to_look(after, total, world):
    """A guess at the mistake from the elements; all inputs are positive, so a part is less than the sum."""
    after, total = after.double().flatten(), total.flatten()
    wrong = (after != total).nonzero().flatten()
    if len(wrong) < world and int(wrong[0]) == len(total) - len(wrong):
        return f"{len(total)} elements do not divide by {world}: who sends the rest?"
    if (after > total).any():
        return "something is counted twice: a chunk that is complete is copied, not added"
    return "after the first half each rank has one complete chunk: how do the others get it?"
