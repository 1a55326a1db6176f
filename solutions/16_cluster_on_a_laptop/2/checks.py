"""16.2: a function that finds the machines whose gloo address the others cannot reach, and the interface to set."""

import ipaddress
import json
import random
from pathlib import Path

from ddp_course.grader.vocabulary import Wrong, check, expect, function_job

RECORDED = Path(__file__).with_name("recorded.json")  # by tests/test_interface_facts.py, in network namespaces
FUNCTION, VARIABLE = "mend", "GLOO_SOCKET_IFNAME"
RARE_CARDS = ["hsn0", "net1", "p1p1", "vlan7"]


def published(facts):
    """The IPv4 address at which gloo listens on this machine; None without one."""
    addresses = {name: address for name, (_, address) in interfaces(facts).items()}
    if facts[VARIABLE]:
        return str(addresses[facts[VARIABLE]].ip) if facts[VARIABLE] in addresses else None
    own_addresses = {str(address.ip) for address in addresses.values()}
    for line in facts["hosts"].splitlines():
        address, *names = line.split()
        if facts["hostname"] in names and (address in own_addresses or address.startswith("127.")):
            return address
    return "127.0.0.1"


def interfaces(facts):
    """{name: (state, address with the length of its network's prefix)}"""
    lines = (line.split() for line in facts["ip"].splitlines())
    return {name.partition("@")[0]: (state, ipaddress.ip_interface(first[0])) for name, state, *first in lines if first}


def shared_networks(machines):
    """The networks in which every machine has an interface that is UP, with an address of its own."""
    by_machine = [
        {address.network: address.ip for state, address in interfaces(facts).values() if state == "UP"}
        for facts in machines.values()
    ]
    common = set.intersection(*map(set, by_machine))
    return {network for network in common if len({addresses[network] for addresses in by_machine}) == len(machines)}


def unreachable_machines(machines):
    """{machine: the address it publishes, or None} of those that the others cannot reach."""
    addresses, networks = {machine: published(facts) for machine, facts in machines.items()}, shared_networks(machines)
    return {
        machine: address
        for machine, address in addresses.items()
        if not address or not any(ipaddress.ip_address(address) in network for network in networks)
    }


def cluster(scenario, world, special, prefix=24, second_network="all"):
    """A cluster of `world` machines: {machine: its facts}.

    special         {number of a machine: what is special there, such as "loopback"}
    prefix          the prefix length of the first network; below 24 its addresses differ in their third byte, too
    second_network  the numbers of the machines that have an address in a second network, or "all"
    """
    generator = random.Random(f"16.2 {scenario}")
    name, base = generator.choice(["gpu", "trainer", "n"]), generator.randrange(1, 200)
    names = [f"{name}{number}" for number in range(world)]
    spread = 2 ** (24 - prefix)
    third_byte = spread * generator.randrange(256 // spread)
    first_addresses = [
        f"10.{base}.{third_byte + generator.randrange(spread)}.{10 + 7 * number}" for number in range(world)
    ]
    card_names = RARE_CARDS if "rare names" in scenario else ["eth0", "ens3", "enp5s0", "bond0"]
    cards = generator.sample(card_names, world)
    second_addresses = [f"192.168.{base}.{20 + number}" for number in range(world)]
    machines = {}
    for number in range(world):
        peculiarity = special.get(number, "")
        lines = [
            ("lo", "UNKNOWN", "127.0.0.1/8"),
            (f"{cards[number]}@if{4 + number}", "UP", f"{first_addresses[number]}/{prefix}"),
            (
                "docker0",
                generator.choice(["UP", "DOWN"]) if "Docker" not in scenario else "UP",
                f"172.17.0.{2 if peculiarity == 'bridge' else 1}/16",
            ),
        ]
        if second_network == "all" or number in second_network:
            lines.append(("ib0", "DOWN" if peculiarity == "down" else "UP", f"{second_addresses[number]}/24"))
        lines = [lines[0], *generator.sample(lines[1:], len(lines) - 1), ("eth9", "UP", "")]
        if peculiarity == "spare card":  # in the same network, and down
            lines.insert(1, ("eth8", "DOWN", f"10.{base}.{third_byte}.{200 + number}/{prefix}"))
        if "tunnel" in scenario:
            lines.insert(1, ("tun0", "UNKNOWN", f"10.200.0.{1 + number}/24"))
        address_of_host = dict(zip(names, first_addresses, strict=True))
        address_of_host[names[number]] = {
            "loopback": "127.0.1.1",
            "second": second_addresses[number],
            "bridge": "172.17.0.2",
            "rescued": "127.0.1.1",
            "spare card": "127.0.1.1",
            "stale": f"10.{base}.99.99",
        }.get(peculiarity, first_addresses[number])
        if peculiarity == "unknown":
            del address_of_host[names[number]]
        machines[chr(ord("a") + number)] = {
            "hostname": names[0 if peculiarity == "clone" else number],
            "hosts": "127.0.0.1 localhost\n"
            + "".join(f"{ip} {host}.example.org {host}\n" for host, ip in address_of_host.items()),
            "ip": "".join(f"{card:<16} {state:<14} {address}".rstrip() + "\n" for card, state, address in lines),
            VARIABLE: {
                "rescued": cards[number],
                "card of another": cards[number - 1],
                "docker": "docker0",
                "lo": "lo",
                "no address": "eth9",
                "beginning of a name": cards[number][:-1],
                "ib0": "ib0",
                "tunnel": "tun0",
                "empty": "",
                "own": cards[number],
            }.get(peculiarity),
        }
    return machines


DRAWN = {  # the arguments of `cluster`
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
    "the beginning of a name": (2, {0: "beginning of a name"}),
    "a second network that one does not have": (3, {1: "second"}, 24, (0, 1)),
    "a variable for a network that one does not have": (4, {0: "ib0", 2: "ib0"}, 24, (0, 2, 3)),
    "a second network that is down on one": (3, {0: "down", 2: "second"}),
    "a spare card that is down": (3, {1: "spare card"}),
    "rare names of interfaces, and a tunnel": (3, {0: "loopback"}, 24, ()),
    "a variable that names the tunnel": (3, {1: "tunnel"}),
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
RUNS |= {scenario: cluster(scenario, *arguments) for scenario, arguments in DRAWN.items()}
JOBS = [function_job(1, FUNCTION, {scenario: (machines,) for scenario, machines in RUNS.items()})]


@check(
    f"no machine is named in {sum(not unreachable_machines(machines) for machines in RUNS.values())} sound clusters",
    begin="{scenario}: ",
)
def no_machine_is_blamed_without_cause(case):
    machines = RUNS[case.scenario]
    for machine in settings_of(case):
        expect(
            machine in machines,
            f"{FUNCTION} named {machine!r}, which is no machine of this cluster",
            "the keys of the result: those of `machines`",
        )
        if machine not in unreachable_machines(machines):
            facts, address = machines[machine], published(machines[machine])
            look_at = "an address in any network that all machines share is right"
            if facts[VARIABLE] and published(facts | {VARIABLE: None}) != address:
                look_at = "the variable comes first: then the host name does not matter"
            elif facts[VARIABLE]:
                look_at = "the interface of one network can have another name on each machine"
            elif facts[VARIABLE] == "":
                look_at = "an empty variable counts as none"
            elif "wide network" in case.scenario:
                look_at = "the number after / says how much of an address is its network"
            elif any(
                state == "DOWN" and address.network in shared_networks(machines)
                for facts in machines.values()
                for state, address in interfaces(facts).values()
            ):
                look_at = "which interfaces count: those that are UP"
            raise Wrong(f"{FUNCTION} named {machine}, which publishes {address}, and all machines reach that", look_at)


@check("every machine that the others cannot reach is named", begin="{scenario}: ")
def every_wrong_machine_is_named(case):
    machines, named = RUNS[case.scenario], settings_of(case)
    for machine, address in unreachable_machines(machines).items():
        look_at = "which network do all share: each machine has its own address in it, on an interface that is up?"
        if address is None:
            look_at = f"does the interface in {VARIABLE} exist on that machine, and does it have an address?"
        elif address.startswith("127."):
            look_at = "the host name leads to loopback, or to no address of this machine; or the variable says lo"
        publishes = f"publishes {address}" if address else f"has no address on {machines[machine][VARIABLE]}"
        expect(machine in named, f"{FUNCTION} did not name {machine}, which {publishes}", look_at)


@check("and each gets the interface that mends it", begin="{scenario}: ")
def the_setting_mends_it(case):
    machines = RUNS[case.scenario]
    for machine, setting in settings_of(case).items():
        by_name = interfaces(machines[machine])
        variable, _, name = setting.partition("=") if isinstance(setting, str) else ("", "", "")
        state, address = by_name.get(name, (None, None))
        expect(
            variable == VARIABLE and "@" not in name and address is not None,
            f"for {machine} {FUNCTION} returned {setting!r}; its interfaces are {', '.join(by_name)}",
            f"{VARIABLE}=NAME, with a name of that machine's own; what follows @ is not part of it",
        )
        expect(
            address.network in shared_networks(machines) and state == "UP",
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
