"""Checks how each rank's gradient reached the optimizer: averaged, summed, cleared, or never sent."""

import math
import statistics

from ddp_doctor.audited import AuditedRun
from ddp_doctor.checks.finding import Finding
from ddp_doctor.checks.replicas import NO_OPTIMIZER, apart, differ, made_equal, updates

CLOSE = 0.02  # relative; a gradient that was sent in bfloat16 is still the mean


def _vectors(row, name: str, i: int):
    values = [update[name][i] for update in row.values()]
    return None if any(value is None for value in values) else values


def _norm(values) -> float:
    return math.sqrt(sum(value * value for value in values))


def _near(a, b) -> bool:
    return _norm(x - y for x, y in zip(a, b, strict=True)) <= 1e-5 * max(_norm(a), _norm(b))


def _sent(row, i: int):
    """How the optimizer got parameter i's gradient: "local", a factor of the ranks' mean, or None if unknown."""
    world, local, used = len(row), _vectors(row, "local", i), _vectors(row, "used", i)
    if local is None or used is None or not all(map(_norm, local)):
        return None
    mean = [sum(values) / world for values in zip(*local, strict=True)]
    same = world > 1 and all(_near(values, local[0]) for values in local)
    if world > 1 and not same and all(_near(a, b) for a, b in zip(local, used, strict=True)):
        return "local"
    size = _norm(mean)
    if size < 1e-3 * _norm(local[0]) or not all(_near(values, used[0]) for values in used):
        return None
    factor = sum(a * b for a, b in zip(used[0], mean, strict=True)) / size**2
    if _norm(a - factor * b for a, b in zip(used[0], mean, strict=True)) > CLOSE * _norm(used[0]):
        return None
    return None if same and abs(factor - world) > CLOSE else factor


def _fates(optimizer, rows):
    each = range(len(optimizer["shapes"]))
    return {i: [fate for row in rows if (fate := _sent(row, i)) is not None] for i in each}


def _wrong(text: str, frames, entry: str, cure: str) -> Finding:
    return Finding("averaged", "wrong", text, frames, entry, cure)


def averaged(run: AuditedRun) -> Finding:
    all_ = updates(run)
    if not all_:
        return Finding("averaged", "unknown", NO_OPTIMIZER)
    if early := _not_waited_for(run):
        return early
    if {event["name"] for event in run.gradient_collectives} == {"reduce"} and not run.first("ddp"):
        cure = "Use dist.all_reduce: dist.reduce gives the result to its root only."
        if any(apart(rows[-1], i) for optimizer, rows in all_ for i in range(len(optimizer["shapes"]))):
            frames = run.gradient_collectives[0]["frames"]
            return _wrong("the gradients are reduced to one rank only", frames, "S12", cure)
    factors, unclear, backward = [], 0, run.first("backward")
    for optimizer, rows in all_:
        fates = _fates(optimizer, rows)
        local = [i for i, fate in fates.items() if fate and fate.count("local") == len(fate)]
        if clip := _clips_its_own(run, rows):
            text = "each rank clips its own gradient, before the ranks' mean is taken"
            cure = "Clip once per update, after the gradients have been averaged: every rank then has the same norm."
            return _wrong(text, clip["frames"], "S9", cure)
        lasting = [i for i in local if apart(rows[-1], i)]
        independent = any(differ(rows[0], "before", i) for i in fates) and not run.data_parallel
        if lasting and not independent and not run.splits_the_model and not made_equal(rows):
            whole = len(lasting) == len([fate for fate in fates.values() if fate])
            which = "no gradient is" if whole else f"{len(lasting)} of {len(fates)} parameters' gradients are not"
            return _not_sent(run, next(iter(rows[0].values())), which, lasting, backward)
        factors += [fate for all_fates in fates.values() for fate in all_fates if fate != "local"]
        trained = [i for i in fates if any(update["has"][i] for row in rows for update in row.values())]
        unclear += len([i for i in trained if all(fate == "local" for fate in fates[i])])
    if not factors:
        return Finding("averaged", "unknown", "the ranks' own gradients were equal, or could not be compared")
    factor = statistics.median(factors)
    if abs(factor - 1) <= CLOSE:
        if unclear:
            return Finding("averaged", "unknown", f"averaged, but of {unclear} parameters it cannot be told")
        return Finding("averaged", "ok", "what an update used is the mean of the ranks' last gradients")
    share = _share(run, all_, backward)
    if abs(factor * run.world - 1) <= CLOSE and share is not None and abs(share - 1) <= CLOSE:
        return _too_far_off(run, backward, "divided twice by the number of ranks", "small", "Divide once.")
    if abs(factor - run.world) > CLOSE * run.world:
        return Finding("averaged", "unknown", f"an update used {factor:.3g} times the mean of the ranks' gradients")
    if share is not None and abs(share * run.world - 1) <= CLOSE:
        return Finding("averaged", "ok", "summed over the ranks, of losses that were divided by their number")
    if share is None or abs(share - 1) > CLOSE:
        text = "summed over the ranks, which is right only if each loss was divided by what all ranks have together"
        return Finding("averaged", "unknown", text)
    cure = "Divide by the world size after the all-reduce, or use ReduceOp.AVG."
    return _too_far_off(run, backward, f"summed over {run.world} ranks", "large", cure)


def _not_waited_for(run: AuditedRun) -> Finding | None:
    for audit in run.audits.values():
        for sent in audit.of("collective"):
            step = next((event for event in audit.of("update") if event["at"] > sent["at"]), None)
            if sent["awaited"] or not sent["on_gradients"] or step is None:
                continue
            if not any(event["number"] == sent["number"] for event in audit.between(sent["at"], step["at"], "waited")):
                text = "the update does not wait for the gradients: async_op=True returns before they have arrived"
                cure = "Keep what the collective returns, and call its wait() before optimizer.step()."
                return _wrong(text, sent["frames"], "S12", cure)
    return None


def _clips_its_own(run: AuditedRun, rows):
    """The clip of one rank's gradient, of which the ranks later use the mean."""
    if not any(_vectors(rows[-1], "gradients", i) for i in range(len(rows[-1][0]["gradients"]))):
        return None
    same = not any(differ(row, "gradients", i) for row in rows for i in range(len(row[0]["gradients"])))
    for clips in zip(*run.of("clip").values(), strict=False) if same else ():
        unlike = any(
            None not in values and not all(_near(values[0], value) for value in values)
            for values in zip(*(clip["values"] for clip in clips), strict=False)
        )
        if unlike and any(clip["changed"] for clip in clips):
            return clips[0]
    return None


def _not_sent(run: AuditedRun, update, which: str, lasting, backward) -> Finding:
    """By its cause."""
    text = f"{which} sent between the ranks: each updates with its own"
    frames = (backward or update)["frames"]
    audit, sends, ddp = next(iter(run.audits.values())), run.gradient_collectives, run.first("ddp")
    if sends and not ddp:
        earlier = [event for event in audit.of("backward", "update") if event["at"] < sends[0]["at"]]
        if earlier and earlier[-1]["event"] == "update":
            text = "the gradients are sent after the update, which has used each rank's own"
            return _wrong(text, sends[0]["frames"], "S12", "Send them between loss.backward() and optimizer.step().")
    if not ddp:
        cure = "Wrap the model in DistributedDataParallel, or all-reduce each gradient before the update."
        return _wrong(text, frames, "S13", cure)
    states = {update["ddp"][i] for i in lasting}
    if states == {False}:
        text = f"{which} sent between the ranks: they were frozen when DDP wrapped the model"
        return _wrong(text, ddp["frames"], "S12", "Set requires_grad before the model is wrapped, or wrap it anew.")
    if True not in states:
        text += "; these parameters are in no DDP model"
        return _wrong(text, frames, "S12", "Give the DDP wrapper one module that holds all that is trained.")
    calls = [call for call in audit.training_calls() if call["ddp"]]
    if not calls:
        cure = "Call the DDP wrapper itself, not its .module."
        return _wrong(f"{text}; the model is called past its DDP wrapper", frames, "S11", cure)
    when = "all passes" if not any(call["sends"] for call in calls) else "the last pass before an update"
    if when != "all passes" and all(_last_call(audit, step)["sends"] for step in audit.of("update")):
        return _wrong(text, frames, "S12", "Call the DDP wrapper once for each backward pass, and nothing past it.")
    text += f"; {when} ran under no_sync(), or with require_backward_grad_sync=False"
    cure = "Run all but the last micro-batch of an update under no_sync(), and that one, forward and backward, outside."
    return _wrong(text, calls[0]["frames"], "P1", cure)


def _last_call(audit, step):
    calls = [call for call in audit.training_calls() if call["ddp"] and call["at"] < step["at"]]
    return calls[-1] if calls else {"sends": True}


def _share(run: AuditedRun, all_, backward) -> float | None:
    """By what a rank multiplies the mean over its own batch in one update; None where its loss is no such mean."""
    steps = len(next(iter(run.of("backward").values()))) / sum(len(rows) for _, rows in all_)
    return backward["factor"] * steps if backward and backward["loss"] == "mean" else None


def _too_far_off(run: AuditedRun, backward, what: str, how: str, cure: str) -> Finding:
    text = (
        f"gradients are {what}, of losses that are each the mean of the rank's own batch: updates are {run.world} "
        f"times too {how}"
    )
    return _wrong(text, (run.gradient_collectives or [backward])[0]["frames"], "S23", cure)


def accumulated(run: AuditedRun) -> Finding:
    """Only what the last backward pass gave is used, in most updates, where others came before it."""
    all_ = updates(run)
    if not all_:
        return Finding("accumulated", "unknown", NO_OPTIMIZER)
    for audit in run.audits.values():
        steps = audit.of("update")
        cleared = [event for event in audit.of("cleared") if steps and event["at"] < steps[-1]["at"]]
        ends = [sum(step["at"] < event["at"] for step in steps) for event in cleared]
        plain = not any(call["leaf"] for call in audit.training_calls())  # else gradients of inputs are wanted
        if plain and len(set(ends)) >= 2 and 2 * len(set(ends)) >= len(steps) and _only_the_last(all_):
            number = len(audit.of("backward"))
            text = f"{len(cleared)} of {number} backward passes' gradients are cleared before an update has used them"
            cure = "Call zero_grad() once per update: after optimizer.step(), or before the first micro-batch."
            return Finding("accumulated", "wrong", text, cleared[0]["frames"], "S6", cure)
    return Finding("accumulated", "ok", "none was cleared before an update had used it")


def _only_the_last(all_) -> bool:
    """Else the gradients may have been taken elsewhere before they were cleared."""
    fates = [fate for optimizer, rows in all_ for fate in _fates(optimizer, rows).values()]
    return bool(fates) and sum(map(bool, fates)) * 2 >= len(fates)


def once_per_update(run: AuditedRun) -> Finding:
    calls = [call for call in run.of("call").get(0, []) if call["ddp"] and call["train"] and call["gradients"]]
    steps, backwards = run.of("update").get(0, []), run.of("backward").get(0, [])
    if not calls or not steps:
        return Finding("once", "unknown", "no DDP model was updated by an optimizer of torch")
    end = steps[-1]["at"]
    sent = [call for call in calls if call["sends"] and call["at"] < end]
    passes = len([event for event in backwards if event["at"] < end])
    cleared = run.of("cleared").get(0, [])
    several = min(len(sent), passes - len(cleared)) >= 2 * len(steps)
    if several and len({step["optimizer"] for step in steps}) == 1:
        text = f"{len(sent) / len(steps):.3g} times per update: each backward pass sends"
        cure = "Run all but the last micro-batch under model.no_sync(), forward and backward."
        return Finding("once", "note", text, backwards[0]["frames"], "P1", cure)
    return Finding("once", "ok", f"{len(sent)} in {len(steps)} updates")
