"""A job and its ranks as plain data: the input of the diagnosis and of the page."""

from dataclasses import dataclass, field

from ddp_doctor.history import Collective, Frame, History, own_frames

ONLY_ASKS = ("get_", "is_")  # dist.get_rank() and the like wait for nobody


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
    """One rank.

    state      "ended", "computing", "transferring" (bytes, without CPU time), "waiting" (neither), "stopped" (SIGSTOP)
    exit_code  negative: a signal; None: unknown, or still running
    stack      frames, innermost first: now, or when last read before it ended; `stack_problem` says why it is empty
    progress   {group: (number of the last collective started, of the last finished)}
    handled    the exception in whose `except` or `finally` it stands
    exit_call  the script's call of sys.exit or os._exit, and the stack there: ("sys.exit(3)", stack); None without one
    waits_for  in words, what outside of the job it waits for: a process that it has started, or data
    crash_stack at a fatal signal: its own, or that of a process that it has forked, such as a DataLoader's worker
    busy       whether it was at work in the last seconds before it ended
    group_size of its default process group, where the recorder saw one
    sleeps     seconds until the sleep that it has asked for is over; None: it does not sleep, or this is not known
    variables  local variables, {"function.variable": text}, where they were asked for
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
    sleeps: float | None = None
    variables: dict[str, str] = field(default_factory=dict)
    last_lines: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def own(self) -> tuple[Frame, ...]:
        """The frames of the user's own code in its stack, as `own_frames` chooses them."""
        return own_frames(self.stack)

    @property
    def has_started_a_collective(self) -> bool:
        """False also where there is no record."""
        return bool(self.progress or self.history.collectives)

    @property
    def running(self) -> bool:
        return self.state != "ended"

    def works(self) -> bool:
        """Is it at work? On a GPU a rank can use a whole core while it waits in a collective: that is no work."""
        if self.state == "computing":
            return not (self.pending() and self.call())
        return self.state == "transferring"

    def may_come(self) -> bool:
        """May it still come to a collective: is it at work, or does it wait for something outside of the job?"""
        return self.works() or bool(self.running and self.waits_for)

    def call(self) -> str | None:
        """The function of torch.distributed that the rank stands in, as its script calls it; None if in none.

        The outermost one below the user's own code: `all_reduce`, not its wrapper; "backward" where DDP's
        all-reduces run. If the rank has ended with an error: where it came from.
        """
        below = []
        for frame in (not self.running and self.error and self.error.stack) or self.stack:
            if frame.is_own():
                break
            below.append(frame)
        for frame in reversed(below):
            if "/torch/distributed/" in frame.file and frame.function not in ("wrapper", "inner", "<module>"):
                return None if frame.function.startswith(ONLY_ASKS) else frame.function
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
        """Does it wait for other ranks? In a backward pass only if it uses no CPU time: the pass itself is work."""
        call = self.call()
        return self.running and bool(self.pending() or call and (call != "backward" or self.state == "waiting"))


@dataclass
class Job:
    """A job at the moment of the diagnosis.

    ended   "hang", "failed", "well", "now" (attached to), "still" (it goes on), "time" (the doctor's own limit) or
            "interrupt"
    quiet   seconds since anything had moved
    first, first_text   the rank that launch/first_failure.py blames, None if it blames none, and its text
    launcher_text       the lines that torchrun printed itself
    """

    ranks: dict[int, Rank]
    world_size: int
    ended: str
    exit_code: int | None = None
    seconds: float = 0.0
    quiet: float = 0.0
    first: int | None = None
    first_text: str = ""
    launcher_text: str = ""
