"""Why a job stands still, where the ranks' collectives do not tell it: who is stopped, absent, or waits for whom."""

from ddp_doctor import source_lines, words
from ddp_doctor.job import Job, Rank
from ddp_doctor.verdict import CURES, Verdict, innermost, stands


def stopped(job: Job) -> Verdict | None:
    stopped = tuple(number for number, rank in job.ranks.items() if rank.state == "stopped")
    if not stopped:
        return None
    names, rank = words.ranks(stopped), job.ranks[stopped[0]]
    sentence = f"{names} {words.verb(stopped, 'is', 'are')} stopped (SIGSTOP, or Ctrl-Z), {stands(rank)}"
    waits = [each for each in job.ranks.values() if each.rank not in stopped and each.own and each.waits_for_peers()]
    sentence += f"; rank {waits[0].rank} waits in {words.code_at(waits[0].own[0])}" if waits else ""
    return Verdict("stopped", stopped, sentence, innermost(rank.own), f"kill -CONT {rank.pid}")


def never_met(job: Job) -> Verdict | None:
    waiting = {
        number: rank for number, rank in job.ranks.items() if rank.running and rank.call() == "init_process_group"
    }
    if not waiting or any(rank.has_started_a_collective for rank in job.ranks.values()):
        return None
    others = tuple(number for number in job.ranks if number not in waiting)
    first = next(iter(waiting.values()))
    started = f"{words.ranks(waiting)} called {words.where(first.own)}"
    if others:
        sentence = f"{words.ranks(others)} never called init_process_group, which {started}; "
        sentence += f"{words.ranks(others[:1])} {stands(job.ranks[others[0]])}"
        return Verdict("init", others, sentence, innermost(first.own), CURES["init"])
    asked = {
        name: [rank.variables.get(f"init_process_group.{name}") for rank in waiting.values()]
        for name in ("world_size", "rank")
    }
    sizes = {int(text) for text in asked["world_size"] if text and text.isdigit()} - {job.world_size}
    own = [int(text) for text in asked["rank"] if text and text.isdigit()]
    sentence = f"the ranks never met: {words.ranks(waiting)} {words.verb(waiting, 'waits', 'wait')} in "
    sentence += f"init_process_group {words.at(first.own)}"
    if sizes:
        sentence += f", which was given world_size={max(sizes)}, while {job.world_size} ranks were started"
    elif len(own) > 1 and len(set(own)) < len(own):
        sentence += f", which was given rank={own[0]} on {len(own)} of them"
    return Verdict("init", tuple(waiting), sentence, innermost(first.own), CURES["init"])


def waits_for_another(job: Job) -> Verdict | None:
    waiting = {number: rank for number, rank in job.ranks.items() if rank.waits_for_peers()}
    if not waiting:
        return None
    others = tuple(number for number, rank in job.ranks.items() if number not in waiting)
    transfers = any(rank.state == "transferring" for rank in waiting.values())
    if transfers or any(job.ranks[number].may_come() for number in others):
        return None
    first = next(iter(waiting.values()))
    if not others:
        return _all_wait(waiting)
    sentence = (
        f"{words.ranks(others)} never answered {_call(first)}, which {words.ranks(waiting)} called "
        f"{words.where(first.own)}; {words.ranks(others[:1])} {stands(job.ranks[others[0]])}"
    )
    return Verdict("missing", others, sentence, innermost(first.own), CURES["missing"])


def _all_wait(waiting: dict[int, Rank]) -> Verdict:
    """Every rank stands in a call that waits for the others: at one line, or at several."""
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
        return Verdict("all wait", tuple(waiting), f"every rank waits for another: {sentence}", innermost(first.own))
    groups = list(by_lines.values())
    hangs_on_rank = [source_lines.speaks_of_rank(source_lines.decisive(waiting[ranks[0]].own)) for ranks in groups]
    if sum(hangs_on_rank) == 1:
        here = groups[hangs_on_rank.index(True)]
        elsewhere = tuple(number for number in waiting if number not in here)
        rank, other = waiting[here[0]], waiting[elsewhere[0]]
        sentence = (
            f"{words.ranks(elsewhere)} {words.verb(elsewhere, 'is', 'are')} not in {_call(rank)}, in which "
            f"{words.ranks(here)} waits {words.where(rank.own)}; {words.ranks(elsewhere[:1])} waits in "
            f"{_call(other)} {words.at(other.own)}"
        )
        return Verdict("missing", elsewhere, sentence, innermost(rank.own), CURES["missing"])
    text = ", ".join(
        f"{words.ranks(ranks)} in {_call(waiting[ranks[0]])} {words.where(waiting[ranks[0]].own)}" for ranks in groups
    )
    return Verdict("all wait", tuple(waiting), f"every rank waits for another: {text}", innermost(first.own))


def roots_differ(ranks: dict[int, Rank]) -> Verdict | None:
    """Ranks in one line that named different ranks as the source, or the target, of their collective."""
    last = {number: rank.history.newest for number, rank in ranks.items() if rank.history.newest}
    roots = {number: collective.root for number, collective in last.items() if collective.root is not None}
    if len(set(roots.values())) < 2 or len({(each.name, each.lines) for each in last.values()}) > 1:
        return None
    collective = next(iter(last.values()))
    word = "src" if collective.name in ("broadcast", "scatter") else "dst"
    text = ", ".join(f"{word}={root} on rank {number}" for number, root in roots.items())
    sentence = f"the ranks gave {words.collective(collective)} {words.at(collective.own)} different roots: {text}"
    return Verdict("root", tuple(roots), sentence, innermost(collective.own), CURES["root"])


def _call(rank: Rank) -> str:
    """all-reduce, backward, new-group; of DDP's own steps, such as its _pre_forward, without the underscore."""
    return (rank.call() or "a collective").lstrip("_").replace("_", "-")


def nobody_works(job: Job) -> Verdict | None:
    idle = {number: rank for number, rank in job.ranks.items() if rank.running}
    if not idle or any(rank.works() or rank.waits_for_peers() for rank in idle.values()):
        return None
    text = "; ".join(f"{words.ranks([number])} {stands(rank)}" for number, rank in idle.items())
    first = next(iter(idle.values()))
    if job.ended == "now":
        return Verdict("running", (), f"no rank waits for another: {text}", innermost(first.own))
    return Verdict("idle", tuple(idle), f"no rank waits for another, and none works: {text}", innermost(first.own))
