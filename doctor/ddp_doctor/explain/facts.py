"""Collects from logs the errors, messages, exit codes and waits of the ranks."""

import re
from dataclasses import dataclass, field

from ddp_doctor.explain.log_lines import Line, Log
from ddp_doctor.explain.message import Message
from ddp_doctor.explain.messages import BY_NAME

LIBRARY = re.compile(r"(?:site|dist)-packages|[/\\]lib(?:64)?[/\\]python3|[/\\]torch[/\\]|^<|\\Lib\\|[/\\]bin[/\\]")
EXCEPTION = BY_NAME["exception"]


@dataclass
class Event:
    line: Line
    rank: int | None
    message: Message
    text: str
    frames: tuple[tuple[str, int], ...] = ()  # innermost last

    @property
    def frame(self) -> tuple[str, int] | None:
        """The innermost line of the user's own code."""
        own = [frame for frame in self.frames if not LIBRARY.search(frame[0])]
        return (own or list(self.frames) or [None])[-1]


@dataclass
class Wait:
    """NCCL's watchdog on a rank: the collective that it waited in, its group, and how far the rank had come."""

    line: Line
    number: int
    operation: str
    elements: int | None
    seconds: float
    group: str = ""
    enqueued: int | None = None
    completed: int | None = None


@dataclass
class Facts:
    logs: list[Log]
    later_attempts: bool = False  # logs of what torchrun started again are left out
    events: list[Event] = field(default_factory=list)
    exit_codes: dict[int | None, tuple[int, Line]] = field(default_factory=dict)  # negative: a signal
    pids: dict[int, int] = field(default_factory=dict)  # rank -> pid
    signalled_pids: set[int] = field(default_factory=set)  # pids to which torchrun sent a signal
    waits: dict[int, Wait] = field(default_factory=dict)
    ranks: set[int] = field(default_factory=set)  # all that the logs speak of
    world_size: int | None = None
    noticed_first: int | None = None  # torchrun's "root cause"
    summary: Line | None = None  # where torchrun reports a failure

    def by_role(self, *roles: str) -> list[Event]:
        return [event for event in self.events if event.message.role in roles]


@dataclass
class Explanation:
    """`ranks` are to blame for the first failure: () if the log cannot tell. `line` is what it rests on.

    roles   rank -> what it did
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
    """The first in time, and whether the logs tell the order: by times, else by the order of the lines of one log."""
    if len({id(event.line.log) for event in events}) == 1:
        timed = all(event.line.time is not None for event in events)
        return min(events, key=lambda event: (event.line.time if timed else 0, event.line.number)), True
    if all(event.line.time is not None for event in events):
        return min(events, key=lambda event: event.line.time), True
    return events[0], len(events) == 1 or all(alike(event, events[0]) for event in events)


def alike(event: Event, other: Event) -> bool:
    if event.message is EXCEPTION or other.message is EXCEPTION:
        return event.text.partition("\n")[0] == other.text.partition("\n")[0]
    return event.message is other.message
