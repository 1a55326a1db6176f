"""Write down what a rank communicates, in order, however it asked for it.

torch hands every collective, send and receive to its dispatcher as an operation of the namespace c10d. The recorder
listens there and not around the functions of torch.distributed: `from torch.distributed import all_reduce`, object
collectives, functional collectives, DDP and a process group's own methods all end in the same place.
"""

import sys
import threading

import torch.distributed as dist
from torch.utils._python_dispatch import TorchDispatchMode

from ddp_course.grader.harness import pending
from ddp_course.grader.harness.notes import Operation

NAMESPACES = {"c10d", "_c10d_functional", "_c10d_functional_autograd"}
NOT_COMMUNICATION = {"wait_tensor", "_wrap_tensor_autograd", "check_for_nan"}
# How the dispatcher's names begin, and what people call them. The first that fits counts.
NAMES = {
    "allreduce": "all_reduce",
    "all_reduce": "all_reduce",
    "allgather": "all_gather",
    "all_gather": "all_gather",
    "alltoall": "all_to_all",
    "all_to_all": "all_to_all",
    "reduce_scatter": "reduce_scatter",
    "isend": "send",
    "irecv": "recv",
    "recv": "recv",
}


class Recorder(TorchDispatchMode):
    """While active, calls `note` with a dict, the fields of an Operation, before each one starts.

    Its bytes are what this rank hands over (of a recv: takes), its line that of the file `answer` from which it was
    called (None: elsewhere).
    """

    def __init__(self, note, answer):
        super().__init__()
        self.note, self.answer = note, answer

    @classmethod
    def _should_skip_dynamo(cls):
        return False  # True, the default, loads torch._dynamo, in each grading anew

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        space, _, name = func._schema.name.partition("::")
        if space in NAMESPACES and name not in NOT_COMMUNICATION:
            named = dict(zip((argument.name for argument in func._schema.arguments), args, strict=False)) | kwargs
            op = _plain_name(name)
            line = line_in(self.answer)
            self.note(vars(Operation(op, _payload(op, named), _peer(named), line)))
            return pending.start(func, named, op, line)
        if pending.unfinished and not func.is_view:
            pending.note_reading(args, line_in(self.answer))
        return func(*args, **kwargs)


def in_new_threads(note, answer):
    """Threads that are started from now on are recorded too: a dispatch mode belongs to one thread."""
    run = threading.Thread.run

    def recorded(thread):
        with Recorder(note, answer):
            run(thread)

    threading.Thread.run = recorded


def line_in(answer, frame=None):
    """The line of `answer` that `frame` (default: the caller) is in or was called from; None if there is none."""
    frame = frame or sys._getframe(1)
    while frame is not None and frame.f_code.co_filename != answer:
        frame = frame.f_back
    return frame.f_lineno if frame else None


def _plain_name(name):
    name = name.strip("_")
    return next((plain for start, plain in NAMES.items() if name.startswith(start)), name)


def _payload(op, named):
    if op.endswith("barrier"):
        return 0  # its tensor is a stand-in
    tensors = [value for name, value in named.items() if name.startswith("input") or name in ("tensors", "tensor")]
    return sum(tensor.numel() * tensor.element_size() for tensor in _flat(tensors) if hasattr(tensor, "element_size"))


def _flat(nested):
    for element in nested:
        if isinstance(element, (list, tuple)):
            yield from _flat(element)
        else:
            yield element


def _peer(named):
    peer = named.get("dst", named.get("src"))
    group = named.get("process_group")
    if peer is None or group is None:
        return peer
    return dist.get_process_group_ranks(dist.ProcessGroup.unbox(group))[peer]
