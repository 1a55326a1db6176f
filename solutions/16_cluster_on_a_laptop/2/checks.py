"""16.2: a function that reads from what machines say of themselves whom the others cannot reach, and what mends it."""

import ipaddress
import json
import random
from pathlib import Path

from ddp_course.grader.vocabulary import Call, Job, Wrong, check, expect

RECORDED = Path(__file__).with_name("recorded.json")  # written by tests/test_interface_facts.py, on real machines
FUNCTION, VARIABLE = "mend", "GLOO_SOCKET_IFNAME"


def published(facts):
    """The IPv4 address at which gloo waits on this machine; None without one."""
    addresses = {name: address for name, (_, address) in interfaces(facts).items()}
    if facts[VARIABLE]:
        return str(addresses[facts[VARIABLE]].ip) if facts[VARIABLE] in addresses else None
    own = {str(address.ip) for address in addresses.values()}
    for line in facts["hosts"].splitlines():
        address, *names = line.split()
        if facts["hostname"] in names and (address in own or address.startswith("127.")):
            return address
    return "127.0.0.1"


def interfaces(facts):
    """{name: (state, address with the length of its network's prefix)}"""
    lines = (line.split() for line in facts["ip"].splitlines())
    return {name.partition("@")[0]: (state, ipaddress.ip_interface(first[0])) for name, state, *first in lines if first}


def shared(machines):
    """The networks in which every machine has an address of its own."""
    by_machine = [
        {address.network: address.ip for state, address in interfaces(facts).values() if state == "UP"}
        for facts in machines.values()
    ]
    common = set.intersection(*map(set, by_machine))
    return {network for network in common if len({own[network] for own in by_machine}) == len(machines)}


def wrong_machines(machines):
    """{machine: the address it publishes, or None} of those that the others cannot reach."""
    addresses = {machine: published(facts) for machine, facts in machines.items()}
    return {
        machine: address
        for machine, address in addresses.items()
        if not address or not any(ipaddress.ip_address(address) in network for network in shared(machines))
    }


def cluster(scenario, world, special, prefix=24, second="all"):
    """Machines as somebody might have them. special: {number: what is wrong there}; second: who is in a second network.

    Without `prefix` 24 the machines of the first network differ in more than the last number of their address.
    """
    luck = random.Random(f"16.2 {scenario}")
    name, base = luck.choice(["gpu", "trainer", "n"]), luck.randrange(1, 200)
    names = [f"{name}{number}" for number in range(world)]
    spread = 2 ** (24 - prefix)
    third = spread * luck.randrange(256 // spread)
    first = [f"10.{base}.{third + luck.randrange(spread)}.{10 + 7 * number}" for number in range(world)]
    cards = luck.sample(["eth0", "ens3", "enp5s0", "bond0"], world)
    others = [f"192.168.{base}.{20 + number}" for number in range(world)]
    machines = {}
    for number in range(world):
        wrong = special.get(number, "")
        lines = [
            ("lo", "UNKNOWN", "127.0.0.1/8"),
            (f"{cards[number]}@if{4 + number}", "UP", f"{first[number]}/{prefix}"),
            (
                "docker0",
                luck.choice(["UP", "DOWN"]) if "Docker" not in scenario else "UP",
                f"172.17.0.{2 if wrong == 'bridge' else 1}/16",
            ),
        ]
        if second == "all" or number in second:
            lines.append(("ib0", "DOWN" if wrong == "down" else "UP", f"{others[number]}/24"))
        lines = [lines[0], *luck.sample(lines[1:], len(lines) - 1), ("eth9", "UP", "")]
        if wrong == "spare card":  # in the same network, and down
            lines.insert(1, ("eth8", "DOWN", f"10.{base}.{third}.{200 + number}/{prefix}"))
        address_of_host = dict(zip(names, first, strict=True))
        address_of_host[names[number]] = {
            "loopback": "127.0.1.1",
            "second": others[number],
            "bridge": "172.17.0.2",
            "rescued": "127.0.1.1",
            "spare card": "127.0.1.1",
            "stale": f"10.{base}.99.99",
        }.get(wrong, first[number])
        if wrong == "unknown":
            del address_of_host[names[number]]
        machines[chr(ord("a") + number)] = {
            "hostname": names[0 if wrong == "clone" else number],
            "hosts": "127.0.0.1 localhost\n"
            + "".join(f"{ip} {host}.example.org {host}\n" for host, ip in address_of_host.items()),
            "ip": "".join(f"{card:<16} {state:<14} {address}".rstrip() + "\n" for card, state, address in lines),
            VARIABLE: {
                "rescued": cards[number],
                "card of another": cards[number - 1],
                "docker": "docker0",
                "lo": "lo",
                "no address": "eth9",
                "ib0": "ib0",
                "empty": "",
                "own": cards[number],
            }.get(wrong),
        }
    return machines


def given_prefix(scenario):
    """How long the prefix of the first network is."""
    return (*DRAWN.get(scenario, ()), 24, 24, 24)[2]


DRAWN = {
    "three machines as they should be": (3, {}),
    "each by its own card's name": (3, {0: "own", 1: "own", 2: "own"}),
    "Docker is up": (3, {}),
    "a wide network": (3, {1: "empty"}, 16),
    "loopback, and the variable": (2, {1: "rescued"}),
    "some are on the second network": (3, {0: "second", 2: "ib0"}),
    "a name that leads to loopback, of three": (3, {2: "loopback"}),
    "loopback in a wide network": (4, {1: "loopback", 3: "rescued"}, 20),
    "a variable for all": (3, {1: "card of another"}),
    "a variable that names Docker": (3, {0: "docker"}),
    "a name that leads to Docker, of three": (3, {1: "bridge"}),
    "a variable that names lo": (2, {0: "lo"}),
    "a clone": (3, {2: "clone"}),
    "an address that is another's by now": (2, {0: "stale"}),
    "an unknown name": (4, {3: "unknown"}),
    "no address on that card": (2, {1: "no address"}),
    "a second network that one does not have": (3, {1: "second"}, 24, (0, 1)),
    "a variable for a network that one does not have": (4, {0: "ib0", 2: "ib0"}, 24, (0, 2, 3)),
    "a second network that is down on one": (3, {0: "down", 2: "second"}),
    "a spare card that is down": (3, {1: "spare card"}),
    "two are wrong": (4, {0: "loopback", 3: "docker"}),
    "all are wrong": (2, {0: "loopback", 1: "loopback"}),
}
RECORDS = json.loads(RECORDED.read_text())
RUNS = {
    f"recorded, {scenario}": {
        machine: {key: value for key, value in facts.items() if key != "published"}
        for machine, facts in machines.items()
    }
    for scenario, machines in RECORDS.items()
}
RUNS |= {scenario: cluster(scenario, *how) for scenario, how in DRAWN.items()}
JOBS = [Job(1, FUNCTION, tuple(Call([(machines,)], scenario) for scenario, machines in RUNS.items()))]


@check(
    f"nobody is blamed in {sum(not wrong_machines(machines) for machines in RUNS.values())} sound clusters",
    begin="{scenario}: ",
)
def no_machine_is_blamed_without_cause(case):
    machines = RUNS[case.scenario]
    for machine in settings_of(case):
        if machine not in wrong_machines(machines):
            facts, address = machines.get(machine, {}), published(machines[machine]) if machine in machines else "?"
            look_at = "an address in any network that all machines share is right"
            if facts.get(VARIABLE) and published(facts | {VARIABLE: None}) != address:
                look_at = "the variable comes first: then the host name does not matter"
            elif facts.get(VARIABLE):
                look_at = "the interface of one network can have another name on each machine"
            elif facts.get(VARIABLE) == "":
                look_at = "an empty variable is none"
            elif given_prefix(case.scenario) != 24:
                look_at = "the number after / says how much of an address is its network"
            elif any(
                state == "DOWN" and address.network in shared(machines)
                for facts in machines.values()
                for state, address in interfaces(facts).values()
            ):
                look_at = "which interfaces count: those that are UP"
            raise Wrong(f"{FUNCTION} named {machine}, which publishes {address}, and all reach that", look_at)


@check("every machine that the others cannot reach is named", begin="{scenario}: ")
def every_wrong_machine_is_named(case):
    machines, named = RUNS[case.scenario], settings_of(case)
    for machine, address in wrong_machines(machines).items():
        look_at = "which network do all share: each machine has its own address in it, on an interface that is up?"
        if address is None:
            look_at = f"has the interface of {VARIABLE} an address on that machine?"
        elif address.startswith("127."):
            look_at = "the host name leads to loopback, or to no address of this machine; or the variable says lo"
        publishes = f"publishes {address}" if address else f"has no address on {machines[machine][VARIABLE]}"
        expect(machine in named, f"{FUNCTION} did not name {machine}, which {publishes}", look_at)


@check("and each gets the interface that mends it", begin="{scenario}: ")
def the_setting_mends_it(case):
    machines = RUNS[case.scenario]
    for machine, setting in settings_of(case).items():
        own = interfaces(machines[machine])
        variable, _, name = setting.partition("=") if isinstance(setting, str) else ("", "", "")
        state, address = own.get(name, (None, None))
        expect(
            variable == VARIABLE and "@" not in name and address is not None,
            f"for {machine} {FUNCTION} said {setting!r}; its interfaces are {', '.join(own)}",
            f"{VARIABLE}=NAME, with a name of that machine's own; what follows @ is not part of it",
        )
        expect(
            address.network in shared(machines) and state == "UP",
            f"{setting} lets {machine} publish {address.ip}, which not all reach",
            "an interface of that machine in the network that all machines share"
            if state == "UP"
            else "is the interface UP? Another one in the same network may be",
        )


def settings_of(case):
    """{machine: setting} as the answer returned it."""
    [result] = case.results
    expect(
        isinstance(result, dict), f"{FUNCTION} returned {result!r}", "what is returned: a dict, empty if all is well"
    )
    return result
