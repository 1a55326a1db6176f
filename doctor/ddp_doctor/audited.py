"""What the audit inside each rank has written, as plain data: the input of the checks."""

import json
from dataclasses import dataclass, field
from pathlib import Path

from ddp_doctor.history import Frame


@dataclass
class Audit:
    """One rank's events in their order; each has its place in that order as "at", and its frames as Frames."""

    rank: int
    world: int
    events: list[dict] = field(default_factory=list)

    def of(self, *kinds: str) -> list[dict]:
        return [one for one in self.events if one["event"] in kinds]

    def between(self, begin: int, end: float, *kinds: str) -> list[dict]:
        return [one for one in self.of(*kinds) if begin < one["at"] < end]


@dataclass
class AuditedRun:
    """An audited run. `whole`: every rank came to the end of the script; `cores` are those of this machine."""

    audits: dict[int, Audit]
    whole: bool = True
    cores: int = 1

    @property
    def world(self) -> int:
        return len(self.audits)

    def of(self, *kinds: str) -> dict[int, list[dict]]:
        return {rank: audit.of(*kinds) for rank, audit in self.audits.items()}

    def first(self, *kinds: str) -> dict | None:
        """The first such event of the lowest rank that has one."""
        return next((found[0] for found in self.of(*kinds).values() if found), None)

    @property
    def has_group(self) -> bool:
        return self.world > 1 and all(self.of("group begins").values())

    @property
    def data_parallel(self) -> bool:
        """Do the ranks train one model together, each on its share: by DDP, or by sending gradients?"""
        sends = [one for found in self.of("collective").values() for one in found if one["on_gradients"]]
        return self.has_group and bool(all(self.of("ddp").values()) or sends)

    @property
    def splits_the_model(self) -> bool:
        """Pipelines and experts send to single ranks; tensor parallelism uses groups of its own, or sharded tensors."""
        names = {one["name"] for found in self.of("collective").values() for one in found}
        odd = {"send", "recv", "isend", "irecv", "batch_isend_irecv", "all_to_all", "all_to_all_single", "new_group"}
        return bool(names & odd) and not self.first("ddp")


def read(folder: Path) -> dict[int, Audit]:
    """By rank, of each the process that was started last."""
    found: dict[int, Audit] = {}
    for path in sorted(folder.glob("*.audit"), key=lambda one: one.stat().st_ctime):
        events = []
        for at, line in enumerate(path.read_text().splitlines()):
            try:
                one = json.loads(line)
            except ValueError:
                break  # it died while writing
            one["at"] = at
            one["frames"] = tuple(Frame(*frame) for frame in one.get("frames", ()))
            events.append(one)
        if events:
            found[events[0]["rank"]] = Audit(events[0]["rank"], events[0]["world"], events)
    return dict(sorted(found.items()))
