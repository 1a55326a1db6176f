"""Reads the facts from logs."""

import re
from dataclasses import replace

from ddp_doctor.explain.facts import EXCEPTION, SIGNAL_NAMES, Event, Facts, Wait
from ddp_doctor.explain.log_lines import Line, Log
from ddp_doctor.explain.messages import MESSAGES, recognise

HEADER = "Traceback (most recent call last):"
# Tracebacks as IPython formats them, and rich, in a box
FORMATTED_HEADER = re.compile(r"(?:([A-Za-z_][\w.]*) +|\S*─ )Traceback \(most recent call last\)")
FORMATTED_FRAME = re.compile(r"(?:[│|] *)?(?:File )?([~\w./\\<>-]+\.py):(\d+)|Cell (In\[\d+\]), line (\d+)")
BARE_ERROR = re.compile(r"(?:[a-z_]\w*\.)*[A-Z]\w+(?:Error|Exception): \S")
CHAINED = ("During handling of the above exception", "The above exception was the direct cause")
FRAME = re.compile(r'\s+File "([^"]+)", line (\d+)')
EXCEPTION_LINE = re.compile(r"(?:[A-Za-z_]\w*\.)*[A-Z]\w+(?:: |:?$)")
END = re.compile("frame #|=====")  # the stack of a C++ error; torchrun's report
LAUNCHER_ERRORS = re.compile(
    r"\S*(?:ChildFailedError|CalledProcessError|ProcessRaisedException|ProcessExitedException|SystemExit)\b"
)
MARKS = (  # besides the messages' texts: a line that has none of all these is not looked at
    "Traceback (most recent call last) | exitcode | srun: error | Exited with exit code | WorkNCCL( | last enqueued | "
    "closing signal | forcefully exiting | Root Cause ( | rank      : | terminated with | Killed | "
    "Segmentation fault | exits with return code"
).split(" | ")
EXIT_CODE = re.compile(r"exitcode *: *(-?\d+)\)?(?: local_rank: (\d+))? \(pid: (\d+)\)")
RANK_ENTRY = re.compile(r"rank +: (\d+) \(local_rank: (\d+)\)")
SRUN_END = re.compile(
    r"task (\d+): (?:Exited with exit code (\d+)|(Killed|Segmentation fault|Bus error|Aborted|Out Of Memory))"
)
SPAWN_END = re.compile(r"process (\d+) terminated with (?:signal (SIG\w+)|exit code (\d+))")
SIGNALS = {"Killed": -9, "Out Of Memory": -9, "Segmentation fault": -11, "Bus error": -7, "Aborted": -6} | {
    name: code for code, name in SIGNAL_NAMES.items()
}
WORK = re.compile(r"WorkNCCL\(SeqNum=(\d+), OpType=(\w+)(?:, NumelIn=(\d+), NumelOut=\d+)?(?:, Timeout\(ms\)=(\d+)\))?")
PROGRESS = re.compile(r"last enqueued (?:NCCL )?work: (-?\d+), last completed (?:NCCL )?work: (-?\d+)", re.I)
GROUP = re.compile(r"\[PG (?:ID \d+ PG GUID )?(\w+)")
WORLD_SIZE = re.compile(
    r"(?:\bnranks |world[_ ]size['\"]?[ =:]+|\bMEMBER: \d+/|\b\d+/(?=\d+ (?:clients|workers) joined))(\d{1,6})\b", re.I
)
RANKS = re.compile(rb"\[rank(\d{1,6})\]"), re.compile(rb"rank +: (\d{1,6}) \(")
RANKS_OF_OLD_TORCH = re.compile(rb"\[Rank (\d{1,6})\]")  # of newer versions it may be the rank in a group
MAX_EVENTS = 200  # of one message, rank and process that are kept
MAX_TRACEBACKS, MAX_LINES, MAX_FORMATTED_LINES = 2000, 800, 400  # that are read; lines of one traceback


def read(logs: list[Log]) -> Facts:
    """The facts in the logs of one job. Of several attempts (restarts by torchrun) the first alone is read."""
    first = min((log.attempt for log in logs if log.attempt is not None), default=None)
    first_logs = [log for log in logs if log.attempt in (None, first)]
    facts = Facts(first_logs, later_attempts=len(first_logs) < len(logs))
    readers = [_Reader(log, facts) for log in facts.logs]
    for reader in readers:
        reader.read()
    if not facts.events:
        facts.events = list(filter(None, (reader.bare_error() for reader in readers)))
    _name_ranks(facts)
    facts.ranks |= {event.rank for event in facts.events} | set(facts.exit_codes) | set(facts.waits)
    facts.ranks.discard(None)
    return facts


class _Reader:
    def __init__(self, log: Log, facts: Facts):
        self.log, self.facts = log, facts
        self.entry: int | None = None  # the rank whose entry of torchrun's report is being read
        self.in_root_cause = False  # whether the entry is below "Root Cause"
        self.traceback_lines: set[int] = set()  # indices of the lines that belong to tracebacks already read
        self.counts: dict[tuple, int] = {}  # of the events with the same message, rank and process
        self.tracebacks = 0

    def read(self) -> None:
        data = self.log.text.encode(errors="replace")  # bytes: a single emoji makes a search in a str four times slower
        texts = [text for message in MESSAGES for text in message.texts if text.encode() in data]
        texts += [mark for mark in MARKS if mark.encode() in data]
        self.facts.ranks |= {int(number) for ranks in RANKS for number in set(ranks.findall(data))}
        if not self.facts.ranks:
            self.facts.ranks |= {int(number) for number in set(RANKS_OF_OLD_TORCH.findall(data))}
        if sizes := WORLD_SIZE.findall(self.log.text[: 2**22]):
            self.facts.world_size = max(map(int, sizes))
        if self.log.rank is not None:
            self.facts.ranks.add(self.log.rank)
        for index, raw in enumerate(self.log.lines if texts else ()):
            if index not in self.traceback_lines and any(text in raw for text in texts):
                self._take(index, raw)

    def _take(self, index: int, raw: str) -> None:
        line = self.log.line(index)
        if HEADER in line.text:
            self.tracebacks += 1
            if self.tracebacks <= MAX_TRACEBACKS:
                self._take_traceback(index, line)
            return
        if formatted := FORMATTED_HEADER.match(line.text):
            self._take_formatted_traceback(index, line, formatted[1])
            return
        self._take_exit_codes(line)
        if work := WORK.search(raw if "ms)=" in raw else raw + "".join(self.log.lines[index + 1 : index + 2])):
            self._take_wait(line, work)
        if progress := PROGRESS.search(raw):
            wait = self.facts.waits.get(line.rank)
            if wait and wait.enqueued is None:
                group = GROUP.search(raw)
                wait.enqueued, wait.completed = map(int, progress.groups())
                wait.group = group[1] if group else wait.group
        message = recognise(raw)
        if message and not (line.level == "W" and message.name == "store: no connection"):
            task = SRUN_END.search(line.text)
            self._add(Event(line, int(task[1]) if task else line.rank, message, line.text.strip()[:500]))

    def _add(self, event: Event) -> None:
        key = (event.message.name, event.rank, event.line.stream)
        self.counts[key] = self.counts.get(key, 0) + 1
        if self.counts[key] <= MAX_EVENTS:
            self.facts.events.append(event)

    def _take_exit_codes(self, line: Line) -> None:
        """Takes how processes ended, as torchrun, srun, spawn, Lightning, DeepSpeed or a shell report it."""
        text, facts = line.text, self.facts
        if "Root Cause (" in text:
            self.in_root_cause = True
        if entry := RANK_ENTRY.search(text):
            self.entry = int(entry[1])
            if self.in_root_cause:
                facts.noticed_first = self.entry
        if ended := EXIT_CODE.search(text):
            facts.summary = facts.summary or line
            rank = self.entry if ended[2] is None else int(ended[2])
            if ended[2] is None or rank not in facts.exit_codes:  # the lines before the report have local ranks
                facts.take_exit(rank, int(ended[1]), line)
                facts.pids[rank] = int(ended[3])
        if signalled := re.search(r"Sending process (\d+) closing signal|shutdown process (\d+) via", text):
            facts.signalled_pids.add(int(signalled[1] or signalled[2]))
        if ended := SRUN_END.search(text):
            facts.take_exit(int(ended[1]), int(ended[2]) if ended[2] else SIGNALS[ended[3]], line)
        if ended := re.search(r"exits with return code = (-?\d+)", text):
            facts.take_exit(None, int(ended[1]), line)
        if ended := re.search(r"\[rank: (\d+)\] Child process with PID \d+ terminated with code (-?\d+)", text):
            facts.take_exit(int(ended[1]), int(ended[2]), line)  # Lightning
        if re.match(r"(?:.*: line \d+: +\d+ +)?Killed\b(?=\s*$|\s+\S*(?:python|torchrun))", text):
            facts.take_exit(None, -9, line)  # a shell
        if ended := SPAWN_END.search(text):
            facts.take_exit(int(ended[1]), SIGNALS.get(ended[2], -1) if ended[2] else int(ended[3]), line)

    def _take_wait(self, line: Line, work: re.Match) -> None:
        """Takes the first timeout of the line's rank that NCCL's watchdog reports."""
        if line.rank is not None and line.rank not in self.facts.waits:
            number, operation, elements, milliseconds = work.groups()
            seconds, group = int(milliseconds or 0) / 1000, GROUP.search(line.text)
            wait = Wait(line, int(number), operation, elements and int(elements), seconds, group[1] if group else "")
            self.facts.waits[line.rank] = wait

    def _take_traceback(self, index: int, header: Line) -> None:
        """Adds an event of the exception; of chained ones that of the first, unless a later one is more specific."""
        previous = "\n".join(self.log.lines[max(0, index - 2) : index])
        inside_report = header.text.lstrip().startswith("traceback :")
        rank = self.entry if inside_report and header.rank is None else header.rank
        if spawned := re.search(r"Process (\d+) terminated with the following error", previous):
            rank = int(spawned[1])
        chosen = None
        for line, text, frames in self._chain(index, header, indent=2 if inside_report else 0):
            if LAUNCHER_ERRORS.match(text):
                self.facts.summary = self.facts.summary or line
                self._take_exit_codes(line)
                continue
            message = recognise(text, [file for file, _ in frames]) or EXCEPTION
            event = Event(line, rank, message, text, frames)
            if chosen is None or (chosen.message.role in ("symptom", "network") and event.message.role == "network"):
                chosen = event
            elif "in DataLoader worker process" in chosen.text:  # the original traceback follows
                chosen = event
            elif "CheckpointException ranks:" in chosen.text:  # the tracebacks of the ranks follow, inside of torch
                chosen = replace(event, frames=chosen.frames)
        if chosen and "Exception ignored in" not in previous:
            self._add(chosen)

    def _take_formatted_traceback(self, index: int, header: Line, name: str | None) -> None:
        """Adds an event of a traceback of IPython, whose header has the exception's `name`, or of rich."""
        frames = []
        for i in range(index + 1, min(index + MAX_FORMATTED_LINES, len(self.log.lines))):
            line = self.log.line(i)
            if frame := FORMATTED_FRAME.search(line.text):
                frames.append((frame[1] or frame[3], int(frame[2] or frame[4])))
            if HEADER in line.text:
                break
            if EXCEPTION_LINE.match(line.text) and line.text.startswith(name or line.text[:1]):
                text = line.text.strip()[:1000]
                if LAUNCHER_ERRORS.match(text):
                    self.facts.summary = self.facts.summary or line
                else:
                    self.traceback_lines |= set(range(index, i + 1))
                    self._add(Event(line, header.rank, recognise(text) or EXCEPTION, text, tuple(frames)))
                break

    def bare_error(self) -> Event | None:
        """An event of the first line that is an exception without its traceback; None if there is none."""
        for index, raw in enumerate(self.log.lines):
            if index not in self.traceback_lines and ("Error: " in raw or "Exception: " in raw):
                line = self.log.line(index)
                if BARE_ERROR.match(line.text) and not LAUNCHER_ERRORS.match(line.text):
                    return Event(line, line.rank, EXCEPTION, line.text.strip()[:1000])
        return None

    def _chain(self, index: int, header: Line, indent: int):
        """Yields (line, text, frames) of the exception whose header has this index, and of those chained to it.

        state   "frames", "text" of the exception, "after" it, or "chain" behind the sentence that joins two exceptions
        """
        frames, text, first, state, blanks = [], [], None, "frames", 0
        for i in range(index + 1, min(index + MAX_LINES, len(self.log.lines))):
            line = self.log.line(i)
            if line.stream != header.stream and line.text.strip():
                continue  # another process wrote in between
            content = line.text[indent:] if line.text[:indent].isspace() else line.text
            if (
                state != "frames"
                and HEADER in content
                and (state == "chain" or "Original" in content or "(RANK " in content)
            ):
                yield first, "\n".join(text), tuple(frames)
                frames, text, first, state = [], [], None, "frames"
            elif HEADER in content or content.startswith(("Sending process", "srun: ")):
                break
            elif state == "frames":
                if frame := FRAME.match(content):
                    frames.append((frame[1], int(frame[2])))
                elif EXCEPTION_LINE.match(content):
                    first, text, state = line, [content.strip()[:1000]], "text"
            elif content.startswith(CHAINED):
                state = "chain"
            elif state == "text" and content.strip() and len(text) < 12 and not (line.level or END.match(content)):
                text.append(content.strip()[:500])
            elif state != "chain":
                state, blanks = "after", 1 if state == "text" else blanks + 1
                if blanks > 3:
                    break
            self.traceback_lines.add(i)
        if first:
            yield first, "\n".join(text), tuple(frames)


def _name_ranks(facts: Facts) -> None:
    """Gives a rank to events whose lines have none: by other lines of their process, by exit codes, or by order."""
    known = [event for event in facts.events if event.rank is not None]
    for event in facts.events:
        if event.rank is None and event.line.task is not None:
            stream = event.line.stream
            ranks = {other.rank for other in known if other.line.stream[: len(stream)] == stream} or {event.line.task}
            event.rank = min(ranks) if len(ranks) == 1 else None  # several: the task is a machine, not a rank
    nameless = [event for event in facts.events if event.rank is None and event.frames]
    failed = sorted(rank for rank, (code, _) in facts.exit_codes.items() if code not in (0, -15))
    failed = [rank for rank in failed if not any(event.rank == rank for event in facts.events)]
    if len(nameless) == len(failed) == 1:
        nameless[0].rank = failed[0]
    ranks = sorted(facts.ranks)
    for name in {event.message.name for event in facts.events if event.rank is None}:
        events = [event for event in facts.events if event.rank is None and event.message.name == name]
        if len(events) == len(ranks) > 1:
            for event, rank in zip(events, ranks, strict=True):
                event.rank = rank
