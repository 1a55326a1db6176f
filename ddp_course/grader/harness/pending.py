"""Make an answer that forgets wait() fail on every run, and note a tensor that changes while it is being sent.

With async_op=True, isend, irecv and a process group's own methods, an answer that does not wait passes on one run and
fails on the next. So a result is received into a copy here, and copied to the answer's tensor at wait(): without
wait() the tensor keeps its old values. A send is noted if its tensor has other values at the wait than at the start.
Operations that torch itself starts and waits for, such as DDP's, are left as they are.
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
PUBLIC_API = "distributed_c10d.py"  # torch's file with all_reduce, irecv ...: what it starts, its caller waits for
DISPATCHING = (__file__, "/record.py", "/_python_dispatch.py", "/eval_frame.py", "/_compile.py")


@dataclass
class PendingOperation:
    """An operation that was started and not waited for yet.

    work    never read, but kept: while it exists, no other Work has its id
    pairs   (tensor of the answer, copy): the copy is received into, or holds the tensor's values at the start of a send
    """

    work: Any
    op: str
    line: int | None
    pairs: list[tuple[Tensor, Tensor]]

    def end(self):
        """Copy what was received to its tensor; for a send, note the line if its tensor has changed since the start."""
        with _flag("in_grader"), torch.no_grad():
            for tensor, copy in self.pairs:
                if self.op != "send":
                    tensor.data.copy_(copy)
                elif not torch.equal(_bytes(tensor), _bytes(copy)):
                    changed_sends.append(self.line)


# Flags of a thread. starting: another Recorder is already starting this operation. in_grader: the grader, not the
# answer, reads tensors.
flags = threading.local()
unfinished: dict[int, PendingOperation] = {}  # by id of the Work
early_reads: list[tuple] = []  # (op, its line, line of the read), for each tensor that was read before the wait for op
changed_sends: list[int | None] = []  # the line of each send whose tensor changed before the wait


def start(func: Callable, arguments: dict[str, Any], op: str, line: int | None) -> Any:
    """Start `func`, an operation of c10d, and return its result. If the answer has to wait for it, it fills copies."""
    if op.endswith("barrier") or getattr(flags, "starting", False) or not _the_answer_waits():
        return func(**arguments)
    pairs: list[tuple[Tensor, Tensor]] = []
    with_copies = {
        name: argument if name.startswith("input") else _copied(argument, pairs) for name, argument in arguments.items()
    }
    with _flag("starting"):
        result = func(**(arguments if op == "send" else with_copies))
    work = Work.unbox(result[-1] if isinstance(result, (tuple, list)) else result)
    unfinished[id(work)] = PendingOperation(work, op, line, pairs)
    if op == "recv":
        for tensor, _ in pairs:
            _fill_with_nan(tensor.data)  # fresh memory might hold the right values by chance
    return result


def end_when_waited_for():
    """From now on, waiting for a Work, or finding it completed, ends its PendingOperation."""
    wait, is_completed, get_future = Work.wait, Work.is_completed, Work.get_future

    def waited(work, *args, **kwargs):
        try:
            done = wait(work, *args, **kwargs)
        except BaseException:
            unfinished.pop(id(work), None)  # the answer did wait; the operation failed
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
        operation = unfinished.get(id(work))  # gloo's thread may end it at any moment
        if operation is None:
            return future
        targets = [target for target, _ in operation.pairs]

        def finish(ended_future):
            ended_future.wait()  # raises the operation's error
            _end(work)
            return targets

        return future.then(finish)

    Work.wait, Work.is_completed, Work.get_future = waited, completed, future_of


def note_early_read(args: tuple, line: int | None):
    """Note that an operation in this line of the answer reads a tensor, in `args`, that is still being received."""
    if getattr(flags, "in_grader", False):
        return
    lists = [argument for argument in args if isinstance(argument, (list, tuple))]
    for argument in chain(args, *lists):
        if torch.is_tensor(argument) and argument.layout == torch.strided:
            for operation in list(unfinished.values()):  # a copy: gloo's thread may remove some meanwhile
                if operation.op != "send" and line and any(_overlap(argument, target) for target, _ in operation.pairs):
                    early_reads.append((operation.op, operation.line, line))


def wait_faults() -> dict[str, list]:
    """The RankRecord's fields unwaited, changed_sends and early_reads (the first read only); {} if all are empty.

    Compares the tensors of pending sends a last time: a send without a wait is no fault.
    """
    for operation in list(unfinished.values()):
        if operation.op == "send":
            operation.end()
    unwaited = [(operation.op, operation.line) for operation in list(unfinished.values()) if operation.op != "send"]
    if not (unwaited or changed_sends or early_reads):
        return {}
    return {"unwaited": unwaited, "changed_sends": changed_sends, "early_reads": early_reads[:1]}


@contextmanager
def _flag(name: str):
    """Set a flag of this thread inside the with block."""
    setattr(flags, name, True)
    try:
        yield
    finally:
        setattr(flags, name, False)


def _end(work):
    if operation := unfinished.pop(id(work), None):
        operation.end()


def _the_answer_waits():
    """Whether the answer, and not torch's own code, has to wait for the operation that is being started."""
    frame = sys._getframe(2)
    while frame is not None and frame.f_code.co_filename.endswith(DISPATCHING):
        frame = frame.f_back
    name = frame.f_code.co_filename if frame else TORCH
    return name.endswith(PUBLIC_API) or not name.startswith(TORCH)


def _copied(value, pairs):
    """`value` with a copy in place of each tensor; the pairs (tensor, its copy) are added to `pairs`."""
    if torch.is_tensor(value) and value.layout == torch.strided and value.is_contiguous():
        copy = value.detach().clone()
        pairs.append((value, copy))
        return copy
    if isinstance(value, (list, tuple)):
        return [_copied(element, pairs) for element in value]
    return value


def _fill_with_nan(tensor):
    """Fill with NaN, or the smallest value of an integer type; other types keep their values."""
    if tensor.is_floating_point():
        tensor.fill_(torch.nan)
    elif tensor.dtype != torch.bool and not tensor.is_complex():
        tensor.fill_(torch.iinfo(tensor.dtype).min)


def _overlap(left, right):
    """Whether the memory ranges of two tensors overlap, gaps between their elements included."""
    starts, ends = zip(*((each.data_ptr(), each.data_ptr() + _span(each)) for each in (left, right)), strict=True)
    return max(starts) < min(ends)


def _span(tensor):
    """The bytes from the start of a tensor's first element to the end of its last."""
    if not tensor.numel():
        return 0
    steps = ((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return (sum(steps) + 1) * tensor.element_size()


def _bytes(tensor):
    return tensor.detach().reshape(-1).view(torch.uint8)
