"""What the lines of a log of NCCL_DEBUG=INFO say, and what the log answers: interface, network, ways, ranks.

The patterns are those of the texts in libnccl 2.30.7, with their older forms. Other lines stay as they are.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

WHERE = r"\S+:\d+ (?:\(\w+\) )?"  # a place in NCCL's source
PLACE = r"(?P<host>[^\s:\]]+):(?P<process>\d+):\d+ \[-?\d+\] "
LINE = re.compile(rf"{PLACE}(?:{WHERE})?NCCL (?P<level>[A-Z]+) (?P<text>.*)")
VERSION_ALONE = re.compile(r"(?:^|[\s:>\])])(?P<text>NCCL version \d\S+)\s*$")  # rank 0's, which has no host
INIT = r"rank (?P<rank>\d+) nranks (?P<of>\d+) cudaDev (?P<gpu>\d+).* busId (?P<bus>\w+).* Init "
KINDS = {  # kind -> its pattern, what it says
    "version": (r"NCCL version (?P<version>[\d.]+)", "the same on all machines?"),
    "variable": (r"(?P<name>NCCL_\w+) set (?:by environment )?to (?P<value>.*?)\.?$", "it arrived in this process"),
    "bootstrap": (
        r"Bootstrap ?: Using (?:\[0\])?(?P<card>[^\s:]+):(?P<address>[^\s<]+)",
        "the others come to {address}, card {card}: do they reach it?",
    ),
    "plugin": (
        r"NET/Plugin ?: Using|ould not find: lib|cannot open shared object|No plugin found",
        "an optional plugin: no error",
    ),
    "no InfiniBand": (r"NET/IB ?: No device found", "no InfiniBand or RoCE card is seen in this process"),
    "cards": (r"NET/(?P<network>\w+) ?: Using (?P<cards>.*)", "the cards that {network} could use"),
    "network": (r"Using network (?P<network>.+?)\s*$", "messages between machines: {network} (Socket is TCP)"),
    "machines": (r"nRanks (?P<of>\d+) nNodes (?P<nodes>\d+)", "NCCL counts {nodes} machines, {of} ranks"),
    "begins": (INIT + "START", "rank {rank} of {of}: its GPU {gpu}, at PCI address {bus}"),
    "order": (r"Channel \d+/\d+ :(?:\s+\d+)+(?!\S)", "the order of the ranks in a ring"),
    "channel": (
        r"(?:Channel|Ring) (?P<channel>\d+)(?:/\d+)? : (?P<source>\d+)\[\w+\] -> (?P<target>\d+)\[\w+\]"
        r"(?: \[\w+\])? via (?P<way>[^/\s]+(?:(?<=NET)/[^/(]+)?)",
        "rank {source} sends to {target} by {way}",
    ),
    "count": (r"(?P<count>\d+) coll channels", "{count} channels for collectives"),
    "connected": (r"Connected all (?P<what>rings|trees)", "this rank reaches its neighbours in the {what}"),
    "complete": (INIT + "COMPLETE", "rank {rank} of {of} is ready"),
    "error": (WHERE + r"-> (?P<code>\d)", "an error on its way up: {code}"),
}
CODES = dict(
    zip(
        "123456",
        [
            "a call of CUDA failed",
            "a call of the system failed",
            "an internal error",
            "a wrong argument",
            "a wrong use",
            "another rank failed",
        ],
        strict=True,
    )
)
WARNS = "what NCCL calls wrong: the first one, by time, is the cause"


@dataclass(frozen=True)
class Entry:
    """A line of the log. `kind` is a key of KINDS, "warning", or "" for a line that is not known; `found` its parts."""

    line: str
    host: str
    process: str
    kind: str
    says: str
    found: dict[str, str]


def read(text: str) -> list[Entry]:
    """Each line that NCCL wrote, whatever torchrun, mpirun or Slurm has put in front of it."""
    matches = [LINE.search(line) or VERSION_ALONE.search(line) for line in text.splitlines()]
    left_out = {"host": "", "process": "", "level": ""}
    return [_entry(one.string, **(left_out | one.groupdict())) for one in matches if one]


def cases(file: Path) -> dict[str, str]:
    """The parts of a stored log that begin with "# case: NAME"; any other log is one, with the file's name."""
    first, *parts = re.split(r"^# case: ", file.read_text(errors="replace"), flags=re.MULTILINE)
    return dict(part.split("\n", 1) for part in parts) or {file.name: first}


def answers(entries: list[Entry]) -> dict[str, str]:
    """What one asks of a log first. Of several groups the largest counts, and of that size the one that began last.

    A rank's machine is that of its lines.
    """
    size = max((int(one.found["of"]) for one in entries if "of" in one.found), default=0)
    group = [one for one in entries if one.kind in ("begins", "complete") and int(one.found["of"]) == size]
    hosts = {int(one.found["rank"]): one.host for one in group}
    newest = {(one.host, one.found["bus"]): one for one in group}  # of each GPU
    ready = hosts.keys() - {int(one.found["rank"]) for one in newest.values() if one.kind == "begins"}
    current, own = {}, []  # channels are numbered within a group: the one that their process began last
    for one in entries:
        if one.kind == "begins":
            current[one.host, one.process] = int(one.found["of"])
        elif current.get((one.host, one.process), size) == size:
            own.append(one)
    ways = {True: [], False: []}  # on one machine?
    for one in (one for one in own if one.kind == "channel"):
        ends = [hosts.get(int(one.found[end])) for end in ("source", "target")]
        if None not in ends:
            ways[ends[0] == ends[1]].append(one.found["way"])
    late = [f"not {rank} ({host})" for rank, host in sorted(hosts.items()) if rank not in ready]
    late += [f"no line of {size - len(hosts)}"] * (len(hosts) < size)
    return {
        "interface": _all(f"{one.found['card']} {one.found['address']}" for one in entries if one.kind == "bootstrap"),
        "network": _all(one.found["network"] for one in entries if one.kind == "network"),
        "inside a machine": _all(ways[True]),
        "between machines": _all(ways[False]),
        "channels": _all(one.found["count"] for one in own if one.kind == "count"),
        "ranks ready": _all([f"{len(ready)} of {size}"] * (size > 0) + late),
        "WARN": _all(one.found["text"] for one in entries if one.kind == "warning"),
    }


def _entry(line: str, host: str, process: str, level: str, text: str) -> Entry:
    if level == "WARN":
        return Entry(line, host, process, "warning", WARNS, {"text": text})
    for kind, (pattern, says) in KINDS.items():
        if match := re.search(pattern, text):
            found = match.groupdict()
            if "code" in found:
                found["code"] = CODES.get(found["code"], f"code {found['code']}")
            if found.get("address", "").startswith(("127.", "::1")):
                says = "the others come to {address}, which on each machine is the machine itself: nobody reaches it"
            return Entry(line, host, process, kind, says.format(**found), found)
    return Entry(line, host, process, "", "", {})


def _all(words: Iterable[str]) -> str:
    return ", ".join(dict.fromkeys(words)) or "-"
