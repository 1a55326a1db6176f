"""Makes an answer that forgets wait() fail on every run, and notes a tensor that changes while it is being sent.

With async_op=True, isend, irecv and a process group's own methods, an answer that does not wait passes on one run and
fails on the next. So a result is received into a copy here, and copied to the answer's tensor at wait(): without
wait() the tensor keeps its old values. A tensor whose values at the wait for its send differ from those at its start is
noted. Operations that torch itself starts and waits for, such as DDP's, are left as they are.
"""

import sys
import threading
from collections.abc import Callable
from contextlib import contextmanager
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
class PendingOperation:
    """An operation that nobody has waited for yet.

    pairs   (tensor of the answer, copy): the copy holds what was received, or what the tensor was when it was sent
    """

    work: Any
    op: str
    line: int | None
    pairs: list[tuple[Tensor, Tensor]]

    def end(self):
        """Copy what was received to its tensor; for a send, note the line if the tensor has changed meanwhile."""
        with _marked("reading"), torch.no_grad():
            for tensor, copy in self.pairs:
                if self.op != "send":
                    tensor.data.copy_(copy)
                elif not torch.equal(_bytes(tensor), _bytes(copy)):
                    changed.append(self.line)


# .starting: there is one recorder below another, and one of them is enough. .reading: it is not the answer that reads.
own = threading.local()
unfinished: dict[int, PendingOperation] = {}  # by id of the Work
early: list[tuple] = []  # (op, its line, line) of each operation on what had not been waited for
changed: list[int | None] = []  # the line of each send whose tensor changed before somebody waited for it


def start(func: Callable, named: dict[str, Any], op: str, line: int | None) -> Any:
    """Start `func`, an operation of c10d, with the arguments `named`: what it fills are copies, if the answer waits."""
    if op.endswith("barrier") or getattr(own, "starting", False) or not _the_answer_waits():
        return func(**named)
    pairs: list[tuple[Tensor, Tensor]] = []
    copied = {
        name: argument if name.startswith("input") else _copied(argument, pairs) for name, argument in named.items()
    }
    with _marked("starting"):
        result = func(**(named if op == "send" else copied))
    work = Work.unbox(result[-1] if isinstance(result, (tuple, list)) else result)
    unfinished[id(work)] = PendingOperation(work, op, line, pairs)
    if op == "recv":
        for tensor, _ in pairs:
            _spoil(tensor.data)  # or fresh memory might hold the right values by chance
    return result


def end_when_waited_for():
    """From now on, waiting for a Work, or finding it completed, ends its PendingOperation."""
    wait, is_completed, get_future = Work.wait, Work.is_completed, Work.get_future

    def waited(work, *args, **kwargs):
        try:
            done = wait(work, *args, **kwargs)
        except BaseException:
            unfinished.pop(id(work), None)  # it has been waited for, in vain
            raise
        _end(work)
        return done

    def completed(work):
        done = is_completed(work)
        if done:
            _end(work)
        return done

    def future_of(work):
        future = get_future(work)
        if id(work) not in unfinished:
            return future
        targets = [target for target, _ in unfinished[id(work)].pairs]

        def then(done):
            done.wait()  # raises what went wrong
            _end(work)
            return targets

        return future.then(then)

    Work.wait, Work.is_completed, Work.get_future = waited, completed, future_of


def note_reading(args: tuple, line: int | None):
    """Note an operation in this line whose `args` hold a tensor that is still being received."""
    if getattr(own, "reading", False):
        return
    lists = [argument for argument in args if isinstance(argument, (list, tuple))]
    for argument in chain(args, *lists):
        if torch.is_tensor(argument) and argument.layout == torch.strided:
            for operation in list(unfinished.values()):  # a copy: gloo's thread ends operations, too
                if operation.op != "send" and line and any(_overlap(argument, target) for target, _ in operation.pairs):
                    early.append((operation.op, operation.line, line))


def left_over() -> dict[str, list]:
    """Notes for the RankRecord: (op, line) of receives without a wait, the lines of changed sends, and (op, its line,
    line) of a read before the wait."""
    for operation in list(unfinished.values()):
        if operation.op == "send":
            operation.end()
    unwaited = [(operation.op, operation.line) for operation in list(unfinished.values()) if operation.op != "send"]
    return (
        {"not_waited_for": unwaited, "changed": changed, "read_early": early[:1]}
        if unwaited or changed or early
        else {}
    )


@contextmanager
def _marked(name: str):
    """`own` has this mark inside, on this thread."""
    setattr(own, name, True)
    try:
        yield
    finally:
        setattr(own, name, False)


def _end(work):
    if operation := unfinished.pop(id(work), None):
        operation.end()


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
        return [_copied(element, pairs) for element in value]
    return value


def _spoil(tensor):
    if tensor.is_floating_point():
        tensor.fill_(torch.nan)
    elif tensor.dtype != torch.bool and not tensor.is_complex():
        tensor.fill_(torch.iinfo(tensor.dtype).min)


def _overlap(left, right):
    """Whether two tensors share memory, the gaps between strides taken for theirs."""
    starts, ends = zip(*((each.data_ptr(), each.data_ptr() + _span(each)) for each in (left, right)), strict=True)
    return max(starts) < min(ends)


def _span(tensor):
    """From the first byte to the end of the last."""
    if not tensor.numel():
        return 0
    steps = ((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return (sum(steps) + 1) * tensor.element_size()


def _bytes(tensor):
    return tensor.detach().reshape(-1).view(torch.uint8)
