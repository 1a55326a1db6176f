"""Why a job has ended: the first cause in time, apart from the errors of those that only lost a peer."""

import re
import signal
from dataclasses import replace

from ddp_doctor import words
from ddp_doctor.history import Collective, History, with_call
from ddp_doctor.launch.first_failure import STOPPED
from ddp_doctor.parted import parted
from ddp_doctor.seen import Job, Rank
from ddp_doctor.still import roots_differ
from ddp_doctor.verdict import CURES, Verdict, error_at, innermost, last_line, only_lost_contact, shortened, stands

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
    texts = {rank: one.error.text for rank, one in job.ranks.items() if one.error}
    if job.ended == "well":
        return parted(job) or Verdict("well", (), f"the job ended well: {len(job.ranks)} ranks, exit code 0")
    if all(one.exit_code == STOPPED for one in job.ranks.values()):
        return Verdict("stopped", (), f"the job was asked to stop: all ranks left before its end, exit code {STOPPED}")
    if late := _timed_out(job):
        return late
    if aborted := [rank for rank, text in texts.items() if SIZE_TEXT in text]:
        return _sizes(job, aborted[0])
    causes = {rank: one for rank, one in job.ranks.items() if one.error and not one.error.symptom}
    killed = [rank for rank, one in job.ranks.items() if (one.exit_code or 0) < 0 and -one.exit_code not in _COMMON]
    if killed and not any(_earlier(one, job.ranks[killed[0]]) for one in causes.values()):
        return _by_signal(job, killed[0])
    if causes:
        models = any(MODELS_TEXT.search(rank.error.text) or OTHER_SIZES in rank.error.text for rank in causes.values())
        if models and len({rank.call() for rank in job.ranks.values()}) > 1 and (verdict := parted(job)):
            return verdict  # one of them had skipped a collective, and met the others' in DDP's constructor
        return by_error(job, causes)
    if verdict := _barrier_says(job, texts) or parted(job) or _came_to_init_alone(job) or _left(job):
        return verdict
    for rank, one in job.ranks.items():
        if (one.exit_code or 0) > 0 and one.left and one.error is None:
            return _left_with_code(job, rank)
        if one.exit_code == -signal.SIGABRT:
            return _aborted(job, rank)
    if job.first is not None:
        one = job.ranks[job.first]
        frame = innermost(one.error.stack if one.error and one.error.stack else one.own)
        return Verdict("failed", (job.first,), job.first_text.partition("\n")[0], frame)
    return Verdict("launcher", (), f"torchrun failed before any rank was to blame: {last_line(job.launcher_text)}")


def _sizes(job: Job, rank: int) -> Verdict:
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
    if verdict := roots_differ(job.ranks) or _changed_alone(job):
        return verdict
    one = job.ranks[rank]
    sizes = re.search(r"(\d+) vs (\d+)\. Received", one.error.text)
    found = f" ({sizes[1]} bytes came, {sizes[2]} were expected)" if sizes else ""
    sentence = f"a tensor has other sizes on the ranks: rank {rank} got more than it has room for{found} "
    sentence += f"in {words.code_at(one.own[0])}{words.condition(one.own)}" if one.own else "at an unknown line"
    return Verdict("unlike", (rank,), sentence, innermost(one.own), CURES["unlike"])


def _with_backward(rank: Rank) -> History:
    stack = rank.error.stack if rank.error and rank.error.stack else rank.stack
    collective = Collective(0, "0", "all_reduce", (), (), stack, time=2**63)
    last = rank.history.newest
    if rank.call() != "backward" or (last and last.lines == collective.lines):
        return rank.history
    return with_call(rank.history, collective)


def _changed_alone(job: Job) -> Verdict | None:
    """The one rank whose last collective is of another size or type than all that it started on that line before."""
    changed = []
    for rank, one in job.ranks.items():
        last = one.history.newest
        earlier = one.history.collectives.get(last.group, ())[:-1] if last else ()
        earlier = [each for each in earlier if each.name == last.name and (each.lines == last.lines or not each.stack)]
        if earlier and words.tensors(last) not in {words.tensors(each) for each in earlier}:
            changed.append((rank, last, earlier[-1]))
    if len(changed) != 1:
        return None
    rank, last, earlier = changed[0]
    kind = "types" if last.sizes == earlier.sizes else "sizes"
    sentence = (
        f"{words.collective(last)} has other {kind} on the ranks: rank {rank} started it with {words.tensors(last)}, "
        f"where it had {words.tensors(earlier)} before, {words.at(last.own)}{words.condition(last.own)}"
    )
    return Verdict("unlike", (rank,), sentence, innermost(last.own), CURES["unlike"])


_COMMON = (signal.SIGABRT, signal.SIGTERM)  # how a rank ends that was told to, or that gloo aborted


def _earlier(one: Rank, other: Rank) -> bool:
    return bool(one.error and one.error.when and other.error and other.error.when and one.error.when < other.error.when)


def _by_signal(job: Job, rank: int) -> Verdict:
    one = job.ranks[rank]
    name = signal.Signals(-one.exit_code).name
    sentence = f"rank {rank} was killed by {name} (exit code {one.exit_code}); it {stands(one)}"
    cure = CURES["memory"] if -one.exit_code == signal.SIGKILL else ""
    return Verdict("killed", (rank,), sentence + only_lost_contact(job, rank), innermost(one.own), cure)


def by_error(job: Job, causes: dict[int, Rank]) -> Verdict:
    rank = min(causes, key=lambda rank: (causes[rank].error.when or float("inf"), rank != job.first, rank))
    one = causes[rank]
    error, frame = one.error, None
    own = [each for each in error.stack if each.is_own()] or list(error.stack[:1])
    frame = own[0] if own else innermost(one.own)
    same = tuple(each for each in causes if causes[each].error.text == error.text)
    headline = shortened(error.text)
    kind, cure = "error", ""
    if match := MODELS_TEXT.search(error.text):
        a, first, b, second = map(int, match.groups())
        (a, first), (b, second) = sorted([(a, first), (b, second)])
        headline = f"the ranks built different models: rank {a} has {first} parameters, rank {b} has {second}"
        headline += f"; DistributedDataParallel refuses them, {error_at(frame)}"
        return Verdict("models", (b,), headline, frame, CURES["models"])
    if worker := WORKER_TEXT.search(error.text):
        if worker[1] or any("/torch/utils/data/" in each.file for each in error.stack):
            return _dead_worker(job, rank, worker[1], worker[2])
    if OTHER_SIZES in error.text:
        headline = f"the ranks built different models: {headline}"
        return Verdict("models", (rank,), f"{headline}, {error_at(frame)}", frame, CURES["models"])
    if "EADDRINUSE" in error.text or "address already in use" in error.text.lower():
        port = re.search(r"port: (\d+)", error.text)
        headline = f"rank {rank} could not listen on port {port[1] if port else '?'}, which another process has, "
        return Verdict("port", (rank,), headline + error_at(frame), frame, CURES["port"])
    if "Expected to have finished reduction in the prior iteration" in error.text:
        blamed = _unused(causes) or {rank: ""}
        several = "; ".join(f"rank {each} left out {text}" for each, text in blamed.items() if text)
        headline = f"parameters got no gradient in the step before: {several or 'their numbers stand in the error'}"
        return Verdict(
            "unused", tuple(blamed), f"{headline}; DDP says so one step late, {error_at(frame)}", frame, CURES["unused"]
        )
    if "marked as ready twice" in error.text or "mark a variable ready only once" in error.text:
        kind = "ready twice"
    if len(same) == len(job.ranks) and len(same) > 1:
        return Verdict(kind, same, f"every rank raised {headline}, {error_at(frame)}", frame, cure)
    sentence = f"{words.ranks(same)} raised {headline}, {error_at(frame)}{words.condition(tuple(own))}"
    if one.exit_code == -signal.SIGABRT:
        sentence = f"rank {rank} aborted: {headline}; it {stands(one)}"
    return Verdict(kind, same, sentence + only_lost_contact(job, *same), frame, cure)


def _dead_worker(job: Job, rank: int, pid: str | None, signal_name: str | None) -> Verdict:
    """A worker that crashes leaves its stack where this rank would leave its own; one that is killed leaves none."""
    one = job.ranks[rank]
    own = [frame for frame in one.fatal if frame.is_own()]
    frames = own or [frame for frame in one.error.stack if frame.is_own()]
    how = "crashed" if own else "ended without a word, as one that is killed does"
    how = f"was killed by a signal ({signal_name})" if signal_name else how
    sentence = f"a DataLoader worker of rank {rank} {f'(process {pid}) ' if pid else ''}{how}"
    sentence += f"; it stood in {words.code_at(own[0])}" if own else ""
    sentence += f"; rank {rank} noticed it {error_at(innermost(frames))}" if frames and not own else ""
    cure = CURES["crash" if own else "worker"]
    return Verdict("worker", (rank,), sentence + only_lost_contact(job, rank), innermost(frames), cure)


def _unused(causes: dict[int, Rank]) -> dict[int, str]:
    found = {}
    for one in causes.values():
        for rank, indices in re.findall(r"did not receive grad for rank (\d+): ([\d ]+)", one.error.text):
            found[int(rank)] = f"parameters {' '.join(indices.split())}"
    return found


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
        f"{words.collective(collective)} {words.at(collective.own)}{words.condition(collective.own)}, and "
        f"{words.ranks(late)} {late[number]}"
    )
    return Verdict("timeout", tuple(late), sentence, innermost(collective.own), CURES["timeout"])


def _barrier_says(job: Job, texts) -> Verdict | None:
    """monitored_barrier names who did not come."""
    for rank, text in texts.items():
        if match := re.search(r"Ranks? ([\d, ]+) failed to pass monitoredBarrier", text):
            absent = tuple(int(one) for one in re.findall(r"\d+", match[1]))
            one, known = job.ranks[rank], [job.ranks[each] for each in absent if each in job.ranks]
            own = [each for each in one.error.stack if each.is_own()] or list(one.own)
            sentence = f"{words.ranks(absent)} never came to monitored_barrier, which rank {rank} called "
            sentence += f"{words.at(own)}{words.condition(own)}"
            sentence += f"; rank {absent[0]} {stands(known[0])}" if known else ""
            return Verdict("missing", absent, sentence, innermost(own), CURES["missing"])
    return None


def _came_to_init_alone(job: Job) -> Verdict | None:
    """Some lost contact, or patience, inside init_process_group, and others never were there."""
    there = tuple(
        rank
        for rank, one in job.ranks.items()
        if one.error and one.error.symptom and any(each.function == "init_process_group" for each in one.error.stack)
    )
    others = tuple(rank for rank in job.ranks if rank not in there)
    if not there or not others or any(one.met for one in job.ranks.values()):
        return None
    own = [each for each in job.ranks[there[0]].error.stack if each.is_own()]
    sentence = f"{words.ranks(others)} never came to init_process_group, which {words.ranks(there)} called "
    sentence += f"{words.at(own)}{words.condition(own)}; {words.ranks(others[:1])} {stands(job.ranks[others[0]])}"
    return Verdict("init", others, sentence, innermost(own), CURES["init"])


def _left(job: Job) -> Verdict | None:
    """A rank that was gone with exit code 0 while others still waited."""
    victims = [rank for rank, one in job.ranks.items() if one.error and one.error.symptom]
    gone = tuple(rank for rank, one in job.ranks.items() if one.exit_code == 0 and not one.error)
    if not victims or not gone:
        return None
    one = job.ranks[gone[0]]
    frames = one.left[1] if one.left else one.stack
    sentence = f"{words.ranks(gone)} {stands(one)}, while {words.ranks(victims)} still needed "
    sentence += words.verb(gone, "it", "them") + only_lost_contact(job, *gone)
    return Verdict("left", gone, sentence, innermost([each for each in frames if each.is_own()]), CURES["missing"])


def _left_with_code(job: Job, rank: int) -> Verdict:
    one = job.ranks[rank]
    own = [each for each in one.left[1] if each.is_own()]
    return Verdict("left", (rank,), f"rank {rank} {stands(one)}{only_lost_contact(job, rank)}", innermost(own))


def _aborted(job: Job, rank: int) -> Verdict:
    one = job.ranks[rank]
    if "terminate called without an active exception" in "\n".join(one.last_lines):
        sentence = f"the work was done, and rank {rank} aborted while Python ended: a thread of gloo was still alive"
        return Verdict("at exit", (rank,), sentence, None, CURES["at exit"])
    return Verdict("aborted", (rank,), f"rank {rank} aborted (SIGABRT); it {stands(one)}", innermost(one.own))
