"""`doctor meet`: its verdict on one machine of a rendezvous, for each mistake that notebook 16 makes."""

import os
import socket
import sys

import pytest
from ddp_doctor import meeting
from ddp_doctor.__main__ import main
from ddp_doctor.checks.finding import ok
from ddp_doctor.errors import InputError

from ddp_course.cluster import Cluster, unavailable

pytestmark = pytest.mark.smoke

MEET = [sys.executable, "-m", "ddp_doctor", "meet", "node1:29500"]


@pytest.fixture
def one_machine(monkeypatch):
    """Names and interfaces as a healthy machine has them; a test breaks one."""
    names = {"here": "10.0.0.5", "alias": "10.0.0.5", "head": "10.0.0.1", "localhost": "127.0.0.1"}
    monkeypatch.setattr(meeting, "_resolved", names.get)
    monkeypatch.setattr(meeting, "interfaces", lambda: {"lo": "127.0.0.1", "eth0": "10.0.0.5", "eth1": "192.168.0.5"})
    monkeypatch.setattr(meeting, "_is_here", lambda address: address == "10.0.0.5")
    monkeypatch.setattr(meeting, "_port", lambda host, address, port: ok("reached"))
    monkeypatch.setattr(socket, "gethostname", lambda: "here")
    for variable in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
        monkeypatch.delenv(variable, raising=False)
    return names


def wrong(endpoint="head:29500"):
    return {finding.title: finding.text for finding in meeting.look(endpoint) if finding.status == "wrong"}


def test_a_healthy_machine_has_nothing_wrong(one_machine):
    assert wrong() == {}
    assert "another machine" in meeting.look("head:29500")[0].text
    assert "this machine" in meeting.look("alias:29500")[0].text


@pytest.mark.parametrize(
    ("host", "sentence"), [("localhost", "each would wait alone"), ("head2", "the name head2 cannot be resolved here")]
)
def test_an_endpoint_that_leads_to_no_other_machine(one_machine, host, sentence):
    assert sentence in wrong(f"{host}:29500")["endpoint"]


def test_an_endpoint_of_the_machines_own_name_is_a_note_and_not_wrong(one_machine):
    one_machine["here"] = "127.0.1.1"
    assert meeting.look("here:29500")[0].status == "note" and "endpoint" not in wrong("here:29500")


@pytest.mark.parametrize("host", [".", "a..b", "x" * 300])
def test_a_name_that_no_machine_can_have_is_wrong(host):
    assert meeting.look(f"{host}:29500")[0].status == "wrong"


@pytest.mark.parametrize(("host", "address"), [("127.0.0.1", "127.0.0.1"), ("[::1]", "::1"), ("0.0.0.0", "0.0.0.0")])
def test_an_address_of_each_machine_itself_in_both_families(host, address):
    """torchrun takes an IPv6 address in brackets."""
    finding = meeting.look(f"{host}:29500")[0]
    assert finding.status == "wrong" and f"is {address}, on every machine the machine itself" in finding.text


def test_a_name_that_has_an_ipv6_address_only(one_machine):
    one_machine["head6"] = "2001:db8::1"
    assert wrong("head6:29500") == {}


def test_a_port_with_a_listener_at_an_ipv6_address():
    if not socket.has_ipv6:
        pytest.skip("no IPv6 here")
    try:
        listening = socket.create_server(("::1", 0), family=socket.AF_INET6)
    except OSError:
        pytest.skip("no IPv6 here")
    port = listening.getsockname()[1]
    with listening, socket.create_server(("127.0.0.1", port)):
        finding = meeting._port("[::1]", "::1", port)
        assert meeting._listener("127.0.0.2", port) is None  # the two are at other addresses
    assert "taken on this machine" in finding.text


def test_an_own_name_that_leads_to_loopback_is_wrong_without_an_interface(one_machine, monkeypatch):
    one_machine["here"] = "127.0.1.1"
    assert "here is 127.0.1.1" in wrong()["own name"] and "eth0 (10.0.0.5)" in wrong()["own name"]
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "eth0")
    assert wrong() == {}


@pytest.mark.parametrize(
    ("variable", "chosen", "verdict"),
    [
        ("GLOO_SOCKET_IFNAME", "eth0", "ok"),
        ("GLOO_SOCKET_IFNAME", "eth", "wrong"),
        ("GLOO_SOCKET_IFNAME", "lo", "wrong"),
        ("NCCL_SOCKET_IFNAME", "eth", "ok"),
        ("NCCL_SOCKET_IFNAME", "=eth", "wrong"),
        ("NCCL_SOCKET_IFNAME", "=eth1", "ok"),
        ("NCCL_SOCKET_IFNAME", "^lo,docker", "ok"),
        ("NCCL_SOCKET_IFNAME", "^eth", "wrong"),
        ("NCCL_SOCKET_IFNAME", "^lo,eth1", "ok"),
        ("NCCL_SOCKET_IFNAME", "^=eth", "wrong"),  # lo is no longer left out: cluster/stored/nccl_bootstrap.txt
        ("NCCL_SOCKET_IFNAME", "^docker", "wrong"),
        ("NCCL_SOCKET_IFNAME", "ens", "wrong"),
    ],
)
def test_an_interface_variable_is_ok_or_wrong(one_machine, monkeypatch, variable, chosen, verdict):
    monkeypatch.setenv(variable, chosen)
    (finding,) = [entry for entry in meeting.look("head:29500") if entry.title == variable]
    assert finding.status == verdict, finding.text


@pytest.mark.parametrize("endpoint", ["node1", "node1:", ":29500", "node1:port", "node1:²", "node1:70000", "::1"])
def test_an_invalid_endpoint_is_refused(endpoint, capsys):
    with pytest.raises(InputError, match="HOST:PORT"):
        meeting.look(endpoint)
    assert main(["meet", endpoint]) == 2
    assert "Traceback" not in capsys.readouterr().err


def test_a_port_with_a_listener_is_wrong_and_names_the_process():
    with socket.create_server(("", 0)) as listening:
        finding = meeting._port("localhost", "127.0.0.1", listening.getsockname()[1])
    assert finding.status == "wrong" and f"process {os.getpid()}" in finding.text


def test_a_port_without_a_listener_is_free():
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))  # bound and not listening: the port stays free and refuses
        assert meeting._port("localhost", "127.0.0.1", bound.getsockname()[1]).status == "ok"


@pytest.mark.skipif(bool(unavailable()), reason=unavailable() or "")
def test_on_two_machines_with_and_without_a_firewall():
    with Cluster(nodes=2, rate=None) as cluster:
        for node in cluster.nodes:
            answer = cluster.run(node, MEET, check=False)
            assert answer.returncode == 0, answer.stdout + answer.stderr
        cluster.run("node1", "ip route add blackhole 10.77.0.2")
        answer = cluster.run("node2", MEET, check=False)
        assert answer.returncode == 1 and "WRONG  port: no answer from node1 (10.77.0.1)" in answer.stdout
