"""Are the ranks' replicas one model: weights, buffers, and which parameters got a gradient, step by step?"""

from ddp_doctor.audited import AuditedRun
from ddp_doctor.checks.finding import Finding, ok, require, result_of, unknown, wrong

NO_OPTIMIZER = "no optimizer of torch made a step on every rank"


def steps_by_optimizer(run: AuditedRun):
    """[(the optimizer's event, rows)] of the optimizers that have the same parameters on all ranks.

    rows[k] holds every rank's event of its step k. Within each Join the steps are counted from 0: a rank that has run
    out of data makes none until the others end.
    """
    by_rank = {rank: {event["number"]: event for event in events} for rank, events in run.of("optimizer").items()}
    if not by_rank or run.world > 1 and not run.has_group:
        return []
    optimizers = []
    for number in set.intersection(*(set(events) for events in by_rank.values())):
        events = [rank_events[number] for rank_events in by_rank.values()]
        if any(event["shapes"] != events[0]["shapes"] for event in events):
            continue
        parts: dict[int, dict[int, list[dict]]] = {}  # number of joins so far -> rank -> steps
        for rank, audit in run.audits.items():
            joins = [event["at"] for event in audit.of("join")]
            for step in audit.of("step"):
                same_parameters = len(step["weights_before"]) == len(step["weights_after"]) == len(events[0]["shapes"])
                if step["optimizer"] == number and same_parameters:
                    part = parts.setdefault(sum(at < step["at"] for at in joins), {})
                    part.setdefault(rank, []).append(step)
        parts = [part for _, part in sorted(parts.items()) if len(part) == run.world]
        rows = [row for part in parts for row in zip(*part.values(), strict=False)]
        if rows and all(None not in step["weights_before"] for row in rows for step in row):
            optimizers.append((events[0], rows))
    return optimizers


def differ(row, name: str, i: int) -> bool:
    """Whether `name` of parameter i is not the same in one step of all ranks."""
    return len({step[name][i] for step in row}) > 1


def weights_differ(row, i: int) -> bool:
    """Whether the ranks' copies of parameter i differ after this step by more than rounding."""
    if not differ(row, "weights_after", i):
        return False
    totals = [step["sums"][i] for step in row]
    gap = max(total[0] for total in totals) - min(total[0] for total in totals)
    return not gap <= 1e-6 * max(total[1] for total in totals)  # so that NaN differs, too


def made_equal(rows) -> bool:
    """Whether replicas that differed after a step begin the next one equal, as in local SGD."""
    indices = range(len(rows[0][0]["weights_before"]))
    return any(
        any(weights_differ(row, i) for i in indices) and not any(differ(later, "weights_before", i) for i in indices)
        for row, later in zip(rows, rows[1:], strict=False)
    )


def replicas(run: AuditedRun) -> Finding:
    optimizers = steps_by_optimizer(run)
    require(optimizers, NO_OPTIMIZER)
    for optimizer, rows in optimizers:
        indices = range(len(optimizer["shapes"]))
        differs = [any(weights_differ(row, i) for i in indices) for row in rows]
        differs_at_start = any(differ(rows[0], "weights_before", i) for i in indices)
        if not any(differs):
            continue
        first = differs.index(True)
        if not all(differs[first:]) or made_equal(rows):
            text = f"the replicas differ after step {first + 1}, and are made equal again later (local SGD?)"
            return unknown(text)
        if differs_at_start and not run.data_parallel or run.splits_the_model:
            return unknown("the ranks hold different weights; whether they should is not known")
        if differs_at_start:
            text = "the ranks start from different weights, and never become equal"
            cure = "Broadcast rank 0's weights before the first step, or wrap the model in DDP."
            return wrong(text, optimizer["frames"], "S13", cure)
        why, cure = _why_different(rows, first, list(run.audits))
        text = f"the weights differ between the ranks from step {first + 1} on; {why}"
        return wrong(text, rows[first][0]["frames"], "S12", cure)
    number = sum(len(rows) for _, rows in optimizers)
    return ok(f"equal after each of {number} steps")


def _why_different(rows, first: int, ranks: list[int]) -> tuple[str, str]:
    """The reason why the weights differ from step `first` on, and what to do."""
    row, cure = rows[first], "Make the same step, from the same gradient, on every rank."
    indices = range(len(row[0]["weights_before"]))
    rates = {tuple(step["rates"]) for step in row}
    if len(rates) > 1:
        cure = "Set the rate by what all ranks know: reduce a loss before a scheduler or an `if` decides by it."
        return f"the learning rates differ: {sorted(rates)}", cure
    if first and any(differ(row, "weights_before", i) for i in indices):
        pairs = zip(ranks, rows[first - 1], row, strict=True)
        changed = [rank for rank, earlier, step in pairs if step["weights_before"] != earlier["weights_after"]]
        text = f"on rank {', '.join(map(str, changed))} they are changed between two steps, not by the optimizer"
        return text, "Change weights on all ranks alike, or broadcast them afterwards."
    if any(differ(row, "gradients", i) for i in indices):
        return "the ranks step with different gradients", cure
    if first and any(differ(row, "state", i) for i in indices):
        return "the optimizers' states differ", "Load the same state on every rank."
    return "the optimizers make different steps from the same gradient", cure


def state(run: AuditedRun) -> Finding:
    """Whether other weights than the replicas' are equal: of evaluated models, and of variables that rank 0 saves."""
    equal_replicas = run.data_parallel and result_of(replicas, run).status == "ok"
    require(equal_replicas, "it is not known whether the ranks are to hold the same")
    cure = "Change it on every rank alike, or broadcast it from rank 0 before it is used."
    phases_by_rank = [audit.evaluations() for audit in run.audits.values()]
    for phases in zip(*phases_by_rank, strict=False):
        first_calls = [calls[0] for calls in phases]
        weights = [call["weights"] for call in first_calls]
        model, frames = first_calls[0]["model"], first_calls[0]["frames"]
        same_call = all((call["model"], call["frames"][:1]) == (model, frames[:1]) for call in first_calls)
        if same_call and None not in weights and len(set(weights)) > 1:
            text = f"the {model} that is evaluated has other weights on each rank"
            if len(set(weights)) < run.world:
                text = f"the {model} that is evaluated does not have the same weights on all ranks"
            return wrong(text, frames, "S12", cure)
    sums = {rank: {event["steps"]: event["sums"] for event in events} for rank, events in run.of("variables").items()}
    common_steps = sorted(set.intersection(*map(set, sums.values())))
    for save in run.of("save").get(0, []):
        for name in save["names"]:
            rows = [[by_step[step].get(name) for by_step in sums.values()] for step in common_steps]
            rows = [row for row in rows if None not in row]
            changes = any(len(set(column)) > 1 for column in zip(*rows, strict=True))
            if rows and changes and len(set(rows[-1])) > 1:
                text = f"{name.partition(': ')[2]}, which rank 0 saves, differs between the ranks: each has its own"
                return wrong(text, save["frames"], "S12", cure)
    if any(phases_by_rank):
        return ok("what is evaluated has the same weights on all ranks")
    return unknown("nothing was evaluated, and what else is to be equal is not known")


def unused(run: AuditedRun) -> Finding:
    optimizers = steps_by_optimizer(run)
    require(optimizers, NO_OPTIMIZER)
    for optimizer, rows in optimizers:
        require(not any(step["has_closure"] for row in rows for step in row), "the optimizer calls a closure")
        trained = [i for i, trains in enumerate(optimizer["trains"]) if trains]
        never_used = [i for i in trained if not any(step["has_gradient"][i] for row in rows for step in row)]
        used_on_some = [i for i in trained if any(differ(row, "has_gradient", i) for row in rows)]
        frames = (run.first("ddp") or optimizer)["frames"]
        indices = used_on_some or never_used
        shapes = ", ".join(str(optimizer["shapes"][i]) for i in indices[:3])
        which = f"{len(indices)} of {len(trained)} parameters (of shape {shapes})"
        cure = "Use every parameter in every step, or take it out; find_unused_parameters=True lets DDP skip it."
        if used_on_some:
            return wrong(f"{which} got a gradient on some ranks only", frames, "S16", cure)
        if never_used:
            apart = run.first("ddp") and any(weights_differ(row, i) for row in rows for i in trained)
            text = f"{which} never got a gradient"
            text += "; DDP then sent nothing, and the replicas differ" if apart else ""
            return Finding("wrong" if apart else "note", text, frames, "C1", cure)
    return ok("each parameter of the optimizers got a gradient")


def buffers(run: AuditedRun) -> Finding:
    """Whether buffers are equal when a forward pass begins, after DDP has sent rank 0's (its default).

    Under no_sync() it sends them only before the first forward pass of a step.
    """
    calls = {rank: [call for call in events if call.get("buffers")] for rank, events in run.of("call").items()}
    rows = list(zip(*calls.values(), strict=False))[1:]
    if not rows:
        text = "one forward pass only" if any(calls.values()) else "no model with buffers was called in training"
        return unknown(text)
    names = sorted(set.intersection(*map(_different_buffers, rows)))
    if not names:
        return ok("equal when a forward pass begins")
    require(run.data_parallel, f"{names[0]} differs between the ranks; whether it should is not known")
    text = f"{', '.join(names[:3])} {'differ' if len(names) > 1 else 'differs'} between the ranks: "
    text += "what is saved or evaluated depends on the rank"
    cure = "Let DDP broadcast buffers (its default), use SyncBatchNorm, or a norm without buffers."
    return wrong(text, (run.first("ddp") or rows[-1][0])["frames"], "S14", cure)


def _different_buffers(row) -> set[str]:
    """The names of the buffers that are not equal in one call of all ranks."""
    return {name for name in row[0]["buffers"] if len({call["buffers"].get(name) for call in row}) > 1}
