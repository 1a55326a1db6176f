"""Checks how the ranks' gradients reach the optimizer: averaged, summed, cleared, or never sent."""

import math
import statistics

from ddp_doctor.audited import AuditedRun
from ddp_doctor.checks.finding import Finding, note, ok, require, unknown, wrong
from ddp_doctor.checks.replicas import NO_OPTIMIZER, differ, made_equal, steps_by_optimizer, weights_differ

CLOSE = 0.02  # relative tolerance: a mean that was sent in bfloat16 still is one


def _by_rank(row, name: str, i: int):
    """`name` of parameter i in one step, of each rank; None if one rank has none."""
    values = [step[name][i] for step in row]
    return None if None in values else values


def _norm(values) -> float:
    return math.sqrt(sum(value * value for value in values))


def _near(a, b) -> bool:
    return _norm(x - y for x, y in zip(a, b, strict=True)) <= 1e-5 * max(_norm(a), _norm(b))


def _used_gradient(row, i: int):
    """The gradient that the optimizers used for parameter i: "local", a rank's own, or the factor of the ranks' mean.

    Returns None where neither can be told.
    """
    world, local, used = len(row), _by_rank(row, "local", i), _by_rank(row, "used", i)
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


def used_gradients(optimizer, rows):
    """{index of a parameter: _used_gradient of each step in which it can be told}."""
    indices = range(len(optimizer["shapes"]))
    return {i: [used for row in rows if (used := _used_gradient(row, i)) is not None] for i in indices}


def averaged(run: AuditedRun) -> Finding:
    optimizers = steps_by_optimizer(run)
    require(optimizers, NO_OPTIMIZER)
    if finding := _not_waited_for(run):
        return finding
    if {event["name"] for event in run.gradient_collectives} == {"reduce"} and not run.first("ddp"):
        cure = "Use dist.all_reduce: dist.reduce gives the result to its root only."
        if any(weights_differ(rows[-1], i) for optimizer, rows in optimizers for i in range(len(optimizer["shapes"]))):
            frames = run.gradient_collectives[0]["frames"]
            return wrong("the gradients are reduced to one rank only", frames, "S12", cure)
    factors, unclear, backward = [], 0, run.first("backward")
    for optimizer, rows in optimizers:
        used = used_gradients(optimizer, rows)
        local = [i for i, each in used.items() if set(each) == {"local"}]
        if clip := _clip_of_local_gradient(run, rows):
            text = "each rank clips its own gradient, before the ranks' mean is taken"
            cure = "Clip once per step, after the gradients have been averaged: every rank then has the same norm."
            return wrong(text, clip["frames"], "S9", cure)
        never_sent = [i for i in local if weights_differ(rows[-1], i)]
        independent = any(differ(rows[0], "weights_before", i) for i in used) and not run.data_parallel
        if never_sent and not independent and not run.splits_the_model and not made_equal(rows):
            is_all = len(never_sent) == len([each for each in used.values() if each])
            which = "no gradient is" if is_all else f"{len(never_sent)} of {len(used)} parameters' gradients are not"
            return _not_sent(run, rows[0][0], which, never_sent, backward)
        factors += [factor for each in used.values() for factor in each if factor != "local"]
        trained = [i for i in used if any(step["has_gradient"][i] for row in rows for step in row)]
        unclear += len([i for i in trained if set(used[i]) <= {"local"}])
    require(factors, "the ranks' own gradients were equal, or could not be compared")
    factor = statistics.median(factors)
    if abs(factor - 1) <= CLOSE:
        if unclear:
            return unknown(f"averaged, but for {unclear} parameters it is not known")
        return ok("the steps used the mean of the ranks' last gradients")
    scale = _loss_scale(run, optimizers, backward)
    if abs(factor * run.world - 1) <= CLOSE and scale is not None and abs(scale - 1) <= CLOSE:
        return _wrong_scale(run, backward, "divided twice by the number of ranks", "small", "Divide once.")
    if abs(factor - run.world) > CLOSE * run.world:
        return unknown(f"a step used {factor:.3g} times the mean of the ranks' gradients")
    if scale is not None and abs(scale * run.world - 1) <= CLOSE:
        return ok("summed over the ranks, of losses that were divided by their number")
    if scale is None or abs(scale - 1) > CLOSE:
        text = "summed over the ranks, which is right only if each loss was divided by a count over all ranks"
        return unknown(text)
    cure = "Divide by the world size after the all-reduce, or use ReduceOp.AVG."
    return _wrong_scale(run, backward, f"summed over {run.world} ranks", "large", cure)


def _not_waited_for(run: AuditedRun) -> Finding | None:
    for audit in run.audits.values():
        for sent in audit.of("collective"):
            step = next((step for step in audit.of("step") if step["at"] > sent["at"]), None)
            if not sent["is_async"] or not sent["on_gradients"] or step is None:
                continue
            if not any(event["number"] == sent["number"] for event in audit.between(sent["at"], step["at"], "waited")):
                text = "the step does not wait for the gradients: async_op=True returns before they have arrived"
                cure = "Keep what the collective returns, and call its wait() before optimizer.step()."
                return wrong(text, sent["frames"], "S12", cure)
    return None


def _clip_of_local_gradient(run: AuditedRun, rows):
    """The first clip at which the ranks have different gradients, if the optimizers then use equal ones; else None."""
    indices = range(len(rows[-1][0]["gradients"]))
    if not any(_by_rank(rows[-1], "gradients", i) for i in indices):
        return None
    if any(differ(row, "gradients", i) for row in rows for i in indices):
        return None
    for clips in run.rows("clip"):
        gradients_differ = any(
            None not in values and not all(_near(values[0], value) for value in values)
            for values in zip(*(clip["values"] for clip in clips), strict=False)
        )
        if gradients_differ and any(clip["changed"] for clip in clips):
            return clips[0]
    return None


def _not_sent(run: AuditedRun, step, which: str, indices, backward) -> Finding:
    text = f"{which} sent between the ranks: each rank steps with its own"
    frames = (backward or step)["frames"]
    audit, sent, ddp = run.lowest, run.gradient_collectives, run.first("ddp")
    if sent and not ddp:
        earlier = [event for event in audit.of("backward", "step") if event["at"] < sent[0]["at"]]
        if earlier and earlier[-1]["event"] == "step":
            text = "the gradients are sent after the step, which has used each rank's own"
            return wrong(text, sent[0]["frames"], "S12", "Send them between loss.backward() and optimizer.step().")
    if not ddp:
        cure = "Wrap the model in DistributedDataParallel, or all-reduce each gradient before the step."
        return wrong(text, frames, "S13", cure)
    trained_in_ddp = {step["ddp"][i] for i in indices}
    if trained_in_ddp == {False}:
        text = f"{which} sent between the ranks: they were frozen when DDP wrapped the model"
        return wrong(text, ddp["frames"], "S12", "Set requires_grad before the model is wrapped, or wrap it anew.")
    if True not in trained_in_ddp:
        text += "; these parameters are in no DDP model"
        return wrong(text, frames, "S12", "Give the DDP wrapper one module that holds all that is trained.")
    calls = [call for call in audit.training_calls() if call["ddp"]]
    if not calls:
        cure = "Call the DDP wrapper itself, not its .module."
        return wrong(f"{text}; the model is called past its DDP wrapper", frames, "S11", cure)
    which_passes = "the last pass before a step" if any(call["syncs"] for call in calls) else "all passes"
    if which_passes != "all passes" and all(_syncs_last(calls, step) for step in audit.of("step")):
        return wrong(text, frames, "S12", "Call the DDP wrapper once for each backward pass, and nothing past it.")
    text += f"; {which_passes} ran under no_sync(), or with require_backward_grad_sync=False"
    cure = "Run all but the last micro-batch of a step under no_sync(), and that one, forward and backward, outside."
    return wrong(text, calls[0]["frames"], "P1", cure)


def _syncs_last(calls, step) -> bool:
    """Whether DDP syncs in the last of the calls before this step; True if there is none."""
    earlier = [call for call in calls if call["at"] < step["at"]]
    return not earlier or earlier[-1]["syncs"]


def _loss_scale(run: AuditedRun, optimizers, backward) -> float | None:
    """By what a rank multiplies the mean over its own batch of one step; None where its loss is no such mean."""
    passes_per_step = len(run.lowest.of("backward")) / sum(len(rows) for _, rows in optimizers)
    return backward["factor"] * passes_per_step if backward and backward["reduction"] == "mean" else None


def _wrong_scale(run: AuditedRun, backward, what: str, how: str, cure: str) -> Finding:
    text = f"gradients are {what}, of losses that are each the mean of the rank's own batch: "
    text += f"steps are {run.world} times too {how}"
    return wrong(text, (run.gradient_collectives or [backward])[0]["frames"], "S23", cure)


def accumulated(run: AuditedRun) -> Finding:
    """Whether gradients are cleared, in most steps, before an optimizer has used them."""
    optimizers = steps_by_optimizer(run)
    require(optimizers, NO_OPTIMIZER)
    for audit in run.audits.values():
        steps = audit.of("step")
        cleared = [event for event in audit.of("cleared") if steps and event["at"] < steps[-1]["at"]]
        affected_steps = {sum(step["at"] < event["at"] for step in steps) for event in cleared}
        # A backward pass may be for the gradients of the inputs, and those of the parameters are then cleared.
        for_inputs = any(call["inputs_require_grad"] for call in audit.training_calls())
        in_most_steps = len(affected_steps) >= max(2, len(steps) / 2)
        if in_most_steps and not for_inputs and _are_used(optimizers):
            number = len(audit.of("backward"))
            text = f"{len(cleared)} of {number} backward passes' gradients are cleared before a step has used them"
            cure = "Call zero_grad() once per step: after optimizer.step(), or before the first micro-batch."
            return wrong(text, cleared[0]["frames"], "S6", cure)
    return ok("none was cleared before a step had used it")


def _are_used(optimizers) -> bool:
    """Whether the optimizers use the last gradients of most parameters; else the script copies gradients elsewhere."""
    used = [factors for optimizer, rows in optimizers for factors in used_gradients(optimizer, rows).values()]
    return bool(used) and sum(map(bool, used)) * 2 >= len(used)


def once_per_step(run: AuditedRun) -> Finding:
    calls = [call for call in run.of("call").get(0, []) if call["ddp"] and call["train"] and call["gradients"]]
    steps, passes = run.of("step").get(0, []), run.of("backward").get(0, [])
    require(calls and steps, "no DDP model was updated by an optimizer of torch")
    end = steps[-1]["at"]
    sent = [call for call in calls if call["syncs"] and call["at"] < end]
    used_passes = len([event for event in passes if event["at"] < end]) - len(run.of("cleared").get(0, []))
    sent_more_than_once = min(len(sent), used_passes) >= 2 * len(steps)
    if sent_more_than_once and len({step["optimizer"] for step in steps}) == 1:
        text = f"{len(sent) / len(steps):.3g} times per step: each backward pass sends them"
        cure = "Run all but the last micro-batch under model.no_sync(), forward and backward."
        return note(text, passes[0]["frames"], "P1", cure)
    return ok(f"{len(sent)} in {len(steps)} steps")
