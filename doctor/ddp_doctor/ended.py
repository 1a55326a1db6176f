"""Why a job has ended: the first cause in time, apart from the errors of those that only lost a peer."""

import re
import signal
from dataclasses import replace

from ddp_doctor import words
from ddp_doctor.history import Collective, History, with_call
from ddp_doctor.job import Job, Rank
from ddp_doctor.launch.first_failure import STOPPED, shortened
from ddp_doctor.parted import parted
from ddp_doctor.still import roots_differ
from ddp_doctor.verdict import CURES, Verdict, error_at, innermost, only_lost_contact, stands

OTHER_SIZES = "appears not to match sizes of the same param"
TIMEOUT_TEXT = re.compile(r"Timed out waiting (\d+)\s?ms|Timeout\(ms\)=(\d+)|timeout after (\d+)\s?ms")
# A rank may also come to know it by the connection to its worker, which is then gone.
WORKER_TEXT = re.compile(
    r"DataLoader worker.*?(\d+)\W+(?:is killed by signal: ([\w ]+)|exited)"
    r"|^(?:ConnectionResetError|ConnectionRefusedError|BrokenPipeError|EOFError)"
)
SIZE_TEXT = "Received data size doesn't match expected size"
MODELS_TEXT = re.compile(
    r"same model across all ranks, but Rank (\d+) has (\d+) params.*?rank (\d+) has .*? (\d+) params", re.I | re.S
)


def after_the_end(job: Job) -> Verdict:
    texts = {number: rank.error.text for number, rank in job.ranks.items() if rank.error}
    if job.ended == "well":
        return parted(job) or Verdict("well", (), f"the job ended well: {len(job.ranks)} ranks, exit code 0")
    if all(rank.exit_code == STOPPED for rank in job.ranks.values()):
        return Verdict("stopped", (), f"the job was asked to stop: all ranks left before its end, exit code {STOPPED}")
    if late := _timed_out(job):
        return late
    if aborted := [number for number, text in texts.items() if SIZE_TEXT in text]:
        return _sizes(job, aborted[0])
    causes = {number: rank for number, rank in job.ranks.items() if rank.error and not rank.error.symptom}
    killed = [
        number for number, rank in job.ranks.items() if (rank.exit_code or 0) < 0 and -rank.exit_code not in _COMMON
    ]
    if killed and not any(_earlier(rank, job.ranks[killed[0]]) for rank in causes.values()):
        return _by_signal(job, killed[0])
    if causes:
        models = any(MODELS_TEXT.search(rank.error.text) or OTHER_SIZES in rank.error.text for rank in causes.values())
        if models and len({rank.call() for rank in job.ranks.values()}) > 1 and (verdict := parted(job)):
            return verdict  # one of them had skipped a collective, and met the others' in DDP's constructor
        return by_error(job, causes)
    if verdict := _barrier_says(job, texts) or parted(job) or _never_came_to_init(job) or _left(job):
        return verdict
    for number, rank in job.ranks.items():
        if (rank.exit_code or 0) > 0 and rank.exit_call and rank.error is None:
            frame = innermost([each for each in rank.exit_call[1] if each.is_own()])
            return Verdict("left", (number,), f"rank {number} {stands(rank)}{only_lost_contact(job, number)}", frame)
        if rank.exit_code == -signal.SIGABRT:
            return _aborted(job, number)
    if job.first is not None:
        rank = job.ranks[job.first]
        frame = innermost(rank.error.stack if rank.error and rank.error.stack else rank.own)
        return Verdict("failed", (job.first,), job.first_text.partition("\n")[0], frame)
    lines = job.launcher_text.strip().splitlines() or ["it printed nothing"]
    return Verdict("launcher", (), f"torchrun failed before any rank was to blame: {lines[-1].strip()}")


def _sizes(job: Job, number: int) -> Verdict:
    """gloo aborts where it gets more bytes than it has room for: because of sizes, types, roots, or another collective.

    It ends the process at once, so a backward pass may be missing in its records, but not in its stack.
    """
    for each in job.ranks.values():
        each.history = _with_backward(each)
    if verdict := parted(job):
        if verdict.kind == "missing":
            sentence = f"{verdict.sentence}; so two different collectives met, and gloo aborted over their sizes"
            verdict = replace(verdict, sentence=sentence)
        return verdict
    if verdict := roots_differ(job.ranks) or _changed_on_one_rank(job):
        return verdict
    rank = job.ranks[number]
    sizes = re.search(r"(\d+) vs (\d+)\. Received", rank.error.text)
    detail = f" ({sizes[1]} bytes came, {sizes[2]} were expected)" if sizes else ""
    sentence = f"a tensor has other sizes on the ranks: rank {number} got more than it has room for{detail} "
    sentence += f"in {words.code_at(rank.own[0])}{words.condition(rank.own)}" if rank.own else "at an unknown line"
    return Verdict("unlike", (number,), sentence, innermost(rank.own), CURES["unlike"])


def _with_backward(rank: Rank) -> History:
    stack = rank.error.stack if rank.error and rank.error.stack else rank.stack
    collective = Collective(0, "0", "all_reduce", (), (), stack, time=2**63)
    last = rank.history.newest
    if rank.call() != "backward" or (last and last.lines == collective.lines):
        return rank.history
    return with_call(rank.history, collective)


def _changed_on_one_rank(job: Job) -> Verdict | None:
    """The one rank whose last collective is of another size or type than all that it started on that line before."""
    changed = []
    for number, rank in job.ranks.items():
        last = rank.history.newest
        earlier = rank.history.collectives.get(last.group, ())[:-1] if last else ()
        earlier = [each for each in earlier if each.name == last.name and (each.lines == last.lines or not each.stack)]
        if earlier and words.tensors(last) not in {words.tensors(each) for each in earlier}:
            changed.append((number, last, earlier[-1]))
    if len(changed) != 1:
        return None
    number, last, earlier = changed[0]
    kind = "types" if last.sizes == earlier.sizes else "sizes"
    sentence = (
        f"{words.collective(last)} has other {kind} on the ranks: rank {number} started it with {words.tensors(last)}, "
        f"where it had {words.tensors(earlier)} before, {words.where(last.own)}"
    )
    return Verdict("unlike", (number,), sentence, innermost(last.own), CURES["unlike"])


_COMMON = (signal.SIGABRT, signal.SIGTERM)  # how a rank ends that was told to, or that gloo aborted


def _earlier(rank: Rank, other: Rank) -> bool:
    times = [each.error and each.error.when for each in (rank, other)]
    return all(times) and times[0] < times[1]


def _by_signal(job: Job, number: int) -> Verdict:
    rank = job.ranks[number]
    name = signal.Signals(-rank.exit_code).name
    lost = only_lost_contact(job, number)
    # A look from before its first collective, or from before the group in which others lost it, names a wrong line.
    collective, group = rank.history.newest, rank.group_size or rank.has_started_a_collective
    if rank.recorded and not rank.progress and not rank.crash_stack and (collective or lost and not group):
        rank = replace(rank, stack=())
    sentence = f"rank {number} was killed by {name} (exit code {rank.exit_code}); it {stands(rank)}{lost}"
    cure = CURES["memory"] if -rank.exit_code == signal.SIGKILL else ""
    return Verdict("killed", (number,), sentence, innermost(rank.own), cure)


def by_error(job: Job, causes: dict[int, Rank]) -> Verdict:
    number = min(causes, key=lambda number: (causes[number].error.when or float("inf"), number != job.first, number))
    rank = causes[number]
    error = rank.error
    own = [each for each in error.stack if each.is_own()] or list(error.stack[:1])
    frame = own[0] if own else innermost(rank.own)
    same = tuple(each for each in causes if causes[each].error.text == error.text)
    headline = shortened(error.text)
    if match := MODELS_TEXT.search(error.text):
        a, first, b, second = map(int, match.groups())
        (a, first), (b, second) = sorted([(a, first), (b, second)])
        headline = f"the ranks built different models: rank {a} has {first} parameters, rank {b} has {second}"
        headline += f"; DistributedDataParallel refuses them, {error_at(frame)}"
        return Verdict("models", (b,), headline, frame, CURES["models"])
    if worker := WORKER_TEXT.search(error.text):
        if worker[1] or any("/torch/utils/data/" in each.file for each in error.stack):
            return _dead_worker(job, number, worker[1], worker[2])
    if OTHER_SIZES in error.text:
        headline = f"the ranks built different models: {headline}"
        return Verdict("models", (number,), f"{headline}, {error_at(frame)}", frame, CURES["models"])
    if "EADDRINUSE" in error.text or "address already in use" in error.text.lower():
        port = re.search(r"port: (\d+)", error.text)
        headline = f"rank {number} could not listen on port {port[1] if port else '?'}, which another process has, "
        return Verdict("port", (number,), headline + error_at(frame), frame, CURES["port"])
    if "Expected to have finished reduction in the prior iteration" in error.text:
        blamed = _unused(causes) or {number: ""}
        several = "; ".join(f"rank {each} left out {text}" for each, text in blamed.items() if text)
        headline = f"parameters got no gradient in the step before: {several or 'their numbers stand in the error'}"
        return Verdict(
            "unused", tuple(blamed), f"{headline}; DDP says so one step late, {error_at(frame)}", frame, CURES["unused"]
        )
    twice = "marked as ready twice" in error.text or "mark a variable ready only once" in error.text
    kind = "ready twice" if twice else "error"
    if len(same) == len(job.ranks) and len(same) > 1:
        return Verdict(kind, same, f"every rank raised {headline}, {error_at(frame)}", frame)
    sentence = f"{words.ranks(same)} raised {headline}, {error_at(frame)}{words.condition(tuple(own))}"
    if rank.exit_code == -signal.SIGABRT:
        sentence = f"rank {number} aborted: {headline}; it {stands(rank)}"
    return Verdict(kind, same, sentence + only_lost_contact(job, *same), frame)


def _dead_worker(job: Job, number: int, pid: str | None, signal_name: str | None) -> Verdict:
    """A worker that crashes leaves its stack where this rank would leave its own; one that is killed leaves none."""
    rank = job.ranks[number]
    own = [frame for frame in rank.crash_stack if frame.is_own()]
    frames = own or [frame for frame in rank.error.stack if frame.is_own()]
    how = "crashed" if own else "ended without a word, as one that is killed does"
    how = f"was killed by a signal ({signal_name})" if signal_name else how
    sentence = f"a DataLoader worker of rank {number} {f'(process {pid}) ' if pid else ''}{how}"
    sentence += f"; it stood in {words.code_at(own[0])}" if own else ""
    sentence += f"; rank {number} noticed it {error_at(innermost(frames))}" if frames and not own else ""
    cure = CURES["crash" if own else "worker"]
    return Verdict("worker", (number,), sentence + only_lost_contact(job, number), innermost(frames), cure)


def _unused(causes: dict[int, Rank]) -> dict[int, str]:
    texts = "\n".join(rank.error.text for rank in causes.values())
    named = re.findall(r"did not receive grad for rank (\d+): ([\d ]+)", texts)
    return {int(number): f"parameters {' '.join(indices.split())}" for number, indices in named}


def _timed_out(job: Job) -> Verdict | None:
    """A rank that came to a collective when another's patience in it had run out, or was still at work then."""
    errors = {number: rank.error for number, rank in job.ranks.items() if rank.error and rank.error.when}
    if not errors:
        return None
    first = min(errors, key=lambda number: errors[number].when)
    limit = TIMEOUT_TEXT.search(errors[first].text)
    collective = job.ranks[first].history.newest
    if limit is None or collective is None:
        return None
    late = {}
    for number, rank in job.ranks.items():
        theirs = rank.history.newest
        joined = theirs and (theirs.number, theirs.lines) == (collective.number, collective.lines)
        if joined and theirs.time / 1e9 > errors[first].when - 0.5:
            late[number] = f"came to it {(theirs.time - collective.time) / 1e9:.0f} s later"
        elif rank.busy and not joined and number != first:
            late[number] = f"was still at work{f' in {words.code_at(rank.own[0])}' if rank.own else ''}"
    if not late:
        return None
    number = min(late)
    sentence = (
        f"the timeout of {int(next(filter(None, limit.groups()))) / 1000:g} s ran out: rank {first} waited in "
        f"{words.collective(collective)} {words.where(collective.own)}, and "
        f"{words.ranks(late)} {late[number]}"
    )
    return Verdict("timeout", tuple(late), sentence, innermost(collective.own), CURES["timeout"])


def _barrier_says(job: Job, texts) -> Verdict | None:
    """monitored_barrier names who did not come."""
    for number, text in texts.items():
        if match := re.search(r"Ranks? ([\d, ]+) failed to pass monitoredBarrier", text):
            absent = tuple(int(digits) for digits in re.findall(r"\d+", match[1]))
            rank, known = job.ranks[number], [job.ranks[each] for each in absent if each in job.ranks]
            own = [each for each in rank.error.stack if each.is_own()] or list(rank.own)
            sentence = f"{words.ranks(absent)} never came to monitored_barrier, which rank {number} called "
            sentence += words.where(own)
            sentence += f"; rank {absent[0]} {stands(known[0])}" if known else ""
            return Verdict("missing", absent, sentence, innermost(own), CURES["missing"])
    return None


def _never_came_to_init(job: Job) -> Verdict | None:
    """Some lost contact, or patience, inside init_process_group, and others never were there."""
    there = tuple(
        number
        for number, rank in job.ranks.items()
        if rank.error and rank.error.symptom and any(each.function == "init_process_group" for each in rank.error.stack)
    )
    others = tuple(number for number in job.ranks if number not in there)
    if not there or not others or any(rank.has_started_a_collective for rank in job.ranks.values()):
        return None
    own = [each for each in job.ranks[there[0]].error.stack if each.is_own()]
    sentence = f"{words.ranks(others)} never came to init_process_group, which {words.ranks(there)} called "
    sentence += f"{words.where(own)}; {words.ranks(others[:1])} {stands(job.ranks[others[0]])}"
    return Verdict("init", others, sentence, innermost(own), CURES["init"])


def _left(job: Job) -> Verdict | None:
    """A rank that was gone with exit code 0 while others still waited."""
    victims = [number for number, rank in job.ranks.items() if rank.error and rank.error.symptom]
    gone = tuple(number for number, rank in job.ranks.items() if rank.exit_code == 0 and not rank.error)
    if not victims or not gone:
        return None
    rank = job.ranks[gone[0]]
    frames = rank.exit_call[1] if rank.exit_call else rank.stack
    sentence = f"{words.ranks(gone)} {stands(rank)}, while {words.ranks(victims)} still needed "
    sentence += words.verb(gone, "it", "them") + only_lost_contact(job, *gone)
    return Verdict("left", gone, sentence, innermost([each for each in frames if each.is_own()]), CURES["missing"])


def _aborted(job: Job, number: int) -> Verdict:
    rank = job.ranks[number]
    if "terminate called without an active exception" in "\n".join(rank.last_lines):
        sentence = f"the work was done, and rank {number} aborted while Python ended: a thread of gloo was still alive"
        return Verdict("at exit", (number,), sentence, None, CURES["at exit"])
    return Verdict("aborted", (number,), f"rank {number} aborted (SIGABRT); it {stands(rank)}", innermost(rank.own))
