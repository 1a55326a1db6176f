"""Wrong and right answers to question 16.2; ddp_course/authoring/answers.py says how to read them."""

from ddp_course.authoring.answers import RightAnswer, WrongAnswer

BLAMED, NAMED, MENDED = "no_machine_is_blamed_without_cause", "every_wrong_machine_is_named", "the_setting_mends_it"
ANSWERS = (
    WrongAnswer(
        "the_name_comes_first", "looks at the host name, also where the variable says something else",
        check=BLAMED, says="a name that leads to loopback, and the variable: mend named node2", look="the variable comes first",
        edit="""
        -    if machine[VARIABLE]:
        +    if machine[VARIABLE] and resolved(machine) is None:
    """),
    WrongAnswer(
        "one_network_only", "takes the first network that all share for the only one",
        check=BLAMED, says="names on the second network: mend named", look="in any network that all machines share", edit="""
        -    shared = [network for network, ips in members.items() if len(ips) == len(set(ips)) == len(machines)]
        +    shared = [network for network, ips in members.items() if len(ips) == len(set(ips)) == len(machines)][:1]
    """),
    WrongAnswer(
        "by_its_beginning", "takes an interface whose name begins with the variable, as NCCL does",
        check=NAMED, says="did not name a, which has no address on", look="on that machine", edit="""
        -        return cards[machine[VARIABLE]][1].ip if machine[VARIABLE] in cards else None
        +        return next((addr.ip for card, (_, addr) in cards.items() if card.startswith(machine[VARIABLE])), None)
    """),
    WrongAnswer(
        "with_the_other_end", "gives the name as `ip` prints it",
        check=MENDED, says="'GLOO_SOCKET_IFNAME=ens3@if", look="what follows @", edit="""
        -    return {row[0].partition("@")[0]: (row[1], ipaddress.ip_interface(row[2])) for row in rows if len(row) > 2}
        +    return {row[0]: (row[1], ipaddress.ip_interface(row[2])) for row in rows if len(row) > 2}
        @@
        -    cards = interfaces(machine)
        +    cards = {card.partition("@")[0]: entry for card, entry in interfaces(machine).items()}
    """),
    WrongAnswer(
        "all_but_down", "counts every interface that is not DOWN as UP, also a tunnel whose state is UNKNOWN",
        check=NAMED, says="did not name b, which publishes 10.200.0.2", look="an interface that is up", edit="""
        -    up = {name: [nic for nic in interfaces(machine).items() if nic[1][0] == "UP"] for name, machine in machines.items()}
        +    up = {name: [nic for nic in interfaces(machine).items() if nic[1][0] != "DOWN"] for name, machine in machines.items()}
    """),
    RightAnswer(
        "by_comparison", "each machine against each other one: is its address in a network of all of them?", text='''
        import ipaddress as ip


        def cards(machine):
            result = {}
            for line in machine["ip"].splitlines():
                words = line.split()
                if len(words) > 2 and not words[2].startswith("127."):
                    result[words[0].split("@")[0]] = (ip.ip_interface(words[2]), words[1] == "UP")
            return result


        def all_meet(machines, address):
            """Whether each machine has an interface in the network of `address`, and no two the same address there."""
            there = [{addr.ip for addr, up in cards(other).values() if up and address in addr.network} for other in machines]
            return all(there) and len(set.union(*there)) == sum(map(len, there))


        def mend(machines):
            settings = {}
            every = list(machines.values())
            for name, machine in machines.items():
                own = cards(machine)
                if machine["GLOO_SOCKET_IFNAME"]:
                    own_addresses = [addr.ip for card, (addr, _) in own.items() if card == machine["GLOO_SOCKET_IFNAME"]]
                else:
                    named = [ip.ip_address(line.split()[0]) for line in machine["hosts"].splitlines()
                             if machine["hostname"] in line.split()[1:]]
                    own_addresses = [addr for addr in named if addr in [card.ip for card, _ in own.values()]]
                if own_addresses and all_meet(every, own_addresses[0]):
                    continue
                settings[name] = [f"GLOO_SOCKET_IFNAME={card}" for card, (addr, up) in own.items()
                                  if up and all_meet(every, addr.ip)][-1]
            return settings
    '''),
    RightAnswer(
        "the_last_one", "takes the last of several interfaces that would do", edit="""
        -            settings[name] = next(f"{VARIABLE}={card}" for card, (_, addr) in up[name] if addr.network in shared)
        +            settings[name] = [f"{VARIABLE}={card}" for card, (_, addr) in up[name] if addr.network in shared][-1]
    """),
)
