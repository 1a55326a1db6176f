"""Reads what the audit inside each rank has recorded, as plain data: the input of the checks."""

import functools
from dataclasses import dataclass, field
from pathlib import Path

from ddp_doctor.history import Frame
from ddp_doctor.records import events_in


@dataclass
class Audit:
    """One rank's events, in order. Each has its kind as "event", its position as "at" and its Frames as "frames"."""

    events: list[dict] = field(default_factory=list)

    def of(self, *kinds: str) -> list[dict]:
        return [event for event in self.events if event["event"] in kinds]

    def between(self, begin: float, end: float, *kinds: str) -> list[dict]:
        """The events of these kinds after position `begin` and before `end`."""
        return [event for event in self.of(*kinds) if begin < event["at"] < end]

    def training_calls(self) -> list[dict]:
        """The outermost calls of a model in training."""
        return [call for call in self.of("call") if not call["inner"] and call["train"] and call["gradients"]]

    def evaluations(self) -> list[list[dict]]:
        """The outermost calls of a model without gradients, one list for those between two backward passes."""
        phases, backwards = {}, [event["at"] for event in self.of("backward")]
        for call in self.of("call"):
            if not call["inner"] and not call["gradients"]:
                phases.setdefault(sum(at < call["at"] for at in backwards), []).append(call)
        return list(phases.values())

    def next_backward(self, at: float) -> float:
        """The position of the first backward pass after `at`; infinity if there is none."""
        return min((event["at"] for event in self.of("backward") if event["at"] > at), default=float("inf"))


@dataclass
class AuditedRun:
    """An audited run.

    audits        rank -> its audit
    complete      whether every rank came to the end of the script
    cores         the cores that the machine has for it
    second        the run of the same script, started again with the files of this one's checkpoint
    not_set_back  why the second run could not start on a checkpoint of the middle of this one; None if it did
    single        the run of the same script on one process, or the reason why there is none
    """

    audits: dict[int, Audit]
    complete: bool = True
    cores: int = 1
    second: "AuditedRun | None" = None
    not_set_back: str | None = None
    single: "AuditedRun | str" = "it ran on these ranks only"

    @property
    def world(self) -> int:
        return len(self.audits)

    def of(self, *kinds: str) -> dict[int, list[dict]]:
        """rank -> its events of these kinds."""
        return {rank: audit.of(*kinds) for rank, audit in self.audits.items()}

    def rows(self, kind: str) -> list[tuple[dict, ...]]:
        """Every rank's first event of this kind, then every rank's second, as long as all ranks have one."""
        return list(zip(*self.of(kind).values(), strict=False))

    @property
    def lowest(self) -> Audit:
        """The audit of the lowest rank."""
        return next(iter(self.audits.values()))

    def first(self, *kinds: str) -> dict | None:
        """The first event of these kinds on the lowest rank that has one."""
        return next((events[0] for events in self.of(*kinds).values() if events), None)

    @property
    def has_group(self) -> bool:
        return self.world > 1 and all(self.of("group begins").values())

    @functools.cached_property
    def gradient_collectives(self) -> list[dict]:
        """The script's own collectives on gradients, on the lowest rank that has any."""
        per_rank = ([event for event in events if event["on_gradients"]] for events in self.of("collective").values())
        return next(filter(None, per_rank), [])

    @property
    def data_parallel(self) -> bool:
        """Do all ranks use DDP, or does the script itself send gradients?"""
        return self.has_group and bool(all(self.of("ddp").values()) or self.gradient_collectives)

    @property
    def splits_the_model(self) -> bool:
        """Do the ranks hold different parts of the model? Judged by calls that data parallelism does not need.

        Pipelines send to single ranks, experts use all-to-all, tensor parallelism uses groups of its own.
        """
        names = {event["name"] for events in self.of("collective").values() for event in events}
        of_model_parallelism = {"send", "recv", "isend", "irecv", "batch_isend_irecv"}
        of_model_parallelism |= {"all_to_all", "all_to_all_single", "new_group"}
        return bool(names & of_model_parallelism) and not self.first("ddp")


def read(folder: Path) -> dict[int, Audit]:
    """{rank: its audit} from the audits' folder; of several processes with one rank, the last that wrote."""
    audits: dict[int, Audit] = {}
    for path in sorted(folder.glob("*.audit"), key=lambda path: path.stat().st_ctime):
        events = events_in(path)
        for at, event in enumerate(events):
            event["at"] = at
            event["frames"] = tuple(Frame(*frame) for frame in event.get("frames", ()))
        if events:
            audits[events[0]["rank"]] = Audit(events)
    return dict(sorted(audits.items()))
