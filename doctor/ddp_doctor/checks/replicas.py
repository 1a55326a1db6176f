"""Are the ranks' replicas one model: weights, buffers, and which parameters got a gradient, update by update?"""

from ddp_doctor.audited import AuditedRun
from ddp_doctor.checks.finding import Finding

NO_OPTIMIZER = "no optimizer of torch made an update on every rank"


def updates(run: AuditedRun):
    """[(optimizer's event, [{rank: its update k} for each k])] of the optimizers that are alike on all ranks.

    Within each Join the ranks' updates are counted anew: one that has run out of data makes none until the others end.
    """
    by_rank = {rank: {event["number"]: event for event in events} for rank, events in run.of("optimizer").items()}
    if not by_rank or run.world > 1 and not run.has_group:
        return []
    all_ = []
    for number in set.intersection(*(set(events) for events in by_rank.values())):
        events = [optimizers[number] for optimizers in by_rank.values()]
        if any(event["shapes"] != events[0]["shapes"] for event in events):
            continue
        parts: dict[int, dict[int, list[dict]]] = {}
        for rank, audit in run.audits.items():
            joins = [event["at"] for event in audit.of("join")]
            for update in audit.of("update"):
                whole = len(update["before"]) == len(update["after"]) == len(events[0]["shapes"])
                if update["optimizer"] == number and whole:
                    part = parts.setdefault(sum(at < update["at"] for at in joins), {})
                    part.setdefault(rank, []).append(update)
        parts = [part for _, part in sorted(parts.items()) if len(part) == run.world]
        rows = [dict(zip(part, row, strict=True)) for part in parts for row in zip(*part.values(), strict=False)]
        if rows and all(None not in update["before"] for row in rows for update in row.values()):
            all_.append((events[0], rows))
    return all_


def differ(row, name: str, i: int) -> bool:
    return len({update[name][i] for update in row.values()}) > 1


def apart(row, i: int) -> bool:
    """Do the ranks' copies of parameter i differ after this update by more than rounding?"""
    if not differ(row, "after", i):
        return False
    totals = [update["sums"][i] for update in row.values()]
    gap = max(total[0] for total in totals) - min(total[0] for total in totals)
    return not gap <= 1e-6 * max(total[1] for total in totals)  # NaN is apart, too


def made_equal(rows) -> bool:
    """Do replicas that differed after an update begin the next one equal, as in local SGD?"""
    each = range(len(next(iter(rows[0].values()))["before"]))
    pairs = zip(rows, rows[1:], strict=False)
    return any(
        any(apart(row, i) for i in each) and not any(differ(later, "before", i) for i in each) for row, later in pairs
    )


def replicas(run: AuditedRun) -> Finding:
    all_ = updates(run)
    if not all_:
        return Finding("replicas", "unknown", NO_OPTIMIZER)
    for optimizer, rows in all_:
        each = range(len(optimizer["shapes"]))
        parted = [any(apart(row, i) for i in each) for row in rows]
        begin = any(differ(rows[0], "before", i) for i in each)
        if not any(parted):
            continue
        first = parted.index(True)
        if not all(parted[first:]) or made_equal(rows):
            text = f"the replicas differ after update {first + 1}, and are made equal again later (local SGD?)"
            return Finding("replicas", "unknown", text)
        if begin and not run.data_parallel or run.splits_the_model:
            return Finding("replicas", "unknown", "the ranks hold different weights; whether they should is not known")
        if begin:
            text = "the ranks start from different weights, and never become equal"
            cure = "Broadcast rank 0's weights before the first update, or wrap the model in DDP."
            return Finding("replicas", "wrong", text, optimizer["frames"], "S13", cure)
        why, cure = _why_apart(rows, first)
        text = f"the weights differ between the ranks from update {first + 1} on; {why}"
        return Finding("replicas", "wrong", text, next(iter(rows[first].values()))["frames"], "S12", cure)
    number = sum(len(rows) for _, rows in all_)
    return Finding("replicas", "ok", f"equal after each of {number} updates")


def _why_apart(rows, first: int) -> tuple[str, str]:
    row, same = rows[first], "Make the same update, from the same gradient, on every rank."
    each = range(len(next(iter(row.values()))["before"]))
    rates = {tuple(update["rates"]) for update in row.values()}
    if len(rates) > 1:
        cure = "Set the rate by what all ranks know: reduce a loss before a scheduler or an `if` decides by it."
        return f"the learning rates differ: {sorted(rates)}", cure
    if first and any(differ(row, "before", i) for i in each):
        changed = [rank for rank in row if row[rank]["before"] != rows[first - 1][rank]["after"]]
        text = f"on rank {', '.join(map(str, changed))} they are changed between two updates, not by the optimizer"
        return text, "Change weights on all ranks alike, or broadcast them afterwards."
    if any(differ(row, "gradients", i) for i in each):
        return "each uses another gradient", same
    if first and any(differ(row, "state", i) for i in each):
        return "the optimizers' states differ", "Load the same state on every rank."
    return "the same gradient becomes another update", same


def state(run: AuditedRun) -> Finding:
    """Beyond the replicas: what is evaluated, and what rank 0 saves of the script's own variables."""
    if not run.data_parallel or replicas(run).status != "ok":
        return Finding("state", "unknown", "it is not known whether the ranks are to hold the same")
    cure = "Change it on every rank alike, or broadcast it from rank 0 before it is used."
    phases = [audit.evaluations() for audit in run.audits.values()]
    for calls in zip(*phases, strict=False):
        same = {(call["model"], call["frames"][:1]) for call in (calls[0] for calls in calls)}
        states = [calls[0]["state"] for calls in calls]
        if len(same) == 1 and None not in states and len(set(states)) > 1:
            text = f"the {calls[0][0]['model']} that is evaluated has other weights on each rank"
            if len(set(states)) < run.world:
                text = f"the {calls[0][0]['model']} that is evaluated has not the same weights on all ranks"
            return Finding("state", "wrong", text, calls[0][0]["frames"], "S12", cure)
    sums = {rank: {event["updates"]: event["sums"] for event in audit} for rank, audit in run.of("variables").items()}
    common = sorted(set.intersection(*map(set, sums.values())))
    for save in run.of("save").get(0, []):
        for name in save["names"]:
            values = [[by_update[number].get(name) for by_update in sums.values()] for number in common]
            values = [row for row in values if None not in row]
            changes = any(len(set(column)) > 1 for column in zip(*values, strict=True))
            if values and changes and len(set(values[-1])) > 1:
                text = f"{name.partition(': ')[2]}, which rank 0 saves, differs between the ranks: each has its own"
                return Finding("state", "wrong", text, save["frames"], "S12", cure)
    if any(phases):
        return Finding("state", "ok", "what is evaluated has the same weights on all ranks")
    return Finding("state", "unknown", "nothing was evaluated, and what else is to be equal is not known")


def unused(run: AuditedRun) -> Finding:
    all_ = updates(run)
    if not all_:
        return Finding("unused", "unknown", NO_OPTIMIZER)
    for optimizer, rows in all_:
        if any(update["closure"] for row in rows for update in row.values()):
            return Finding("unused", "unknown", "the optimizer calls a closure")
        trained = [i for i, trains in enumerate(optimizer["trains"]) if trains]
        never = [i for i in trained if not any(update["has"][i] for row in rows for update in row.values())]
        some = [i for i in trained if any(differ(row, "has", i) for row in rows)]
        frames = (run.first("ddp") or optimizer)["frames"]
        indices = some or never
        shapes = ", ".join(str(optimizer["shapes"][i]) for i in indices[:3])
        which = f"{len(indices)} of {len(trained)} parameters (of shape {shapes})" if indices else ""
        cure = "Use every parameter in every step, or take it out; find_unused_parameters=True lets DDP skip it."
        if some:
            return Finding("unused", "wrong", f"{which} got a gradient on some ranks only", frames, "S16", cure)
        if never:
            parted = run.first("ddp") and any(apart(row, i) for row in rows for i in trained)
            text = f"{which} never got a gradient"
            text += "; DDP then sent nothing, and the replicas differ" if parted else ""
            return Finding("unused", "wrong" if parted else "note", text, frames, "C1", cure)
    return Finding("unused", "ok", "each parameter of the optimizers got a gradient")


def buffers(run: AuditedRun) -> Finding:
    """As they are when a forward pass begins; DDP has sent rank 0's by then, unless it was told not to.

    Under no_sync() it sends them only before the first forward pass of an update.
    """
    calls = {rank: [call for call in events if call.get("buffers")] for rank, events in run.of("call").items()}
    rows = list(zip(*calls.values(), strict=False))[1:]
    if not rows:
        single = any(any(some) for some in calls.values())
        text = "a single forward pass" if single else "no model with buffers was called in training"
        return Finding("buffers", "unknown", text)
    names = sorted(set.intersection(*map(_unlike, rows)))
    if not names:
        return Finding("buffers", "ok", "equal when a forward pass begins")
    if not run.data_parallel:
        return Finding("buffers", "unknown", f"{names[0]} differs between the ranks; whether it should is not known")
    text = f"{', '.join(names[:3])} {'differ' if len(names) > 1 else 'differs'} between the ranks: "
    text += "what is saved or evaluated depends on the rank"
    cure = "Let DDP broadcast buffers (its default), use SyncBatchNorm, or a norm without buffers."
    return Finding("buffers", "wrong", text, (run.first("ddp") or rows[-1][0])["frames"], "S14", cure)


def _unlike(row) -> set[str]:
    """The buffers that are not equal in one call of all ranks."""
    return {name for name in row[0]["buffers"] if len({call["buffers"].get(name) for call in row}) > 1}
