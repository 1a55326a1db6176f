"""The clusters of exercise 16.2 are recordings: what their machines reported, and what gloo published.

    python tests/test_interface_facts.py        record them again, into the folder of the question

Two machines made of namespaces have a second network (ib0), a bridge of their own as Docker makes it (docker0), and an
interface without an address (eth1); on node2 the first network's interface is called ens3.
"""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from ddp_course.cluster import Cluster, unavailable
from ddp_course.grader.exercises import load

CHECKS = load("16.2").module("checks")
here = pytest.mark.skipif(bool(unavailable()), reason=unavailable() or "")
NODES = ("node1", "node2")
BOTH = {"node1": "eth0", "node2": "ens3"}
CABLE = "ip link add {0} type veth peer name {0}p && ip link set {0}p up && ip link set {0} up"
END = "--"  # of a program's output
NAMES = "127.0.0.1 localhost\n10.77.0.1 node1\n10.77.0.2 node2\n"
LOOPBACK = "127.0.0.1 localhost\n127.0.1.1 node2\n10.77.0.1 node1\n"
# Each machine's peculiarity: /etc/hosts, GLOO_SOCKET_IFNAME, its host name, a command and its undo.
CASES = {
    "as it should be": {},
    "an empty variable": {"variable": {"node1": "", "node2": ""}},
    "a name that leads to loopback": {"hosts": {"node2": LOOPBACK}},
    "a name that leads to loopback, and the variable": {"hosts": {"node2": LOOPBACK}, "variable": {"node2": "ens3"}},
    "the variable of the other machine": {"variable": {"node1": "eth0", "node2": "eth0"}},
    "the variable, by each machine's name": {"variable": BOTH},
    "Docker's bridge": {"variable": {"node2": "docker0"}},
    "an interface without an address": {"variable": {"node1": "eth1"}},
    "loopback by variable": {"variable": {"node1": "lo", "node2": "lo"}},
    "a name that leads to Docker's bridge": {"hosts": {"node2": NAMES.replace("10.77.0.2", "172.17.0.1")}},
    "a clone's name": {"names": {"node2": "node1"}},
    "a name that nobody knows": {"hosts": {"node1": NAMES.replace("10.77.0.1 node1\n", "")}},
    "an address of last week": {"hosts": {"node1": NAMES.replace("10.77.0.1", "10.77.0.9")}},
    "names on the second network": {
        "hosts": dict.fromkeys(NODES, NAMES.replace("10.77.0.1", "192.168.5.11").replace("10.77.0.2", "192.168.5.12"))
    },
    "two networks": {
        "hosts": {"node2": NAMES.replace("10.77.0.2", "192.168.5.12")},
        "commands": {"node1": ("ip link set ib0 down", "ip link set ib0 up")},
    },
}
# Forked for each question: torch is loaded once per machine.
SERVE = """
import json, os, sys
import psutil
from torch.distributed import ProcessGroupGloo

def device(name):
    try:
        made = ProcessGroupGloo.create_device(interface=name) if name else ProcessGroupGloo.create_default_device()
    except RuntimeError as error:
        return "error: " + str(error).splitlines()[0].partition("] ")[2]
    [address] = [c.laddr.ip for c in psutil.Process().net_connections() if c.status == "LISTEN"]
    return address

print("ready", flush=True)
for line in sys.stdin:
    if os.fork() == 0:
        print(device(json.loads(line)), flush=True)
        os._exit(0)
    os.wait()
"""


def record() -> dict[str, dict]:
    """{case: {machine: what it reports, and what gloo publishes there}}"""
    by_case = {}
    with Cluster(nodes=2, rate=None) as cluster:
        for number, node in enumerate(NODES, start=1):
            cluster.run(node, " && ".join(CABLE.format(name) for name in ("docker0", "ib0", "eth1")))
            cluster.run(node, "ip addr add 172.17.0.1/16 dev docker0")
            cluster.run(node, f"ip addr add 192.168.5.1{number}/24 dev ib0")
        cluster.run("node2", "ip link set eth0 down && ip link set eth0 name ens3 && ip link set ens3 up")
        for node in NODES:  # the kernel calls them up a moment later
            cluster.run(node, "while ip -br -4 addr | grep -qw DOWN; do sleep 0.1; done")
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
        serve = [sys.executable, "-c", SERVE]
        servers = {node: subprocess.Popen(cluster.entering(node, serve), text=True, **pipes) for node in NODES}
        for server in servers.values():
            assert server.stdout.readline() == "ready\n"
        for case, special in CASES.items():
            by_case[case] = {}
            for node, server in servers.items():
                do, undo = special.get("commands", {}).get(node, ("true", "true"))
                name, variable = special.get("names", {}).get(node, node), special.get("variable", {}).get(node)
                hosts = special.get("hosts", {}).get(node, NAMES)
                look = f"ip -br -4 addr; echo {END}; hostname; echo {END}; cat /etc/hosts"
                printed = cluster.run(node, f"{do}; hostname {name}; printf %s '{hosts}' > /etc/hosts; {look}").stdout
                addresses, own_name, names = printed.split(f"{END}\n")
                facts = {
                    "hostname": own_name.strip(),
                    "hosts": names,
                    "ip": "".join(line.rstrip() + "\n" for line in addresses.splitlines()),
                    "GLOO_SOCKET_IFNAME": variable,
                }
                server.stdin.write(json.dumps(variable) + "\n")
                server.stdin.flush()
                by_case[case][node] = facts | {"published": server.stdout.readline().strip()}
                cluster.run(node, f"{undo}; hostname {node}")
        for server in servers.values():
            server.stdin.close()
            server.wait(60)
    return by_case


@here
def test_a_new_recording_equals_the_stored_one():
    assert plain(record()) == plain(json.loads(CHECKS.RECORDED.read_text()))


def test_the_rule_of_the_question_is_what_gloo_did():
    for case, machines in json.loads(CHECKS.RECORDED.read_text()).items():
        for machine, facts in machines.items():
            real = None if facts["published"].startswith(("error", "fe80:")) else facts["published"]
            assert CHECKS.published(facts) == real, (case, machine)


def plain(by_case):
    """Without what differs in each recording: the index of a cable's other end, and link-local IPv6 addresses."""
    return re.sub(r"@\w+ *|fe80:[\w:]*", "", json.dumps(by_case))


if __name__ == "__main__":
    Path(CHECKS.RECORDED).write_text(json.dumps(record(), indent=1) + "\n")
