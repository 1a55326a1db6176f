"""Starts a script under torchrun, watches it from outside, and looks at every rank when nothing moves any more."""

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
from pathlib import Path

import psutil

from ddp_doctor import records, source_lines, stacks
from ddp_doctor.diagnosis import while_it_works
from ddp_doctor.errors import InputError
from ddp_doctor.history import Frame
from ddp_doctor.launch.first_failure import HEADER, first_error, first_failure, is_symptom, without_prefixes
from ddp_doctor.launch.rank_output import RankOutput
from ddp_doctor.launch.supervise import RUN_VARIABLE, tagged
from ddp_doctor.launch.supervised import Run, supervised, supervised_environment
from ddp_doctor.seen import Error, Job, Rank

INSIDE = Path(__file__).with_name("inside")  # the folder with sitecustomize.py
LOOK = 0.5  # seconds between two looks at the processes
BUSY = 0.05  # share of a core that a rank uses at least while it computes
# Times the idle time until a rank that waits for one that stands somewhere counts as hanging; if that one sleeps in
# short naps; if nobody waits.
PATIENCE = {"waits": 1, "naps": 2, "nobody waits": 2, "nobody waits, one naps": 4}
NAP = 2.0  # seconds: who sleeps no longer, again and again, waits for something
LONG_SLEEP = 20.0  # seconds: from a shorter sleep a rank comes back, and was only slow
FIRST_NOTICE = 30.0  # seconds that a rank waits for one at work until that is said, then twice as many


def run_and_watch(
    script, arguments, nproc: int, idle: float = 5.0, timeout: float | None = None, read_audits=None
) -> Job:
    """Runs `script` on `nproc` ranks until it ends, hangs, or `timeout` seconds are over; returns what was seen.

    idle: seconds without CPU time and without a new collective after which a rank that waits for another counts as
    hanging. read_audits: if given, the ranks are audited (`audit/`), without a GPU, and it gets the folder of that.
    Raises InputError if there is no such script.
    """
    if not Path(script).is_file():
        raise InputError(f"There is no script {str(script)!r} in {os.getcwd()}; a Python file is needed.")
    if nproc < 1 or idle <= 0 or (timeout is not None and timeout <= 0):
        raise InputError(f"--nproc, --idle and --timeout are above 0; got {nproc}, {idle:g} and {timeout}.")
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
        output = RankOutput(folder, run, quiet=False, results=False)
        watch = Watch(Path(own), environment[RUN_VARIABLE], output, idle, timeout)
        with _an_interrupt_asks(watch):
            supervised(command, environment, folder, None, output, stop_when=watch.should_end)
        if read_audits:
            read_audits(Path(own))
        if run.timed_out:
            return Job(watch.ranks, nproc, watch.reason, None, run.seconds, watch.was_quiet)
        return _after_the_end(run, output, records.read(Path(own)), nproc)


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
    """Decides when to look and to end the job. Then `reason` says why: "hang", "time" or "interrupt", `ranks` what it
    saw, and `was_quiet` for how many seconds nothing had moved."""

    def __init__(self, folder: Path, tag: str, output: RankOutput, idle: float, timeout: float | None):
        self.folder, self.tag, self.output, self.idle = folder, tag, output, idle
        self.deadline = float("inf") if timeout is None else time.monotonic() + timeout
        self.ranks: dict[int, Rank] = {}
        self.reason, self.was_quiet = "", 0.0
        self.next_notice = FIRST_NOTICE
        self.ends_of_naps: set[float] = set()  # as they were seen since anything moved
        self.interrupted = False
        self.processes: dict[int, psutil.Process] = {}
        self.next_look = self.next_search = self.next_stacks = 0.0
        self.last_seen, self.since = None, time.monotonic()
        self.used: deque = deque()  # (time, {rank: CPU seconds}) of the last `idle` seconds

    def quiet(self) -> float:
        """Seconds since the last new collective or printed line."""
        return time.monotonic() - self.since

    def should_end(self) -> bool:
        """To be asked many times a second."""
        if self._hangs():
            self.reason = "hang"
        elif self.interrupted or time.monotonic() > self.deadline:
            self.reason = "interrupt" if self.interrupted else "time"
            self.look_at_all()
        self.was_quiet = self.quiet()
        return bool(self.reason)

    def _hangs(self) -> bool:
        now = time.monotonic()
        if now < self.next_look:
            return False
        self.next_look = now + LOOK
        self._find_processes(now)
        lines = {rank: len(lines) for rank, lines in self.output.run.lines.items()}
        seen = (records.progress(self.folder), lines, sorted(self.processes))
        if seen != self.last_seen:
            self.last_seen, self.since, self.next_notice = seen, now, FIRST_NOTICE
            self.ends_of_naps.clear()
        self.used.append((now, {rank: cpu_seconds(one) for rank, one in self.processes.items()}))
        while len(self.used) > 1 and self.used[1][0] <= now - self.idle:
            self.used.popleft()
        if not self.processes or self.quiet() < self.idle or now < self.next_stacks:
            return False
        self.next_stacks = now + 1
        return self._stands_still(self.look_at_all())

    def look_at_all(self) -> dict[int, Rank]:
        """Every rank with its state and its stack as it stands now."""
        found = records.read(self.folder)
        for rank, process in self.processes.items():
            one = found.setdefault(rank, Rank(rank, process.pid))
            one.state = self._state(rank, process)
            one.pid, one.sleeps = process.pid, stacks.sleeps_for(process.pid)
            stack, one.variables, problem = stacks.stack_of(process.pid, True, stopped=one.state == "stopped")
            one.stack = stack or one.stack  # else what the recorder saw from inside
            one.stack_problem = problem
        for rank, one in found.items():
            one.last_lines = self.output.run.lines.get(rank, [])[-3:]
            one.error = one.error or _printed_error(rank, self.output) or one.handled
            if one.state == "ended":
                one.exit_code = 0 if one.error is None else 1  # torchrun ends the others when a rank fails
        self.ranks = dict(sorted(found.items()))
        return self.ranks

    def _stands_still(self, ranks: dict[int, Rank]) -> bool:
        waits = [one for one in ranks.values() if one.waits_for_peers()]
        # A GPU rank that waits for others can burn a core in it: what its stack says counts.
        at_work = [one for one in ranks.values() if one.state == "computing" and not (one.pending() and one.call())]
        if at_work or all(one.state == "ended" for one in ranks.values()):
            if at_work and waits and self.quiet() > self.next_notice:
                self.next_notice = 2 * self.quiet()
                print(f"doctor: {while_it_works(waits[0], at_work[0], self.quiet())}", flush=True)
            return False
        if any(NAP < (one.sleeps or 0.0) <= LONG_SLEEP for one in ranks.values()):
            return False
        naps = [one for one in ranks.values() if one.running and "sleep(" in _line(one)]
        naps = [one for one in naps if (one.sleeps or 0.0) <= NAP]
        self.ends_of_naps |= {round(time.monotonic() + one.sleeps, 1) for one in naps if one.sleeps}
        if naps and sys.platform == "linux" and len(self.ends_of_naps) < 3:
            return False  # this may be the end of one longer sleep
        kind = ("naps" if naps else "waits") if waits else f"nobody waits{', one naps' if naps else ''}"
        return self.quiet() >= PATIENCE[kind] * self.idle

    def _state(self, rank: int, process: psutil.Process) -> str:
        try:
            status = process.status()
        except psutil.Error:
            return "ended"
        if status == psutil.STATUS_ZOMBIE:
            return "ended"
        if status in (psutil.STATUS_STOPPED, psutil.STATUS_TRACING_STOP):
            return "stopped"
        if status == psutil.STATUS_RUNNING:
            return "computing"  # on a crowded machine, without getting any CPU time
        begin, then = self.used[0] if self.used else (time.monotonic(), {})
        seconds = time.monotonic() - begin
        used = cpu_seconds(process) - then.get(rank, 0.0)
        return "computing" if used > BUSY * max(seconds, 1.0) else "waiting"

    def _find_processes(self, now: float) -> None:
        for rank, process in list(self.processes.items()):
            try:
                alive = process.is_running() and process.status() != psutil.STATUS_ZOMBIE
            except psutil.Error:
                alive = False
            if not alive:
                del self.processes[rank]
        if len(self.processes) < len(self.output.run.lines) and now >= self.next_search:
            self.next_search = now + 1
            self.processes |= rank_processes(tagged(self.tag))


def rank_processes(processes) -> dict[int, psutil.Process]:
    """Those that torchrun started as ranks, by RANK; what a rank started itself has its variables, too, and is not."""
    with_rank = {}
    for process in processes:
        try:
            environment = process.environ()
            if "RANK" in environment and "LOCAL_RANK" in environment:
                with_rank[process.pid] = (int(environment["RANK"]), process, process.ppid())
        except (psutil.Error, OSError, ValueError):
            continue
    return {rank: process for rank, process, parent in with_rank.values() if parent not in with_rank}


def cpu_seconds(process: psutil.Process) -> float:
    """Of a process with all that it has started."""
    total = 0.0
    try:
        family = [process, *process.children(recursive=True)]
    except psutil.Error:
        return total
    for one in family:
        try:
            times = one.cpu_times()
            total += times.user + times.system
        except psutil.Error:
            continue
    return total


def _line(one: Rank) -> str:
    return source_lines.text_at(one.stack[0].file, one.stack[0].line) if one.stack else ""


def _printed_error(rank: int, output: RankOutput) -> Error | None:
    """What a rank's last traceback says, with the time at which it was seen."""
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
    found = [re.match(r'  File "(.*)", line (\d+), in (.*)', line) for line in lines[begin:end]]
    return tuple(Frame(one[1], int(one[2]), one[3]) for one in reversed(found) if one)


def _after_the_end(run: Run, output: RankOutput, ranks: dict[int, Rank], nproc: int) -> Job:
    codes, failure = first_failure(run.exit_code, run.launcher_lines, run.lines, output.errors, output.first_traceback)
    for rank in run.lines:
        one = ranks.setdefault(rank, Rank(rank))
        one.exit_code = codes.get(rank)
        one.last_lines = run.lines[rank][-3:]
        one.error = one.error or _printed_error(rank, output)
        if one.error is None and one.exit_code not in (0, None):
            # A C++ error has no traceback; a rank that was killed has none either, whatever it printed before.
            text = first_error(without_prefixes(output.errors.get(rank, [])))
            if "terminate called after" in text:
                one.error = Error(text, None, is_symptom(text))
    job = Job(ranks, nproc, "failed" if failure else "well", run.exit_code, run.seconds)
    job.launcher_text = "\n".join(run.launcher_lines)
    if failure:
        job.first, job.first_text = failure.rank, failure.text
    return job
