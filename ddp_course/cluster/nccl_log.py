"""Parse a log of NCCL_DEBUG=INFO: the meaning of each line, and a summary: interface, network, transports and ranks.

The patterns match the texts of libnccl 2.30.7 and their older forms. Other lines get the meaning "".
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

SOURCE_POSITION = r"\S+:\d+ (?:\(\w+\) )?"  # file:line (function) in NCCL's source
PREFIX = r"(?P<host>[^\s:\]]+):(?P<process>\d+):\d+ \[-?\d+\] "
LINE = re.compile(rf"{PREFIX}(?:{SOURCE_POSITION})?NCCL (?P<level>[A-Z]+) (?P<text>.*)")
VERSION_LINE = re.compile(r"(?:^|[\s:>\])])(?P<text>NCCL version \d\S+)\s*$")  # rank 0's, which has no host
INIT = r"rank (?P<rank>\d+) nranks (?P<of>\d+) cudaDev (?P<gpu>\d+).* busId (?P<bus>\w+).* Init "
KINDS = {  # kind -> its pattern, its meaning
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
    "error": (SOURCE_POSITION + r"-> (?P<code>\d)", "an error on its way up: {code}"),
}
CODES = {
    "1": "a call of CUDA failed",
    "2": "a call of the system failed",
    "3": "an internal error",
    "4": "a wrong argument",
    "5": "a wrong use",
    "6": "another rank failed",
}
WARNS = "what NCCL calls wrong: the first one, by time, is the cause"


@dataclass(frozen=True)
class Entry:
    """A line of the log. kind: a key of KINDS, "warning", or "" if unknown. fields: the groups of its pattern."""

    line: str
    host: str
    process: str
    kind: str
    meaning: str
    fields: dict[str, str]


def read(text: str) -> list[Entry]:
    """The entries of the lines that NCCL wrote, also with a prefix of torchrun, mpirun or Slurm; others are skipped."""
    matches = [LINE.search(line) or VERSION_LINE.search(line) for line in text.splitlines()]
    defaults = {"host": "", "process": "", "level": ""}
    return [_entry(match.string, **(defaults | match.groupdict())) for match in matches if match]


def cases(file: Path) -> dict[str, str]:
    """{name: log} of a stored file, split at its lines "# case: NAME"; any other log is one case, named as the file."""
    first, *parts = re.split(r"^# case: ", file.read_text(errors="replace"), flags=re.MULTILINE)
    return dict(part.split("\n", 1) for part in parts) or {file.name: first}


def answers(entries: list[Entry]) -> dict[str, str]:
    """Summarise a log: interface, network, transports, channels and ranks; "-" for what it does not contain.

    Only the largest communicator is summarised; of equally large ones, the last to begin. A rank's machine is the host
    of its lines.
    """
    size = max((int(entry.fields["of"]) for entry in entries if "of" in entry.fields), default=0)
    inits = [entry for entry in entries if entry.kind in ("begins", "complete") and int(entry.fields["of"]) == size]
    hosts = {int(entry.fields["rank"]): entry.host for entry in inits}
    newest = {(entry.host, entry.fields["bus"]): entry for entry in inits}  # per GPU
    ready = hosts.keys() - {int(entry.fields["rank"]) for entry in newest.values() if entry.kind == "begins"}
    own_entries = _entries_of_communicator(entries, size)
    inside, between = _transports(own_entries, hosts)
    not_ready = [f"not {rank} ({host})" for rank, host in sorted(hosts.items()) if rank not in ready]
    not_ready += [f"no line of {size - len(hosts)}"] * (len(hosts) < size)
    interfaces = [entry.fields for entry in entries if entry.kind == "bootstrap"]
    return {
        "interface": _all(f"{fields['card']} {fields['address']}" for fields in interfaces),
        "network": _all(entry.fields["network"] for entry in entries if entry.kind == "network"),
        "inside a machine": _all(inside),
        "between machines": _all(between),
        "channels": _all(entry.fields["count"] for entry in own_entries if entry.kind == "count"),
        "ranks ready": _all([f"{len(ready)} of {size}"] * (size > 0) + not_ready),
        "WARN": _all(entry.fields["text"] for entry in entries if entry.kind == "warning"),
    }


def _entries_of_communicator(entries: list[Entry], size: int) -> list[Entry]:
    """The entries of communicators with `size` ranks: an entry belongs to the one that its process began last."""
    current_sizes: dict[tuple[str, str], int] = {}  # (host, process) -> ranks
    selected = []
    for entry in entries:
        process = entry.host, entry.process
        if entry.kind == "begins":
            current_sizes[process] = int(entry.fields["of"])
        elif current_sizes.get(process, size) == size:
            selected.append(entry)
    return selected


def _transports(entries: list[Entry], hosts: dict[int, str]) -> tuple[list[str], list[str]]:
    """The transports of the channels inside a machine, and of those between machines. hosts: rank -> host."""
    inside, between = [], []
    for entry in entries:
        if entry.kind == "channel":
            source, target = (hosts.get(int(entry.fields[end])) for end in ("source", "target"))
            if source is not None and target is not None:
                transports = inside if source == target else between
                transports.append(entry.fields["way"])
    return inside, between


def _entry(line: str, host: str, process: str, level: str, text: str) -> Entry:
    if level == "WARN":
        return Entry(line, host, process, "warning", WARNS, {"text": text})
    for kind, (pattern, meaning) in KINDS.items():
        if match := re.search(pattern, text):
            fields = match.groupdict()
            if "code" in fields:
                fields["code"] = CODES.get(fields["code"], f"code {fields['code']}")
            if fields.get("address", "").startswith(("127.", "::1")):
                meaning = "the others come to {address}, which on each machine is the machine itself: nobody reaches it"
            return Entry(line, host, process, kind, meaning.format(**fields), fields)
    return Entry(line, host, process, "", "", {})


def _all(words: Iterable[str]) -> str:
    """The distinct words, joined by commas; "-" if there are none."""
    return ", ".join(dict.fromkeys(words)) or "-"
