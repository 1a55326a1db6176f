"""Are the ranks' replicas one model: weights, buffers, and which parameters got a gradient, update by update?"""

from ddp_doctor.audited import AuditedRun
from ddp_doctor.checks.finding import Finding

NO_OPTIMIZER = "no optimizer of torch made an update on every rank"


def updates(run: AuditedRun):
    """[(optimizer's event, [{rank: its update k} for each k])] of the optimizers that are alike on all ranks."""
    by_rank = {rank: {one["number"]: one for one in found} for rank, found in run.of("optimizer").items()}
    if not by_rank or not run.has_group:
        return []
    found = []
    for number in set.intersection(*(set(one) for one in by_rank.values())):
        events = [one[number] for one in by_rank.values()]
        if any(one["shapes"] != events[0]["shapes"] for one in events):
            continue
        updates = {
            rank: [
                one
                for one in all_
                if one["optimizer"] == number and len(one["before"]) == len(one["after"]) == len(events[0]["shapes"])
            ]
            for rank, all_ in run.of("update").items()
        }
        rows = [dict(zip(updates, row, strict=True)) for row in zip(*updates.values(), strict=False)]
        if rows and all(None not in one["before"] for row in rows for one in row.values()):
            found.append((events[0], rows))
    return found


def differ(row, name: str, i: int) -> bool:
    return len({one[name][i] for one in row.values()}) > 1


def apart(row, i: int) -> bool:
    """Do the ranks' copies of parameter i differ after this update by more than rounding?"""
    if not differ(row, "after", i):
        return False
    totals = [one["sums"][i] for one in row.values()]
    gap = max(one[0] for one in totals) - min(one[0] for one in totals)
    return not gap <= 1e-6 * max(one[1] for one in totals)  # NaN is apart, too


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
            return Finding(
                "replicas",
                "unknown",
                f"the replicas differ after update {first + 1}, and are made equal again later (local SGD?)",
            )
        if begin and not run.data_parallel or seen.splits_the_model:
            return Finding("replicas", "unknown", "the ranks hold different weights; whether they should is not known")
        update = next(iter(rows[first].values()))
        if begin:
            return Finding(
                "replicas",
                "wrong",
                "the ranks start from different weights, and never become equal",
                optimizer["frames"],
                "S13",
                "Broadcast rank 0's weights before the first update, or wrap the model in DDP.",
            )
        rates = {tuple(one["rates"]) for one in rows[first].values()}
        why = f"the learning rates differ: {sorted(rates)}" if len(rates) > 1 else "something else changes them"
        return Finding(
            "replicas",
            "wrong",
            f"the weights differ between the ranks from update {first + 1} on; {why}",
            update["frames"],
            "S12",
            "Make the same update, from the same gradient, on every rank.",
        )
    number = sum(len(rows) for _, rows in all_)
    return Finding("replicas", "ok", f"equal after each of {number} updates")


def unused(run: AuditedRun) -> Finding:
    all_ = updates(run)
    if not all_:
        return Finding("unused", "unknown", NO_OPTIMIZER)
    for optimizer, rows in all_:
        if any(one["closure"] for row in rows for one in row.values()):
            return Finding("unused", "unknown", "the optimizer calls a closure")
        trained = [i for i, trains in enumerate(optimizer["trains"]) if trains]
        never = [i for i in trained if not any(one["has"][i] for row in rows for one in row.values())]
        some = [i for i in trained if any(differ(row, "has", i) for row in rows)]
        place = (run.first("ddp") or optimizer)["frames"]
        found = some or never
        shapes = ", ".join(str(optimizer["shapes"][i]) for i in found[:3])
        which = f"{len(found)} of {len(trained)} parameters (of shape {shapes})" if found else ""
        cure = "Use every parameter in every step, or take it out; find_unused_parameters=True lets DDP skip it."
        if some:
            return Finding("unused", "wrong", f"{which} got a gradient on some ranks only", place, "S16", cure)
        if never:
            parted = run.first("ddp") and any(apart(row, i) for row in rows for i in trained)
            text = f"{which} never got a gradient"
            text += "; DDP then sent nothing, and the replicas differ" if parted else ""
            return Finding("unused", "wrong" if parted else "note", text, place, "C1", cure)
    return Finding("unused", "ok", "each parameter of the optimizers got a gradient")


def buffers(run: AuditedRun) -> Finding:
    """As they are when a forward pass begins; DDP has sent rank 0's by then, unless it was told not to.

    Under no_sync() it sends them only before the first forward pass of an update.
    """
    calls = {rank: [one for one in found if one.get("buffers")] for rank, found in run.of("call").items()}
    rows = list(zip(*calls.values(), strict=False))[1:]
    if not rows:
        return Finding(
            "buffers",
            "ok" if run.first("call") else "unknown",
            "no buffers, or a single forward pass" if run.first("call") else "no model was called",
        )
    names = sorted(set.intersection(*map(_unlike, rows)))
    if not names:
        return Finding("buffers", "ok", "equal when a forward pass begins")
    if not run.data_parallel:
        return Finding("buffers", "unknown", f"{names[0]} differs between the ranks; whether it should is not known")
    frames = (run.first("ddp") or rows[-1][0])["frames"]
    return Finding(
        "buffers",
        "wrong",
        f"{', '.join(names[:3])} {'differ' if len(names) > 1 else 'differs'} between the "
        "ranks: what is saved or evaluated depends on the rank",
        frames,
        "S14",
        "Let DDP broadcast buffers (its default), use SyncBatchNorm, or a norm without buffers.",
    )


def _unlike(row) -> set[str]:
    """The buffers that are not equal in one call of all ranks."""
    return {name for name in row[0]["buffers"] if len({one["buffers"].get(name) for one in row}) > 1}
