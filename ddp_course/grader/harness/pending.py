"""What is received counts once it has been waited for, and what is sent stays as it is until then.

With async_op=True, isend, irecv and a process group's own methods, an answer that does not wait passes on one run and
fails on the next. So a result comes in a copy here, and goes to its place at wait(): whoever does not wait reads what
was there before, on every run. A tensor that has other values at the wait for its send than at the start of it is
noted. What torch itself starts and waits for, such as DDP, is left as it is.
"""

import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

Work = dist.distributed_c10d.Work
TORCH = str(Path(torch.__file__).parent)
ASKED = "distributed_c10d.py"  # torch's file with all_reduce, irecv ...: there it is the caller who waits
BETWEEN = (__file__, "/record.py", "/_python_dispatch.py", "/eval_frame.py", "/_compile.py")  # frames of dispatching


@dataclass
class Flight:
    """An operation that nobody has waited for yet.

    pairs   (a tensor of the answer, its copy): where a result goes and what has come, or what is sent and how it was
    """

    work: Any
    op: str
    line: int | None
    pairs: list[tuple[Tensor, Tensor]]

    def end(self):
        """Bring what has come to its place; of a send, note its line if what was sent has changed meanwhile."""
        with torch.no_grad():
            for mine, copy in self.pairs:
                if self.op != "send":
                    mine.data.copy_(copy)
                elif not torch.equal(_bytes(mine), _bytes(copy)):
                    changed.append(self.line)


starting = threading.local()  # .now: there is one recorder below another, and one of them is enough
flying: dict[int, Flight] = {}  # by id of the Work
early: list[tuple] = []  # (op, its line, line) of each operation on what had not been waited for
changed: list[int | None] = []  # the line of each send whose tensor changed before somebody waited for it


def start(func: Callable, named: dict[str, Any], op: str, line: int | None) -> Any:
    """Start `func`, an operation of c10d, with the arguments `named`: what it fills are copies, if the answer waits."""
    if op.endswith("barrier") or getattr(starting, "now", False) or not _the_answer_waits():
        return func(**named)
    pairs: list[tuple[Tensor, Tensor]] = []
    copied = {name: one if name.startswith("input") else _copied(one, pairs) for name, one in named.items()}
    starting.now = True
    try:
        result = func(**(named if op == "send" else copied))
    finally:
        starting.now = False
    work = Work.unbox(result[-1] if isinstance(result, (tuple, list)) else result)
    flying[id(work)] = Flight(work, op, line, pairs)
    if op == "recv":
        for mine, _ in pairs:
            _spoil(mine.data)  # or fresh memory might hold the right values by chance
    return result


def end_when_waited_for():
    """From now on, a Work ends its Flight when somebody waits for it, or sees that it is done."""
    wait, is_completed, get_future = Work.wait, Work.is_completed, Work.get_future

    def waited(work, *args, **kwargs):
        try:
            done = wait(work, *args, **kwargs)
        except BaseException:
            flying.pop(id(work), None)  # it has been waited for, in vain
            raise
        _end(work)
        return done

    def seen(work):
        done = is_completed(work)
        if done:
            _end(work)
        return done

    def future_of(work):
        future = get_future(work)
        if id(work) not in flying:
            return future
        places = [place for place, _ in flying[id(work)].pairs]

        def then(done):
            done.wait()  # raises what went wrong
            _end(work)
            return places

        return future.then(then)

    Work.wait, Work.is_completed, Work.get_future = waited, seen, future_of


def note_reading(args: tuple, line: int | None):
    """Remember it if `args`, those of an operation in this line, hold what is still being received."""
    lists = [one for one in args if isinstance(one, (list, tuple))]
    for one in chain(args, *lists):
        if torch.is_tensor(one) and one.layout == torch.strided:
            for flight in list(flying.values()):  # a copy: the future of a Work ends its Flight in gloo's thread
                if flight.op != "send" and line and any(_overlap(one, place) for place, _ in flight.pairs):
                    early.append((flight.op, flight.line, line))


def left_over() -> dict[str, list]:
    """Notes for the RankRecord: (op, line) of what is received but not waited for, the lines of changed sends, and
    (op, its line, line) of what was read too early."""
    for one in list(flying.values()):
        if one.op == "send":
            one.end()
    alone = [(one.op, one.line) for one in list(flying.values()) if one.op != "send"]
    return {"not_waited_for": alone, "changed": changed, "read_early": early[:1]} if alone or changed or early else {}


def _end(work):
    if flight := flying.pop(id(work), None):
        flight.end()


def _the_answer_waits():
    """Whether the answer waits for what is being started, and not torch's own code."""
    frame = sys._getframe(2)
    while frame is not None and frame.f_code.co_filename.endswith(BETWEEN):
        frame = frame.f_back
    name = frame.f_code.co_filename if frame else TORCH
    return name.endswith(ASKED) or not name.startswith(TORCH)


def _copied(value, pairs):
    """`value` with a copy in place of each tensor; the pairs (tensor, its copy) are added to `pairs`."""
    if torch.is_tensor(value) and value.layout == torch.strided and value.is_contiguous():
        copy = value.detach().clone()
        pairs.append((value, copy))
        return copy
    if isinstance(value, (list, tuple)):
        return [_copied(one, pairs) for one in value]
    return value


def _spoil(tensor):
    if tensor.is_floating_point():
        tensor.fill_(torch.nan)
    elif tensor.dtype != torch.bool and not tensor.is_complex():
        tensor.fill_(torch.iinfo(tensor.dtype).min)


def _overlap(one, other):
    """Whether two tensors share memory, the gaps between strides taken for theirs."""
    starts, ends = zip(*((each.data_ptr(), each.data_ptr() + _span(each)) for each in (one, other)), strict=True)
    return max(starts) < min(ends)


def _span(tensor):
    """From the first byte to the end of the last."""
    if not tensor.numel():
        return 0
    steps = ((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return (sum(steps) + 1) * tensor.element_size()


def _bytes(tensor):
    return tensor.detach().reshape(-1).view(torch.uint8)
