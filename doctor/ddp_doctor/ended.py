"""The verdict on a job that has ended: the first cause in time; a rank that only lost its peer is no cause."""

import re
import signal
from dataclasses import replace

from ddp_doctor import words
from ddp_doctor.explain.log_lines import shortened
from ddp_doctor.explain.messages import BY_NAME, recognise
from ddp_doctor.history import Collective, History, user_frames, with_call
from ddp_doctor.job import Job, Rank
from ddp_doctor.launch.first_failure import STOPPED
from ddp_doctor.mismatch import collective_mismatch
from ddp_doctor.stalled import roots_differ
from ddp_doctor.verdict import CURES, Verdict, error_at, never_came, only_lost_contact, stands

EXPECTED_SIGNALS = (signal.SIGABRT, signal.SIGTERM)  # of ranks that gloo or a C++ error aborts, or torchrun ends
TIMEOUT_TEXT = re.compile(r"Timed out waiting (\d+)\s?ms|Timeout\(ms\)=(\d+)|timeout after (\d+)\s?ms")
WORKER_TEXT = re.compile(r"DataLoader worker.*?(\d+)\W+(?:is killed by signal: ([\w ]+)|exited)")
MODELS_TEXT = re.compile(
    r"same model across all ranks, but Rank (\d+) has (\d+) params.*?rank (\d+) has .*? (\d+) params", re.I | re.S
)


def after_the_end(job: Job) -> Verdict:
    """The verdict on a job whose `ended` is "well" or "failed"."""
    if job.ended == "well":
        well = Verdict("well", (), f"the job ended well: {len(job.ranks)} ranks, exit code 0")
        return collective_mismatch(job) or well
    if all(rank.exit_code == STOPPED for rank in job.ranks.values()):
        return Verdict("stopped", (), f"the job was asked to stop: all ranks left before its end, exit code {STOPPED}")
    if late := _timed_out(job):
        return late
    messages = {number: _message_name(rank) for number, rank in job.ranks.items()}
    if aborted := [number for number, name in messages.items() if name == "sizes differ"]:
        return _size_mismatch(job, aborted[0])
    causes = {number: rank for number, rank in job.ranks.items() if rank.error and not rank.error.symptom}
    died = {number: -(rank.exit_code or 0) for number, rank in job.ranks.items()}  # positive: by a signal
    killed = [number for number, code in died.items() if code > 0 and code not in EXPECTED_SIGNALS]
    if killed and not any(_failed_earlier(rank, job.ranks[killed[0]]) for rank in causes.values()):
        return _by_signal(job, killed[0])
    if causes:
        if "different models" in messages.values() and len({rank.call() for rank in job.ranks.values()}) > 1:
            # If a rank has skipped a collective, that meets one of DDP's constructor, which then fails with this error.
            if verdict := collective_mismatch(job):
                return verdict
        return by_error(job, causes)
    for verdict_on in (_monitored_barrier, collective_mismatch, _never_came_to_init, _left):
        if verdict := verdict_on(job):
            return verdict
    for number, rank in job.ranks.items():
        if (rank.exit_code or 0) > 0 and rank.exit_call and rank.error is None:
            sentence = f"rank {number} {stands(rank)}{only_lost_contact(job, number)}"
            return Verdict("left", (number,), sentence, user_frames(rank.exit_call[1]))
        if rank.exit_code == -signal.SIGABRT:
            return _aborted(job, number)
    if job.failed_rank is not None:
        rank = job.ranks[job.failed_rank]
        frames = (rank.error and rank.error.stack) or rank.own
        return Verdict("failed", (job.failed_rank,), job.failure_text.partition("\n")[0], frames)
    lines = job.launcher_text.strip().splitlines() or ["it printed nothing"]
    return Verdict("launcher", (), f"torchrun failed before any rank was to blame: {lines[-1].strip()}")


def _message_name(rank: Rank) -> str:
    """The name of the known message that the rank's error has; "" if it has none."""
    message = recognise(rank.error.text, [frame.file for frame in rank.error.stack]) if rank.error else None
    return message.name if message else ""


def _size_mismatch(job: Job, number: int) -> Verdict:
    """The verdict where gloo has aborted rank `number`, which received more bytes than its tensor has.

    Causes: tensors of other sizes or types, other roots, or two different collectives. gloo ends the process at once,
    so the collective of a backward pass may be missing in the records; then it is added from the stack.
    """
    for each in job.ranks.values():
        each.history = _with_backward(each)
    if verdict := collective_mismatch(job):
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
    return Verdict("unlike", (number,), sentence, rank.own, CURES["unlike"])


def _with_backward(rank: Rank) -> History:
    """The rank's history, with an all-reduce added if its stack is in a backward pass that the history lacks."""
    stack = rank.error.stack if rank.error and rank.error.stack else rank.stack
    collective = Collective(0, "0", "all_reduce", (), (), stack, time=2**63)
    last = rank.history.newest
    if rank.call() != "backward" or (last and last.lines == collective.lines):
        return rank.history
    return with_call(rank.history, collective)


def _changed_on_one_rank(job: Job) -> Verdict | None:
    """The verdict if exactly one rank's last collective has sizes or types that it never had on that line before."""
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
    return Verdict("unlike", (number,), sentence, last.own, CURES["unlike"])


def _failed_earlier(rank: Rank, other: Rank) -> bool:
    times = [each.error and each.error.when for each in (rank, other)]
    return all(times) and times[0] < times[1]


def _by_signal(job: Job, number: int) -> Verdict:
    rank = job.ranks[number]
    name = signal.Signals(-rank.exit_code).name
    lost = only_lost_contact(job, number)
    # A stack that was recorded before the rank's first collective, or before its group, is out of date.
    collective, group = rank.history.newest, rank.group_size or rank.has_started_a_collective
    if rank.recorded and not rank.progress and not rank.crash_stack and (collective or lost and not group):
        rank = replace(rank, stack=())
    sentence = f"rank {number} was killed by {name} (exit code {rank.exit_code}); it {stands(rank)}{lost}"
    cure = CURES["memory"] if -rank.exit_code == signal.SIGKILL else ""
    return Verdict("killed", (number,), sentence, rank.own, cure)


def by_error(job: Job, causes: dict[int, Rank]) -> Verdict:
    """The verdict on the earliest error of `causes`, the ranks with an error that is no symptom."""
    number = min(causes, key=lambda each: (causes[each].error.when or float("inf"), each != job.failed_rank, each))
    rank = causes[number]
    error, name, headline = rank.error, _message_name(rank), shortened(rank.error.text, 200)
    if name == "loader worker killed":
        return _dead_worker(job, number)
    raised_in = user_frames(error.stack) or error.stack[:1]
    frames = raised_in or rank.own
    cure = BY_NAME[name].first_step if name else ""
    if known := _known_error(number, causes, name):
        kind, blamed, sentence = known
        return Verdict(kind, blamed, f"{sentence}, {error_at(frames)}", frames, cure)
    ranks_with_it = tuple(each for each in causes if causes[each].error.text == error.text)
    kind = "ready twice" if name == "ready twice" else "error"
    if len(ranks_with_it) == len(job.ranks) and len(ranks_with_it) > 1:
        return Verdict(kind, ranks_with_it, f"every rank raised {headline}, {error_at(frames)}", frames, cure)
    sentence = f"{words.ranks(ranks_with_it)} raised {headline}, {error_at(frames)}{words.condition(raised_in)}"
    if rank.exit_code == -signal.SIGABRT:
        sentence = f"rank {number} aborted: {headline}; it {stands(rank)}"
    return Verdict(kind, ranks_with_it, sentence + only_lost_contact(job, *ranks_with_it), frames, cure)


def _known_error(number: int, causes: dict[int, Rank], name: str) -> tuple[str, tuple[int, ...], str] | None:
    """(kind, ranks to blame, sentence) of a Verdict on the error of rank `number`; None for most errors.

    name: of the known message that the error has. Here are those whose text says more than its first line.
    """
    text, blamed = causes[number].error.text, (number,)
    if match := MODELS_TEXT.search(text):
        (low, low_size), (high, high_size) = sorted([(int(match[1]), match[2]), (int(match[3]), match[4])])
        sizes = f"rank {low} has {low_size} parameters, rank {high} has {high_size}"
        sentence = f"the ranks built different models: {sizes}; DistributedDataParallel refuses them"
        return "models", (high,), sentence
    if name == "different models":
        return "models", blamed, f"the ranks built different models: {shortened(text, 200)}"
    if name == "port in use":
        port = re.search(r"port: (\d+)|$", text)[1] or "?"
        return "port", blamed, f"rank {number} could not listen on port {port}, which another process has"
    if name == "unused parameters":
        texts = "\n".join(rank.error.text for rank in causes.values())
        left_out = dict(re.findall(r"did not receive grad for rank (\d+): ([\d ]+)", texts))
        named = [f"rank {each} left out parameters {' '.join(indices.split())}" for each, indices in left_out.items()]
        indices = "; ".join(named) or "their numbers stand in the error"
        sentence = f"parameters got no gradient in the step before: {indices}; DDP says so one step late"
        return "unused", tuple(map(int, left_out)) or blamed, sentence
    return None


def _dead_worker(job: Job, number: int) -> Verdict:
    """The verdict on a DataLoader worker that is gone: crashed, which leaves a stack in `crash_stack`, or killed.

    The rank's error names neither process nor signal if it is one in the connection to the worker.
    """
    rank = job.ranks[number]
    crashed_in = user_frames(rank.crash_stack)
    frames = crashed_in or user_frames(rank.error.stack)
    worker = WORKER_TEXT.search(rank.error.text)
    pid, signal_name = worker.groups() if worker else (None, None)
    how = "crashed" if crashed_in else "ended without a message, as a killed one does"
    how = f"was killed by a signal ({signal_name})" if signal_name else how
    sentence = f"a DataLoader worker of rank {number} {f'(process {pid}) ' if pid else ''}{how}"
    if crashed_in:
        sentence += f"; it stood in {words.code_at(crashed_in[0])}"
    elif frames:
        sentence += f"; rank {number} noticed it {error_at(frames)}"
    cure = CURES["crash" if crashed_in else "worker"]
    return Verdict("worker", (number,), sentence + only_lost_contact(job, number), frames, cure)


def _timed_out(job: Job) -> Verdict | None:
    """The verdict on ranks that started a collective after another rank's timeout in it, or were still at work then.

    None if the first error is no timeout, or no such rank is known.
    """
    errors = {number: rank.error for number, rank in job.ranks.items() if rank.error and rank.error.when}
    if not errors:
        return None
    first = min(errors, key=lambda number: errors[number].when)
    limit = TIMEOUT_TEXT.search(errors[first].text)
    collective = job.ranks[first].history.newest
    if limit is None or collective is None:
        return None
    seconds = int(next(filter(None, limit.groups()))) / 1000
    # The error may have been noted long after the timeout: the limit counts from the collective's start, too.
    gave_up = min(errors[first].when - 0.5, collective.time / 1e9 + seconds)
    late = {}
    for number, rank in job.ranks.items():
        newest = rank.history.newest
        joined = newest and (newest.number, newest.lines) == (collective.number, collective.lines)
        if joined and newest.time / 1e9 > gave_up:
            late[number] = f"came to it {(newest.time - collective.time) / 1e9:.0f} s later"
        elif rank.busy and not joined and number != first:
            late[number] = f"was still at work{f' in {words.code_at(rank.own[0])}' if rank.own else ''}"
    if not late:
        return None
    number = min(late)
    sentence = (
        f"the timeout of {seconds:g} s ran out: rank {first} waited in "
        f"{words.collective(collective)} {words.where(collective.own)}, and "
        f"{words.ranks(late)} {late[number]}"
    )
    return Verdict("timeout", tuple(late), sentence, collective.own, CURES["timeout"])


def _monitored_barrier(job: Job) -> Verdict | None:
    """The verdict on the ranks that the error of monitored_barrier names; None without such an error."""
    for number, rank in job.ranks.items():
        text = rank.error.text if rank.error else ""
        if match := re.search(r"Ranks? ([\d, ]+) failed to pass monitoredBarrier", text):
            absent = tuple(int(digits) for digits in re.findall(r"\d+", match[1]))
            known = [job.ranks[each] for each in absent if each in job.ranks]
            frames = user_frames(rank.error.stack) or rank.own
            sentence = f"{words.ranks(absent)} never came to monitored_barrier, which rank {number} called "
            sentence += words.where(frames)
            sentence += f"; rank {absent[0]} {stands(known[0])}" if known else ""
            return Verdict("missing", absent, sentence, frames, CURES["missing"])
    return None


def _never_came_to_init(job: Job) -> Verdict | None:
    """The verdict on ranks that did not call init_process_group, in which others failed; None if there are none."""
    callers = tuple(
        number
        for number, rank in job.ranks.items()
        if rank.error and rank.error.symptom and any(each.function == "init_process_group" for each in rank.error.stack)
    )
    absent = tuple(number for number in job.ranks if number not in callers)
    if not callers or not absent or any(rank.has_started_a_collective for rank in job.ranks.values()):
        return None
    frames = user_frames(job.ranks[callers[0]].error.stack)
    sentence = never_came(job, absent, "came to init_process_group", callers, frames)
    return Verdict("init", absent, sentence, frames, CURES["init"])


def _left(job: Job) -> Verdict | None:
    """The verdict on ranks that ended with exit code 0 while others needed them; None if there are none."""
    victims = [number for number, rank in job.ranks.items() if rank.error and rank.error.symptom]
    gone = tuple(number for number, rank in job.ranks.items() if rank.exit_code == 0 and not rank.error)
    if not victims or not gone:
        return None
    rank = job.ranks[gone[0]]
    frames = rank.exit_call[1] if rank.exit_call else rank.stack
    sentence = f"{words.ranks(gone)} {stands(rank)}, while {words.ranks(victims)} still needed "
    sentence += words.verb(gone, "it", "them") + only_lost_contact(job, *gone)
    return Verdict("left", gone, sentence, user_frames(frames), CURES["missing"])


def _aborted(job: Job, number: int) -> Verdict:
    rank = job.ranks[number]
    if "terminate called without an active exception" in "\n".join(rank.last_lines):
        sentence = f"the work was done, and rank {number} aborted while Python ended: a thread of gloo was still alive"
        return Verdict("at exit", (number,), sentence, cure=BY_NAME["abort at exit"].first_step)
    return Verdict("aborted", (number,), f"rank {number} aborted (SIGABRT); it {stands(rank)}", rank.own)
