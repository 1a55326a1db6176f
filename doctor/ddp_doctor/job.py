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
    stack      innermost first, of now or of the last look before it ended; `stack_problem` says why it is empty
    progress   {group: (number of the last collective started, of the last finished)}
    handled    the exception in whose `except` or `finally` it stands
    left       where it called sys.exit or os._exit, if it did, and how: ("sys.exit(3)", stack)
    waits_for  in words, what outside of the job it waits for: a process that it has started, or data
    fatal      where a crash was caught: its own, or that of a process that it has forked
    busy       whether it was at work in the last seconds before it ended
    group_size of its default process group, where the recorder saw one
    sleeps     for how many seconds more it has asked to sleep; None: it does not, or nobody says
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
    left: tuple[str, tuple[Frame, ...]] | None = None
    waits_for: str | None = None
    fatal: tuple[Frame, ...] = ()
    busy: bool = False
    group_size: int = 0
    group_destroyed: bool = False
    sleeps: float | None = None
    variables: dict[str, str] = field(default_factory=dict)
    last_lines: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def own(self) -> tuple[Frame, ...]:
        return own_frames(self.stack)

    @property
    def met(self) -> bool:
        """Has it started a collective? False also where there is no record."""
        return bool(self.progress or self.history.collectives)

    @property
    def running(self) -> bool:
        return self.state != "ended"

    def works(self) -> bool:
        """Does it move? A GPU rank that waits for others can burn a core in it: there its stack counts."""
        if self.state == "computing":
            return not (self.pending() and self.call())
        return self.state == "transferring"

    def may_come(self) -> bool:
        """Is it at work, or waits for what may come without the other ranks?"""
        return self.works() or bool(self.running and self.waits_for)

    def call(self) -> str | None:
        """The function of torch.distributed that the rank stands in, as its script calls it; None if in none.

        The outermost one below the reader's own code: `all_reduce`, not its wrapper; "backward" where DDP's
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
        """In a backward pass a rank waits only if it uses no CPU time: the pass itself is work."""
        call = self.call()
        return self.running and bool(self.pending() or call and (call != "backward" or self.state == "waiting"))


@dataclass
class Job:
    """A job at the moment of the diagnosis.

    ended   "hang", "failed", "well", "now" (attached to), "still" (it goes on), "time" (the doctor's own limit) or
            "interrupt"
    quiet   seconds since anything had moved
    first, first_text   whom the launcher's reading of the logs blames, and how it says so
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
