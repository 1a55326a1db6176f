"""Starts a script under torchrun and watches it from outside: reports when nothing moves, ends what cannot end."""

import contextlib
import os
import re
import shlex
import signal
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path

import psutil

from ddp_doctor import movement, ranks, records, source_lines
from ddp_doctor.deadlock import cannot_end
from ddp_doctor.diagnosis import diagnose, long_wait
from ddp_doctor.errors import InputError
from ddp_doctor.history import Frame
from ddp_doctor.job import Error, Job, Rank
from ddp_doctor.launch.first_failure import HEADER, first_error, first_failure, is_symptom, without_prefixes
from ddp_doctor.launch.rank_output import RankOutput
from ddp_doctor.launch.supervise import RUN_VARIABLE, tagged
from ddp_doctor.launch.supervised import Run, supervised, supervised_environment

INSIDE = Path(__file__).with_name("inside")  # the folder with sitecustomize.py
LOOK = 0.5  # seconds between two looks at the processes
NAP = 2.0  # seconds: who sleeps no longer, again and again, waits for something
LONG_SLEEP = 20.0  # seconds: from a shorter sleep a rank comes back, and was only slow
FIRST_NOTICE = 30.0  # seconds that a rank waits for one at work until that is said, then twice as many
RANK_MEMORY = 100e6  # bytes that a process with torch needs at least


def run_and_watch(
    script,
    arguments,
    nproc: int,
    idle: float = 5.0,
    timeout: float | None = None,
    end_after: float | None = None,
    report: Callable[[Job], None] = lambda job: None,
    read_audits=None,
) -> Job:
    """Runs `script` on `nproc` ranks; returns what was seen when it has ended.

    idle: seconds without a new collective, a printed line, CPU time or transferred bytes after which the job stands
    still. Then `report` gets it, again when something has changed, and the watch goes on. The job is ended when what it
    waits for provably cannot come, after `end_after` seconds of standing still, or after `timeout` seconds in any case.
    read_audits: if given, the ranks are audited (`audit/`), without a GPU, and it gets the folder of that.
    Raises InputError if there is no such script, or it is no Python.
    """
    _refuse_what_cannot_run(script, nproc)
    options = ["--standalone", f"--nproc-per-node={nproc}"]
    print(f"doctor: torchrun {shlex.join([*options, str(script), *arguments])}", flush=True)
    run = Run("", {rank: [] for rank in range(nproc)}, {rank: {} for rank in range(nproc)})
    folder = Path(tempfile.mkdtemp(prefix="ddp_doctor_run_"))
    options += ["--redirects=3", f"--log-dir={folder / 'ranks'}"]
    with tempfile.TemporaryDirectory(prefix="ddp_doctor_") as own:
        environment = supervised_environment()
        environment.setdefault("OMP_NUM_THREADS", "1")  # torchrun does so, too, with a banner
        paths = [str(INSIDE), *filter(None, [environment.get("PYTHONPATH")])]
        environment |= {"PYTHONPATH": os.pathsep.join(paths), "DDP_DOCTOR_FOLDER": own}
        if read_audits:
            environment |= {"DDP_DOCTOR_AUDIT": "1", "CUDA_VISIBLE_DEVICES": ""}
        command = [sys.executable, "-P", "-m", "torch.distributed.run", *options, str(script), *arguments]
        output = RankOutput(folder, run, quiet=False, results=False, colours=bool(sys.stdout and sys.stdout.isatty()))
        watch = Watch(Path(own), environment[RUN_VARIABLE], output, idle, timeout, end_after, report)
        with _an_interrupt_asks(watch):
            supervised(command, environment, folder, None, output, stop_when=watch.should_end)
        if read_audits:
            read_audits(Path(own))
        if run.timed_out:
            watch.job.seconds = run.seconds
            return watch.job
        job = _after_the_end(run, output, records.read(Path(own), nproc == 1), nproc)
        for rank in job.ranks.values():
            rank.busy = watch.busy.get(rank.rank, False)
        return job


def _refuse_what_cannot_run(script, nproc: int) -> None:
    if not Path(script).is_file():
        raise InputError(f"There is no script {str(script)!r} in {source_lines.here()}; a Python file is needed.")
    try:
        compile(Path(script).read_bytes(), str(script), "exec", dont_inherit=True)
    except (SyntaxError, ValueError) as error:  # ValueError: a null byte
        line = f", line {error.lineno}" if isinstance(error, SyntaxError) and error.lineno else ""
        raise InputError(f"{script}{line} is no Python: {getattr(error, 'msg', error)}.") from error
    room = int(psutil.virtual_memory().available / RANK_MEMORY)
    if not 0 < nproc <= max(room, 2):
        raise InputError(f"--nproc is from 1 to {max(room, 2)}, for which there is memory here; got {nproc}.")


@contextlib.contextmanager
def _an_interrupt_asks(watch):
    """The first Ctrl-C asks for the page of what stands now; a second one ends it all at once."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def ask(*_):
        watch.interrupted = True
        signal.signal(signal.SIGINT, former)

    former = signal.signal(signal.SIGINT, ask)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, former)


class Watch:
    """Decides when to look, to report and to end the job. Then `job` is what it saw, and says why it was ended."""

    def __init__(self, folder: Path, tag: str, output: RankOutput, idle: float, timeout, end_after, report):
        self.folder, self.tag, self.output, self.idle, self.report = folder, tag, output, idle, report
        self.deadline = float("inf") if timeout is None else time.monotonic() + timeout
        self.end_after = float("inf") if end_after is None else end_after
        self.world_size = len(output.run.lines)
        self.job = Job({}, self.world_size, "time")
        self.interrupted = False
        self.processes: dict[int, psutil.Process] = {}
        self.ports: set[int] = set()  # of the stores, which some ranks ask again and again while they wait
        self.next_look = self.next_search = self.next_stacks = 0.0
        self.progress, self.progress_time = None, time.monotonic()
        self.still_since: float | None = None
        self.next_notice, self.reported, self.next_report = FIRST_NOTICE, "", 0.0
        self.ends_of_naps: set[float] = set()  # as they were seen since anything moved
        self.busy: dict[int, bool] = {}
        self.used: deque = deque()  # (time, {rank: Usage}) of the last `idle` seconds

    def quiet(self) -> float:
        """Seconds since the last new collective or printed line."""
        return time.monotonic() - self.progress_time

    def should_end(self) -> bool:
        """To be asked many times a second."""
        now = time.monotonic()
        if self.interrupted or now > self.deadline:
            self._look_at_all("interrupt" if self.interrupted else "time")
            return True
        if now < self.next_look:
            return False
        self.next_look = now + LOOK
        self._find_processes(now)
        lines = {rank: len(lines) for rank, lines in self.output.run.lines.items()}
        progress = (records.progress(self.folder), lines, sorted(self.processes))
        if progress != self.progress:
            self.progress, self.progress_time, self.next_notice, self.still_since = progress, now, FIRST_NOTICE, None
            self.ends_of_naps.clear()
        connections = movement.bytes_by_connection(self.ports)
        self.used.append((now, {rank: movement.usage(each, connections) for rank, each in self.processes.items()}))
        while len(self.used) > 1 and self.used[1][0] <= now - self.idle:
            self.used.popleft()
        begin, earlier = self.used[0]
        for rank, used in self.used[-1][1].items():
            former = earlier.get(rank, used)
            self.busy[rank] = (
                used.cpu - former.cpu > movement.BUSY * (now - begin) or used.transferred > former.transferred
            )
        if not self.processes or self.quiet() < self.idle or now < self.next_stacks:
            return False
        self._look_at_all("still")
        if not self._stands_still():
            self.still_since, self.next_stacks = None, now + 1
            return False
        self.still_since = self.still_since or max(self.progress_time, now - self.idle)
        still = now - self.still_since
        self.next_stacks = now + max(1.0, min(still / 10, 30.0))
        self.job.quiet = still
        if still >= self.end_after or cannot_end(self.job):
            self.job.ended = "hang"
            return True
        self._report(now)
        return False

    def _report(self, now: float) -> None:
        """Reports what has not been reported, and that not many times a minute."""
        sentence = re.sub(r" \(for \d+ s more\)", "", diagnose(self.job).sentence)
        if sentence != self.reported and now >= self.next_report:
            self.reported, self.next_report = sentence, now + 2 * self.idle
            self.next_notice = max(FIRST_NOTICE, 2 * self.job.quiet)
            self.report(self.job)
        elif self.job.quiet > self.next_notice:
            self.next_notice = 2 * self.job.quiet
            print(f"doctor: still nothing moves, for {self.job.quiet:.0f} s now", flush=True)

    def _look_at_all(self, ended: str) -> None:
        """Every rank with its state and its stack as it stands now."""
        by_number = records.read(self.folder, self.world_size == 1)
        for number, process in self.processes.items():
            rank = by_number.setdefault(number, Rank(number, process.pid))
            (begin, earlier), (end, latest) = self.used[0], self.used[-1]
            used = [usage.get(number, movement.Usage()) for usage in (latest, earlier)]
            rank.state = movement.state_of(process, *used, end - begin)
            ranks.look(rank, process)
        for number, rank in by_number.items():
            rank.last_lines = self.output.run.lines.get(number, [])[-3:]
            rank.error = rank.error or _printed_error(number, self.output) or rank.handled
            if rank.state == "ended":
                rank.exit_code = 0 if rank.error is None else 1  # torchrun ends the others when a rank fails
        world_size = max([self.world_size, *(rank.group_size for rank in by_number.values())])
        self.job = Job(dict(sorted(by_number.items())), world_size, ended, quiet=self.quiet())

    def _stands_still(self) -> bool:
        all_ranks = self.job.ranks.values()
        waits = [rank for rank in all_ranks if rank.waits_for_peers()]
        at_work = [rank for rank in all_ranks if rank.works()]
        if at_work or all(rank.state == "ended" for rank in all_ranks):
            if at_work and self.quiet() > self.next_notice and any(rank.has_started_a_collective for rank in waits):
                self.next_notice = 2 * self.quiet()
                print(f"doctor: {long_wait(waits[0], at_work[0], self.quiet())}", flush=True)
            return False
        if any(NAP < (rank.sleeps or 0.0) <= LONG_SLEEP for rank in all_ranks):
            return False
        naps = [rank for rank in all_ranks if rank.running and rank.stack]
        naps = [rank for rank in naps if "sleep(" in source_lines.text_at(rank.stack[0].file, rank.stack[0].line)]
        naps = [rank for rank in naps if (rank.sleeps or 0.0) <= NAP]
        self.ends_of_naps |= {round(time.monotonic() + rank.sleeps, 1) for rank in naps if rank.sleeps}
        # One that is seen once may be the end of a longer sleep.
        return not (naps and sys.platform == "linux" and len(self.ends_of_naps) < 3)

    def _find_processes(self, now: float) -> None:
        self.processes = {rank: process for rank, process in self.processes.items() if _lives(process)}
        if now >= self.next_search and (len(self.processes) < self.world_size or self.world_size == 1):
            self.next_search = now + 1
            processes = tagged(self.tag)
            self.processes |= ranks.by_environment(processes)
            if self.world_size == 1 and (own := records.ranks_by_pid(self.folder)):  # the script has started its ranks
                self.processes = {own[process.pid]: process for process in processes if process.pid in own}
            self.ports = movement.store_ports(self.processes.values())


def _lives(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


def _printed_error(rank: int, output: RankOutput) -> Error | None:
    """The error of a rank's last traceback, with the time at which it was printed."""
    if rank not in output.first_traceback:
        return None
    lines = without_prefixes(output.errors.get(rank, []))
    text = first_error(lines)
    when = time.time() - (time.monotonic() - output.first_traceback[rank])
    return Error(text, when, is_symptom(text), _printed_stack(lines, text)) if text else None


def _printed_stack(lines: list[str], text: str) -> tuple[Frame, ...]:
    """The frames above the line of a traceback that begins `text`, innermost first."""
    end = next((i for i, line in enumerate(lines) if line == text.partition("\n")[0]), 0)
    begin = max((i for i in range(end) if lines[i] == HEADER), default=end)
    matches = [re.match(r'  File "(.*)", line (\d+), in (.*)', line) for line in lines[begin:end]]
    return tuple(Frame(match[1], int(match[2]), match[3]) for match in reversed(matches) if match)


def _after_the_end(run: Run, output: RankOutput, by_number: dict[int, Rank], nproc: int) -> Job:
    codes, failure = first_failure(run.exit_code, run.launcher_lines, run.lines, output.errors, output.first_traceback)
    started_itself = nproc == 1 and any(rank.group_size > 1 for rank in by_number.values())
    for number in () if started_itself else run.lines:  # else torchrun knows the process alone that started them
        rank = by_number.setdefault(number, Rank(number))
        rank.exit_code = codes.get(number)
        if (rank.exit_code or 0) < 0:
            rank.stack = rank.crash_stack or rank.stack
        rank.last_lines = run.lines[number][-3:]
        rank.error = rank.error or _printed_error(number, output)
        if rank.error is None and rank.exit_code not in (0, None):
            # A C++ error has no traceback; a rank that was killed has none either, whatever it printed before.
            text = first_error(without_prefixes(output.errors.get(number, [])))
            if "terminate called after" in text:
                rank.error = Error(text, None, is_symptom(text))
    world_size = max([nproc, *(rank.group_size for rank in by_number.values())])
    job = Job(by_number, world_size, "failed" if failure else "well", run.exit_code, run.seconds)
    job.launcher_text = "\n".join(run.launcher_lines)
    if failure:
        job.failed_rank, job.failure_text = failure.rank, failure.text
    return job
