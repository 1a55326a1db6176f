"""Whether a process moves, seen from outside: CPU time and bytes, with all that it has started; else, what it awaits.

Bytes are those of the main thread's read and write calls and of the TCP connections. Linux alone tells; elsewhere
they count as none.
"""

import contextlib
import os
import platform
import socket
import struct
from dataclasses import dataclass
from pathlib import Path

import psutil

BUSY = 0.05  # share of a core that a rank uses at least while it computes
# System calls by machine: that wait for a child, with the argument that names it; that read, from argument 0
_CALLS = {
    "x86_64": ({61: 0, 247: 1}, {0, 17, 42, 43, 45, 47, 288}),
    "aarch64": ({260: 0, 95: 1}, {63, 67, 202, 203, 207, 212, 242}),
}
_WAITS, _READS = _CALLS.get(platform.machine(), ({}, set()))


@dataclass(frozen=True)
class Usage:
    """CPU seconds and bytes so far, of a process and all that it has started."""

    cpu: float = 0.0
    transferred: int = 0


def usage(process: psutil.Process, connections: dict[str, int]) -> Usage:
    """`connections` as from `bytes_by_connection`."""
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
        cpu += times.user + times.system
        transferred += _bytes_of_calls(member.pid)
        transferred += sum(connections.get(link, 0) for link in _links(member.pid)) if connections else 0
    return Usage(cpu, transferred)


def state_of(process: psutil.Process, now: Usage, earlier: Usage, seconds: float) -> str:
    """`Rank.state` of a process that has used `earlier` `seconds` ago."""
    try:
        status = process.status()
    except psutil.Error:
        return "ended"
    if status == psutil.STATUS_ZOMBIE:
        return "ended"
    if status in (psutil.STATUS_STOPPED, psutil.STATUS_TRACING_STOP):
        return "stopped"
    # A running process is at work, though on a crowded machine it may get no CPU time.
    if status == psutil.STATUS_RUNNING or now.cpu - earlier.cpu > BUSY * max(seconds, 1.0):
        return "computing"
    return "transferring" if now.transferred > earlier.transferred else "waiting"


def waits_for(process: psutil.Process, in_subprocess: bool) -> str | None:
    """In words, what outside of the job its main thread waits for; None if that is not known.

    in_subprocess: its Python stack stands in `subprocess`, which may read a program's output while it waits.
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
    """The ports of the ranks' stores, which some ask again and again while they wait."""
    ports = set()
    for process in processes:
        with contextlib.suppress(psutil.Error, OSError, ValueError):
            ports.add(int(process.environ().get("MASTER_PORT", "")))
    return ports


def _bytes_of_calls(pid: int) -> int:
    """Those of the main thread: another may write a log for ever, whatever becomes of the training."""
    try:
        return sum(int(line.split()[1]) for line in Path(f"/proc/{pid}/task/{pid}/io").read_text().splitlines()[:2])
    except (OSError, ValueError):
        return 0  # it has just ended, or is not ours


def _links(pid: int) -> list[str]:
    """The open files of a process, such as socket:[4711]."""
    links = []
    for file in Path(f"/proc/{pid}/fd").glob("*"):
        with contextlib.suppress(OSError):  # closed meanwhile
            links.append(os.readlink(file))
    return links


def bytes_by_connection(ports: set[int]) -> dict[str, int]:
    """socket:[inode] -> the bytes that this machine's TCP connections have carried, but for those at `ports`.

    Asked of the kernel as `ss -i` does (man 7 sock_diag). {} where it does not answer.
    """
    carried = {}
    try:
        with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 4) as kernel:  # NETLINK_SOCK_DIAG
            kernel.settimeout(1)
            for address_family in (socket.AF_INET, socket.AF_INET6):
                # established ones, with their tcp_info: SOCK_DIAG_BY_FAMILY (20), NLM_F_REQUEST | NLM_F_DUMP
                request = struct.pack("=BBBBI48x", address_family, socket.IPPROTO_TCP, 1 << 1, 0, 1 << 1)
                kernel.send(struct.pack("=IHHII", 16 + len(request), 20, 0x301, 1, 0) + request)
                while _read_answer(kernel.recv(1 << 18), ports, carried):
                    pass
    except (OSError, AttributeError, struct.error):
        pass
    return carried


def _read_answer(data: bytes, ports: set[int], carried: dict[str, int]) -> bool:
    """Whether more is to come."""
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
