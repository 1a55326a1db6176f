"""Validation and the numbers that are printed: is each sample counted once, and does a number speak for all ranks?"""

import itertools
import re

from ddp_doctor import source_lines
from ddp_doctor.audited import AuditedRun
from ddp_doctor.checks.finding import Finding
from ddp_doctor.checks.samples import epoch_list

BETTER = re.compile(
    r"under `.*((loss|acc|metric|score|err|ppl|perplex|best|lowest|value)\w*\W*[<>]|[<>].*(best|lowest))", re.I
)
REDUCE = "All-reduce the sum and the count, then divide."


def validation(run: AuditedRun) -> Finding:
    epochs = epoch_list(run, trains=False)
    if not epochs:
        return Finding("validation", "unknown", "no DataLoader was read without gradients on every rank")
    undecided = ""
    for ranks in epochs:
        each = list(ranks.values())
        # Without a DistributedSampler an index does not name a sample: the data was split.
        distributed = all(epoch["distributed"] for epoch in each)
        read = [epoch["indices"] if distributed else epoch["rows"] for epoch in each]
        if not all(read) or not all(epoch["whole"] for epoch in each):
            undecided = "not read to the end, or nothing that can be compared"
            continue
        kinds = [set(samples) for samples in read]
        twice = sum(map(len, kinds)) - len(set.union(*kinds))
        twice += sum(len(samples) - len(kind) for samples, kind in zip(read, kinds, strict=True)) if distributed else 0
        if not twice or all(kind == kinds[0] for kind in kinds):
            continue  # every rank evaluates all, which is exact
        if not distributed:
            undecided = f"{twice} samples are read on more than one rank, by a sampler that is not torch's"
        elif _collectives_after(run, ranks, "gather"):
            undecided = f"{twice} samples are read twice; what is gathered may be cut to the right length"
        else:
            text = (
                f"DistributedSampler reads {twice} of {each[0]['size']} samples twice, so that all ranks have the same "
            )
            cure = "Validate on range(rank, len(data), world_size), and reduce sums and counts."
            return Finding("validation", "wrong", f"{text}number", each[0]["frames"], "S2", cure)
    return Finding("validation", "unknown" if undecided else "ok", undecided or "no sample is counted twice")


def _collectives_after(run: AuditedRun, ranks, word: str = "") -> bool:
    """Was there one on any rank after the first batch of this validation, and before the next training step?"""
    for rank, epoch in ranks.items():
        audit = run.audits[rank]
        events = audit.between(epoch["at"], audit.next_backward(epoch["end"]), "collective")
        if any(word in event["name"] for event in events):
            return True
    return False


def metrics(run: AuditedRun) -> Finding:
    for ranks in _shares(run):
        if not _collectives_after(run, ranks) and (printed := _own_metric(run, ranks[0])):
            text = f"rank 0 prints {printed[1]}, which covers only its own share of the validation data: "
            return Finding("metrics", "wrong", f"{text}nothing was reduced", printed[0]["frames"], "S20", REDUCE)
        if sent := _mean_of_means(run, ranks):
            sizes = " and ".join(str(_size(share)) for share in ranks.values())
            text = f"the mean of the ranks' means is taken, over shares of {sizes} samples"
            return Finding("metrics", "wrong", text, sent["frames"], "S5", REDUCE)
    if run.has_group and (chosen := _chosen(run)):
        return chosen
    if not run.has_group or not run.of("print").get(0):
        return Finding("metrics", "unknown", "rank 0 prints no numbers")
    return _own_loss(run) or Finding("metrics", "unknown", "what else is printed cannot be told from outside")


def _shares(run: AuditedRun):
    """{rank: where it begins and ends, its samples} of each validation in which every rank reads its own samples."""
    epochs = epoch_list(run, trains=False)
    if not epochs:
        phases = zip(*(audit.evaluations() for audit in run.audits.values()), strict=False)
        epochs = [
            {
                rank: {
                    "at": calls[0]["at"] - 1,
                    "end": calls[-1]["at"],
                    "indices": [],
                    "rows": [row for call in calls for row in call["rows"] or ()],
                }
                for rank, calls in zip(run.audits, phase, strict=True)
            }
            for phase in phases
        ]
    for ranks in epochs:
        by_index = not set.intersection(*(set(share["indices"] or [-1]) for share in ranks.values()))
        rows = [share["rows"] for share in ranks.values()]
        by_rows = None not in rows and not set.intersection(*map(set, rows))
        if 0 in ranks and (by_index or by_rows):
            yield ranks


def _size(share) -> int:
    return len(share["rows"] or share["indices"])


def _mean_of_means(run: AuditedRun, ranks):
    """The collective that sends each rank's mean over an unequal share, if the mean of what it sends is then used."""
    sizes = [_size(share) for share in ranks.values()]
    sent = []
    for rank, share in ranks.items():
        events = run.audits[rank].between(share["at"], run.audits[rank].next_backward(share["end"]), "collective")
        sent.append([event for event in events if event["values"] and not event["on_gradients"]])
    # One column for each number that is sent: that of every rank
    columns = [
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
        same = any(abs(value - mean) <= 1e-6 * abs(mean) for value in items) or any(_is(n, mean) for n in numbers)
        if same and len(set(column)) > 1 and not _of_training(run, ranks, column):
            return collective
    return None


def _of_training(run: AuditedRun, ranks, column) -> bool:
    """Are these the last training losses, their sums or their means? Each rank has as many of them."""
    for (rank, share), value in zip(ranks.items(), column, strict=True):
        losses = [event["value"] for event in run.audits[rank].of("backward") if event["at"] < share["end"]]
        windows = [losses[begin:] for begin in range(len(losses)) if None not in losses[begin:]]
        totals = [total for window in windows for total in (sum(window), sum(window) / len(window))]
        if not any(abs(total - value) <= 1e-5 * abs(value) for total in totals):
            return False
    return True


def _chosen(run: AuditedRun) -> Finding | None:
    """Rank 0 saves if a number of its own is better than before, and the other ranks have another one."""
    audit = run.audits[0]
    for save in audit.of("save"):
        tests = [test for frame in save["frames"] for test in source_lines.conditions(frame.file, frame.line)]
        test = next((test for test in tests if BETTER.search(test)), None)
        trained = [event["at"] for event in audit.of("backward", "update") if event["at"] < save["at"]]
        if test is None or not trained:
            continue
        evaluated = [call for call in audit.between(trained[-1], save["at"], "call") if not call["gradients"]]
        begin = evaluated[0]["at"] if evaluated else max([-1, *trained[:-2]])
        if evaluated:
            own = any(ranks[0]["at"] < evaluated[-1]["at"] and ranks[0]["end"] >= begin for ranks in _shares(run))
        else:
            own = run.data_parallel and len({event["value"] for event in _last_losses(run, save)}) > 1
        sent = [event for event in audit.between(begin, save["at"], "collective") if not event["on_gradients"]]
        if own and all("barrier" in event["name"] for event in sent):
            what = "own share of the validation data" if evaluated else "own batch"
            text = f"the checkpoint is chosen {test} by rank 0's number, which covers only its {what}"
            cure = "Reduce the number over the ranks (sum and count) before it decides."
            return Finding("metrics", "wrong", text, save["frames"], "S20", cure)
    return None


def _last_losses(run: AuditedRun, save):
    number = len([event for event in run.audits[0].of("backward") if event["at"] < save["at"]])
    return [events[number - 1] for events in run.of("backward").values() if len(events) >= number]


def _is(text: str, value: float) -> bool:
    """Is the printed number this value, to all of its at least three digits?"""
    digits = text.lstrip("-").partition("e")[0].replace(".", "").lstrip("0")
    decimals = len(text.partition("e")[0].partition(".")[2])
    scale = 10.0 ** int(text.partition("e")[2] or 0)
    return len(digits) >= 3 and abs(float(text) - value) <= 0.51 * scale * 10.0**-decimals


def _own_metric(run: AuditedRun, epoch):
    """(print event, number) of what rank 0 made of the values that it read in this validation alone."""
    audit = run.audits[0]
    end = audit.next_backward(epoch["end"])
    items = [event["value"] for event in audit.between(epoch["at"], end, "item") if not event["gradients"]]
    if not items:
        return None
    counts = {1, len(items), len(epoch["indices"]) or 1, len(epoch["rows"] or [0])}
    values = [
        100**percent * total / count for total in (items[-1], sum(items)) for count in counts for percent in (0, 1)
    ]
    for printed in audit.between(epoch["end"], end, "print"):
        for number in printed["numbers"]:
            if any(_is(number, value) for value in values) and not _others_print(run, printed):
                return printed, number
    return None


def _others_print(run: AuditedRun, printed) -> bool:
    lines = {(frame.file, frame.line) for frame in printed["frames"][:1]}
    others = [event for rank, events in run.of("print").items() if rank != 0 for event in events]
    return any((event["frames"][0].file, event["frames"][0].line) in lines for event in others if event["frames"])


def _own_loss(run: AuditedRun) -> Finding | None:
    """Rank 0 alone prints the loss of its own backward passes, the last or their mean, and the others had another."""
    losses, audit = run.of("backward"), run.audits[0]
    micros = round(len(losses[0]) / max(1, len(audit.of("update"))))  # a loss may have been divided by them
    for printed in run.of("print")[0]:
        last = len([event for event in losses[0] if event["at"] < printed["at"]])
        earlier = [event["at"] for event in audit.of("print", "epoch") if event["at"] < printed["at"]]
        earlier += [call["at"] for calls in audit.evaluations() for call in calls if call["at"] < printed["at"]]
        begins = {sum(event["at"] < at for event in losses[0]) for at in earlier} | {0, last - 1}
        for begin, scale in itertools.product(sorted(begins), {1, micros}):
            values = [[event["value"] for event in events[begin:last]] for events in losses.values()]
            if not 0 <= begin < last or any(None in some or len(some) != last - begin for some in values):
                continue
            values = [scale * sum(some) / len(some) for some in values]
            hits = [number for number in printed["numbers"] if _is(number, values[0])]
            elsewhere = any(_is(number, value) for number in hits for value in [*values[1:], sum(values) / run.world])
            if hits and not elsewhere and not _others_print(run, printed):
                others = ", ".join(f"{value:.4g}" for value in values[1:])
                what = "the loss of its own batch" if last - begin == 1 else "the mean loss of its own batches"
                text = f"rank 0 prints {what}, {hits[0]}, where the others have {others}"
                cure = "Reduce it if it is to speak for all ranks."
                return Finding("metrics", "note", text, printed["frames"], "S20", cure)
    return None
