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
        "any_address_will_do", "is content with any address that is not loopback",
        check=NAMED, says="did not name node2, which publishes 172.17.0.1", look="which network do all share",
        edit="""
        -        if address is None or not any(address in network for network in shared):
        +        if address is None or address.is_loopback:
    """),
    WrongAnswer(
        "never_raises", "takes the host name where the interface does not exist",
        check=NAMED, says="the variable of the other machine: mend did not name node2, which has no address on eth0",
        look="on that machine", edit="""
        -    if machine[VARIABLE]:
        -        return found[machine[VARIABLE]][1].ip if machine[VARIABLE] in found else None
        +    if machine[VARIABLE] in found:
        +        return found[machine[VARIABLE]][1].ip
    """),
    WrongAnswer(
        "the_first_interface", "gives each machine its first interface that is up",
        check=MENDED, says="which not all reach", look="in the network that all machines share", edit="""
        -            settings[name] = next(f"{VARIABLE}={card}" for card, (_, one) in up[name] if one.network in shared)
        +            settings[name] = f"{VARIABLE}={up[name][0][0]}"
    """),
    WrongAnswer(
        "with_the_other_end", "gives the name as `ip` prints it",
        check=MENDED, says="'GLOO_SOCKET_IFNAME=ens3@if", look="what follows @", edit="""
        -    return {row[0].partition("@")[0]: (row[1], ipaddress.ip_interface(row[2])) for row in rows if len(row) > 2}
        +    return {row[0]: (row[1], ipaddress.ip_interface(row[2])) for row in rows if len(row) > 2}
        @@
        -    found = interfaces(machine)
        +    found = {card.partition("@")[0]: one for card, one in interfaces(machine).items()}
    """),
    RightAnswer(
        "by_comparison", "each machine against each other one: is its address in a network of all of them?", text='''
        import ipaddress as ip


        def cards(machine):
            found = {}
            for line in machine["ip"].splitlines():
                words = line.split()
                if len(words) > 2 and not words[2].startswith("127."):
                    found[words[0].split("@")[0]] = (ip.ip_interface(words[2]), words[1] == "UP")
            return found


        def all_meet(machines, address):
            """Whether each machine has an interface in the network of `address`, and no two the same address there."""
            there = [{one.ip for one, up in cards(other).values() if up and address in one.network} for other in machines]
            return all(there) and len(set.union(*there)) == sum(map(len, there))


        def mend(machines):
            settings = {}
            every = list(machines.values())
            for name, machine in machines.items():
                own = cards(machine)
                if machine["GLOO_SOCKET_IFNAME"]:
                    mine = [one.ip for card, (one, _) in own.items() if card == machine["GLOO_SOCKET_IFNAME"]]
                else:
                    named = [ip.ip_address(line.split()[0]) for line in machine["hosts"].splitlines()
                             if machine["hostname"] in line.split()[1:]]
                    mine = [one for one in named if one in [card.ip for card, _ in own.values()]]
                if mine and all_meet(every, mine[0]):
                    continue
                settings[name] = [f"GLOO_SOCKET_IFNAME={card}" for card, (one, up) in own.items()
                                  if up and all_meet(every, one.ip)][-1]
            return settings
    '''),
    RightAnswer(
        "the_last_one", "takes the last of several interfaces that would do", edit="""
        -            settings[name] = next(f"{VARIABLE}={card}" for card, (_, one) in up[name] if one.network in shared)
        +            settings[name] = [f"{VARIABLE}={card}" for card, (_, one) in up[name] if one.network in shared][-1]
    """),
)
