"""Who reads what: samples, their order, random masks, validation and the numbers that are printed of it."""

import itertools

from ddp_doctor.audited import AuditedRun
from ddp_doctor.checks.finding import Finding

FEW = 7  # samples: fewer may come in the same order twice by chance


def _epochs(run: AuditedRun, trains: bool):
    """{loader: {epoch: {rank: what it read}}} of loaders that all ranks have, read with gradients on, or off.

    Only looking at a batch, without a backward pass before anything else is read, is no epoch of training.
    """
    found: dict[int, dict[int, dict[int, dict]]] = {}
    for rank, audit in run.audits.items():
        begins = audit.of("epoch")
        for begin, following in itertools.zip_longest(begins, begins[1:]):
            mine = [
                one
                for one in audit.of("indices", "batch", "exhausted")
                if (one["loader"], one["epoch"]) == (begin["loader"], begin["epoch"])
            ]
            batches = [one for one in mine if one["event"] == "batch"]
            if not batches or batches[0]["gradients"] is not trains:
                continue
            end = following["at"] if following else float("inf")
            if trains and not audit.between(begin["at"], end, "backward"):
                continue
            rows = [one["rows"] for one in batches]
            found.setdefault(begin["loader"], {}).setdefault(begin["epoch"], {})[rank] = begin | {
                "indices": [i for one in mine if one["event"] == "indices" for i in one["indices"]],
                "rows": None if None in rows else [one for some in rows for one in some],
                "whole": any(one["event"] == "exhausted" for one in mine),
                "end": batches[-1]["at"],
            }
    return {
        loader: {epoch: ranks for epoch, ranks in epochs.items() if len(ranks) == run.world}
        for loader, epochs in found.items()
    }


def epoch_list(run: AuditedRun, trains: bool):
    return [ranks for epochs in _epochs(run, trains).values() for _, ranks in sorted(epochs.items())]


def apart(run: AuditedRun) -> Finding:
    if not run.data_parallel:
        return Finding("samples", "unknown", "the ranks do not train one model together, as far as is seen")
    cure = "Give the DataLoader a DistributedSampler, or each rank its own share: data[rank::world_size]."
    epochs = epoch_list(run, trains=True)
    for ranks in epochs:
        each = list(ranks.values())
        rows = [one["rows"] for one in each]
        if any(one is None for one in rows):
            continue
        sets = [set(one) for one in rows]
        shortest = min(len(one) for one in rows)
        varied = min(len(one) for one in sets) > max(3, shortest // 2)
        if varied and all(one[:shortest] == rows[0][:shortest] for one in rows):
            return Finding(
                "samples",
                "wrong",
                "every rank reads the same samples in the same order: their mean gradient is that of one rank",
                each[0]["frames"],
                "S4",
                cure,
            )
        common = len(set.intersection(*sets))
        if varied and shortest > FEW and all(one["whole"] for one in each) and common > 0.9 * min(map(len, sets)):
            return Finding(
                "samples",
                "wrong",
                f"every rank reads all {common} samples in each epoch",
                each[0]["frames"],
                "S4",
                cure,
            )
        if each[0]["distributed"] and all(one["whole"] for one in each):
            indices = [i for one in each for i in one["indices"]]
            twice = len(indices) - len(set(indices))
            if twice > run.world * (each[0]["batch_size"] or 1):
                absent = each[0]["size"] - len(set(indices))
                return Finding(
                    "samples",
                    "wrong",
                    f"{twice} samples are read by more than one rank, and {absent} of {each[0]['size']} by none",
                    each[0]["frames"],
                    "S4",
                    "Give all ranks the same seed, epoch and num_replicas, and each its own rank.",
                )
    if same := _same_inputs(run):
        return Finding(
            "samples",
            "wrong",
            "every rank calls the model with the same batch, each time: their mean gradient is that of one rank",
            same,
            "S4",
            cure,
        )
    inputs = [one for found in _training_calls(run) for one in found if one["inputs"] is not None]
    if not inputs:
        return Finding("samples", "unknown", "what the model was called with is not known")
    whole = [ranks for ranks in epochs if all(one["whole"] and one["rows"] for one in ranks.values())]
    read = f"{sum(len(one['rows']) for one in whole[0].values())} samples in the first epoch, " if whole else ""
    return Finding("samples", "ok", f"{read}different batches on different ranks")


def _training_calls(run: AuditedRun):
    return [
        [one for one in found if not one["inner"] and one["train"] and one["gradients"]]
        for found in run.of("call").values()
    ]


def _same_inputs(run: AuditedRun):
    """The frames of the call; None if a batch differed, was constant, or could not be compared."""
    rows = list(zip(*_training_calls(run), strict=False))
    if not rows or any(one["inputs"] is None or one["constant"] for row in rows for one in row):
        return None
    same = all(len({one["inputs"] for one in row}) == 1 for row in rows)
    return rows[0][0]["frames"] if same else None


def reshuffled(run: AuditedRun) -> Finding:
    found = False
    for epochs in _epochs(run, trains=True).values():
        orders = [ranks for _, ranks in sorted(epochs.items())]
        if len(orders) < 2 or not next(iter(orders[0].values()))["shuffles"]:
            continue
        pairs = [(orders[0][rank]["indices"], orders[1][rank]["indices"]) for rank in orders[0]]
        lengths = [min(len(a), len(b)) for a, b in pairs]
        if min(lengths) < FEW:
            continue
        found = True
        if all(a[:n] == b[:n] for (a, b), n in zip(pairs, lengths, strict=True)):
            one = next(iter(orders[0].values()))
            cure = "Call sampler.set_epoch(epoch) before each epoch." if one["distributed"] else "Seed only once."
            return Finding(
                "reshuffled", "wrong", "the second epoch has the order of the first", one["frames"], "S1", cure
            )
    if found:
        return Finding("reshuffled", "ok", "the second epoch had another order than the first")
    return Finding("reshuffled", "unknown", "no DataLoader that shuffles was read for two epochs")


def dropout(run: AuditedRun) -> Finding:
    calls = list(zip(*run.of("dropout").values(), strict=False))
    if not calls:
        unseen = any(one["drops"] for found in _training_calls(run) for one in found)
        text = "the model has dropout, which was not seen (compiled?)" if unseen else "no dropout was active"
        return Finding("dropout", "ok" if run.first("call") and not unseen else "unknown", text)
    if not run.data_parallel:
        return Finding("dropout", "unknown", "the ranks do not train one model together, as far as is seen")
    same = [len({(one["state"], tuple(one["shape"])) for one in row}) == 1 for row in calls]
    if not all(same):
        return Finding("dropout", "ok", "the ranks draw from different states of their generators")
    return Finding(
        "dropout",
        "wrong",
        f"the ranks draw the same masks, in each of {len(calls)} calls: their generators have the same state",
        calls[0][0]["frames"],
        "S15",
        "Once the model is built, seed each rank differently: torch.manual_seed(seed + rank).",
    )
