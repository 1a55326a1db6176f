"""The lines of logs: without colours and prefixes, with the rank, the time and the process of each."""

import re
import textwrap
from dataclasses import dataclass
from pathlib import PurePath

MAX_LINE = 4000  # characters of a line that are read, after FOLD has split a log that lost its line breaks
ESCAPED = "Traceback (most recent call last):\\n"  # a traceback in a line of JSON
COLOURS = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]")
FOLD = re.compile(
    r"(?<=[^\n:]) +(?=(?:\[rank\d+\]:|\[[EWF]\d* ?\d*:?\S* \w+\.cpp:\d+\]|Traceback \(most recent|terminate called|"
    r"torch\.distributed\.\S+Error:|RuntimeError: |  File \"|exitcode +: |[EW]\d{4} \d\d:\d\d:|Root Cause \())"
)
CLOCK = r"\d\d:\d\d:\d\d(?:[.,]\d+)?"
PREFIXES = [  # what launchers, schedulers and loggers put before a line; the name of a group says what it is
    r"> ",  # quoted in a mail or an issue
    r"\[rank(?P<rank>\d+)\]: ?",
    r"\[1,(?P<task>\d+)\]<std...>:",  # mpirun --tag-output
    r"\[(?!rank)(?P<role>[A-Za-z_][\w.-]*?)(?P<local>\d+)\]: ?",  # torchrun --tee: [default0]:
    r"(?P<task_>\d{1,5}): ",  # srun --label
    r"\((?P<actor>\w+ pid=\d+(?:, ip=[\d.]+)?)\) ",  # Ray
    r"stderr: ?",
    r"[0-9a-f]{8} \|\| ",  # Determined
    r"(?P<host>[\w.-]{2,64}): (?=(?:\[rank\d+\]: ?)?Traceback \()",  # pdsh, kubectl
    rf"\[?(?P<date>\d{{4}}[-/]\d\d[-/]\d\d)[T _](?P<clock>{CLOCK})(?:Z|[+-][\d:]+)?\]? ?",
    r"\[[\w./-]+\.py:\d+\] ",
    rf"\[?(?:[A-Z]+ )?\d\d[-/]\d\d(?:[-/]\d{{2,4}})? {CLOCK}\]? ?",
    rf"[A-Z][a-z]{{2}} +\d{{1,2}} +{CLOCK} ",
    r"[^\n]{1,300}?(?=\[rank\d+\]: ?(?:Traceback|\[[EWF]\d))",  # a progress bar that had no end
]
PREFIXES = [re.compile(prefix) for prefix in PREFIXES]
HOST = re.compile(r"(?P<host>[\w.-]{2,64}): ")
IDENTITIES = ("task", "role", "local", "actor", "host", "rank")
GLOG = re.compile(
    rf"(?:\[[EWIF] |\[?[EWIF](?P<month>\d{{1,2}})(?P<day>\d\d) (?P<time>{CLOCK})[ \d]* )[\w./\\-]+:\d+\] ?"
)
RANK_IN_TEXT = re.compile(r"\[Rank (\d+)\]")
RANK_IN_PATH = re.compile(r"attempt_\d+/(\d+)/|rank[_.-]?(\d+)(?:\.\w+)*$", re.I)
ATTEMPT_IN_PATH = re.compile(r"attempt_(\d+)\W")


@dataclass
class Line:
    """A line without its prefixes.

    number  in the pasted text, from 1
    stream  what the prefixes of all lines of one process have in common
    rank    in the job, if the line or its file's name has it
    task    the launcher's number of the process (srun, mpirun, torchrun --tee): a rank or, on several machines, not
    time    in seconds since the year began
    level   W, E and so on of a line that torch logs; "" of others
    """

    log: "Log"
    number: int
    text: str
    stream: tuple[str, ...]
    rank: int | None = None
    task: int | None = None
    time: float | None = None
    level: str = ""

    @property
    def where(self) -> str:
        return f"line {self.number}" + (f" of {self.log.name}" if self.log.name else "")


class Log:
    """One pasted text, and the file that it came from ("" if it is the only one)."""

    def __init__(self, text: str, name: str = ""):
        in_path, attempt = RANK_IN_PATH.search(name), ATTEMPT_IN_PATH.search(name)
        self.name = name
        self.rank = int(in_path[1] or in_path[2]) if in_path else None
        self.attempt = int(attempt[1]) if attempt else None
        self.hosts: set[str] = set()  # host names that were prefixes of lines of tracebacks
        text = text.replace("\0", "")
        if "\x1b" in text:
            text = COLOURS.sub("", text)
        text = text.replace("\r\n", "\n").replace("\r", "\n")  # a progress bar may precede an error
        self.text = textwrap.dedent(text)
        self.lines: list[str] = []
        self.numbers: list[int] = []  # of the lines in the text, of which a long one becomes several
        for number, line in enumerate(self.text.split("\n"), 1):
            parts = [line] if len(line) < 1000 else FOLD.sub("\n", line[: 64 * MAX_LINE]).split("\n")
            if ESCAPED in line:
                parts = line[: 64 * MAX_LINE].replace("\\n", "\n").split("\n")
            self.lines += [part[:MAX_LINE] for part in parts]
            self.numbers += [number] * len(parts)

    def line(self, index: int) -> Line:
        """The line without its prefixes."""
        text, groups, stream, level = self.lines[index], {}, [self.name], ""
        while match := self._prefix(text):
            values = {name.rstrip("_"): value for name, value in match.groupdict().items()}
            self.hosts |= {values["host"]} if "host" in values else set()
            stream += [values[name] for name in IDENTITIES if name in values]
            groups |= values
            text = text[match.end() :]
        if stamp := GLOG.search(text):
            groups |= stamp.groupdict()
            level = stamp[0].lstrip("[")[0]
            text = text[: stamp.start()] + text[stamp.end() :]
        rank, task = groups.get("rank"), groups.get("task", groups.get("local"))
        if rank is None and (in_text := RANK_IN_TEXT.search(text)):
            rank = in_text[1]
        rank = self.rank if rank is None else int(rank)
        task = None if task is None else int(task)
        return Line(self, self.numbers[index], text, tuple(stream), rank, task, _seconds_of(groups), level)

    def _prefix(self, text: str) -> re.Match | None:
        for prefix in PREFIXES:
            if match := prefix.match(text):
                return match
        host = HOST.match(text)
        return host if host and host["host"] in self.hosts else None


def _seconds_of(groups: dict[str, str]) -> float | None:
    """Seconds since the year began, with months of 31 days: enough to sort by."""
    if "date" in groups:
        (month, day), clock = re.split("[-/]", groups["date"])[1:], groups["clock"]
    elif groups.get("time"):
        month, day, clock = groups["month"], groups["day"], groups["time"]
    else:
        return None
    hours, minutes, seconds = clock.replace(",", ".").split(":")
    return ((int(month) * 31 + int(day)) * 24 + int(hours)) * 3600 + int(minutes) * 60 + float(seconds)


def short_name(path: str) -> str:
    """The last part of a path; of torchrun's files the last three, such as attempt_0/1/stderr.log."""
    parts = PurePath(path).parts
    return "/".join(parts[-3:] if ATTEMPT_IN_PATH.search(path) else parts[-1:])


def who(ranks) -> str:
    """rank 1; ranks 0 and 3; ranks 0-5 and 7; a process, if there are none."""
    runs = []
    for rank in sorted(ranks):
        if runs and rank == runs[-1][1] + 1:
            runs[-1][1] = rank
        else:
            runs.append([rank, rank])
    names = [name for a, b in runs for name in ([f"{a}-{b}"] if b > a + 1 else map(str, range(a, b + 1)))]
    names = [*names[:6], f"{len(names) - 6} more"] if len(names) > 8 else names
    text = " and ".join(filter(None, [", ".join(names[:-1]), names[-1]])) if names else "a process"
    return f"rank{'s' if len(set(ranks)) > 1 else ''} {text}" if names else text


def shortened(text: str, width: int = 160) -> str:
    """The first line, up to `width` characters, without rank, group and place in gloo's or NCCL's source."""
    first = re.sub(r"\[(?:\S+\.c\w+:\d+|PG [^\]]*|Rank \d+|c10d)\]:? ", "", text.strip().partition("\n")[0])
    first = re.sub(r"NCCL error in: \S+, ", "NCCL error: ", first).strip()
    return first if len(first) <= width else first[:width] + "..."
