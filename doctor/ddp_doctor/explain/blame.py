"""Names the ranks that are to blame for the first failure in the logs, as far as a log can tell.

Its rules are tried in order: an error of a rank's own code; a rank that was killed; ranks that a message names; ranks
that are behind or absent where others only waited or lost contact.
"""

import re

from ddp_doctor.explain.facts import SIGNAL_NAMES, Event, Explanation, Facts, alike, earliest
from ddp_doctor.explain.log_lines import shortened, who
from ddp_doctor.explain.messages import BY_NAME, MESSAGES
from ddp_doctor.explain.waiting import lost_contact, nccl_waits

COLLECTIVES_OF_MESSAGES = {
    "monitored barrier": "monitored_barrier",
    "ranks that did not join": "a collective that others wait in",
    "NCCL: no unique id": "the first collective of its group",
}
NAMED_RANKS = re.compile(
    r"Ranks? ([\d, ]+) failed to pass|\[([\d, ]+)\] finished collective|missing ranks: \{([\d, ]+)\}"
    r"|ncclUniqueId from \[(\d+)\]|mismatch around rank (\d+)"
)


def explain(facts: Facts) -> Explanation:
    """The explanation of the first failure in the logs; its message is None if they hold none."""
    rules = (  # each returns None where it does not apply
        _first_cause,
        _killed,
        _named_by_a_message,
        _exited_with_a_code,
        _network,
        nccl_waits,
        lost_contact,
        _launcher_report,
        _warning,
    )
    for rule in rules:
        if explanation := rule(facts):
            _add_victims(explanation, facts)
            if facts.later_attempts:
                explanation.cannot_know.append("what came of the later attempts: the first one alone was read")
            return explanation
    return Explanation(None, (), "no failure was found in this log")


def _first_cause(facts: Facts) -> Explanation | None:
    causes = [event for event in facts.by_role("cause", "setup") if event.message.name not in COLLECTIVES_OF_MESSAGES]
    errors = [event for event in causes if event.message.name != "stopped from outside"]
    if not errors:
        return _stopped(facts)
    first, in_order = earliest(errors)
    ranks = sorted({event.rank for event in errors if alike(event, first) and event.rank is not None})
    blamed, sentence, unknown = (), _one_line(first), []
    if first.message.name == "time limit of the scheduler":
        pass  # no rank is to blame
    elif first.message.name == "collectives differ":
        unknown.append("which of the two collectives is the wrong one")
    elif first.message.name == "sizes differ":
        sentence = f"{who(ranks)} got a tensor of another size than expected, and gloo aborted"
        unknown.append("whether the rank that sent or the one that received is wrong")
    elif ranks:
        blamed = tuple(ranks)
        every = len(ranks) > 1 and len(ranks) >= max(len(facts.ranks), facts.world_size or 0)
        sentence = f"{'every rank' if every else who(ranks)}{' raised' if first.frames else ':'} {sentence}"
    elif first.message.role != "setup" or len(facts.ranks) > 1:
        unknown.append("which rank printed it: the line does not begin with a rank")
    others = [event for event in errors if event.rank not in [*ranks, None]]
    if not in_order:
        blamed = tuple(sorted({*blamed, *(event.rank for event in others)}))
        unknown.append("which of the errors came first: the logs have no times to compare")
    explanation = Explanation(first.message, blamed, sentence, first.line, first.frame, first.text, cannot_know=unknown)
    for event in others:
        text = f"an error of its own: {shortened(event.text, 90)} ({event.line.where})"
        explanation.roles.setdefault(event.rank, text)
    return explanation


def _stopped(facts: Facts) -> Explanation | None:
    """Explains the end by a signal from outside, unless a rank had timed out or lost contact before it came."""
    signals = [event for event in facts.events if event.message.name == "stopped from outside"]
    if not signals or earliest([*signals, *facts.by_role("symptom")])[0] not in signals:
        return None
    first, _ = earliest(signals)
    return Explanation(first.message, (), _one_line(first), first.line, first.frame, first.text)


def _killed(facts: Facts) -> Explanation | None:
    killed = {}
    for rank, (code, line) in (facts.exit_codes | {None: facts.unnamed_exit or (0, None)}).items():
        code = 128 - code if code > 128 else code  # a shell's 137 is SIGKILL
        ended_for_another = code in (-6, -15, -2) or facts.pids.get(rank) in facts.signalled_pids  # ABRT, TERM, INT
        if code < 0 and not ended_for_another:
            killed[rank] = (code, line)
    if not killed:
        return None
    code, line = next(iter(killed.values()))
    ranks = tuple(sorted(killed.keys() - {None}))
    name = SIGNAL_NAMES.get(code, "a signal")
    sentence = f"{who(ranks)} was killed by {name} (exit code {code})" if ranks else f"a process was killed by {name}"
    sentence = sentence.replace(" was ", " were ") if len(ranks) > 1 else sentence
    unknown = [] if ranks else ["which rank it was"]
    message = BY_NAME[{-9: "killed", -7: "loader worker killed"}.get(code, "crashed")]
    return Explanation(message, ranks, sentence, line, cannot_know=unknown)


def _named_by_a_message(facts: Facts) -> Explanation | None:
    events = [event for event in facts.events if event.message.name in COLLECTIVES_OF_MESSAGES]
    if not events:
        return None
    event = min(events, key=lambda event: (NAMED_RANKS.search(event.text) is None, event.frame is None))
    match = NAMED_RANKS.search(event.text)
    text = next(filter(None, match.groups())) if match else ""
    ranks = tuple(int(number) for number in re.findall(r"\d+", text))
    sentence = f"{who(ranks)} did not come to {COLLECTIVES_OF_MESSAGES[event.message.name]}"
    if event.rank is not None:
        sentence += f", which {who([event.rank])} called"
    unknown = [f"what {who(ranks)} did instead"]
    return Explanation(event.message, ranks, sentence, event.line, event.frame, event.text, cannot_know=unknown)


def _exited_with_a_code(facts: Facts) -> Explanation | None:
    exited = {
        rank: (code, line)
        for rank, (code, line) in facts.exit_codes.items()
        if 0 < code <= 128 and not any(event.rank == rank for event in facts.events)
    }
    if not exited or not facts.by_role("symptom"):
        return None
    code, line = next(iter(exited.values()))
    ranks = tuple(sorted(exited))
    owner = "its" if len(ranks) == 1 else "their"
    sentence = f"{who(ranks)} left with exit code {code}, and no error of {owner} own is in this log"
    return Explanation(BY_NAME["left with an exit code"], ranks, sentence, line)


def _network(facts: Facts) -> Explanation | None:
    events = facts.by_role("network")
    timeouts = [event for event in facts.by_role("symptom") if event.message.name == "NCCL: timeout"]
    if not events or earliest([*events, *timeouts])[0] in timeouts:
        return None
    first = min(events, key=lambda event: MESSAGES.index(event.message))  # the most specific
    ranks = sorted({event.rank for event in events if event.rank is not None})
    text = _one_line(first)
    sentence = f"{who(ranks)} could not communicate: {text}" if ranks else text
    unknown = ["whether the network is at fault, or a rank that had ended before: the first rank to end would show it"]
    return Explanation(first.message, (), sentence, first.line, first.frame, first.text, cannot_know=unknown)


def _launcher_report(facts: Facts) -> Explanation | None:
    """Explains logs that hold the report of torchrun or srun, but no error of a rank."""
    exits = [*facts.exit_codes.values(), facts.unnamed_exit]
    if facts.summary is None and not any(exits):
        return None
    line = facts.summary or next(filter(None, exits))[1]
    codes = {rank: code for rank, (code, _) in facts.exit_codes.items()}
    listed = ", ".join(f"rank {rank}: {code}" for rank, code in list(codes.items())[:8])
    if codes and set(codes.values()) <= {-15, -2}:
        message = BY_NAME["stopped from outside"]
        return Explanation(message, (), f"the ranks were ended by a signal ({listed})", line)
    sentence = f"a process failed{f' (exit codes: {listed})' if listed else ''}, and its error is not in this log"
    unknown = "where it began, and why"
    if facts.noticed_first is not None:
        unknown = (
            f"where it began: torchrun noticed rank {facts.noticed_first} first, which may be a victim, and lists no "
            "rank that left with exit code 0"
        )
    message = BY_NAME["no error text"]
    return Explanation(message, (), sentence, line, cannot_know=[unknown])


def _warning(facts: Facts) -> Explanation | None:
    warnings = facts.by_role("warning")
    if not warnings:
        return None
    sentence = f"no failure was found; a warning: {shortened(warnings[0].text)}"
    return Explanation(warnings[0].message, (), sentence, warnings[0].line, quote=warnings[0].text)


def _one_line(event: Event) -> str:
    """The error in one line: its first line and, where that one does not say what happened, the line that does."""
    first, *rest = event.text.split("\n")
    if "Last error:" in rest:  # NCCL's
        details = rest[rest.index("Last error:") + 1 :]
    elif any(text in first for text in event.message.texts):
        details = []
    else:
        details = [line for line in rest if any(text in line for text in event.message.texts)]
    if not details and first.endswith(":"):
        details = rest
    return f"{shortened(first, 100)} {shortened(details[0], 100)}" if details else shortened(first)


def _add_victims(explanation: Explanation, facts: Facts) -> None:
    """Adds to `roles` the ranks that only waited, lost contact, or were ended by torchrun."""
    for event in facts.by_role("symptom"):
        if event.rank is not None and event.rank not in explanation.ranks:
            name = event.message.name
            did = "waited" if "timeout" in name else "made no progress" if "stuck" in name else "lost contact"
            explanation.roles.setdefault(event.rank, f"only {did}: {shortened(event.text, 90)} ({event.line.where})")
    for rank, (code, line) in facts.exit_codes.items():
        if rank not in explanation.ranks and code == -15:
            explanation.roles.setdefault(rank, f"ended by torchrun after another rank ({line.where})")
