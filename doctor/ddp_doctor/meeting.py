"""Whether this machine can meet the others at an endpoint: name, port, own name and interfaces, before any job.

What one machine can see of it alone. Whether all were told the same --nnodes and --rdzv-id, only the job shows; and
gloo and NCCL also use random ports, which have to be open between all machines.
"""

import ipaddress
import os
import socket
from dataclasses import dataclass

import psutil

from ddp_doctor.errors import InputError

PATIENCE = 3.0  # seconds to wait for an answer of the endpoint


@dataclass(frozen=True)
class Seen:
    """status: "ok", "wrong" or "note" (worth knowing, wrong in some set-ups only)."""

    what: str
    status: str
    text: str


def look(endpoint: str) -> list[Seen]:
    """What this machine sees of `endpoint`, HOST:PORT as given to torchrun's --rdzv-endpoint.

    Raises InputError if `endpoint` is no such pair.
    """
    host, _, port = endpoint.rpartition(":")
    if host.startswith("[") and host.endswith("]"):  # an IPv6 address, which has colons of its own
        host = host[1:-1]
    elif ":" in host:
        host = ""
    if not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise InputError(f"an endpoint is HOST:PORT, such as node1:29500 or [fd00::1]:29500, not {endpoint!r}")
    address = _resolved(host)
    found = [_endpoint(host, address)]
    if address is not None:
        found.append(_port(host, address, int(port)))
    return [*found, _own_name(), *(_interface(name) for name in _VARIABLES if os.environ.get(name))]


def checklist(found: list[Seen]) -> str:
    marks = {"ok": "ok   ", "wrong": "WRONG", "note": "note "}
    return "\n".join(f"{marks[one.status]}  {one.what}: {one.text}" for one in found)


def interfaces() -> dict[str, str]:
    """Name -> IPv4 address, the first, of each interface of this machine that has one."""
    found = {}
    for name, all_of_it in psutil.net_if_addrs().items():
        for one in all_of_it:
            if one.family == socket.AF_INET:
                found.setdefault(name, one.address)
    return found


def _resolved(host: str) -> str | None:
    """An IPv4 address of it, if it has one, else one of IPv6."""
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (OSError, ValueError):  # ValueError: no machine can have such a name
        return None
    return min(found, key=lambda one: one[0] != socket.AF_INET)[4][0]


def _is_here(address: str) -> bool:
    """Whether it is an address of this machine, in either family."""
    return any(one.address == address for all_of_it in psutil.net_if_addrs().values() for one in all_of_it)


def _endpoint(host: str, address: str | None) -> Seen:
    if address is None:
        return Seen("endpoint", "wrong", f"nobody here knows the name {host}: give an address, or add it to /etc/hosts")
    if host == socket.gethostname():
        text = f"{host} is this machine: right on one machine; as $(hostname) in a start script each would wait alone"
        return Seen("endpoint", "note", text)
    if _is_loopback(address):
        text = f"{host} is {address}, on every machine the machine itself: each would wait alone"
        return Seen("endpoint", "wrong", f"{text}; give a name that leads to one machine from all of them")
    whose = "this machine" if _is_here(address) else "another machine"
    return Seen("endpoint", "ok", f"{host} is {address}, {whose}")


def _port(host: str, address: str, port: int) -> Seen:
    try:
        socket.create_connection((address, port), timeout=PATIENCE).close()
    except ConnectionRefusedError:
        return Seen("port", "ok", f"{port} of {host} can be reached, and nobody listens yet")
    except OSError as error:
        text = f"no answer from {host} ({address}) within {PATIENCE:g} s ({error}): a firewall, or no route"
        return Seen("port", "wrong", text)
    here = _is_here(address) or _is_loopback(address)
    if here and (other := _listener(port)):
        return Seen("port", "wrong", f"{port} is taken on this machine by {other}: choose another")
    return Seen("port", "ok", f"somebody listens at {port} of {host}, which should be the job's own torchrun")


def _listener(port: int) -> str | None:
    """The program that listens at `port`, unless it is torchrun."""
    try:
        found = [
            one.pid
            for one in psutil.net_connections("tcp")
            if one.status == psutil.CONN_LISTEN and one.laddr.port == port and one.pid
        ]
        program, *rest = psutil.Process(found[0]).cmdline() if found else [""]
    except psutil.Error:
        return None
    words = " ".join([os.path.basename(program), *rest])
    return f"{words[:60]!r} (process {found[0]})" if found and "torch" not in words else None


def _own_name() -> Seen:
    name = socket.gethostname()
    address = _resolved(name)
    if os.environ.get("GLOO_SOCKET_IFNAME"):
        return Seen("own name", "ok", f"{name} is {address}; GLOO_SOCKET_IFNAME chooses, not the name")
    if address is None or _is_loopback(address):
        there = ", ".join(f"{card} ({one})" for card, one in interfaces().items() if not _is_loopback(one)) or "none"
        text = f"{name} is {address or 'not known here'}, and gloo's ranks tell the others to come there"
        return Seen("own name", "wrong", f"{text}; mend /etc/hosts or set GLOO_SOCKET_IFNAME to one of {there}")
    return Seen("own name", "ok", f"{name} is {address}")


def _interface(variable: str) -> Seen:
    chosen, there = os.environ[variable], interfaces()
    fitting = [name for name in there if _VARIABLES[variable](chosen, name)]
    cards = ", ".join(f"{name} ({address})" for name, address in there.items())
    if not fitting:
        return Seen(variable, "wrong", f"no interface here fits {chosen!r}; this machine has {cards}")
    if all(_is_loopback(there[name]) for name in fitting):
        return Seen(variable, "wrong", f"{chosen!r} leads to this machine alone; it has {cards}")
    if variable == "NCCL_SOCKET_IFNAME" and _is_loopback(there[fitting[0]]):  # without a variable it would avoid lo
        text = f"of what fits {chosen!r} NCCL takes the first, {fitting[0]}, which leads to this machine alone"
        others = ", ".join(f"{name} ({there[name]})" for name in fitting if not _is_loopback(there[name]))
        return Seen(variable, "wrong", f"{text}; name one of {others}")
    return Seen(variable, "ok", f"{chosen!r} is {', '.join(f'{name} ({there[name]})' for name in fitting)}")


def _is_loopback(address: str) -> bool:
    """Or 0.0.0.0, which leads to the machine itself, too."""
    found = ipaddress.ip_address(address)
    return found.is_loopback or found.is_unspecified


def _nccl_takes(chosen: str, name: str) -> bool:
    """NCCL's rule: beginnings of names; all but these after ^, whole names after =."""
    words = chosen.lstrip("^=").split(",")
    fits = name in words if chosen.lstrip("^").startswith("=") else any(name.startswith(word) for word in words)
    return fits != chosen.startswith("^")


_VARIABLES = {"GLOO_SOCKET_IFNAME": lambda chosen, name: name in chosen.split(","), "NCCL_SOCKET_IFNAME": _nccl_takes}
