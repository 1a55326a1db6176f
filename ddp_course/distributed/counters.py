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

from ddp_course.distributed.sync import gather_objects


def held_bytes(tensors: Iterable[Tensor | None]) -> int:
    """Bytes of the storages behind `tensors` on this rank; a storage that several of them share counts once."""
    local = [getattr(tensor, "_local_tensor", tensor) for tensor in tensors if tensor is not None]
    return sum({t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in local}.values())


def sent_bytes() -> float:
    """Bytes that all TCP connections of this process have sent so far, without retransmissions. A collective.

    Linux counts them for each connection (struct tcp_info in linux/tcp.h). On macOS all processes of the machine share
    the loopback's counter, which is divided here by the number of ranks.
    """
    dist.barrier()
    if sys.platform != "linux":
        return psutil.net_io_counters(pernic=True)["lo0"].bytes_sent / dist.get_world_size()
    return sum(sent for _, _, sent in _connections())


def sent_to_ranks() -> dict[int, int]:
    """Bytes sent so far to each other rank, if all ranks are on this machine; Linux only. A collective."""
    dist.barrier()
    connections = _connections()
    ports_by_rank = gather_objects([port for port, _, _ in connections])
    return {
        rank: sum(sent for _, peer_port, sent in connections if peer_port in ports)
        for rank, ports in enumerate(ports_by_rank)
        if rank != dist.get_rank()
    }


def _connections() -> list[tuple[int, int, int]]:
    """(local port, peer's port, bytes sent without retransmissions) of each TCP connection of this process."""
    connections = []
    for link in Path("/proc/self/fd").iterdir():
        if link.is_socket():
            # OSError: closed meanwhile, or no TCP
            with suppress(OSError), socket.socket(fileno=os.dup(int(link.name))) as tcp:
                info = tcp.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 216)
                sent, retransmitted = struct.unpack_from("QQ", info, 200)
                peer_port = 0  # of a connection whose peer has closed it: its bytes still count
                with suppress(OSError):
                    peer_port = tcp.getpeername()[1]
                connections.append((tcp.getsockname()[1], peer_port, sent - retransmitted))
    return connections
