"""Watches the process group: when it begins and ends, which collectives run, and how many threads compute."""

import sys

from .log import caller, where

COLLECTIVES = (
    "all_reduce all_reduce_coalesced reduce broadcast all_gather all_gather_into_tensor all_gather_single "
    "all_gather_coalesced gather scatter reduce_scatter reduce_scatter_tensor reduce_scatter_single all_to_all "
    "all_to_all_single barrier monitored_barrier send recv isend irecv batch_isend_irecv new_group all_gather_object "
    "gather_object broadcast_object_list scatter_object_list send_object_list recv_object_list"
).split()


def watch_process(log):
    import torch

    core = sys.modules.get("torch.distributed.distributed_c10d")
    if core is None:  # torch without torch.distributed
        return

    def replace(name, look):
        if function := getattr(core, name, None):
            watched = log.watched(function, look)
            setattr(core, name, watched)
            if getattr(torch.distributed, name, None) is function:
                setattr(torch.distributed, name, watched)

    def begins(args, kwargs):
        timeout = args[2] if len(args) > 2 else kwargs.get("timeout")
        place, by = where(), caller()
        return lambda _: log.event(
            "group begins", frames=place, by=by, timeout=timeout is not None, threads=torch.get_num_threads()
        )

    def ends(args, kwargs):
        if not args and kwargs.get("group") is None:
            log.event("group ends", frames=where(), threads=torch.get_num_threads())

    def threads(args, kwargs):
        log.event("threads", frames=where(), number=int(args[0] if args else kwargs.get("n", 1)))

    replace("init_process_group", begins)
    replace("destroy_process_group", ends)
    for name in COLLECTIVES:
        replace(name, lambda args, kwargs, name=name: _collective(log, name, args, kwargs))
    torch.set_num_threads = log.watched(torch.set_num_threads, threads)


def _collective(log, name, args, kwargs):
    import torch

    first = args[0] if args else next(iter(kwargs.values()), None)
    tensors = [one for one in (first if isinstance(first, list | tuple) else [first]) if isinstance(one, torch.Tensor)]
    group = kwargs.get("group")
    log.event(
        "collective",
        name=name,
        frames=where(),
        on_gradients=any(log.is_gradient(one) for one in tensors),
        own_group=group is not None and group is not torch.distributed.group.WORLD,
    )
