"""A job and its ranks as plain data: the input of the diagnosis and of the page."""

from dataclasses import dataclass, field

from ddp_doctor import source_lines
from ddp_doctor.history import Collective, Frame, History, own_frames

WAITS_FOR_GPU = (".item(", ".tolist(", ".cpu(", "synchronize(")  # calls that return when the GPU has done its work
QUERY_PREFIXES = ("get_", "is_")  # dist.get_rank() and the like do not wait for other ranks


@dataclass(frozen=True)
class Error:
    """An error that a rank printed or died of. `when` is in seconds since the epoch; None if unknown.

    symptom: it only says that a peer is gone or did not come. uncaught: it has ended the script.
    """

    text: str
    when: float | None = None
    symptom: bool = False
    stack: tuple[Frame, ...] = ()
    uncaught: bool = False


@dataclass
class Rank:
    """One rank: what was seen and recorded of its process.

    state      "ended", "computing", "transferring" (bytes, without CPU time), "waiting" (neither), "stopped" (SIGSTOP)
    exit_code  negative: a signal; None: unknown, or still running
    stack      frames, innermost first: now, or when last read before it ended
    stack_problem   why py-spy could read no stack; None if it could
    progress   {group: (number of the last collective started, of the last finished)}
    recorded   whether the recorder inside it left records
    handled    the exception that it handles: it is in an `except` or `finally` block
    exit_call  the script's call of sys.exit or os._exit, and the stack there: ("sys.exit(3)", stack); None without one
    waits_for  in words, what outside of the job it waits for: a process that it has started, data or the disk
    crash_stack   stack at a fatal signal: its own, or that of a process that it has forked, such as a DataLoader worker
    busy       whether it was at work in the last seconds before it ended
    group_size the size of its default process group; 0 if the recorder saw none
    uses_gpu   whether it has opened one
    sleeps     seconds until its sleep is over; None: it does not sleep, or this is not known
    wake_time  when its sleep is over, by the doctor's time.monotonic(): the same in each look at one sleep
    variables  local variables of the stack's frames, {"function.variable": text}
    notes      sentences about what the doctor could not record
    """

    rank: int
    pid: int | None = None
    state: str = "ended"
    exit_code: int | None = None
    stack: tuple[Frame, ...] = ()
    stack_problem: str | None = None
    history: History = field(default_factory=History)
    recorded: bool = False
    progress: dict[str, tuple[int, int]] = field(default_factory=dict)
    error: Error | None = None
    handled: Error | None = None
    exit_call: tuple[str, tuple[Frame, ...]] | None = None
    waits_for: str | None = None
    crash_stack: tuple[Frame, ...] = ()
    busy: bool = False
    group_size: int = 0
    group_destroyed: bool = False
    uses_gpu: bool = False
    sleeps: float | None = None
    wake_time: float | None = None
    variables: dict[str, str] = field(default_factory=dict)
    last_lines: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def own(self) -> tuple[Frame, ...]:
        """The frames of the user's own code in its stack, as `own_frames` chooses them."""
        return own_frames(self.stack)

    @property
    def has_started_a_collective(self) -> bool:
        """Has a collective of it been recorded? False also if there are no records."""
        return bool(self.progress or self.history.collectives)

    @property
    def running(self) -> bool:
        return self.state != "ended"

    def works(self) -> bool:
        """Does it compute or transfer data? Not if it uses CPU time to wait for a pending collective.

        NCCL's collectives return at once, and CUDA uses a whole core to wait for them in a later call.
        """
        if self.state == "computing":
            return not (self.pending() and (self.call() or self.waits_for_gpu()))
        return self.state == "transferring"

    def waits_for_gpu(self) -> bool:
        """Is it in a call that returns when its GPU has done its work?"""
        if not self.uses_gpu or not self.stack:
            return False
        frame = self.stack[0]
        in_cuda = "/torch/cuda/" in frame.file and frame.function == "synchronize"
        return in_cuda or any(call in source_lines.text_at(frame.file, frame.line) for call in WAITS_FOR_GPU)

    def may_come(self) -> bool:
        """May it still start another collective: does it work, or wait for something outside of the job?"""
        return self.works() or bool(self.running and self.waits_for)

    def call(self) -> str | None:
        """The function of torch.distributed that the rank's script has called and not left; None if it is in none.

        Of several the one that the user's code called: `all_reduce`, not its wrapper. "backward" or "_pre_forward"
        where DDP's collectives run. If the rank has ended with an error, from the error's stack.
        """
        called = []
        for frame in (not self.running and self.error and self.error.stack) or self.stack:
            if frame.is_own():
                break
            called.append(frame)
        for frame in reversed(called):
            if "/torch/distributed/" in frame.file and frame.function not in ("wrapper", "inner", "<module>"):
                return None if frame.function.startswith(QUERY_PREFIXES) else frame.function
            if "/torch/" in frame.file and frame.function in ("backward", "_pre_forward"):
                return frame.function
        return None

    def pending(self) -> list[Collective]:
        """The collectives that it has started and that have not finished."""
        unfinished = []
        for group, (started, finished) in self.progress.items():
            if started > finished:
                started_here = self.history.collectives.get(group, ())
                unfinished += [collective for collective in started_here if collective.number > finished]
        return unfinished

    def waits_for_peers(self) -> bool:
        """Does it wait for other ranks: in a collective that has not finished, or a call of torch.distributed?

        A backward pass without a recorded collective counts only if it uses no CPU time: the pass itself is work.
        """
        call = self.call()
        return self.running and bool(self.pending() or call and (call != "backward" or self.state == "waiting"))


@dataclass
class Job:
    """A job at the moment of the diagnosis.

    ended   "hang", "failed", "well", "now" (attached to), "still" (it goes on), "time" (the doctor's own limit) or
            "interrupt"
    quiet   seconds for which nothing has moved
    failed_rank, failure_text   the rank that launch/first_failure.py blames, None if it blames none, and its text
    launcher_text   the lines that torchrun printed itself
    """

    ranks: dict[int, Rank]
    world_size: int
    ended: str
    exit_code: int | None = None
    seconds: float = 0.0
    quiet: float = 0.0
    failed_rank: int | None = None
    failure_text: str = ""
    launcher_text: str = ""
