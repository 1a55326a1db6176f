"""The lines of logs: without colours and prefixes, with the rank, the time and the process of each."""

import re
from dataclasses import dataclass
from pathlib import PurePath

MAX_LINE = 4000  # characters of a line that are read, after FOLD has split a log that lost its line breaks
ESCAPED = "Traceback (most recent call last):\\n"  # a traceback in a line of JSON
COLOURS = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]|\x1b[()][A-Z0-9]|\x1b\][^\x07]{0,200}\x07")
FOLD = re.compile(
    r"(?<=[^\n:]) +(?=(?:\[rank\d+\]:|\[[EWF]\d* ?\d*:?\S* \w+\.cpp:\d+\]|Traceback \(most recent|terminate called|"
    r"torch\.distributed\.\S+Error:|RuntimeError: |  File \"|exitcode +: |[EW]\d{4} \d\d:\d\d:|Root Cause \())"
)
MONTHS = "Jan Feb Mar Apr May Jun Jul Aug Sep Oct Nov Dec".split()
LEVEL = "(?:DEBUG|INFO|WARNING|ERROR|CRITICAL)"
CLOCK = r"\d\d:\d\d:\d\d(?:[.,]\d+)?"
PREFIXES = [  # what launchers, schedulers and loggers put before a line; the name of a group says what it is
    r"> ",  # quoted in a mail or an issue
    r"\[rank(?P<rank>\d+)\]: ?",
    r"\[1,(?P<task>\d+)\]<std(?:err|out)>: ?",  # mpirun --tag-output
    r"\[(?!(?:rank|Rank))(?P<role>[A-Za-z_][\w.-]*?)(?P<local>\d+)\]: ?",  # torchrun --tee: [default0]:
    r"(?P<task_>\d{1,5}): ",  # srun --label
    r"\((?P<actor>\w+ pid=\d+(?:, ip=[\d.]+)?)\) ?(?:\[repeated[^\]]*\] ?)?",  # Ray
    r"(?:stderr|stdout): ?",
    r"[0-9a-f]{8} \|\| ",  # Determined
    r"(?P<host>[\w.-]{2,64}): (?=\[rank\d+\]|Traceback \(|  File |\[?[EWF]\d{3,4} |\[default\d)",  # pdsh, kubectl
    r"\[?(?P<date>\d{4}[-/]\d\d[-/]\d\d)[T _](?P<clock>\d\d:\d\d:\d\d(?:[.,]\d+)?)(?:Z|[+-]\d\d:?\d\d)?\]? ?",
    r"\[[\w./-]+\.py:\d+\] ",
    rf"\[?(?:{LEVEL} )?(?P<us_date>\d\d[-/]\d\d(?:[-/]\d{{2,4}})?) (?P<us_clock>{CLOCK})\]? ?",
    rf"(?P<month>{'|'.join(MONTHS)}) +(?P<day>\d{{1,2}}) +(?P<long_clock>{CLOCK}) ",
    rf"(?:- )? ?\[?{LEVEL}\]?(?: ?[:|-])? ?(?=Traceback|\w*Error|\[rank)",
    r"[^\n]{1,300}?(?=\[rank\d+\]: ?(?:Traceback|\[[EWF]\d))",  # a progress bar that had no end
    r"(?P<other>[^\n]{1,80}?[\]:|>] ?)(?=\[rank\d+\]:)",
]
PREFIXES = [re.compile(prefix) for prefix in PREFIXES]
HOST = re.compile(r"(?P<host>[\w.-]{2,64}): ")
IDENTITIES = ("task", "role", "local", "actor", "host", "other", "rank")
GLOG = re.compile(
    rf"(?:\[[EWIF] |\[?[EWIF](?P<month>\d{{1,2}})(?P<day>\d\d) (?P<clock>{CLOCK})[ \d]* )[\w./\\-]+:\d+\] ?"
)
AT_TIME = re.compile(r"time +: (\d{4}-\d\d-\d\d)_(\d\d:\d\d:\d\d)|AT (\d{4}-\d\d-\d\d)T(\d\d:\d\d:\d\d)")
RANK_IN_TEXT = re.compile(r"\[Rank (\d+)\]|\(default_pg\) Rank (\d+)\]|\[PG 0 Rank (\d+)\]")
RANK_IN_PATH = re.compile(
    r"attempt_\d+[/\\](\d+)[/\\]std(?:out|err)|(?:^|[/\\_.-])(?:rank|task|proc)[_.-]?(\d+)(?:\.\w+)*$", re.I
)
ATTEMPT_IN_PATH = re.compile(r"attempt_(\d+)[/\\]")


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
        self.text = text.replace("\r\n", "\n").replace("\r", "\n")  # a progress bar may precede an error
        self.lines: list[str] = []
        self.numbers: list[int] = []  # of the lines in the text, of which a long one becomes several
        indent, escaped = _common_indent(self.text), ESCAPED in self.text
        for number, line in enumerate(self.text.split("\n"), 1):
            line = line[indent:] if indent and line[:indent].isspace() else line
            parts = [line] if len(line) < 1000 else FOLD.sub("\n", line[: 64 * MAX_LINE]).split("\n")
            if escaped and ESCAPED in line:
                parts = line[: 64 * MAX_LINE].replace("\\n", "\n").split("\n")
            self.lines += [part[:MAX_LINE] for part in parts]
            self.numbers += [number] * len(parts)

    def line(self, index: int) -> Line:
        """The line without its prefixes."""
        text, groups, stream, time, level = self.lines[index], {}, [self.name], None, ""
        while match := self._prefix(text):
            values = {name.rstrip("_"): value for name, value in match.groupdict().items() if value}
            self.hosts |= {values["host"]} if "host" in values else set()
            stream += [values[name] for name in IDENTITIES if name in values]
            time = time or _seconds_of(values)
            groups |= values
            text = text[match.end() :]
        if stamp := GLOG.search(text):
            time = time or _seconds_of(stamp.groupdict())
            level = stamp[0].lstrip("[")[0]
            text = text[: stamp.start()] + text[stamp.end() :]
        if time is None and (stamp := AT_TIME.search(text)):
            time = _seconds_of({"date": stamp[1] or stamp[3], "clock": stamp[2] or stamp[4]})
        rank, task = groups.get("rank"), groups.get("task", groups.get("local"))
        if rank is None and (in_text := RANK_IN_TEXT.search(text)):
            rank = next(filter(None, in_text.groups()))
        rank = self.rank if rank is None else int(rank)
        task = None if task is None else int(task)
        return Line(self, self.numbers[index], text, tuple(stream), rank, task, time, level)

    def _prefix(self, text: str) -> re.Match | None:
        for prefix in PREFIXES:
            if (match := prefix.match(text)) and match.end():
                return match
        host = HOST.match(text) if self.hosts else None
        return host if host and host["host"] in self.hosts else None


def _common_indent(text: str) -> int:
    """The number of blanks with which all lines begin, of the first 10,000 characters."""
    lines = [line for line in text[:10_000].split("\n") if line.strip()]
    return min((len(line) - len(line.lstrip()) for line in lines), default=0)


def _seconds_of(groups: dict[str, str]) -> float | None:
    """Seconds since the year began, with months of 31 days: enough to sort by."""
    clock = groups.get("clock") or groups.get("us_clock") or groups.get("long_clock")
    if clock is None:
        return None
    if date := groups.get("date"):
        month, day = map(int, re.split("[-/]", date)[1:])
    elif date := groups.get("us_date"):
        month, day = map(int, re.split("[-/]", date)[:2])
    else:
        name = groups["month"]
        month, day = MONTHS.index(name) + 1 if name in MONTHS else int(name), int(groups["day"])
    hours, minutes, seconds = clock.replace(",", ".").split(":")
    return ((month * 31 + day) * 24 + int(hours)) * 3600 + int(minutes) * 60 + float(seconds)


def short_name(path: str) -> str:
    """The last part of a path; of torchrun's files the last three, such as attempt_0/1/stderr.log."""
    parts = PurePath(path).parts
    return "/".join(parts[-3:] if re.fullmatch(r"std(?:out|err)\.log", parts[-1] if parts else "") else parts[-1:])


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
    first = re.sub(r"\[(?:\S+\.(?:cc|cpp):\d+|PG [^\]]*|Rank \d+|c10d)\]:? ", "", text.strip().partition("\n")[0])
    first = re.sub(r"NCCL error in: \S+, ", "NCCL error: ", first).strip()
    return first if len(first) <= width else first[:width] + "..."
