"""Verdicts on a job that stands still, from the ranks' states and stacks rather than their collectives."""

from ddp_doctor import source_lines, words
from ddp_doctor.job import Job, Rank
from ddp_doctor.verdict import CURES, Verdict, never_came, stands


def stopped(job: Job) -> Verdict | None:
    """The verdict on ranks that a signal has stopped; None if there are none."""
    numbers = tuple(number for number, rank in job.ranks.items() if rank.state == "stopped")
    if not numbers:
        return None
    rank = job.ranks[numbers[0]]
    sentence = f"{words.ranks(numbers)} {words.verb(numbers, 'is', 'are')} stopped (SIGSTOP, or Ctrl-Z), {stands(rank)}"
    waiting = [each for each in job.ranks.values() if each.rank not in numbers and each.own and each.waits_for_peers()]
    sentence += f"; rank {waiting[0].rank} waits in {words.code_at(waiting[0].own[0])}" if waiting else ""
    return Verdict("stopped", numbers, sentence, rank.own, f"kill -CONT {rank.pid}")


def never_met(job: Job) -> Verdict | None:
    """The verdict on a job that waits in init_process_group; None if no rank does, or a collective was started."""
    waiting = {
        number: rank for number, rank in job.ranks.items() if rank.running and rank.call() == "init_process_group"
    }
    if not waiting or any(rank.has_started_a_collective for rank in job.ranks.values()):
        return None
    absent = tuple(number for number in job.ranks if number not in waiting)
    first = next(iter(waiting.values()))
    if absent:
        sentence = never_came(job, absent, "called init_process_group", waiting, first.own)
        return Verdict("init", absent, sentence, first.own, CURES["init"])
    wrong_sizes = set(_numbers_given("world_size", waiting)) - {job.world_size}
    numbers = _numbers_given("rank", waiting)
    sentence = f"the ranks never met: {words.ranks(waiting)} {words.verb(waiting, 'waits', 'wait')} in "
    sentence += f"init_process_group {words.at(first.own)}"
    if wrong_sizes:
        sentence += f", which was given world_size={max(wrong_sizes)}, while {job.world_size} ranks were started"
    elif len(numbers) > 1 and len(set(numbers)) < len(numbers):
        sentence += f", which was given rank={numbers[0]} on {len(numbers)} of them"
    return Verdict("init", tuple(waiting), sentence, first.own, CURES["init"])


def _numbers_given(argument: str, waiting: dict[int, Rank]) -> list[int]:
    """The values of an argument of init_process_group on the ranks in it; without -1, its default."""
    texts = [rank.variables.get(f"init_process_group.{argument}") for rank in waiting.values()]
    return [int(text) for text in texts if text and text.isdigit()]


def waits_for_another(job: Job) -> Verdict | None:
    """The verdict on ranks that wait for others in a call of torch.distributed.

    None if no rank waits, or one may still come: it works, waits for something outside of the job, or receives data.
    """
    waiting = {number: rank for number, rank in job.ranks.items() if rank.waits_for_peers()}
    if not waiting:
        return None
    absent = tuple(number for number in job.ranks if number not in waiting)
    transfers = any(rank.state == "transferring" for rank in waiting.values())
    if transfers or any(job.ranks[number].may_come() for number in absent):
        return None
    if not absent:
        return _all_wait(waiting)
    first = next(iter(waiting.values()))
    sentence = never_came(job, absent, f"answered {_call(first)}", waiting, first.own)
    return Verdict("missing", absent, sentence, first.own, CURES["missing"])


def _all_wait(waiting: dict[int, Rank]) -> Verdict:
    """The verdict if every rank waits for the others, at one line or at several.

    If they wait at several lines, and one of these depends on the rank, the ranks elsewhere are to blame.
    """
    by_lines: dict[tuple, list[int]] = {}
    for number, rank in waiting.items():
        by_lines.setdefault(tuple((frame.file, frame.line) for frame in rank.own), []).append(number)
    first = next(iter(waiting.values()))
    if len(by_lines) == 1 and (verdict := roots_differ(waiting)):
        return verdict
    if len(by_lines) == 1:
        sentence = f"every rank waits in {_call(first)} {words.at(first.own)}"
        if not first.recorded and "recv" not in _call(first):
            sentence += "; that they do not meet there means that one missed a collective before"
        return Verdict("all wait", tuple(waiting), f"every rank waits for another: {sentence}", first.own)
    groups = list(by_lines.values())
    conditions = [source_lines.deciding_condition(waiting[ranks[0]].own) for ranks in groups]
    depends_on_rank = [source_lines.depends_on_rank(condition) for condition in conditions]
    if sum(depends_on_rank) == 1:
        here = groups[depends_on_rank.index(True)]
        elsewhere = tuple(number for number in waiting if number not in here)
        rank, other = waiting[here[0]], waiting[elsewhere[0]]
        sentence = (
            f"{words.ranks(elsewhere)} {words.verb(elsewhere, 'is', 'are')} not in {_call(rank)}, in which "
            f"{words.ranks(here)} {words.verb(here, 'waits', 'wait')} {words.where(rank.own)}; "
            f"rank {other.rank} waits in {_call(other)} {words.at(other.own)}"
        )
        return Verdict("missing", elsewhere, sentence, rank.own, CURES["missing"])
    text = ", ".join(
        f"{words.ranks(ranks)} in {_call(waiting[ranks[0]])} {words.where(waiting[ranks[0]].own)}" for ranks in groups
    )
    return Verdict("all wait", tuple(waiting), f"every rank waits for another: {text}", first.own)


def roots_differ(ranks: dict[int, Rank]) -> Verdict | None:
    """The verdict if the ranks gave one collective different roots (`src` or `dst`); else None."""
    last = {number: rank.history.newest for number, rank in ranks.items() if rank.history.newest}
    roots = {number: collective.root for number, collective in last.items() if collective.root is not None}
    if len(set(roots.values())) < 2 or len({(each.name, each.lines) for each in last.values()}) > 1:
        return None
    collective = next(iter(last.values()))
    word = "src" if collective.name in ("broadcast", "scatter") else "dst"
    text = ", ".join(f"{word}={root} on rank {number}" for number, root in roots.items())
    sentence = f"the ranks gave {words.collective(collective)} {words.at(collective.own)} different roots: {text}"
    return Verdict("root", tuple(roots), sentence, collective.own, CURES["root"])


def _call(rank: Rank) -> str:
    """The call in which a rank waits, as a word: all-reduce, new-group, backward, pre-forward."""
    return (rank.call() or "a collective").lstrip("_").replace("_", "-")


def none_works(job: Job) -> Verdict | None:
    """The verdict if no running rank works or waits for others: "running" after `attach`, else "idle"; or None."""
    idle = {number: rank for number, rank in job.ranks.items() if rank.running}
    if not idle or any(rank.works() or rank.waits_for_peers() for rank in idle.values()):
        return None
    text = "; ".join(f"{words.ranks([number])} {stands(rank)}" for number, rank in idle.items())
    first = next(iter(idle.values()))
    if job.ended == "now":
        return Verdict("running", (), f"no rank waits for another: {text}", first.own)
    return Verdict("idle", tuple(idle), f"no rank waits for another, and none works: {text}", first.own)
