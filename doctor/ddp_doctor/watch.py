"""Starts a script under torchrun and watches it from outside: reports when nothing moves, ends what cannot end."""

import contextlib
import itertools
import os
import re
import shlex
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import psutil

from ddp_doctor import movement, ranks, records, source_lines
from ddp_doctor.deadlock import cannot_end
from ddp_doctor.diagnosis import diagnose, long_wait
from ddp_doctor.errors import InputError
from ddp_doctor.history import Frame
from ddp_doctor.job import Error, Job, Rank
from ddp_doctor.launch.first_failure import first_error, first_failure, is_symptom, last_traceback, without_prefixes
from ddp_doctor.launch.rank_output import RankOutput
from ddp_doctor.launch.supervise import RUN_VARIABLE, tagged
from ddp_doctor.launch.supervised import Run, supervised, supervised_environment

INSIDE = Path(__file__).with_name("inside")  # the folder with sitecustomize.py
LOOK = 0.5  # seconds between two looks at the processes
SHORT_SLEEP = 2.0  # seconds: a loop that polls sleeps no longer than this, again and again
LONG_SLEEP = 20.0  # seconds: a rank in a shorter sleep may continue by itself, and one in a longer sleep stands still
FIRST_NOTICE = 30.0  # seconds without progress until a notice is printed; each later one after twice as many
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
    """Runs `script` on `nproc` ranks under torchrun until it ends or is ended; returns what was seen of the job.

    idle: seconds without a new collective, a printed line, CPU time or transferred bytes after which the job stands
    still. Then `report` is called with the job, and again whenever its verdict changes.
    The job is ended when what it waits for provably cannot come, after `end_after` seconds of standing still, or after
    `timeout` seconds in any case.
    read_audits: if given, the ranks are audited (`audit/`), without a GPU, and it is called with the audits' folder.
    Raises InputError if there is no such script, it is no Python, or there is no memory for `nproc` ranks.
    """
    _refuse_what_cannot_run(script, nproc)
    options = ["--standalone", f"--nproc-per-node={nproc}"]
    print(f"doctor: torchrun {shlex.join([*options, str(script), *arguments])}", flush=True)
    run = Run("", {rank: [] for rank in range(nproc)}, {rank: {} for rank in range(nproc)})
    folder = Path(tempfile.mkdtemp(prefix="ddp_doctor_run_"))
    options += ["--redirects=3", f"--log-dir={folder / 'ranks'}"]
    with tempfile.TemporaryDirectory(prefix="ddp_doctor_") as records_folder:
        environment = supervised_environment()
        environment.setdefault("OMP_NUM_THREADS", "1")  # torchrun does so, too, with a banner
        paths = [str(INSIDE), *filter(None, [environment.get("PYTHONPATH")])]
        environment |= {"PYTHONPATH": os.pathsep.join(paths), "DDP_DOCTOR_FOLDER": records_folder}
        if read_audits:
            environment |= {"DDP_DOCTOR_AUDIT": "1", "CUDA_VISIBLE_DEVICES": ""}
        command = [sys.executable, "-P", "-m", "torch.distributed.run", *options, str(script), *arguments]
        output = RankOutput(folder, run, quiet=False, results=False, colours=bool(sys.stdout and sys.stdout.isatty()))
        watch = Watch(Path(records_folder), environment[RUN_VARIABLE], output, idle, timeout, end_after, report)
        with _first_interrupt_ends(watch):
            supervised(command, environment, folder, None, output, stop_when=watch.should_end)
        if read_audits:
            read_audits(Path(records_folder))
        if run.timed_out:
            watch.job.seconds = run.seconds
            return watch.job
        job = _after_the_end(run, output, records.read(Path(records_folder), nproc == 1), nproc)
        for rank in job.ranks.values():
            rank.busy = watch.activity.busy.get(rank.rank, False)
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
def _first_interrupt_ends(watch):
    """Within it, the first Ctrl-C lets `watch` look at the ranks and end the job; a second one is a KeyboardInterrupt.

    Changes nothing in a thread, where no signal handler can be set.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def handle_interrupt(*_):
        watch.interrupted = True
        signal.signal(signal.SIGINT, former)

    former = signal.signal(signal.SIGINT, handle_interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, former)


class Watch:
    """Decides when to look at the ranks, to report and to end the job. `job`: the last look; its `ended` says why."""

    def __init__(self, folder: Path, tag: str, output: RankOutput, idle: float, timeout, end_after, report):
        self.folder, self.tag, self.output, self.idle, self.report = folder, tag, output, idle, report
        self.deadline = float("inf") if timeout is None else time.monotonic() + timeout
        self.end_after = float("inf") if end_after is None else end_after
        self.world_size = len(output.run.lines)
        self.job = Job({}, self.world_size, "time")
        self.interrupted = False
        self.processes: dict[int, psutil.Process] = {}
        self.activity = movement.Activity(idle)
        self.next_look = self.next_search = self.next_stacks = 0.0
        self.progress, self.progress_time = None, time.monotonic()  # see quiet
        self.still_since: float | None = None
        self.next_notice, self.reported, self.next_report = FIRST_NOTICE, "", 0.0
        self.wake_times: set[float] = set()  # of short sleeps since the last progress

    def quiet(self) -> float:
        """Seconds since the last progress: a collective, a printed line, a rank that started or ended."""
        return time.monotonic() - self.progress_time

    def should_end(self) -> bool:
        """Whether the job is to be ended now. Looks and reports when it is time; to be called many times a second."""
        now = time.monotonic()
        if self.interrupted or now > self.deadline:
            self.next_search = now  # ranks may have started since the last look
            self._note_progress(now)
            self.activity.note(self.processes)
            self._look_at_all("interrupt" if self.interrupted else "time")
            return True
        if now < self.next_look:
            return False
        self.next_look = now + LOOK
        self._note_progress(now)
        self.activity.note(self.processes)
        if not self.processes or self.quiet() < self.idle or now < self.next_stacks:
            return False
        self._look_at_all("still")
        self.activity.note(self.processes)
        states = {number: self.activity.state_of(number, process) for number, process in self.processes.items()}
        afterwards = [replace(self.job.ranks[number], state=state) for number, state in states.items()]
        now = time.monotonic()
        self._note_progress(now)
        if self.quiet() < self.idle:  # on a busy machine a look takes seconds: what it saw is not of one moment
            return False
        all_ranks = self.job.ranks.values()
        works = any(rank.works() for rank in (*all_ranks, *afterwards))
        if works or all(rank.state == "ended" for rank in all_ranks) or self._wakes_by_itself():
            self.still_since, self.next_stacks = None, now + 1
            self._notice_long_wait()
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

    def _note_progress(self, now: float) -> None:
        self._find_processes(now)
        lines = {rank: len(lines) for rank, lines in self.output.run.lines.items()}
        progress = (records.progress(self.folder), lines, sorted(self.processes))
        if progress != self.progress:
            self.progress, self.next_notice, self.still_since = progress, FIRST_NOTICE, None
            self.progress_time = time.monotonic()  # not `now`: the search may have taken longer than `idle`
            self.wake_times.clear()

    def _report(self, now: float) -> None:
        """Reports a verdict other than the last reported one, at most once in 2 * `idle` seconds; else prints a notice.

        How long a rank still sleeps makes no other verdict.
        """
        sentence = re.sub(r" \(for \d+ s more\)", "", diagnose(self.job).sentence)
        if sentence != self.reported and now >= self.next_report:
            self.reported, self.next_report = sentence, now + 2 * self.idle
            self.next_notice = max(FIRST_NOTICE, 2 * self.job.quiet)
            self.report(self.job)
        elif self.job.quiet > self.next_notice:
            self.next_notice = 2 * self.job.quiet
            print(f"doctor: still nothing moves, for {self.job.quiet:.0f} s now", flush=True)

    def _look_at_all(self, ended: str) -> None:
        """Sets `job` to what is seen of all ranks now: their records, states, stacks and errors."""
        by_number = records.read(self.folder, self.world_size == 1)
        for number, process in self.processes.items():
            rank = by_number.setdefault(number, Rank(number, process.pid))
            rank.state = self.activity.state_of(number, process)
            ranks.look(rank, process)
        for number, rank in by_number.items():
            rank.last_lines = self.output.run.lines.get(number, [])[-3:]
            rank.error = rank.error or _printed_error(number, self.output) or rank.handled
            if rank.state == "ended":
                rank.exit_code = 0 if rank.error is None else 1  # torchrun ends the others when a rank fails
        world_size = max([self.world_size, *(rank.group_size for rank in by_number.values())])
        self.job = Job(dict(sorted(by_number.items())), world_size, ended, quiet=self.quiet())

    def _notice_long_wait(self) -> None:
        """Prints a notice if a rank has waited for long while another works."""
        waiting = [rank for rank in self.job.ranks.values() if rank.waits_for_peers()]
        working = [rank for rank in self.job.ranks.values() if rank.works()]
        started = any(rank.has_started_a_collective for rank in waiting)
        if working and started and self.quiet() > self.next_notice:
            self.next_notice = 2 * self.quiet()
            print(f"doctor: {long_wait(waiting[0], working[0], self.quiet())}", flush=True)

    def _wakes_by_itself(self) -> bool:
        """Is a rank in a sleep after which it may continue? Adds to `wake_times`.

        Yes with more than SHORT_SLEEP and at most LONG_SLEEP seconds left, no with more.
        A shorter sleep is one of many in a loop that polls, or the end of a longer one. Only a loop has several wake
        times, so: yes, until there are three different ones since the last progress.
        On systems other than Linux no wake time is known, and a short sleep counts as polling: no.
        """
        all_ranks = self.job.ranks.values()
        if any(SHORT_SLEEP < (rank.sleeps or 0.0) <= LONG_SLEEP for rank in all_ranks):
            return True
        in_short_sleep = [rank for rank in all_ranks if (rank.sleeps or 0.0) <= SHORT_SLEEP and _calls_sleep(rank)]
        self.wake_times |= {rank.wake_time for rank in in_short_sleep if rank.sleeps}
        return bool(in_short_sleep) and sys.platform == "linux" and len(self.wake_times) < 3

    def _find_processes(self, now: float) -> None:
        """Drops processes that have ended, and once a second looks for ranks that are missing."""
        self.processes = {rank: process for rank, process in self.processes.items() if _lives(process)}
        if now >= self.next_search and (len(self.processes) < self.world_size or self.world_size == 1):
            self.next_search = now + 1
            processes = tagged(self.tag)
            self.processes |= ranks.by_environment(processes)
            started = records.ranks_by_pid(self.folder) if self.world_size == 1 else {}
            if started:  # the script has started its ranks itself
                self.processes = {started[process.pid]: process for process in processes if process.pid in started}


def _calls_sleep(rank: Rank) -> bool:
    innermost = rank.stack[0] if rank.running and rank.stack else None
    return innermost is not None and "sleep(" in source_lines.text_at(innermost.file, innermost.line)


def _lives(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


def _printed_error(rank: int, output: RankOutput) -> Error | None:
    """The error of a rank's traceback, with the time at which the first one was written; None if it printed none."""
    if rank not in output.first_traceback:
        return None
    lines = without_prefixes(output.errors.get(rank, []))
    text = first_error(lines)
    frames = itertools.takewhile(lambda line: line.startswith(" "), last_traceback(lines)[1:])
    matches = [re.match(r'  File "(.*)", line (\d+), in (.*)', line) for line in frames]
    stack = tuple(Frame(match[1], int(match[2]), match[3]) for match in reversed(matches) if match)
    return Error(text, output.first_traceback[rank], is_symptom(text), stack) if text else None


def _after_the_end(run: Run, output: RankOutput, by_number: dict[int, Rank], nproc: int) -> Job:
    """A job that has ended by itself. by_number: its ranks as recorded; gets what torchrun and the output add."""
    codes, failure = first_failure(run.exit_code, run.launcher_lines, run.lines, output.errors, output.first_traceback)
    script_started_ranks = nproc == 1 and any(rank.group_size > 1 for rank in by_number.values())
    for number in () if script_started_ranks else run.lines:  # torchrun does not know ranks that a script has started
        rank = by_number.setdefault(number, Rank(number))
        rank.exit_code = codes.get(number)
        if (rank.exit_code or 0) < 0:
            rank.stack = rank.crash_stack or rank.stack
        rank.last_lines = run.lines[number][-3:]
        rank.error = rank.error or _printed_error(number, output)
        if rank.error is None and rank.exit_code not in (0, None):
            # A C++ error has no traceback. Other last lines are not taken for an error: the rank may have been killed.
            text = first_error(without_prefixes(output.errors.get(number, [])))
            if "terminate called after" in text:
                rank.error = Error(text, None, is_symptom(text))
    world_size = max([nproc, *(rank.group_size for rank in by_number.values())])
    job = Job(by_number, world_size, "failed" if failure else "well", run.exit_code, run.seconds)
    job.launcher_text = "\n".join(run.launcher_lines)
    if failure:
        job.failed_rank, job.failure_text = failure.rank, failure.text
    return job
