"""Whether a job that stands still provably cannot end: only then does the doctor end it unasked."""

import pytest
from ddp_doctor.deadlock import cannot_end
from ddp_doctor.history import Collective, Frame, History
from ddp_doctor.job import Error, Job, Rank

TORCH = Frame("/x/site-packages/torch/distributed/distributed_c10d.py", 1, "all_reduce")


def waiting(number, *collectives, state="waiting", call="all_reduce", line=12):
    """A rank in the last of its collectives, each a name or (name, size)."""
    pairs = [each if isinstance(each, tuple) else (each, 4) for each in collectives]
    stack = (Frame(TORCH.file, 1, call), Frame("/somewhere/train.py", line, "train"))
    started = tuple(
        Collective(number, "0", name, ((size,),), ("float32",), stack) for number, (name, size) in enumerate(pairs, 1)
    )
    progress = {"0": (len(started), len(started) - 1)} if started else {}
    history = History({"0": started} if started else {}, {"0": (0, 1)}, started[-1] if started else None)
    return Rank(number, 10 + number, state, stack=stack, history=history, recorded=True, progress=progress)


def elsewhere(number, state="waiting", **facts):
    """A rank in no collective, without any in its records."""
    return Rank(number, 10 + number, state, stack=(Frame("/somewhere/train.py", 20, "train"),), recorded=True, **facts)


ERROR = Error("ValueError: x", 1.0, uncaught=True)


@pytest.mark.parametrize(
    ("ranks", "proved"),
    [
        ([waiting(0, "all_reduce"), waiting(1, "broadcast")], True),
        ([waiting(0, "all_reduce"), waiting(1, ("all_reduce", 5))], True),
        ([waiting(0, "all_reduce"), waiting(1, "all_reduce")], False),  # a GPU may need long for it
        ([waiting(0, "all_reduce"), elsewhere(1)], False),  # a lock, a file, a debugger: it may come
        ([waiting(0, "all_reduce"), elsewhere(1, state="computing")], False),
        ([waiting(0, "all_reduce"), elsewhere(1, state="transferring")], False),
        ([waiting(0, "all_reduce"), elsewhere(1, waits_for="process 7")], False),
        ([waiting(0, "all_reduce"), elsewhere(1, state="stopped")], False),
        ([waiting(0, "all_reduce"), elsewhere(1, state="ended")], True),
        ([waiting(0, "all_reduce"), elsewhere(1, error=ERROR)], True),
        ([waiting(0, call="recv"), waiting(1, call="recv")], True),
        ([waiting(0, call="new_group"), waiting(1, call="barrier", line=14)], True),
        ([waiting(0, "all_reduce")], False),  # rank 1 has not been seen yet
    ],
)
def test_cannot_end(ranks, proved):
    job = Job({rank.rank: rank for rank in ranks}, 2, "still")
    assert cannot_end(job) is proved
