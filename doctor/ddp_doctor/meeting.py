"""`doctor meet`: checks, before any job, whether this machine can meet the others at a rendezvous endpoint.

Checks the endpoint's name and port, this machine's own name, and its interfaces. Not checked: whether all machines have
the same --nnodes and --rdzv-id, and whether the random ports that gloo and NCCL also use are open between them.
"""

import ipaddress
import os
import socket
from dataclasses import replace

import psutil

from ddp_doctor.checks.finding import Finding, note, ok, wrong
from ddp_doctor.errors import InputError

TIMEOUT = 3.0  # seconds to wait for an answer of the endpoint


def look(endpoint: str) -> list[Finding]:
    """One finding each for the endpoint's name and port, this machine's name, and each variable that is set.

    endpoint: HOST:PORT as given to torchrun's --rdzv-endpoint. Raises InputError if it is no such pair.
    """
    host, _, port = endpoint.rpartition(":")
    if host.startswith("[") and host.endswith("]"):  # an IPv6 address, which has colons of its own
        host = host[1:-1]
    elif ":" in host:
        host = ""
    if not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise InputError(f"an endpoint is HOST:PORT, such as node1:29500 or [fd00::1]:29500, not {endpoint!r}")
    address = _resolved(host)
    findings = {"endpoint": _endpoint(host, address)}
    if address is not None:
        findings["port"] = _port(host, address, int(port))
    findings["own name"] = _own_name()
    findings |= {name: _interface(name) for name in _VARIABLES if os.environ.get(name)}
    return [replace(finding, title=title) for title, finding in findings.items()]


def interfaces() -> dict[str, str]:
    """{name: its first IPv4 address} of each interface of this machine that has one."""
    by_name = {}
    for name, addresses in psutil.net_if_addrs().items():
        for address in addresses:
            if address.family == socket.AF_INET:
                by_name.setdefault(name, address.address)
    return by_name


def _resolved(host: str) -> str | None:
    """An IPv4 address of `host` if it has one, else an IPv6 address; None if the name cannot be resolved."""
    try:
        infos = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (OSError, ValueError):  # ValueError: no machine can have such a name
        return None
    return min(infos, key=lambda info: info[0] != socket.AF_INET)[4][0]


def _is_here(address: str) -> bool:
    return any(entry.address == address for entries in psutil.net_if_addrs().values() for entry in entries)


def _endpoint(host: str, address: str | None) -> Finding:
    if address is None:
        return wrong(f"the name {host} cannot be resolved here: give an address, or add it to /etc/hosts")
    if host == socket.gethostname():
        text = f"{host} is this machine: right on one machine; as $(hostname) in a start script each would wait alone"
        return note(text)
    if _is_loopback(address):
        text = f"{host} is {address}, on every machine the machine itself: each would wait alone"
        return wrong(f"{text}; give a name that leads to one machine from all of them")
    machine = "this machine" if _is_here(address) else "another machine"
    return ok(f"{host} is {address}, {machine}")


def _port(host: str, address: str, port: int) -> Finding:
    try:
        socket.create_connection((address, port), timeout=TIMEOUT).close()
    except ConnectionRefusedError:
        return ok(f"{host} can be reached, and no program listens at {port} yet")
    except OSError as error:
        text = f"no answer from {host} ({address}) within {TIMEOUT:g} s ({error}): a firewall, or no route"
        return wrong(text)
    here = _is_here(address) or _is_loopback(address)
    if here and (other := _listener(address, port)):
        return wrong(f"{port} is taken on this machine by {other}: choose another")
    return ok(f"a program listens at {port} of {host}; it should be the job's own torchrun")


def _listener(address: str, port: int) -> str | None:
    """In words, the program that listens at `port` of `address`; None if there is none, or it is torchrun.

    A program at the same port of another address of this machine is no conflict.
    """
    try:
        for each in psutil.net_connections("tcp"):
            listens = each.status == psutil.CONN_LISTEN and each.pid
            if listens and each.laddr.port == port and each.laddr.ip in (address, "0.0.0.0", "::"):
                program, *arguments = psutil.Process(each.pid).cmdline() or ["a program"]
                command = " ".join([os.path.basename(program), *arguments])
                return None if "torch" in command else f"{command[:60]!r} (process {each.pid})"
    except psutil.Error:
        pass
    return None


def _own_name() -> Finding:
    name = socket.gethostname()
    address = _resolved(name)
    if os.environ.get("GLOO_SOCKET_IFNAME"):
        return ok(f"{name} is {address}; GLOO_SOCKET_IFNAME chooses, not the name")
    if address is None or _is_loopback(address):
        text = f"{name} is {address or 'not known here'}, and gloo's ranks tell the others to come there"
        usable = _listed(_without_loopback(interfaces())) or "none"
        return wrong(f"{text}; mend /etc/hosts or set GLOO_SOCKET_IFNAME to one of {usable}")
    return ok(f"{name} is {address}")


def _interface(variable: str) -> Finding:
    value, addresses = os.environ[variable], interfaces()
    fitting = {name: address for name, address in addresses.items() if _VARIABLES[variable](value, name)}
    usable = _without_loopback(fitting)
    if not fitting:
        return wrong(f"no interface here fits {value!r}; this machine has {_listed(addresses)}")
    if not usable:
        return wrong(f"{value!r} leads to this machine alone; it has {_listed(addresses)}")
    first = next(iter(fitting))
    if variable == "NCCL_SOCKET_IFNAME" and first not in usable:  # without the variable, NCCL avoids lo
        text = f"of what fits {value!r} NCCL takes the first, {first}, which leads to this machine alone"
        return wrong(f"{text}; name one of {_listed(usable)}")
    return ok(f"{value!r} is {_listed(fitting)}")


def _listed(addresses: dict[str, str]) -> str:
    return ", ".join(f"{name} ({address})" for name, address in addresses.items())


def _without_loopback(addresses: dict[str, str]) -> dict[str, str]:
    return {name: address for name, address in addresses.items() if not _is_loopback(address)}


def _is_loopback(address: str) -> bool:
    """Does the address lead to the machine itself, as 127.0.0.1 and 0.0.0.0 do?"""
    parsed = ipaddress.ip_address(address)
    return parsed.is_loopback or parsed.is_unspecified


def _nccl_takes(value: str, name: str) -> bool:
    """Does NCCL_SOCKET_IFNAME=value allow an interface? It lists prefixes; names after =; after ^ what is excluded."""
    words = value.lstrip("^=").split(",")
    fits = name in words if value.lstrip("^").startswith("=") else any(name.startswith(word) for word in words)
    return fits != value.startswith("^")


_VARIABLES = {"GLOO_SOCKET_IFNAME": lambda value, name: name in value.split(","), "NCCL_SOCKET_IFNAME": _nccl_takes}
