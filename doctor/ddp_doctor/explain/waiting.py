"""Explains logs in which ranks only timed out, or lost contact: by the ranks that are behind, or absent."""

import re
from collections import Counter

from ddp_doctor.explain.facts import Explanation, Facts, Wait, earliest
from ddp_doctor.explain.log_lines import shortened, who
from ddp_doctor.explain.messages import BY_NAME


def nccl_waits(facts: Facts) -> Explanation | None:
    """Explains messages of NCCL's watchdogs, which print the collective's number and their rank's progress."""
    waits = facts.waits
    if not waits:
        return None
    first = min(waits.values(), key=lambda wait: (wait.line.time or 0, wait.line.number))
    explanation = Explanation(BY_NAME["NCCL: timeout"], (), "", first.line)
    for rank, wait in waits.items():
        progress = f", had started {wait.enqueued} and finished {wait.completed}" if wait.enqueued is not None else ""
        explanation.roles[rank] = f"waited {wait.seconds:.0f} s in {wait.operation} {wait.number}{progress}"
    if len({wait.group for wait in waits.values() if wait.group}) > 1 or not _explain_difference(explanation, waits):
        _explain_absence(explanation, facts, first)
    if first.number <= 1 and not explanation.ranks:
        explanation.sentence += (
            ". It is the group's first collective: NCCL has never worked between these ranks (try NCCL_P2P_DISABLE=1, "
            "and read NCCL_DEBUG=INFO)"
        )
    return explanation


def _explain_difference(explanation: Explanation, waits: dict[int, Wait]) -> bool:
    """Explains the timeouts by a difference between the ranks' collectives; returns whether there is one."""
    numbers = {rank: wait.number for rank, wait in waits.items()}
    calls = Counter((wait.operation, wait.elements) for wait in waits.values())
    enqueued = {rank: wait.enqueued for rank, wait in waits.items() if wait.enqueued is not None}
    if len(set(numbers.values())) > 1:
        explanation.ranks = _lowest(numbers)
        explanation.sentence = (
            f"{who(explanation.ranks)} waited in collective {min(numbers.values())} of its group, others in "
            f"{max(numbers.values())}: the ranks have started different numbers of collectives"
        )
    elif len(calls) > 1:
        rarest, count = calls.most_common()[-1]
        ranks = sorted(rank for rank, wait in waits.items() if (wait.operation, wait.elements) == rarest)
        explanation.ranks = tuple(ranks) if count < len(waits) / 2 else ()
        both = " and ".join(f"{operation} of {elements or '?'} elements" for operation, elements in calls)
        explanation.sentence = f"different collectives met under number {min(numbers.values())}: {both}"
        explanation.cannot_know.append("which of them is the wrong one; the smaller set of ranks is named")
    elif len(set(enqueued.values())) > 1:
        explanation.ranks = _lowest(enqueued)
        explanation.sentence = (
            f"{who(waits)} waited in collective {min(numbers.values())}; {who(explanation.ranks)} had started fewer "
            f"({min(enqueued.values())}) than the others ({max(enqueued.values())})"
        )
    return bool(explanation.sentence)


def _lowest(counts: dict[int, int]) -> tuple[int, ...]:
    return tuple(sorted(rank for rank in counts if counts[rank] == min(counts.values())))


def _explain_absence(explanation: Explanation, facts: Facts, first: Wait) -> None:
    """Explains timeouts, where the collectives do not, by the ranks of which the logs have none."""
    size = f" of {first.elements:,} elements" if first.elements and first.elements < 2**60 else ""
    size = " of one element (a flag, a metric or a barrier)" if first.elements == 1 else size
    waited = f"{who(facts.waits)} waited {first.seconds:.0f} s in {first.operation} {first.number}{size}"
    absent = _missing(facts, facts.waits)
    if not absent:
        explanation.sentence = f"{waited}, and none of them is behind"
        missing = "" if facts.world_size else ", or a rank whose lines are not in this log did not come"
        explanation.cannot_know.append(f"why it did not end: the network or a GPU stopped, or it was too slow{missing}")
    elif len(absent) <= len(facts.waits):
        explanation.ranks = absent
        explanation.sentence = f"{waited}; {who(absent)} did not time out: look there first"
        explanation.cannot_know.append(f"what {who(absent)} did instead, or whether its lines are only missing here")
    else:
        explanation.sentence = f"{waited}; the logs hold no such line of {who(absent)}"
        explanation.cannot_know.append("which rank they waited for: collect the logs of all ranks")


def lost_contact(facts: Facts) -> Explanation | None:
    """Explains messages of gloo and the store: that a rank waited until a timeout, or that another one is gone."""
    symptoms = facts.by_role("symptom")
    if not symptoms:
        return None
    first, _ = earliest(symptoms)
    victims = sorted({event.rank for event in symptoms if event.rank is not None})
    missing = _missing(facts, victims)
    name = first.message.name
    effect = "waited until the timeout" if "timeout" in name else "lost contact with another rank"
    effect = "made no progress" if "stuck" in name else effect
    sentence = f"{who(victims)} {effect}" if victims else shortened(first.text)
    explanation = Explanation(first.message, missing, sentence, first.line, first.frame, first.text)
    codes = [facts.exit_codes.get(rank, (None,))[0] for rank in missing]
    if not missing:
        explanation.cannot_know.append("which rank did not come, or ended: no other rank has a line in this log")
        if joined := re.search(r"(\d+)/(\d+) (?:clients|workers) joined", first.text):
            explanation.cannot_know[-1] = f"which rank did not come: {joined[1]} of {joined[2]} came"
        elif len(victims) > 1:
            explanation.cannot_know[-1] = "which rank is the cause: all ranks in this log only waited"
    elif -15 in codes:
        explanation.sentence += f"; {who(missing)} printed no error and still ran when torchrun ended it: look there"
        if "timeout" not in name:
            explanation.sentence += " (it may have left the process group)"
        explanation.cannot_know.append(f"what {who(missing)} did instead")
    else:
        explanation.message = BY_NAME["left early"] if "timeout" not in name else first.message
        is_not = "is not" if len(missing) == 1 else "are not"
        explanation.sentence += f"; {who(missing)} printed no error, and {is_not} among the ranks that failed"
        explanation.cannot_know.append(
            f"how {who(missing)} ended: torchrun does not report a rank that left with exit code 0"
        )
    return explanation


def _missing(facts: Facts, victims) -> tuple[int, ...]:
    """The ranks below the world size, as far as the logs show it, that are not victims; () without victims."""
    return tuple(sorted(set(range(facts.size)) - set(victims))) if victims else ()
