"""Watches the process group: its start and end, its collectives, and the number of threads."""

import sys

import torch

from .log import caller, where
from .variables import tensors_in

COLLECTIVES = (
    "all_reduce all_reduce_coalesced reduce broadcast all_gather all_gather_into_tensor all_gather_single "
    "all_gather_coalesced gather scatter reduce_scatter reduce_scatter_tensor reduce_scatter_single all_to_all "
    "all_to_all_single barrier monitored_barrier send recv isend irecv batch_isend_irecv new_group all_gather_object "
    "gather_object broadcast_object_list scatter_object_list send_object_list recv_object_list"
).split()


def watch_process(log):
    core = sys.modules.get("torch.distributed.distributed_c10d")
    if core is None:  # torch without torch.distributed
        return

    def watch(name, before):
        if function := getattr(core, name, None):
            watched = log.watched(function, before)
            setattr(core, name, watched)
            if getattr(torch.distributed, name, None) is function:
                setattr(torch.distributed, name, watched)

    def before_init(args, kwargs):
        timeout = args[2] if len(args) > 2 else kwargs.get("timeout")
        frames, made_by = where(), caller("torch/")
        return lambda _: log.event(
            "group begins", frames=frames, made_by=made_by, timeout=timeout is not None, threads=torch.get_num_threads()
        )

    def before_destroy(args, kwargs):
        if not args and kwargs.get("group") is None:
            log.event("group ends", frames=where(), threads=torch.get_num_threads())

    def before_set_num_threads(args, kwargs):
        log.event("threads", frames=where(), number=int(args[0] if args else kwargs.get("n", 1)))

    watch("init_process_group", before_init)
    watch("destroy_process_group", before_destroy)
    for name in COLLECTIVES:
        watch(name, lambda args, kwargs, name=name: _record_collective(log, name, args, kwargs))
    torch.set_num_threads = log.watched(torch.set_num_threads, before_set_num_threads)
    log.works = []  # (what async_op=True returned, number of the collective)
    for name in ("wait", "get_future", "is_completed", "block_current_stream"):
        if function := getattr(core.Work, name, None):
            setattr(core.Work, name, log.watched(function, lambda args, kwargs: _record_wait(log, args[0])))
    join = torch.distributed.algorithms.join.Join
    join.__init__ = log.watched(join.__init__, lambda args, kwargs: log.event("join"))


def _record_collective(log, name, args, kwargs):
    payload = [*args[:2], *kwargs.values()]  # all_gather: the output list, then the tensor that is sent
    payload = payload[1:2] if name.startswith("all_gather") and len(payload) > 1 else payload[:1]
    tensors = [tensor for _, tensor in tensors_in(payload)]
    number = log.counts.get("collective", 0)
    is_async = caller() == "own" and bool(kwargs.get("async_op"))  # what torch starts, it also waits for
    log.event(
        "collective",
        name=name,
        number=number,
        frames=where(),
        on_gradients=any(log.is_gradient(tensor) for tensor in tensors),
        values=_values(payload, tensors),
        views=_views([*args, *kwargs.values()]),
        is_async=is_async,
    )
    return lambda work: log.works.append((work, number)) if is_async else None


def _values(payload, tensors):
    """Up to eight of the numbers that are sent: the values of tensors with at most four, else those of objects."""
    if tensors:
        small = [tensor for tensor in tensors if 0 < tensor.numel() <= 4 and not tensor.is_complex()]
        return [float(value) for tensor in small for value in tensor.detach().reshape(-1).tolist()][:8]
    values = [item for part in payload for item in (part if isinstance(part, list | tuple) else [part])]
    values += [value for part in payload if isinstance(part, dict) for value in part.values()]
    return [float(value) for value in values if isinstance(value, int | float)][:8]


def _views(arguments):
    """[shape, strides] of each tensor that is not contiguous, of all that the collective is given."""
    tensors = [tensor for _, tensor in tensors_in(arguments) if tensor.layout == torch.strided]
    return [[list(tensor.shape), list(tensor.stride())] for tensor in tensors if not tensor.is_contiguous()]


def _record_wait(log, waited_for):
    for work, number in log.works:
        if work is waited_for:
            log.event("waited", number=number)
