"""Measures from outside whether a process moves, by CPU time and bytes, and what it waits for if it does not.

What a process has started counts as its own. Bytes are those of the main thread's read and write calls and of the TCP
connections; they are known on Linux only, and 0 elsewhere.
"""

import contextlib
import os
import platform
import socket
import struct
import time
from collections import deque
from dataclasses import dataclass
from pathlib import Path

import psutil

from ddp_doctor.launch.supervise import environment_of

BUSY = 0.05  # share of a core that a computing rank uses at least
# Numbers of system calls, by machine: {one that waits for a child: position of the argument that is the child's pid},
# {those that read from the file descriptor in argument 0}
_CALLS = {
    "x86_64": ({61: 0, 247: 1}, {0, 17, 42, 43, 45, 47, 288}),
    "aarch64": ({260: 0, 95: 1}, {63, 67, 202, 203, 207, 212, 242}),
}
_WAITS, _READS = _CALLS.get(platform.machine(), ({}, set()))


@dataclass(frozen=True)
class Usage:
    """CPU seconds and bytes so far, of a process and all its descendants."""

    cpu: float = 0.0
    transferred: int = 0


def usage(process: psutil.Process, connections: dict[str, int]) -> Usage:
    """The usage of a process until now. connections: from `bytes_by_connection`."""
    cpu, transferred = 0.0, 0
    try:
        family = [process, *process.children(recursive=True)]
    except psutil.Error:
        family = []
    for member in family:
        try:
            times = member.cpu_times()
        except psutil.Error:
            continue
        # With that of children that have ended: else an end would hide the work of those that are left.
        cpu += times.user + times.system + times.children_user + times.children_system
        transferred += _bytes_of_calls(member.pid)
        transferred += sum(connections.get(link, 0) for link in _links(member.pid)) if connections else 0
    return Usage(cpu, transferred)


def state_of(process: psutil.Process, now: Usage, earlier: Usage, seconds: float) -> str:
    """A process's state, as in `Rank.state`. now, earlier: its usage now and `seconds` ago."""
    try:
        status = process.status()
    except psutil.Error:
        return "ended"
    if status == psutil.STATUS_ZOMBIE:
        return "ended"
    if status in (psutil.STATUS_STOPPED, psutil.STATUS_TRACING_STOP):
        return "stopped"
    # A process that is ready to run is at work, though on a busy machine it may get no CPU time.
    if status == psutil.STATUS_RUNNING or now.cpu - earlier.cpu > BUSY * max(seconds, 1.0):
        return "computing"
    return "transferring" if now.transferred > earlier.transferred else "waiting"


class Activity:
    """Usage of the ranks in the last `seconds`. busy: rank -> whether it was at work when it was last seen."""

    def __init__(self, seconds: float):
        self.seconds, self.busy = seconds, {}
        self.used: deque = deque()  # (time, {rank: Usage}): the last `seconds`, and the newest before them

    def note(self, processes: dict[int, psutil.Process]) -> None:
        now, connections = time.monotonic(), bytes_by_connection(store_ports(processes.values()))
        self.used.append((now, {rank: usage(process, connections) for rank, process in processes.items()}))
        while len(self.used) > 1 and self.used[1][0] <= now - self.seconds:
            self.used.popleft()
        begin, earlier = self.used[0]
        for rank, used in self.used[-1][1].items():
            former = earlier.get(rank, used)
            self.busy[rank] = used.cpu - former.cpu > BUSY * (now - begin) or used.transferred > former.transferred

    def state_of(self, rank: int, process: psutil.Process) -> str:
        """The state of a rank between the oldest note and the newest, as in `Rank.state`."""
        (begin, earlier), (end, latest) = self.used[0], self.used[-1]
        return state_of(process, latest.get(rank, Usage()), earlier.get(rank, Usage()), end - begin)


def uses_gpu(pid: int) -> bool:
    """Has this process opened a GPU of NVIDIA?"""
    with contextlib.suppress(OSError):
        return any(os.readlink(entry).startswith("/dev/nvidia") for entry in os.scandir(f"/proc/{pid}/fd"))
    return False


def waits_for(process: psutil.Process, in_subprocess: bool) -> str | None:
    """In words, what outside of the job its main thread waits for; None if that is not known.

    in_subprocess: its Python stack is in `subprocess`, which may read a program's output while it waits for it.
    """
    try:
        if process.status() == psutil.STATUS_DISK_SLEEP:
            return "the disk"
        call, *arguments = Path(f"/proc/{process.pid}/syscall").read_text().split()
        children = [child for child in process.children() if child.status() != psutil.STATUS_ZOMBIE]
        if children and (in_subprocess or int(call) in _WAITS):
            pid = int(arguments[_WAITS.get(int(call), 0)], 16)
            child = next((child for child in children if child.pid == pid), children[-1])
            return f"process {child.pid}, `{' '.join(child.cmdline())[:60]}`"
        if int(call) not in _READS:
            return None
        number = int(arguments[0], 16)
        link = os.readlink(f"/proc/{process.pid}/fd/{number}")
        peer = next((each.raddr for each in process.net_connections("tcp") if each.fd == number and each.raddr), None)
        kind, _, inode = link.partition(":[")
        return f"data from {f'{peer.ip}:{peer.port}' if peer else f'a {kind}' if inode else link}"
    except (OSError, ValueError, IndexError, psutil.Error):
        return None


def store_ports(processes) -> set[int]:
    """The ports of the ranks' stores: bytes there are no movement, since a rank that waits polls its store."""
    ports = (environment(process).get("MASTER_PORT", "") for process in processes)
    return {int(port) for port in ports if port.isdigit()}


def environment(process: psutil.Process) -> dict[str, str]:
    """The variables of a process; {} if this user may not read them, or it is gone."""
    try:
        return environment_of(process)
    except (psutil.Error, OSError):
        return {}


def _bytes_of_calls(pid: int) -> int:
    """Bytes of the main thread's read and write calls. Another thread may write a log while the training hangs."""
    try:
        return sum(int(line.split()[1]) for line in Path(f"/proc/{pid}/task/{pid}/io").read_text().splitlines()[:2])
    except (OSError, ValueError):
        return 0  # it has just ended, or is not ours


def _links(pid: int) -> list[str]:
    """The open files of a process, such as socket:[4711]."""
    links, folder = [], f"/proc/{pid}/fd"
    with contextlib.suppress(OSError):  # the process has just ended, or is not ours
        for name in os.listdir(folder):
            with contextlib.suppress(OSError):  # closed meanwhile
                links.append(os.readlink(f"{folder}/{name}"))
    return links


def bytes_by_connection(ports: set[int]) -> dict[str, int]:
    """{"socket:[inode]": bytes sent and received} of this machine's TCP connections, but for those at `ports`.

    The kernel is asked as `ss -i` does it (man 7 sock_diag). {} where it does not answer.
    """
    carried = {}
    try:
        with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 4) as kernel:  # NETLINK_SOCK_DIAG
            kernel.settimeout(1)
            for address_family in (socket.AF_INET, socket.AF_INET6):
                # for established ones with their tcp_info: SOCK_DIAG_BY_FAMILY (20), NLM_F_REQUEST | NLM_F_DUMP (0x301)
                request = struct.pack("=BBBBI48x", address_family, socket.IPPROTO_TCP, 1 << 1, 0, 1 << 1)
                kernel.send(struct.pack("=IHHII", 16 + len(request), 20, 0x301, 1, 0) + request)
                while _read_answer(kernel.recv(1 << 18), ports, carried):
                    pass
    except (OSError, AttributeError, struct.error):
        pass
    return carried


def _read_answer(data: bytes, ports: set[int], carried: dict[str, int]) -> bool:
    """Adds the connections in one answer of the kernel to `carried`. Returns whether another answer follows."""
    while data:
        length, kind = struct.unpack_from("=IH", data)
        if kind in (2, 3):  # NLMSG_ERROR, NLMSG_DONE
            return False
        inode, attributes = struct.unpack_from("=I", data, 84)[0], data[88:length]
        while len(attributes) >= 4 and not ports & set(struct.unpack_from(">HH", data, 20)):
            size, name = struct.unpack_from("=HH", attributes)
            if name == 2 and size >= 140:  # INET_DIAG_INFO: tcpi_bytes_acked and tcpi_bytes_received
                carried[f"socket:[{inode}]"] = sum(struct.unpack_from("=QQ", attributes, 124))
            attributes = attributes[(size + 3) & ~3 :]
        data = data[(length + 3) & ~3 :]
    return True
