"""Reads what the recorder left in the doctor's folder into `Rank`s."""

import json
import re
from pathlib import Path

from ddp_doctor import history
from ddp_doctor.errors import InputError
from ddp_doctor.history import DTYPES, Collective, Frame
from ddp_doctor.launch.first_failure import is_symptom
from ddp_doctor.recorder import SLOT
from ddp_doctor.seen import Error, Rank


def read(folder: Path, single: bool = False) -> dict[int, Rank]:
    """By rank, of each the process that was started last. `state` is not in the records.

    Where processes have met that a job of one rank has started, those are the ranks.
    """
    own = ranks_by_pid(folder) if single else {}
    found: dict[int, tuple[float, Rank]] = {}
    for path in folder.glob("*.events"):
        events = _events(path)
        if not events or events[0]["event"] != "start":
            continue
        one = _rank(path, events)
        if own and one.pid not in own:
            continue  # it has started the ranks, or is one of their helpers
        one.rank = own.get(one.pid, one.rank)
        if one.rank not in found or found[one.rank][0] < events[0]["time"]:
            found[one.rank] = (events[0]["time"], one)
    return {rank: found[rank][1] for rank in sorted(found)}


def ranks_by_pid(folder: Path) -> dict[int, int]:
    """Process -> rank, of those that have met in a group of several; {} where torchrun's variables tell the ranks."""
    found = {}
    for path in folder.glob("*.events"):
        for event in _events(path):
            if event["event"] == "group" and event["world_size"] > 1:
                found[int(path.stem)] = event["rank"]
    return found


def progress(folder: Path) -> dict[str, object]:
    """What tells whether anything moves: {file: progress of its rank}, cheap to read."""
    found = {}
    for path in folder.glob("*.status"):
        try:
            found[path.name] = json.loads(path.read_text())["progress"]
        except (OSError, ValueError):
            continue  # replaced just now
    return found


def _events(path: Path) -> list[dict]:
    found = []
    for line in path.read_text().splitlines():
        try:
            found.append(json.loads(line))
        except ValueError:
            break  # it died while writing
    return found


def _rank(path: Path, events: list[dict]) -> Rank:
    one = Rank(rank=events[0]["rank"], pid=events[0]["pid"])
    try:
        status = json.loads(path.with_suffix(".status").read_text())
        one.stack = _frames(status["stack"])
        one.progress = {group: tuple(numbers) for group, numbers in status["progress"].items()}
        one.handled = _error(status["handled"], status["time"]) if status["handled"] else None
    except (OSError, ValueError):
        pass  # it never came that far
    try:
        one.history = history.read(path.with_suffix(".history"))
    except (OSError, InputError):
        pass
    one.recorded = True
    for call in sorted(_calls(path.with_suffix(".calls")), key=lambda each: each.time):
        one.history = history.with_call(one.history, call)
    for event in events:
        if event["event"] in ("exception", "exception in a thread") and one.error is None:
            one.error = _error(event, event["time"], uncaught=event["event"] == "exception")
        elif event["event"] == "group":
            one.group_size, one.group_destroyed = event["world_size"], False
        elif event["event"] == "group destroyed":
            one.group_destroyed = True
        elif event["event"] in ("sys.exit", "os._exit"):
            status = event["status"].strip("'\"")
            stack = _frames(event["stack"])
            if any(frame.is_own() for frame in stack):  # else multiprocessing ends its process so
                one.left = (f"{event['event']}({status if status != 'None' else ''})", stack)
            one.exit_code = int(status) if status.isdigit() else int(status != "None")
        elif event["event"] == "recorder failed":
            one.notes.append(f"the recorder inside this rank gave up: {event['text']}")
    one.fatal = _fatal_stack(path.with_suffix(".fatal"), events[0]["main_thread"])
    return one


def _calls(path: Path) -> list[Collective]:
    calls = []
    content = path.read_bytes() if path.exists() else b""
    for begin in range(0, len(content), SLOT):
        try:
            call = json.loads(content[begin : begin + SLOT])
        except ValueError:
            continue  # it died while writing
        sizes, dtypes = tuple(tuple(each) for each in call["sizes"]), _as_torch_names_them(call["dtypes"])
        stack = _frames(call["stack"])
        calls.append(Collective(0, call["group"], call["name"], sizes, dtypes, stack, call["time"], call["root"]))
    return calls


def _as_torch_names_them(dtypes: list[str]) -> tuple[str, ...]:
    """float32, as a tensor says, is Float in a dump."""
    names = {dtype: name for name, dtype in DTYPES.items()}
    return tuple(names.get(dtype, dtype) for dtype in dtypes)


def _error(noted: dict, when: float, uncaught: bool = False) -> Error:
    text = f"{noted['type']}: {noted['text']}"
    symptom = is_symptom(text) and noted["type"].startswith(("RuntimeError", "Dist"))  # else it is another connection's
    return Error(text, when, symptom, _frames(noted["stack"]), uncaught)


def _frames(stack) -> tuple[Frame, ...]:
    return tuple(Frame(file, line, function) for file, line, function in stack)


def _fatal_stack(path: Path, main_thread: int) -> tuple[Frame, ...]:
    """The main thread's frames from what faulthandler wrote as the process died; () if it wrote nothing."""
    text = path.read_text(errors="replace") if path.exists() else ""
    section = re.search(rf"hread 0x0*{main_thread:x} .*?:\n((?:  File .*\n)+)", text)
    if section is None:
        return ()
    lines = re.findall(r'  File "(.*)", line (\d+) in (.*)', section[1])
    return tuple(Frame(file, int(line), function) for file, line, function in lines)
