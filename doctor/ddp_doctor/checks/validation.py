"""Checks whether validation counts each sample once, and whether printed numbers are reduced over all ranks."""

import itertools
import re

from ddp_doctor import source_lines
from ddp_doctor.audited import AuditedRun
from ddp_doctor.checks.finding import Finding, note, ok, require, unknown, wrong
from ddp_doctor.checks.samples import epoch_list

BETTER = re.compile(
    r"under `.*((loss|acc|metric|score|err|ppl|perplex|best|lowest|value)\w*\W*[<>]|[<>].*(best|lowest))", re.I
)
REDUCE = "All-reduce the sum and the count, then divide."


def validation(run: AuditedRun) -> Finding:
    epochs = epoch_list(run, trains=False)
    require(epochs, "no DataLoader was read without gradients on every rank")
    undecided = ""
    for ranks in epochs:
        by_rank = list(ranks.values())
        # Without a DistributedSampler each rank may have a data set of its own, so an index does not name a sample.
        distributed = all(epoch["distributed"] for epoch in by_rank)
        read = [epoch["indices"] if distributed else epoch["samples"] for epoch in by_rank]
        if not all(read) or not all(epoch["complete"] for epoch in by_rank):
            undecided = "not read to the end, or its samples cannot be compared"
            continue
        unique = [set(samples) for samples in read]
        # A checksum that one rank reads twice may be that of two equal samples; an index is of one sample.
        count = sum(map(len, read if distributed else unique))
        twice = count - len(set.union(*unique))
        if not twice or all(samples == unique[0] for samples in unique):
            continue  # every rank evaluates all, which is exact
        if not distributed:
            undecided = f"{twice} samples are read on more than one rank, by a sampler that is not torch's"
        elif any("gather" in event["name"] for events in _collectives(run, ranks) for event in events):
            undecided = f"{twice} samples are read twice; what is gathered may be cut to the length of the data"
        else:
            text = f"DistributedSampler reads {twice} of {by_rank[0]['size']} samples twice"
            text += ", so that all ranks have the same number"
            cure = "Validate on range(rank, len(data), world_size), and reduce sums and counts."
            return wrong(text, by_rank[0]["frames"], "S2", cure)
    return unknown(undecided) if undecided else ok("no sample is counted twice")


def _collectives(run: AuditedRun, ranks) -> list[list[dict]]:
    """The collectives of each rank from the start of this validation to the next backward pass."""
    return [
        run.audits[rank].between(share["at"], run.audits[rank].next_backward(share["end"]), "collective")
        for rank, share in ranks.items()
    ]


def metrics(run: AuditedRun) -> Finding:
    for ranks in _disjoint_validations(run):
        if not any(_collectives(run, ranks)) and (metric := _unreduced_metric(run, ranks[0])):
            event, number = metric
            text = f"rank 0 prints {number}, which covers only its own share of the validation data: "
            return wrong(f"{text}nothing was reduced", event["frames"], "S20", REDUCE)
        if sent := _mean_of_means(run, ranks):
            sizes = " and ".join(str(_size(share)) for share in ranks.values())
            text = f"the mean of the ranks' means is taken, over shares of {sizes} samples"
            return wrong(text, sent["frames"], "S5", REDUCE)
    if run.has_group and (finding := _unreduced_choice(run)):
        return finding
    require(run.has_group and run.of("print").get(0), "rank 0 prints no numbers")
    return _unreduced_loss(run) or unknown("what else is printed cannot be told from outside")


def _disjoint_validations(run: AuditedRun):
    """Yields {rank: {"at", "end", "indices", "samples"}} of each validation in which the ranks read disjoint samples.

    Without a DataLoader, the calls of the model without gradients count as a validation.
    """
    epochs = epoch_list(run, trains=False)
    if not epochs:
        phases = zip(*(audit.evaluations() for audit in run.audits.values()), strict=False)
        epochs = [
            {
                rank: {
                    "at": calls[0]["at"] - 1,
                    "end": calls[-1]["at"],
                    "indices": [],
                    "samples": [sample for call in calls for sample in call["samples"] or ()],
                }
                for rank, calls in zip(run.audits, phase, strict=True)
            }
            for phase in phases
        ]
    for ranks in epochs:
        other_indices = not set.intersection(*(set(share["indices"] or [-1]) for share in ranks.values()))
        samples = [share["samples"] for share in ranks.values()]
        other_samples = None not in samples and not set.intersection(*map(set, samples))
        if 0 in ranks and (other_indices or other_samples):
            yield ranks


def _size(share) -> int:
    return len(share["samples"] or share["indices"])


def _mean_of_means(run: AuditedRun, ranks):
    """The collective that sends each rank's mean over its share, if their plain mean is used and shares are unequal.

    Returns the event of rank 0, or None.
    """
    sizes = [_size(share) for share in ranks.values()]
    sent = [
        [event for event in events if event["values"] and not event["on_gradients"]]
        for events in _collectives(run, ranks)
    ]
    columns = [  # for each number that is sent: the event of rank 0, and that number of every rank
        (row[0], column)
        for row in zip(*sent, strict=False)
        for column in zip(*(event["values"] for event in row), strict=False)
    ]
    if len(set(sizes)) == 1 or any(list(column) == sizes for _, column in columns):
        return None
    audit, begin = run.audits[0], ranks[0]["end"]
    used = audit.between(begin, audit.next_backward(begin), "item", "print")
    items = [event["value"] for event in used if event["event"] == "item"]
    numbers = [number for event in used if event["event"] == "print" for number in event["numbers"]]
    for collective, column in columns:
        mean = sum(column) / len(column)
        is_read = any(abs(value - mean) <= 1e-6 * abs(mean) for value in items)
        is_used = is_read or any(_shows(number, mean) for number in numbers)
        if is_used and len(set(column)) > 1 and not _are_training_losses(run, ranks, column):
            return collective
    return None


def _are_training_losses(run: AuditedRun, ranks, column) -> bool:
    """Whether each rank's number is its last training loss, or the sum or mean of its last ones."""
    for (rank, share), value in zip(ranks.items(), column, strict=True):
        losses = [event["value"] for event in run.audits[rank].of("backward") if event["at"] < share["end"]]
        suffixes = [losses[begin:] for begin in range(len(losses)) if None not in losses[begin:]]
        candidates = [number for suffix in suffixes for number in (sum(suffix), sum(suffix) / len(suffix))]
        if not any(abs(number - value) <= 1e-5 * abs(value) for number in candidates):
            return False
    return True


def _unreduced_choice(run: AuditedRun) -> Finding | None:
    """A finding if rank 0 saves where its own number is better than before, and other ranks have other numbers."""
    audit = run.audits[0]
    for save in audit.of("save"):
        conditions = [text for frame in save["frames"] for text in source_lines.conditions(frame.file, frame.line)]
        condition = next((text for text in conditions if BETTER.search(text)), None)
        trained = [event["at"] for event in audit.of("backward", "step") if event["at"] < save["at"]]
        if condition is None or not trained:
            continue
        evaluated = [call for call in audit.between(trained[-1], save["at"], "call") if not call["gradients"]]
        begin = evaluated[0]["at"] if evaluated else max([-1, *trained[:-2]])
        if evaluated:
            shares = [ranks[0] for ranks in _disjoint_validations(run)]
            ranks_differ = any(share["at"] < evaluated[-1]["at"] and share["end"] >= begin for share in shares)
        else:
            ranks_differ = run.data_parallel and len({event["value"] for event in _last_losses(run, save)}) > 1
        sent = [event for event in audit.between(begin, save["at"], "collective") if not event["on_gradients"]]
        if ranks_differ and all("barrier" in event["name"] for event in sent):
            what = "own share of the validation data" if evaluated else "own batch"
            text = f"the checkpoint is chosen {condition} by rank 0's number, which covers only its {what}"
            cure = "Reduce the number over the ranks (sum and count) before it decides."
            return wrong(text, save["frames"], "S20", cure)
    return None


def _last_losses(run: AuditedRun, save):
    """Each rank's backward event with the number of rank 0's last one before this save."""
    number = len([event for event in run.audits[0].of("backward") if event["at"] < save["at"]])
    return [events[number - 1] for events in run.of("backward").values() if len(events) >= number]


def _shows(text: str, value: float) -> bool:
    """Whether the printed number is this value, rounded to its digits: at least three."""
    digits = text.lstrip("-").partition("e")[0].replace(".", "").lstrip("0")
    decimals = len(text.partition("e")[0].partition(".")[2])
    scale = 10.0 ** int(text.partition("e")[2] or 0)
    return len(digits) >= 3 and abs(float(text) - value) <= 0.51 * scale * 10.0**-decimals


def _unreduced_metric(run: AuditedRun, share):
    """(print event, number) of a number that only rank 0 prints, and can compute from what it reads from tensors here.

    Such a number is the last of these values, their sum, or either divided by the count of values or samples; or that
    in percent. Returns None if no number is.
    """
    audit = run.audits[0]
    end = audit.next_backward(share["end"])
    items = [event["value"] for event in audit.between(share["at"], end, "item") if not event["gradients"]]
    if not items:
        return None
    counts = {1, len(items), len(share["indices"]) or 1, len(share["samples"] or [0])}
    values = [scale * total / count for total in (items[-1], sum(items)) for count in counts for scale in (1, 100)]
    for event in audit.between(share["end"], end, "print"):
        for number in event["numbers"]:
            if any(_shows(number, value) for value in values) and not _other_ranks_print(run, event):
                return event, number
    return None


def _other_ranks_print(run: AuditedRun, event) -> bool:
    """Whether another rank than 0 prints on the line of this print event."""
    lines = {(frame.file, frame.line) for frame in event["frames"][:1]}
    others = [event for rank, events in run.of("print").items() if rank != 0 for event in events]
    return any((other["frames"][0].file, other["frames"][0].line) in lines for other in others if other["frames"])


def _unreduced_loss(run: AuditedRun) -> Finding | None:
    """A note if only rank 0 prints the loss of its last backward pass, or a mean of its last ones, not the others'."""
    passes, audit = run.of("backward"), run.audits[0]
    passes_per_step = round(len(passes[0]) / max(1, len(audit.of("step"))))  # a loss may have been divided by it
    for printed in run.of("print")[0]:
        end = len([event for event in passes[0] if event["at"] < printed["at"]])
        earlier = [event["at"] for event in audit.of("print", "epoch") if event["at"] < printed["at"]]
        earlier += [call["at"] for calls in audit.evaluations() for call in calls if call["at"] < printed["at"]]
        begins = {sum(event["at"] < at for event in passes[0]) for at in earlier} | {0, end - 1}
        for begin, scale in itertools.product(sorted(begins), {1, passes_per_step}):
            losses = [[event["value"] for event in events[begin:end]] for events in passes.values()]
            if not 0 <= begin < end or any(None in values or len(values) != end - begin for values in losses):
                continue
            means = [scale * sum(values) / len(values) for values in losses]
            shown = [number for number in printed["numbers"] if _shows(number, means[0])]
            other_means = [*means[1:], sum(means) / run.world]
            is_others = any(_shows(number, mean) for number in shown for mean in other_means)
            if shown and not is_others and not _other_ranks_print(run, printed):
                others = ", ".join(f"{mean:.4g}" for mean in means[1:])
                what = "the loss of its own batch" if end - begin == 1 else "the mean loss of its own batches"
                text = f"rank 0 prints {what}, {shown[0]}, where the others have {others}"
                cure = "Reduce it if it is to speak for all ranks."
                return note(text, printed["frames"], "S20", cure)
    return None
