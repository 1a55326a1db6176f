"""A machine's own numbers: how long its processes compute, and how much longer when several share its cores."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ddp_course.base.errors import InputError
from ddp_course.plan.schedule import Compute

PHASES = "forward", "backward", "optimizer"


@dataclass(frozen=True)
class Machine:
    """Seconds of a micro-batch for each number of processes that compute at the same time."""

    measured: Mapping[int, Compute]

    def compute(self, processes: int) -> Compute:
        """The measured seconds; of a number of processes that was not measured, on the line through the next two.

        Processes share the cores, so from some number on, each further one costs the same again.
        """
        if processes in self.measured:
            return self.measured[processes]
        known = sorted(self.measured)
        if processes < 1 or len(known) < 2:
            raise InputError(f"computation was measured with {known} processes: {processes} cannot be told from that")
        low, high = next(((a, b) for a, b in zip(known, known[1:], strict=False) if processes < b), known[-2:])
        share = (processes - low) / (high - low)
        ends = self.measured[low], self.measured[high]
        return Compute(
            *(max(0.0, getattr(ends[0], phase) * (1 - share) + getattr(ends[1], phase) * share) for phase in PHASES)
        )

    def slowdown(self, processes: int) -> float:
        """Seconds of forward and backward with so many processes, over those of one."""
        single, shared = self.compute(1), self.compute(processes)
        return (shared.forward + shared.backward) / (single.forward + single.backward)


def usual(seconds: Sequence[float]) -> float:
    """Their lower quartile: other programs disturb it less than the mean, and it is less lucky than the minimum."""
    return sorted(seconds)[(len(seconds) - 1) // 4]


def machine(records: Sequence[Mapping]) -> Machine:
    """From what ranks measured: records of {"processes", "forward", "backward", "optimizer"}, many of each number.

    Where ranks wait for each other, give the slowest one of each repeat. The lower quartile counts, see `usual`.
    """
    if not records:
        raise InputError("no measurement of computation was given; one record per repeat and rank is needed")
    numbers = sorted({record["processes"] for record in records})
    return Machine(
        {
            number: Compute(
                *(usual([record[phase] for record in records if record["processes"] == number]) for phase in PHASES)
            )
            for number in numbers
        }
    )
