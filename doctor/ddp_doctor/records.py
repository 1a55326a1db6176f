"""Reads the files that the recorders left in the doctor's folder, as `Rank`s."""

import contextlib
import json
import re
from pathlib import Path

from ddp_doctor import history
from ddp_doctor.errors import InputError
from ddp_doctor.history import DTYPES, Collective, Frame
from ddp_doctor.job import Error, Rank
from ddp_doctor.launch.first_failure import is_symptom
from ddp_doctor.recorder import SLOT

NAMES_IN_A_DUMP = {dtype: name for name, dtype in DTYPES.items()}  # float32: Float


def read(folder: Path, single: bool = False) -> dict[int, Rank]:
    """{number: Rank} of the recorded processes; of several with the same number, the one that started last.

    No record has a rank's `state`, so it stays "ended".
    single: torchrun has started one process only. If processes of a group of two or more were recorded, which it has
    then started, these are the ranks.
    """
    spawned = ranks_by_pid(folder) if single else {}
    newest: dict[int, tuple[float, Rank]] = {}
    for path in folder.glob("*.events"):
        events = events_in(path)
        if not events or events[0]["event"] != "start":
            continue
        rank = _rank(path, events)
        if spawned and rank.pid not in spawned:
            continue  # it has started the ranks, or is one of their helpers
        rank.rank = spawned.get(rank.pid, rank.rank)
        if rank.rank not in newest or newest[rank.rank][0] < events[0]["time"]:
            newest[rank.rank] = (events[0]["time"], rank)
    return {number: newest[number][1] for number in sorted(newest)}


def ranks_by_pid(folder: Path) -> dict[int, int]:
    """{pid: rank} of the processes that formed a group of two or more."""
    ranks = {}
    for path in folder.glob("*.events"):
        for event in events_in(path):
            if event["event"] == "group" and event["world_size"] > 1:
                ranks[int(path.stem)] = event["rank"]
    return ranks


def progress(folder: Path) -> dict[str, object]:
    """{name of a status file: progress of its rank}; it changes when a rank starts or finishes a collective."""
    by_file = {}
    for path in folder.glob("*.status"):
        try:
            by_file[path.name] = json.loads(path.read_text())["progress"]
        except (OSError, ValueError):
            continue  # replaced just now
    return by_file


def events_in(path: Path) -> list[dict]:
    """The records of a file of JSON lines, up to the first that was not written whole."""
    events = []
    for line in path.read_text().splitlines():
        try:
            events.append(json.loads(line))
        except ValueError:
            break  # the process died while it wrote this line
    return events


def _rank(path: Path, events: list[dict]) -> Rank:
    """One process from its events and its other files, which lie next to `path`, the file of its events."""
    rank = Rank(rank=events[0]["rank"], pid=events[0]["pid"])
    with contextlib.suppress(OSError, ValueError):  # it may have ended before the first status was written
        status = json.loads(path.with_suffix(".status").read_text())
        rank.stack = _frames(status["stack"])
        rank.progress = {group: tuple(numbers) for group, numbers in status["progress"].items()}
        rank.handled = _error(status["handled"], status["time"]) if status["handled"] else None
    with contextlib.suppress(OSError, InputError):
        rank.history = history.read(path.with_suffix(".history"))
    rank.recorded = True
    for call in sorted(_calls(path.with_suffix(".calls")), key=lambda call: call.time):
        rank.history = history.with_call(rank.history, call)
    for event in events:
        if event["event"] in ("exception", "exception in a thread") and rank.error is None:
            rank.error = _error(event, event["time"], uncaught=event["event"] == "exception")
        elif event["event"] == "group":
            rank.group_size, rank.group_destroyed = event["world_size"], False
        elif event["event"] == "group destroyed":
            rank.group_destroyed = True
        elif event["event"] in ("sys.exit", "os._exit"):
            argument = event["status"].strip("'\"")
            stack = _frames(event["stack"])
            if any(frame.is_own() for frame in stack):  # multiprocessing also ends its processes by os._exit
                rank.exit_call = (f"{event['event']}({argument if argument != 'None' else ''})", stack)
            rank.exit_code = int(argument) if argument.isdigit() else int(argument != "None")
        elif event["event"] == "recorder failed":
            rank.notes.append(f"the recorder inside this rank gave up: {event['text']}")
    rank.crash_stack = _crash_stack(path.with_suffix(".fatal"), events[0]["main_thread"])
    return rank


def _calls(path: Path) -> list[Collective]:
    """The collectives in PID.calls, which has a slot of SLOT bytes per call, in no particular order."""
    calls = []
    content = path.read_bytes() if path.exists() else b""
    for begin in range(0, len(content), SLOT):
        try:
            call = json.loads(content[begin : begin + SLOT])
        except ValueError:
            continue  # the process died while it wrote this slot
        sizes, stack = tuple(tuple(size) for size in call["sizes"]), _frames(call["stack"])
        dtypes = tuple(NAMES_IN_A_DUMP.get(dtype, dtype) for dtype in call["dtypes"])
        calls.append(Collective(0, call["group"], call["name"], sizes, dtypes, stack, call["time"], call["root"]))
    return calls


def _error(exception: dict, when: float, uncaught: bool = False) -> Error:
    text = f"{exception['type']}: {exception['text']}"
    # A Python ConnectionError with the same words is about a connection that the script has made itself.
    symptom = is_symptom(text) and exception["type"].startswith(("RuntimeError", "Dist"))
    return Error(text, when, symptom, _frames(exception["stack"]), uncaught)


def _frames(stack) -> tuple[Frame, ...]:
    return tuple(Frame(file, line, function) for file, line, function in stack)


def _crash_stack(path: Path, main_thread: int) -> tuple[Frame, ...]:
    """The main thread's frames from what faulthandler wrote as the process died; () if it wrote nothing."""
    text = path.read_text(errors="replace") if path.exists() else ""
    section = re.search(rf"hread 0x0*{main_thread:x} .*?:\n((?:  File .*\n)+)", text)
    if section is None:
        return ()
    lines = re.findall(r'  File "(.*)", line (\d+) in (.*)', section[1])
    return tuple(Frame(file, int(line), function) for file, line, function in lines)
