"""Flight recorder dumps as plain records: which collectives a rank has started, in which order, from which line.

gloo and NCCL write the same fields. A dump comes from the doctor's recorder (JSON), from `TORCH_FR_DUMP_TEMP_FILE`
of NCCL (a pickle) or from torch's debug server (JSON).
"""

import io
import json
import os
import pickle
from dataclasses import dataclass, field, replace
from pathlib import Path

from ddp_doctor.audit.log import kind_of
from ddp_doctor.errors import InputError

DTYPES = dict(
    pair.split("=")
    for pair in "Float=float32 Double=float64 Half=float16 BFloat16=bfloat16 Long=int64 Int=int32 Short=int16 "
    "Byte=uint8 Char=int8 Bool=bool".split()
)


@dataclass(frozen=True)
class Frame:
    """One level of a Python stack."""

    file: str
    line: int
    function: str

    def is_own(self) -> bool:
        """Is it the user's own code, rather than Python's, torch's or another installed package's?"""
        return kind_of(self.file) == "own"


def position(frames) -> dict[str, str | int | None]:
    """The file and the line of the innermost frame, as a program reads them; each None without a frame."""
    return {"file": frames[0].file, "line": frames[0].line} if frames else {"file": None, "line": None}


@dataclass(frozen=True)
class Collective:
    """One collective that a rank has started.

    number   its sequence number in its group, from 1; gloo also counts point-to-point messages
    group    name of the process group; "0" is the default one
    name     such as "all_reduce"
    sizes    of the inputs, one tuple per tensor
    dtypes   of the inputs, such as "Float"
    stack    frames, innermost first
    time     when it was started, in nanoseconds since the epoch, 0 if unknown
    root     of a broadcast, a gather and the like; None if the recorder has not noted it
    """

    number: int
    group: str
    name: str
    sizes: tuple[tuple[int, ...], ...]
    dtypes: tuple[str, ...]
    stack: tuple[Frame, ...]
    time: int = 0
    root: int | None = None

    @property
    def own(self) -> tuple[Frame, ...]:
        """The frames of the user's own code in its stack, as `own_frames` chooses them."""
        return own_frames(self.stack)

    @property
    def lines(self) -> tuple[tuple[str, int], ...]:
        """(file, line) of each frame in `own`."""
        return tuple((frame.file, frame.line) for frame in self.own)


def user_frames(stack) -> tuple[Frame, ...]:
    """The frames of a stack that are the user's own code."""
    return tuple(frame for frame in stack if frame.is_own())


def own_frames(stack) -> tuple[Frame, ...]:
    """The frames of the user's own code; if there is none, the innermost of an installed package but torch."""
    installed = [frame for frame in stack if "-packages/" in frame.file and "/torch/" not in frame.file]
    return user_frames(stack) or tuple(installed[:1])


@dataclass(frozen=True)
class History:
    """The collectives that one rank has started.

    collectives   group -> its collectives, in the order in which they were started
    groups   group -> its ranks, as far as the dump says so
    newest   the last started collective of all groups
    complete whether it goes back to the first collective: torch's recorder keeps a limited number of entries
    """

    collectives: dict[str, tuple[Collective, ...]] = field(default_factory=dict)
    groups: dict[str, tuple[int, ...]] = field(default_factory=dict)
    newest: Collective | None = None
    complete: bool = True


def with_call(history: History, call: Collective) -> History:
    """`history` with a call of a collective, as Python saw it, that torch's recorder may have missed.

    A call later than the group's last recorded collective is appended. An earlier one adds its root to that last
    collective, if both are the same collective from the same lines.
    """
    recorded = history.collectives.get(call.group, ())
    if not recorded or recorded[-1].time < call.time:
        call = replace(call, number=recorded[-1].number + 1 if recorded else 1)
        return replace(history, collectives={**history.collectives, call.group: (*recorded, call)}, newest=call)
    last = recorded[-1]
    if call.root is None or (last.name, last.lines) != (call.name, call.lines):
        return history
    with_root = replace(last, root=call.root)
    newest = with_root if history.newest == last else history.newest
    by_group = {**history.collectives, call.group: (*recorded[:-1], with_root)}
    return replace(history, collectives=by_group, newest=newest)


class _PlainData(pickle.Unpickler):
    """Loads dictionaries, lists, text and numbers, which is all that a dump holds; refuses any class or function."""

    def find_class(self, module, name):
        raise pickle.UnpicklingError(f"a flight recorder dump needs no {module}.{name}")


def read(path: str | os.PathLike) -> History:
    """The history in a dump file, JSON or pickle. Raises InputError if it is no dump."""
    content = Path(path).read_bytes()
    try:
        if content.lstrip()[:1] == b"{":
            return parse(json.loads(content))
        return parse(_PlainData(io.BytesIO(content)).load())
    except (ValueError, KeyError, TypeError, EOFError, IndexError, AttributeError, pickle.UnpicklingError) as error:
        raise InputError(
            f"{os.fspath(path)!r} is no flight recorder dump ({error}); a file that torch's flight recorder "
            "wrote is needed, as pickle or JSON."
        ) from error


def parse(dump: dict) -> History:
    """The history in a dump that is loaded already. Leaves out point-to-point messages and coalesced groups."""
    collectives: dict[str, list[Collective]] = {}
    newest, entries = None, dump.get("entries", [])
    for entry in entries:
        if entry.get("is_p2p") or _name(entry) == "coalesced":
            continue
        collective = Collective(
            number=int(entry["collective_seq_id"]),
            group=str(entry["process_group"][0]),
            name=_name(entry),
            sizes=tuple(tuple(int(size) for size in sizes) for sizes in entry.get("input_sizes", [])),
            dtypes=tuple(entry.get("input_dtypes", [])),
            stack=tuple(
                Frame(frame["filename"], int(frame["line"]), frame["name"]) for frame in entry.get("frames", [])
            ),
            time=int(entry.get("time_created_ns", 0)),
        )
        collectives.setdefault(collective.group, []).append(collective)
        newest = collective
    groups = {
        str(config["name"]): tuple(json.loads(config["ranks"]))
        for config in dump.get("pg_config", {}).values()
        if config.get("name") and config.get("ranks")
    }
    by_group = {group: tuple(started) for group, started in collectives.items()}
    return History(by_group, groups, newest, complete=not entries or entries[0]["record_id"] == 0)


def _name(entry) -> str:
    """nccl:all_reduce and gloo:all_reduce are both all_reduce; _all_gather_base is all_gather_base."""
    return entry["profiling_name"].partition(":")[2].partition(" ")[0].lstrip("_") or entry["profiling_name"]
