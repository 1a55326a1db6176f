"""Two counters for a rank: the memory behind a set of tensors, and the bytes that it has sent."""

import os
import socket
import struct
import sys
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

import psutil
import torch.distributed as dist
from torch import Tensor


def held_bytes(tensors: Iterable[Tensor | None]) -> int:
    """Bytes of the storages behind `tensors` on this rank; a storage that several of them share counts once."""
    local = [getattr(tensor, "_local_tensor", tensor) for tensor in tensors if tensor is not None]
    return sum({t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in local}.values())


def sent_bytes() -> float:
    """Bytes that all TCP connections of this process have sent so far, repetitions left out. A collective.

    From Linux's own count for each connection (struct tcp_info in linux/tcp.h). On macOS from the loopback's counter,
    which all processes of the machine share: divided by the number of ranks.
    """
    dist.barrier()
    if sys.platform != "linux":
        return psutil.net_io_counters(pernic=True)["lo0"].bytes_sent / dist.get_world_size()
    return sum(sent for _, _, sent in _connections())


def sent_to_ranks() -> dict[int, int]:
    """Bytes sent so far to each other rank, if all ranks are on this machine; Linux only. A collective."""
    dist.barrier()
    own, ports = _connections(), [()] * dist.get_world_size()
    dist.all_gather_object(ports, [port for port, _, _ in own])
    return {
        rank: sum(sent for _, peer, sent in own if peer in there)
        for rank, there in enumerate(ports)
        if rank != dist.get_rank()
    }


def _connections() -> list[tuple[int, int, int]]:
    """Own port, the other end's port, and bytes sent, repetitions left out, of each TCP connection of this process."""
    found = []
    for link in Path("/proc/self/fd").iterdir():
        if link.is_socket():
            with socket.socket(fileno=os.dup(int(link.name))) as connection, suppress(OSError):
                info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 216)
                sent, repeated = struct.unpack_from("QQ", info, 200)
                peer = 0  # of a connection whose other end has gone: its bytes still count
                with suppress(OSError):
                    peer = connection.getpeername()[1]
                found.append((connection.getsockname()[1], peer, sent - repeated))
    return found
