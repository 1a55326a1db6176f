"""Facts read from logs: errors, messages, exit codes and timeouts of the ranks; and the explanation of a failure."""

import re
from dataclasses import dataclass, field

from ddp_doctor.explain.log_lines import Line, Log
from ddp_doctor.explain.messages import BY_NAME, Message

LIBRARY = re.compile(
    r"(?:site|dist)-packages|[/\\]lib(?:64)?[/\\]python3|[/\\](?:torch|bin)[/\\]|^<|\\(?:[Ll]ib|Scripts)\\"
)
EXCEPTION = BY_NAME["exception"]
# By the exit code on Linux: a log may come from another machine than this one.
SIGNAL_NAMES = {-4: "SIGILL", -6: "SIGABRT", -7: "SIGBUS", -8: "SIGFPE", -9: "SIGKILL", -11: "SIGSEGV", -15: "SIGTERM"}


@dataclass
class Event:
    """A known message or an exception in a log: `text` is the message, `frames` are those of its traceback."""

    line: Line
    rank: int | None
    message: Message
    text: str
    frames: tuple[tuple[str, int], ...] = ()  # innermost last

    @property
    def frame(self) -> tuple[str, int] | None:
        """(file, line) of the innermost frame of the user's own code, else of all frames; None if there is none."""
        own = [frame for frame in self.frames if not LIBRARY.search(frame[0])]
        return (own or list(self.frames) or [None])[-1]


@dataclass
class Wait:
    """A timeout that NCCL's watchdog reports: the collective that its rank waited in, and the rank's progress."""

    line: Line
    number: int  # of the collective in its group
    operation: str
    elements: int | None
    seconds: float  # the timeout
    group: str = ""
    enqueued: int | None = None  # number of the last collective that the rank has started
    completed: int | None = None  # and of the last that has ended


@dataclass
class Facts:
    logs: list[Log]
    later_attempts: bool = False  # whether there are logs of restarts by torchrun, which are not read
    events: list[Event] = field(default_factory=list)
    exit_codes: dict[int, tuple[int, Line]] = field(default_factory=dict)  # by rank; negative: a signal
    unnamed_exit: tuple[int, Line] | None = None  # exit code of a process whose rank is not known
    pids: dict[int, int] = field(default_factory=dict)  # rank -> pid
    signalled_pids: set[int] = field(default_factory=set)  # pids to which torchrun sent a signal
    waits: dict[int, Wait] = field(default_factory=dict)  # by rank
    ranks: set[int] = field(default_factory=set)  # all that the logs mention
    world_size: int | None = None
    noticed_first: int | None = None  # torchrun's "root cause"
    summary: Line | None = None  # where torchrun reports a failure

    @property
    def size(self) -> int:
        """The number of ranks, as far as the logs show it."""
        return max(self.world_size or 0, max(self.ranks, default=-1) + 1)

    def take_exit(self, rank: int | None, code: int, line: Line) -> None:
        if rank is None:
            self.unnamed_exit = code, line
        else:
            self.exit_codes[rank] = code, line

    def by_role(self, *roles: str) -> list[Event]:
        return [event for event in self.events if event.message.role in roles]


@dataclass
class Explanation:
    """The first failure, with the facts that the log tells of it.

    message      the first failure; None if there is none
    ranks        that are to blame for it: () if none is, or if the log cannot tell
    line, quote  of the log, on which the explanation is based; quote: "" if it is the whole line
    roles        rank -> what it did; some ranks that are to blame are in it, too
    cannot_know  what the log does not tell
    """

    message: Message | None
    ranks: tuple[int, ...]
    sentence: str
    line: Line | None = None
    frame: tuple[str, int] | None = None
    quote: str = ""
    roles: dict[int, str] = field(default_factory=dict)
    cannot_know: list[str] = field(default_factory=list)


def earliest(events: list[Event]) -> tuple[Event, bool]:
    """(the first event, whether its being first is known): by times, else by the order of the lines of one log."""
    if all(event.line.time is not None for event in events):
        return min(events, key=lambda event: event.line.time), True
    if len({id(event.line.log) for event in events}) == 1:
        return min(events, key=lambda event: event.line.number), True
    return events[0], all(alike(event, events[0]) for event in events)


def alike(event: Event, other: Event) -> bool:
    """Whether two events have the same message or, as exceptions without one, the same first line."""
    if event.message is EXCEPTION:
        return event.text.partition("\n")[0] == other.text.partition("\n")[0]
    return event.message is other.message
