"""The page that `ddp_doctor explain` prints, and the same as a dictionary for JSON."""

from ddp_doctor.explain.facts import LIBRARY, Explanation, Facts
from ddp_doctor.explain.log_lines import who

FR_SETTING = "TORCH_FR_BUFFER_SIZE=2000 TORCH_NCCL_DUMP_ON_TIMEOUT=1  # before the start: torchfrtrace reads the dumps"
NEXT_COMMANDS = {
    "run": ["python -m ddp_doctor run --nproc {nproc} train.py  # the same script: rank, collective and line"],
    "attach": ["python -m ddp_doctor attach PID  # while it hangs, on each machine: where every rank stands"],
    "check": ["python -m ddp_doctor check train.py  # short runs, then what is silently wrong"],
    "meet": ["python -m ddp_doctor meet HOST:PORT  # on each machine: can they reach each other?"],
}
NEXT_COMMANDS["hang"] = [*NEXT_COMMANDS["attach"], FR_SETTING, *NEXT_COMMANDS["run"]]
LOG_WITH_RANKS = "torchrun --log-dir logs --tee 3 ...  # then: python -m ddp_doctor explain logs"
MAX_ROLES = 8  # lines


def page(explanation: Explanation, facts: Facts) -> str:
    """The text, of 10 to 20 lines, without a newline at its end."""
    message = explanation.message
    if message is None:
        lines, logs = sum(len(log.lines) for log in facts.logs), len(facts.logs)
        read = f"{lines} line{'s' * (lines != 1)} of {logs} log{'s' * (logs != 1)}"
        return (
            f"{explanation.sentence[0].upper()}{explanation.sentence[1:]} ({read}).\n"
            "A job that hangs prints nothing: python -m ddp_doctor attach PID looks at it while it hangs.\n"
            "If it failed, the text may be in another stream or file: torchrun --log-dir logs --tee 3 keeps all."
        )
    frame = explanation.frame
    where = f", in {frame[0]}:{frame[1]}" if frame and not LIBRARY.search(frame[0]) else ""
    lines = [f"VERDICT: {explanation.sentence}{where} ({explanation.line.where})."]
    lines += [f"Why: {message.cause}."] if message.cause else []
    lines += [f"What to do: {message.first_step}", ""]
    if explanation.sentence.startswith("every rank"):
        lines.append("All ranks alike: look at the code, or at how the job is started, not at one rank.")
    elif explanation.ranks:
        lines.append(f"to blame, as far as a log can tell: {who(explanation.ranks)}")
    lines += _roles(explanation.roles)
    lines += [f"The log cannot tell {text}." for text in explanation.cannot_know]
    if not explanation.ranks and not explanation.cannot_know:
        lines.append("No rank is to blame for it.")
    return "\n".join([*lines, "", "Run next:", *(f"  {command}" for command in _next_commands(explanation, facts))])


def as_json(explanation: Explanation, facts: Facts) -> dict:
    message, line, frame = explanation.message, explanation.line, explanation.frame
    return {
        "message": message.name if message else None,
        "ranks": list(explanation.ranks),
        "sentence": explanation.sentence,
        "why": message.cause if message else "",
        "what_to_do": message.first_step if message else "",
        "log": line.log.name if line else None,
        "log_line": line.number if line else None,
        "quote": explanation.quote or (line.text.strip() if line else ""),
        "file": frame and frame[0],
        "line": frame and frame[1],
        "other_ranks": {str(rank): text for rank, text in sorted(explanation.roles.items())},
        "cannot_know": explanation.cannot_know,
        "run_next": _next_commands(explanation, facts) if message else [],
    }


def _roles(roles: dict[int, str]) -> list[str]:
    """The lines of what the other ranks did: one for all ranks that did the same, MAX_ROLES at most."""
    grouped: dict[str, list[int]] = {}
    for rank, text in roles.items():
        grouped.setdefault(text.rpartition(" (line ")[0] or text, []).append(rank)
    texts = {key: roles[ranks[0]] if len(ranks) == 1 else key for key, ranks in grouped.items()}
    lines = sorted((min(ranks), f"{who(ranks)}: {texts[key]}") for key, ranks in grouped.items())
    shown = [text for _, text in lines[:MAX_ROLES]]
    return [*shown, f"... and {len(lines) - MAX_ROLES} more"] if len(lines) > MAX_ROLES else shown


def _next_commands(explanation: Explanation, facts: Facts) -> list[str]:
    commands = NEXT_COMMANDS[explanation.message.next_command or "run"]
    nproc = min(max(facts.size, 2), 8)
    commands = [command.replace("{nproc}", str(nproc)) for command in commands]
    if not explanation.message.name.startswith("NCCL"):
        commands = [command for command in commands if command != FR_SETTING]
    has_ranks = facts.ranks and all(event.rank is not None for event in facts.events)
    return commands if explanation.ranks or has_ranks else [*commands, LOG_WITH_RANKS]
