"""What became of each rank's gradient before the optimizer used it: averaged, summed, or never sent."""

import math

from ddp_doctor.audited import AuditedRun
from ddp_doctor.checks.finding import Finding
from ddp_doctor.checks.replicas import NO_OPTIMIZER, apart, differ, made_equal, updates

CLOSE = 0.02  # relative; a gradient that was sent in bfloat16 is still the mean


def _vectors(row, name: str, i: int):
    found = [one[name][i] for one in row.values()]
    return None if any(one is None for one in found) else found


def _norm(values) -> float:
    return math.sqrt(sum(one * one for one in values))


def _near(a, b) -> bool:
    return _norm(x - y for x, y in zip(a, b, strict=True)) <= 1e-5 * max(_norm(a), _norm(b))


def _sent(row, i: int, world: int):
    """What became of parameter i's gradient: "local", a factor of the ranks' mean, or None if it cannot be told."""
    local, used = _vectors(row, "local", i), _vectors(row, "used", i)
    if local is None or used is None or not all(_norm(one) for one in local):
        return None
    mean = [sum(values) / world for values in zip(*local, strict=True)]
    same = all(_near(one, local[0]) for one in local)
    if not same and all(_near(a, b) for a, b in zip(local, used, strict=True)):
        return "local"
    size = _norm(mean)
    if size < 1e-3 * _norm(local[0]) or not all(_near(one, used[0]) for one in used):
        return None
    factor = sum(a * b for a, b in zip(used[0], mean, strict=True)) / size**2
    if _norm(a - factor * b for a, b in zip(used[0], mean, strict=True)) > CLOSE * _norm(used[0]):
        return None
    return None if same and abs(factor - world) > CLOSE else factor


def averaged(run: AuditedRun) -> Finding:
    all_ = updates(run)
    if not all_:
        return Finding("averaged", "unknown", NO_OPTIMIZER)
    factors, backward = [], run.first("backward")
    for optimizer, rows in all_:
        each = range(len(optimizer["shapes"]))
        fates = {i: [fate for row in rows if (fate := _sent(row, i, run.world)) is not None] for i in each}
        local = [i for i, found in fates.items() if found and found.count("local") == len(found)]
        update = next(iter(rows[0].values()))
        if (
            local
            and all(one["clipped"] for one in rows[0].values())
            and not any(differ(row, "gradients", i) for row in rows for i in local)
        ):
            clip = run.first("clip")
            return Finding(
                "averaged",
                "wrong",
                "each rank clips its own gradient, before the ranks' mean is taken",
                clip["frames"],
                "S9",
                "Clip after the all-reduce: every rank then has the same norm.",
            )
        lasting = [i for i in local if apart(rows[-1], i)]
        alone = any(differ(rows[0], "before", i) for i in each) and not run.data_parallel
        if lasting and not alone and not run.splits_the_model and not made_equal(rows):
            whole = len(lasting) == len([one for one in fates.values() if one])
            which = "no gradient is" if whole else f"{len(lasting)} of {len(fates)} parameters' gradients are not"
            past = run.first("ddp")
            return Finding(
                "averaged",
                "wrong",
                f"{which} sent between the ranks: each updates with its own",
                (backward or update)["frames"],
                "S11" if past else "S13",
                "Call the DDP wrapper itself, not its .module, and give it every parameter that is trained."
                if past
                else "Wrap the model in DistributedDataParallel, or all-reduce each gradient before the update.",
            )
        factors += [fate for found in fates.values() for fate in found if fate != "local"]
    if not factors:
        return Finding("averaged", "unknown", "the ranks' own gradients were equal, or not seen")
    factors.sort()
    factor = factors[len(factors) // 2]
    if abs(factor - 1) <= CLOSE:
        return Finding("averaged", "ok", "what an update used is the mean of the ranks' gradients")
    share = _share(run, all_, backward)
    if abs(factor * run.world - 1) <= CLOSE and share is not None and abs(share - 1) <= CLOSE:
        return _too_far_off(run, backward, "divided twice by the number of ranks", "small", "Divide once.")
    if abs(factor - run.world) > CLOSE * run.world:
        return Finding("averaged", "unknown", f"an update used {factor:.3g} times the mean of the ranks' gradients")
    return _summed(run, backward, share)


def _share(run: AuditedRun, all_, backward) -> float | None:
    """By what a rank multiplies the mean over its own batch in one update; None where its loss is no such mean."""
    updates = sum(len(rows) for _, rows in all_)
    steps = len(next(iter(run.of("backward").values()))) / updates
    return backward["factor"] * steps if backward and backward["loss"] == "mean" else None


def _summed(run: AuditedRun, backward, share: float | None) -> Finding:
    """A sum is right if each rank has divided its loss by what all ranks have together."""
    if share is not None and abs(share * run.world - 1) <= CLOSE:
        return Finding("averaged", "ok", "summed over the ranks, of losses that were divided by their number")
    if share is None or abs(share - 1) > CLOSE:
        return Finding(
            "averaged",
            "unknown",
            "summed over the ranks, which is right only if each loss was divided by what all ranks have together",
        )
    cure = "Divide by the world size after the all-reduce, or use ReduceOp.AVG."
    return _too_far_off(run, backward, f"summed over {run.world} ranks", "large", cure)


def _too_far_off(run: AuditedRun, backward, what: str, how: str, cure: str) -> Finding:
    sends = [one for one in next(iter(run.of("collective").values())) if one["on_gradients"]]
    return Finding(
        "averaged",
        "wrong",
        f"gradients are {what}, of losses that are each the mean of the rank's own batch: updates are {run.world} "
        f"times too {how}",
        (sends[0] if sends else backward)["frames"],
        "S23",
        cure,
    )


def once_per_update(run: AuditedRun) -> Finding:
    calls = [one for one in run.of("call").get(0, []) if one["ddp"] and one["train"] and one["gradients"]]
    updates, backwards = run.of("update").get(0, []), run.of("backward").get(0, [])
    if not calls or not updates:
        return Finding("once", "unknown", "no DDP model was updated by an optimizer of torch")
    end = updates[-1]["at"]
    sent = [one for one in calls if one["sends"] and one["at"] < end]
    steps = len([one for one in backwards if one["at"] < end])
    if len(sent) >= 2 * len(updates) and steps >= 2 * len(updates) and len({one["optimizer"] for one in updates}) == 1:
        return Finding(
            "once",
            "note",
            f"{len(sent) / len(updates):.3g} times per update: each backward pass sends",
            backwards[0]["frames"],
            "P1",
            "Run all but the last micro-batch under model.no_sync(), forward and backward.",
        )
    return Finding("once", "ok", f"{len(sent)} in {len(updates)} updates")
