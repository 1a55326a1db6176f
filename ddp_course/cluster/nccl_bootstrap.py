"""Ask NCCL, before a job and without a GPU, which address of this machine rank 0 would give to the other ranks.

    NCCL_DEBUG=INFO python -m ddp_course.cluster.nccl_bootstrap                    # NCCL prints what it chose
    python -m ddp_course.cluster.nccl_bootstrap --record > ddp_course/cluster/stored/nccl_bootstrap.txt

`--library` names libnccl.so.2 if it is not torch's: pip install nvidia-nccl-cu13 installs it alone.
"""

import argparse
import ctypes
import datetime
import importlib.util
import socket
import sys
import threading
import time
from pathlib import Path

from ddp_course.base.command import run_command
from ddp_course.base.errors import InputError, in_one_line
from ddp_course.base.parser import Parser
from ddp_course.cluster.machines import Cluster

SECOND_CARD = (
    "ip link add ib0 type veth peer name other; ip addr add 10.88.0.2/24 dev ib0; "
    "ip link set ib0 up; ip link set other up"
)
CASES = {  # case -> (command that sets up the machine, NCCL_SOCKET_IFNAME). ib0 stays for all later cases.
    "one card, no variable": ("true", ""),
    "one card, a name that no card has": ("true", "eth7"),
    "a second card, ib0, no variable": (SECOND_CARD, ""),
    "a second card, all but ib": ("true", "^ib"),
    "a second card, all but ib and lo": ("true", "^lo,ib"),
    "a second card, the right one named": ("true", "eth0"),
}
CONNECT = "import socket, sys; socket.create_connection((sys.argv[1], int(sys.argv[2])), 3)"


def library() -> str:
    """The path of libnccl.so.2 in the package that torch for CUDA depends on, else the name of the system's."""
    try:
        spec = importlib.util.find_spec("nvidia.nccl")
    except ModuleNotFoundError:
        spec = None
    return str(Path(spec.submodule_search_locations[0]) / "lib" / "libnccl.so.2") if spec else "libnccl.so.2"


def load(path: str) -> ctypes.CDLL:
    """Load NCCL. Raises InputError if there is none at `path`."""
    try:
        return ctypes.CDLL(path)
    except OSError as error:
        raise InputError(f"no NCCL here ({error}); pip install nvidia-nccl-cu13, or --library FILE") from None


def bootstrap_address(path: str) -> tuple[str, int]:
    """The host and port at which rank 0 would wait for the others: they are in NCCL's unique ID.

    Raises InputError if NCCL is missing or finds no address.
    """
    nccl = load(path)
    unique_id = ctypes.create_string_buffer(128)
    if code := nccl.ncclGetUniqueId(unique_id):
        raise InputError(f"ncclGetUniqueId gave error {code}; NCCL_DEBUG=INFO says more")
    family = int.from_bytes(unique_id.raw[8:10], sys.byteorder)  # 8 bytes of a secret, then a sockaddr
    address = slice(16, 32) if family == socket.AF_INET6 else slice(12, 16)
    return socket.inet_ntop(family, unique_id.raw[address]), int.from_bytes(unique_id.raw[10:12])


def version(path: str) -> str:
    """The version of NCCL, such as "2.30.7"."""
    number = ctypes.c_int()
    load(path).ncclGetVersion(ctypes.byref(number))
    return f"{number.value // 10000}.{number.value // 100 % 100}.{number.value % 100}"


def record(path: str) -> None:
    """In every case, ask NCCL on node2, connect from node1 to the address it gives, and print both results."""
    print(f"# Our own: NCCL {version(path)} on a machine of namespaces without a GPU, so only how ranks meet first")
    print(f"# recorded on {datetime.date.today()}: python -m ddp_course.cluster.nccl_bootstrap --record")
    with Cluster(nodes=2, rate=None) as cluster:
        for case, (set_up, name) in CASES.items():
            cluster.run("node2", set_up)
            command = f"{sys.executable} -m ddp_course.cluster.nccl_bootstrap --library {path} --hold 10"
            cluster.run(
                "node2",
                f"{command} > /srv/stdout 2> /srv/stderr & sleep 3",
                env={"NCCL_DEBUG": "INFO"} | ({"NCCL_SOCKET_IFNAME": name} if name else {}),
            )
            log, stderr = (cluster.run("node1", f"cat /srv/{file}").stdout for file in ("stdout", "stderr"))
            address = stderr.split()[-1].rpartition(":")[::2] if "waits at" in stderr else None
            dialled = address and cluster.run("node1", [sys.executable, "-c", CONNECT, *address], check=False)
            answer = "no address" if not address else dialled.stderr.strip().rpartition("\n")[2] or "reached"
            print(f"# case: {case}\n{log.strip()}\n# node1 dials it: {answer}")


def main() -> int:
    parser = Parser(
        prog="python -m ddp_course.cluster.nccl_bootstrap",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--library", help="libnccl.so.2 (torch's)")
    parser.add_argument("--hold", type=float, default=0.5, help="seconds to listen at that address (%(default)s)")
    parser.add_argument("--record", action="store_true", help="ask on a machine of namespaces, in six cases")
    try:
        options = parser.parse_args()
        path = options.library or library()
        if not 0 <= options.hold <= threading.TIMEOUT_MAX:
            raise InputError(f"--hold is a number of seconds, not {options.hold:g}")
        if options.record:
            record(path)
            return 0
        host, port = bootstrap_address(path)
    except InputError as error:
        print(f"error: {in_one_line(error)}", file=sys.stderr)
        return 2
    print(f"rank 0 waits at {host}:{port}", file=sys.stderr, flush=True)
    time.sleep(options.hold)
    return 0


if __name__ == "__main__":
    run_command(main)
