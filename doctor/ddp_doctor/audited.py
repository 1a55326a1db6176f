"""Reads the records of the audit inside each rank as plain data: the input of the checks."""

import functools
from dataclasses import dataclass, field
from pathlib import Path

from ddp_doctor.history import Frame
from ddp_doctor.records import events_in


@dataclass
class Audit:
    """One rank's events in their order; each has its place in that order as "at", and its frames as Frames."""

    events: list[dict] = field(default_factory=list)

    def of(self, *kinds: str) -> list[dict]:
        return [event for event in self.events if event["event"] in kinds]

    def between(self, begin: float, end: float, *kinds: str) -> list[dict]:
        return [event for event in self.of(*kinds) if begin < event["at"] < end]

    def training_calls(self) -> list[dict]:
        """The outermost calls of a model in training."""
        return [call for call in self.of("call") if not call["inner"] and call["train"] and call["gradients"]]

    def evaluations(self) -> list[list[dict]]:
        """The calls of a model without gradients, those between two backward passes together."""
        phases, ends = {}, [event["at"] for event in self.of("backward")]
        for call in self.of("call"):
            if not call["inner"] and not call["gradients"]:
                phases.setdefault(sum(end < call["at"] for end in ends), []).append(call)
        return list(phases.values())

    def next_backward(self, at: float) -> float:
        return min((event["at"] for event in self.of("backward") if event["at"] > at), default=float("inf"))


@dataclass
class AuditedRun:
    """An audited run. `whole`: every rank came to the end of the script; `cores` are those of this machine.

    second: the same script, started again on the files of this one's checkpoint; single: the same on one process, or
    the reason why there is none.
    """

    audits: dict[int, Audit]
    whole: bool = True
    cores: int = 1
    second: "AuditedRun | None" = None
    single: "AuditedRun | str" = "it ran on these ranks only"

    @property
    def world(self) -> int:
        return len(self.audits)

    def of(self, *kinds: str) -> dict[int, list[dict]]:
        return {rank: audit.of(*kinds) for rank, audit in self.audits.items()}

    def first(self, *kinds: str) -> dict | None:
        """The first such event of the lowest rank that has one."""
        return next((events[0] for events in self.of(*kinds).values() if events), None)

    @property
    def has_group(self) -> bool:
        return self.world > 1 and all(self.of("group begins").values())

    @functools.cached_property
    def gradient_collectives(self) -> list[dict]:
        """The collectives of the lowest rank that sends gradients by itself."""
        sends = ([event for event in events if event["on_gradients"]] for events in self.of("collective").values())
        return next(filter(None, sends), [])

    @property
    def data_parallel(self) -> bool:
        """Do the ranks train one model together, each on its share: by DDP, or by sending gradients?"""
        return self.has_group and bool(all(self.of("ddp").values()) or self.gradient_collectives)

    @property
    def splits_the_model(self) -> bool:
        """Pipelines and experts send to single ranks; tensor parallelism uses groups of its own, or sharded tensors."""
        names = {event["name"] for events in self.of("collective").values() for event in events}
        odd = {"send", "recv", "isend", "irecv", "batch_isend_irecv", "all_to_all", "all_to_all_single", "new_group"}
        return bool(names & odd) and not self.first("ddp")


def read(folder: Path) -> dict[int, Audit]:
    """By rank, of each the process that was started last."""
    audits: dict[int, Audit] = {}
    for path in sorted(folder.glob("*.audit"), key=lambda path: path.stat().st_ctime):
        events = events_in(path)
        for at, event in enumerate(events):
            event["at"] = at
            event["frames"] = tuple(Frame(*frame) for frame in event.get("frames", ()))
        if events:
            audits[events[0]["rank"]] = Audit(events)
    return dict(sorted(audits.items()))
