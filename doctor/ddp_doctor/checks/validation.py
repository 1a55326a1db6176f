"""Validation and the numbers that are printed: is each sample counted once, and does a number speak for all ranks?"""

import itertools

from ddp_doctor.audited import AuditedRun
from ddp_doctor.checks.finding import Finding
from ddp_doctor.checks.samples import epoch_list


def validation(run: AuditedRun) -> Finding:
    epochs = epoch_list(run, trains=False)
    if not epochs:
        return Finding("validation", "unknown", "no DataLoader was read without gradients on every rank")
    undecided = ""
    for ranks in epochs:
        each = list(ranks.values())
        distributed = all(one["distributed"] for one in each)  # else an index does not name a sample: data was split
        read = [one["indices"] if distributed else one["rows"] for one in each]
        if not all(read) or not all(one["whole"] for one in each):
            undecided = "not read to the end, or nothing that can be compared"
            continue
        kinds = [set(one) for one in read]
        twice = sum(map(len, kinds)) - len(set.union(*kinds))
        twice += sum(len(one) - len(kind) for one, kind in zip(read, kinds, strict=True)) if distributed else 0
        if not twice or all(one == kinds[0] for one in kinds):
            continue  # every rank evaluates all, which is exact
        if not distributed:
            undecided = f"{twice} samples are read on more than one rank, by a sampler that is not torch's"
        elif _collectives_after(run, ranks, "gather"):
            undecided = f"{twice} samples are read twice; what is gathered may be cut to the right length"
        else:
            return Finding(
                "validation",
                "wrong",
                f"DistributedSampler reads {twice} of {each[0]['size']} samples twice, so that all ranks have the same "
                "number",
                each[0]["frames"],
                "S2",
                "Validate on range(rank, len(data), world_size), and reduce sums and counts.",
            )
    return Finding("validation", "unknown" if undecided else "ok", undecided or "no sample is counted twice")


def _collectives_after(run: AuditedRun, ranks, word: str = "") -> bool:
    """Was there one on any rank after the first batch of this validation, and before the next training step?"""
    for rank, one in ranks.items():
        audit = run.audits[rank]
        end = min((each["at"] for each in audit.of("backward") if each["at"] > one["end"]), default=float("inf"))
        if any(word in each["name"] for each in audit.between(one["at"], end, "collective")):
            return True
    return False


def metrics(run: AuditedRun) -> Finding:
    sharded = [
        ranks
        for ranks in epoch_list(run, trains=False)
        if not set.intersection(*(set(one["indices"] or [-1]) for one in ranks.values()))
        or _disjoint([one["rows"] for one in ranks.values()])
    ]
    for ranks in sharded:
        if 0 in ranks and not _collectives_after(run, ranks) and (printed := _own_metric(run, ranks[0])):
            return Finding(
                "metrics",
                "wrong",
                f"rank 0 prints {printed[1]}, which covers only its own share of the "
                "validation data: nothing was reduced",
                printed[0]["frames"],
                "S20",
                "All-reduce the sum and the count, then divide.",
            )
    if not run.has_group or not run.of("print").get(0):
        return Finding("metrics", "unknown", "rank 0 prints no numbers")
    return _own_loss(run) or Finding("metrics", "unknown", "what else is printed cannot be told from outside")


def _disjoint(rows) -> bool:
    return None not in rows and not set.intersection(*map(set, rows))


def _is(text: str, value: float) -> bool:
    """Is the printed number this value, to all of its at least three digits?"""
    digits = text.lstrip("-").partition("e")[0].replace(".", "").lstrip("0")
    decimals = len(text.partition("e")[0].partition(".")[2])
    scale = 10.0 ** int(text.partition("e")[2] or 0)
    return len(digits) >= 3 and abs(float(text) - value) <= 0.51 * scale * 10.0**-decimals


def _own_metric(run: AuditedRun, epoch):
    """(print event, number) of what rank 0 made of the values that it read in this validation alone."""
    audit = run.audits[0]
    end = min((one["at"] for one in audit.of("backward") if one["at"] > epoch["end"]), default=float("inf"))
    items = [one["value"] for one in audit.between(epoch["at"], end, "item")]
    if not items:
        return None
    counts = {1, len(items), len(epoch["indices"]) or 1, len(epoch["rows"] or [0])}
    values = [
        100**percent * total / count for total in (items[-1], sum(items)) for count in counts for percent in (0, 1)
    ]
    for one in audit.between(epoch["end"], end, "print"):
        for number in one["numbers"]:
            if any(_is(number, value) for value in values) and not _others_print(run, one):
                return one, number
    return None


def _others_print(run: AuditedRun, printed) -> bool:
    lines = {(frame.file, frame.line) for frame in printed["frames"][:1]}
    others = [one for rank, found in run.of("print").items() if rank != 0 for one in found]
    return any((one["frames"][0].file, one["frames"][0].line) in lines for one in others if one["frames"])


def _own_loss(run: AuditedRun) -> Finding | None:
    """Rank 0 alone prints the loss that its own backward pass began with, and the other ranks had another."""
    losses = run.of("backward")
    micros = round(len(losses[0]) / max(1, len(run.audits[0].of("update"))))  # a loss may have been divided by them
    for printed in run.of("print")[0]:
        before = [k for k, one in enumerate(losses[0]) if one["at"] < printed["at"]][-1:]
        for k, scale in itertools.product(before, {1, micros}):
            values = [found[k]["value"] for found in losses.values() if len(found) > k]
            if len(values) < run.world or None in values:
                continue
            values = [scale * value for value in values]
            hits = [number for number in printed["numbers"] if _is(number, values[0])]
            elsewhere = any(_is(number, value) for number in hits for value in [*values[1:], sum(values) / run.world])
            if hits and not elsewhere and not _others_print(run, printed):
                others = ", ".join(f"{value:.4g}" for value in values[1:])
                return Finding(
                    "metrics",
                    "note",
                    f"rank 0 prints the loss of its own batch, {hits[0]}, where the others have {others}",
                    printed["frames"],
                    "S20",
                    "Reduce it if it is to speak for all ranks.",
                )
    return None
