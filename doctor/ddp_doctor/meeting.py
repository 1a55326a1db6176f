"""Whether this machine can meet the others at an endpoint: name, port, own name and interfaces, before any job.

One machine alone can check these. Whether all have the same --nnodes and --rdzv-id, only the job shows; and
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
class Observation:
    """One checked property. status: "ok", "wrong" or "note" (worth knowing, wrong in some set-ups only)."""

    what: str
    status: str
    text: str


def look(endpoint: str) -> list[Observation]:
    """Checks name, port, own name and interfaces of `endpoint`, HOST:PORT as given to torchrun's --rdzv-endpoint.

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
    observations = [_endpoint(host, address)]
    if address is not None:
        observations.append(_port(host, address, int(port)))
    return [*observations, _own_name(), *(_interface(name) for name in _VARIABLES if os.environ.get(name))]


def checklist(observations: list[Observation]) -> str:
    marks = {"ok": "ok   ", "wrong": "WRONG", "note": "note "}
    return "\n".join(
        f"{marks[observation.status]}  {observation.what}: {observation.text}" for observation in observations
    )


def interfaces() -> dict[str, str]:
    """Name -> IPv4 address, the first, of each interface of this machine that has one."""
    by_name = {}
    for name, addresses in psutil.net_if_addrs().items():
        for address in addresses:
            if address.family == socket.AF_INET:
                by_name.setdefault(name, address.address)
    return by_name


def _resolved(host: str) -> str | None:
    """An IPv4 address of it, if it has one, else one of IPv6."""
    try:
        infos = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (OSError, ValueError):  # ValueError: no machine can have such a name
        return None
    return min(infos, key=lambda info: info[0] != socket.AF_INET)[4][0]


def _is_here(address: str) -> bool:
    """Whether it is an address of this machine, in either family."""
    return any(entry.address == address for entries in psutil.net_if_addrs().values() for entry in entries)


def _endpoint(host: str, address: str | None) -> Observation:
    if address is None:
        text = f"nobody here knows the name {host}: give an address, or add it to /etc/hosts"
        return Observation("endpoint", "wrong", text)
    if host == socket.gethostname():
        text = f"{host} is this machine: right on one machine; as $(hostname) in a start script each would wait alone"
        return Observation("endpoint", "note", text)
    if _is_loopback(address):
        text = f"{host} is {address}, on every machine the machine itself: each would wait alone"
        return Observation("endpoint", "wrong", f"{text}; give a name that leads to one machine from all of them")
    whose = "this machine" if _is_here(address) else "another machine"
    return Observation("endpoint", "ok", f"{host} is {address}, {whose}")


def _port(host: str, address: str, port: int) -> Observation:
    try:
        socket.create_connection((address, port), timeout=PATIENCE).close()
    except ConnectionRefusedError:
        return Observation("port", "ok", f"{port} of {host} can be reached, and nobody listens yet")
    except OSError as error:
        text = f"no answer from {host} ({address}) within {PATIENCE:g} s ({error}): a firewall, or no route"
        return Observation("port", "wrong", text)
    here = _is_here(address) or _is_loopback(address)
    if here and (other := _listener(address, port)):
        return Observation("port", "wrong", f"{port} is taken on this machine by {other}: choose another")
    return Observation("port", "ok", f"somebody listens at {port} of {host}, which should be the job's own torchrun")


def _listener(address: str, port: int) -> str | None:
    """The program that listens at `port` of `address`, unless it is torchrun. Each address has its own ports."""
    try:
        pids = [
            connection.pid
            for connection in psutil.net_connections("tcp")
            if connection.status == psutil.CONN_LISTEN
            and connection.laddr.port == port
            and connection.laddr.ip in (address, "0.0.0.0", "::")
            and connection.pid
        ]
        program, *rest = psutil.Process(pids[0]).cmdline() if pids else [""]
    except psutil.Error:
        return None
    words = " ".join([os.path.basename(program), *rest])
    return f"{words[:60]!r} (process {pids[0]})" if pids and "torch" not in words else None


def _own_name() -> Observation:
    name = socket.gethostname()
    address = _resolved(name)
    if os.environ.get("GLOO_SOCKET_IFNAME"):
        return Observation("own name", "ok", f"{name} is {address}; GLOO_SOCKET_IFNAME chooses, not the name")
    if address is None or _is_loopback(address):
        there = ", ".join(f"{card} ({ip})" for card, ip in interfaces().items() if not _is_loopback(ip)) or "none"
        text = f"{name} is {address or 'not known here'}, and gloo's ranks tell the others to come there"
        return Observation("own name", "wrong", f"{text}; mend /etc/hosts or set GLOO_SOCKET_IFNAME to one of {there}")
    return Observation("own name", "ok", f"{name} is {address}")


def _interface(variable: str) -> Observation:
    chosen, there = os.environ[variable], interfaces()
    fitting = [name for name in there if _VARIABLES[variable](chosen, name)]
    cards = ", ".join(f"{name} ({address})" for name, address in there.items())
    if not fitting:
        return Observation(variable, "wrong", f"no interface here fits {chosen!r}; this machine has {cards}")
    if all(_is_loopback(there[name]) for name in fitting):
        return Observation(variable, "wrong", f"{chosen!r} leads to this machine alone; it has {cards}")
    if variable == "NCCL_SOCKET_IFNAME" and _is_loopback(there[fitting[0]]):  # without a variable it would avoid lo
        text = f"of what fits {chosen!r} NCCL takes the first, {fitting[0]}, which leads to this machine alone"
        others = ", ".join(f"{name} ({there[name]})" for name in fitting if not _is_loopback(there[name]))
        return Observation(variable, "wrong", f"{text}; name one of {others}")
    return Observation(variable, "ok", f"{chosen!r} is {', '.join(f'{name} ({there[name]})' for name in fitting)}")


def _is_loopback(address: str) -> bool:
    """Or 0.0.0.0, which leads to the machine itself, too."""
    parsed = ipaddress.ip_address(address)
    return parsed.is_loopback or parsed.is_unspecified


def _nccl_takes(chosen: str, name: str) -> bool:
    """NCCL's rule: beginnings of names; all but these after ^, whole names after =."""
    words = chosen.lstrip("^=").split(",")
    fits = name in words if chosen.lstrip("^").startswith("=") else any(name.startswith(word) for word in words)
    return fits != chosen.startswith("^")


_VARIABLES = {"GLOO_SOCKET_IFNAME": lambda chosen, name: name in chosen.split(","), "NCCL_SOCKET_IFNAME": _nccl_takes}
