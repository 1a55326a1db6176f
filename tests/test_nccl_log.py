"""The reader of NCCL_DEBUG=INFO, on the stored log and on logs composed of the texts in libnccl 2.30.7."""

import socket
import struct
import sys
from pathlib import Path

import pytest

from ddp_course.cluster import nccl_bootstrap, nccl_log

pytestmark = pytest.mark.smoke

STORED = Path(nccl_log.__file__).parent / "stored" / "nccl_bootstrap.txt"
HOSTS = ["node1", "node1", "node2", "node2"]  # of the ranks


def job(network="Socket", silent=(), prefix=""):
    """The log of a job of four ranks on two machines; `silent` ranks write nothing after their channels."""
    init = "ncclCommInitRankConfig comm 0x55d0 rank {0} nranks 4 cudaDev {1} nvmlDev {1} busId {2} commId 0xa1 - Init "
    lines = [(0, "NCCL version 2.30.7+cuda13.3"), (0, "Bootstrap: Using eth0:10.77.0.1<0>")]
    for rank in range(4):
        started = init.format(rank, rank % 2, f"{rank % 2 + 1}000")
        target, transport = (rank + 1) % 4, f"NET/{network}/0" if rank % 2 else "SHM/direct"
        lines += [(rank, f"Using network {network}"), (rank, started + "START")]
        lines += [(rank, f"comm 0x55d0 rank {rank} nRanks 4 nNodes 2 localRanks 2 localRank {rank % 2} MNNVL 0")]
        lines += [
            (rank, f"Channel 0{channel}/0 : {rank}[{rank % 2}] -> {target}[{target % 2}] [send] via {transport}")
            for channel in range(2)
        ]
        if rank not in silent:
            lines += [
                (rank, "2 coll channels, 0 collnet channels, 0 nvls channels, 2 p2p channels, 1 p2p channels"),
                (rank, "Connected all rings, use ring PXN 0 GDR 0"),
                (rank, started + "COMPLETE"),
            ]
    return "\n".join(
        f"{prefix}{HOSTS[rank]}:{10 + rank}:{20 + rank} [{rank % 2}] NCCL INFO {text}" for rank, text in lines
    )


def answers(text):
    return nccl_log.answers(nccl_log.read(text))


def test_a_job_over_tcp():
    assert answers(job()) == {
        "interface": "eth0 10.77.0.1",
        "network": "Socket",
        "inside a machine": "SHM",
        "between machines": "NET/Socket",
        "channels": "2",
        "ranks ready": "4 of 4",
        "WARN": "-",
    }
    assert all(entry.meaning for entry in nccl_log.read(job()))


def test_a_job_over_infiniband():
    assert answers(job("IB"))["between machines"] == "NET/IB"
    assert answers(job("IB").replace("NET/IB/0", "NET/IB/0(1)/GDRDMA"))["between machines"] == "NET/IB"


def test_ranks_that_are_never_ready_are_named():
    assert answers(job(silent=[2, 3]))["ranks ready"] == "2 of 4, not 2 (node2), not 3 (node2)"


def test_the_log_of_one_machine_of_two():
    own = "\n".join(line for line in job().splitlines() if line.startswith("node1"))
    assert answers(own)["ranks ready"] == "2 of 4, no line of 2"


@pytest.mark.parametrize("prefix", ["[rank0]:", "[1,0]<stdout>:", "0: ", "[155] ", "[2026-11-23 13:30:47] "])
def test_a_launchers_prefix_is_ignored(prefix):
    assert answers(job(prefix=prefix)) == answers(job())
    (entry,) = nccl_log.read(f"{prefix}NCCL version 2.27.5+cuda12.9")
    assert entry.kind == "version"


def test_a_smaller_group_changes_nothing():
    """Between the first ranks of the two machines: it numbers them 0 and 1."""
    more = []
    for rank, (host, process) in enumerate([("node1", 10), ("node2", 12)]):
        init = f"comm 0x77 rank {rank} nranks 2 cudaDev 0 busId 1000 commId 0xb2 - Init "
        texts = [init + "START", f"Channel 00/0 : {rank}[0] -> {1 - rank}[0] [send] via NET/Socket/0"]
        texts += ["24 coll channels, 24 p2p channels", init + "COMPLETE"]
        more += [f"{host}:{process}:20 [0] NCCL INFO {text}" for text in texts]
    assert answers("\n".join([job(silent=[0]), *more])) == answers(job(silent=[0]))


def test_the_group_that_began_last_counts():
    assert answers(f"{job()}\n{job(silent=[3])}")["ranks ready"] == "3 of 4, not 3 (node2)"
    assert answers(f"{job(silent=[3])}\n{job()}")["ranks ready"] == "4 of 4"


@pytest.mark.parametrize(
    ("text", "kind", "meaning"),
    [  # forms of other versions and of other transports
        ("Bootstrap : Using [0]ens5:10.0.0.4<0>", "bootstrap", "10.0.0.4, card ens5"),
        ("Bootstrap : Using ens5:fe80::1%ens5<0>", "bootstrap", "fe80::1%ens5, card ens5"),
        ("Bootstrap : Using lo:127.0.0.1<0>", "bootstrap", "nobody reaches it"),
        ("NET/IB : No device found.", "no InfiniBand", "no InfiniBand or RoCE"),
        ("NET/IB : Using [0]mlx5_0:1/RoCE [RO]; OOB eth0:10.0.0.4<0>", "cards", "IB could use"),
        ("NET/Plugin: Using internal network plugin.", "plugin", "no error"),
        ("Using network AWS Libfabric", "network", ": AWS Libfabric"),
        ("Ring 00 : 5[3d000] -> 7[b2000] via P2P/IPC", "channel", "rank 5 sends to 7 by P2P"),
        ("Channel 03 : 12[8d000] -> 4[89000] [receive] via NET/AWS Libfabric/0/GDRDMA", "channel", "AWS Libfabric"),
        ("Channel 00/16 :    0   7   6", "order", "order of the ranks"),
        ("NCCL_IB_HCA set to mlx5_4", "variable", "arrived"),
        ("transport/net.cc:1302 -> 6", "error", "another rank failed"),
        ("init.cc:185 (ncclGetUniqueId) -> 9", "error", "code 9"),
        ("Setting affinity for GPU 3 to 0fffff00", "", ""),
    ],
)
def test_kinds_of_lines(text, kind, meaning):
    (entry,) = nccl_log.read(f"node1:1:2 [0] NCCL INFO {text}")
    assert entry.kind == kind and meaning in entry.meaning and bool(entry.meaning) == bool(kind)


def test_lines_of_others_are_left_out():
    assert nccl_log.read("step 1 loss 2.3\nWARNING: node1:1:2 [0] something\n# case: one") == []
    assert set(answers("").values()) == {"-"}


def test_a_version_without_a_host():
    (entry,) = nccl_log.read("NCCL version 2.18.5+cuda12.0")
    assert (entry.kind, entry.host, entry.fields["version"]) == ("version", "", "2.18.5")


def test_the_stored_log():
    summaries = {case: answers(text) for case, text in nccl_log.cases(STORED).items()}
    assert list(summaries) == list(nccl_bootstrap.CASES)
    cards = ["eth0 10.77.0.2", "-", "ib0 10.88.0.2", "lo 127.0.0.1", "eth0 10.77.0.2", "eth0 10.77.0.2"]
    assert [entry["interface"] for entry in summaries.values()] == cards
    assert [entry["WARN"] != "-" for entry in summaries.values()] == [False, True, False, False, False, False]


def test_a_log_without_cases_is_a_single_case(tmp_path):
    (tmp_path / "job.log").write_text(job())
    assert nccl_log.cases(tmp_path / "job.log") == {"job.log": job()}


class Library:
    """Stands for libnccl: its ID has 8 bytes of a secret, then a socket address."""

    def __init__(self, address, code=0):
        self.address, self.code = address, code

    def ncclGetUniqueId(self, key):
        key.raw = (b"\x07" * 8 + self.address).ljust(128, b"\0")
        return self.code


def test_the_address_in_the_id(monkeypatch):
    v4 = struct.pack("=H", socket.AF_INET) + struct.pack("!H", 29500) + socket.inet_aton("10.77.0.2")
    v6 = struct.pack("=H", socket.AF_INET6) + struct.pack("!HI", 29501, 0)
    v6 += socket.inet_pton(socket.AF_INET6, "fd00::2")
    for address, expected in ((v4, ("10.77.0.2", 29500)), (v6, ("fd00::2", 29501))):
        monkeypatch.setattr(nccl_bootstrap.ctypes, "CDLL", lambda path, address=address: Library(address))
        assert nccl_bootstrap.bootstrap_address("libnccl.so.2") == expected


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ("--library /nowhere/libnccl.so.2", "no NCCL here"),
        ("--library /nowhere/libnccl.so.2 --record", "no NCCL here"),
        ("--hold -1", "--hold is a number of seconds, not -1"),
        ("", "error 5"),
    ],
)
def test_without_nccl_or_with_an_error_of_it(monkeypatch, capsys, flags, message):
    if not flags:
        monkeypatch.setattr(nccl_bootstrap.ctypes, "CDLL", lambda path: Library(b"", code=5))
    monkeypatch.setattr(sys, "argv", ["nccl_bootstrap", *flags.split()])
    assert nccl_bootstrap.main() == 2
    assert message in capsys.readouterr().err
