"""Checks which rank reads which samples, in which order, and whether ranks draw different random numbers."""

import itertools
import re

from ddp_doctor import source_lines
from ddp_doctor.audited import AuditedRun
from ddp_doctor.checks.finding import Finding

FEW = 7  # samples: fewer may come in the same order twice by chance
ALONE = "the ranks do not train one model together, as far as is seen"
AUGMENTS = re.compile(r"augm|nois|crop|flip|jitter|mix|cutout|transform|mask|corrupt|rotat|eras|shift|scale", re.I)


def _epochs(run: AuditedRun, trains: bool):
    """{loader: {epoch: {rank: what it read}}} of loaders that all ranks have, read with gradients on, or off.

    Only looking at a batch, without a backward pass before anything else is read, is no epoch of training.
    """
    by_loader: dict[int, dict[int, dict[int, dict]]] = {}
    for rank, audit in run.audits.items():
        begins = audit.of("epoch")
        for begin, following in itertools.zip_longest(begins, begins[1:]):
            events = [
                event
                for event in audit.of("indices", "batch", "exhausted")
                if (event["loader"], event["epoch"]) == (begin["loader"], begin["epoch"])
            ]
            batches = [event for event in events if event["event"] == "batch"]
            if not batches or batches[0]["gradients"] is not trains:
                continue
            end = following["at"] if following else float("inf")
            if trains and not audit.between(begin["at"], end, "backward"):
                continue
            rows = [batch["rows"] for batch in batches]
            by_loader.setdefault(begin["loader"], {}).setdefault(begin["epoch"], {})[rank] = begin | {
                "indices": [i for event in events if event["event"] == "indices" for i in event["indices"]],
                "rows": None if None in rows else [row for batch_rows in rows for row in batch_rows],
                "whole": any(event["event"] == "exhausted" for event in events),
                "end": batches[-1]["at"],
                "rich": all(batch["rich"] for batch in batches),
            }
    return {
        loader: {epoch: ranks for epoch, ranks in epochs.items() if len(ranks) == run.world}
        for loader, epochs in by_loader.items()
    }


def epoch_list(run: AuditedRun, trains: bool):
    return [ranks for epochs in _epochs(run, trains).values() for _, ranks in sorted(epochs.items())]


def apart(run: AuditedRun) -> Finding:
    if not run.data_parallel:
        return Finding("samples", "unknown", ALONE)
    cure = "Give the DataLoader a DistributedSampler, or each rank its own share: data[rank::world_size]."
    epochs, disjoint, read = epoch_list(run, trains=True), None, ""
    for ranks in epochs:
        each = list(ranks.values())
        rows = [epoch["rows"] for epoch in each]
        if any(some is None for some in rows):
            continue
        sets = [set(some) for some in rows]
        shortest = min(len(some) for some in rows)
        varied = min(len(some) for some in sets) > max(3, shortest // 2)
        if varied and all(some[:shortest] == rows[0][:shortest] for some in rows):
            text = "every rank reads the same samples in the same order: their mean gradient is that of one rank"
            return Finding("samples", "wrong", text, each[0]["frames"], "S4", cure)
        if not all(epoch["whole"] for epoch in each):
            continue
        common = len(set.intersection(*sets))
        if varied and shortest > FEW and common > 0.9 * min(map(len, sets)):
            text = f"every rank reads all {common} samples in each epoch"
            return Finding("samples", "wrong", text, each[0]["frames"], "S4", cure)
        if each[0]["distributed"]:
            indices = [i for epoch in each for i in epoch["indices"]]
            twice = len(indices) - len(set(indices))
            if twice > run.world * (each[0]["batch_size"] or 1):
                absent = each[0]["size"] - len(set(indices))
                text = f"{twice} samples are read by more than one rank, and {absent} of {each[0]['size']} by none"
                cure = "Give all ranks the same seed, epoch and num_replicas, and each its own rank."
                return Finding("samples", "wrong", text, each[0]["frames"], "S4", cure)
        twice = sum(map(len, sets)) - len(set.union(*sets))
        unique = all(len(some) == len(kind) for some, kind in zip(rows, sets, strict=True))
        if twice and unique and all(epoch["rich"] for epoch in each) and not each[0]["distributed"]:
            return _overlap(twice, each[0]["frames"])
        disjoint = disjoint if twice and not each[0]["distributed"] else True
        read = read or f"{sum(map(len, rows))} samples in the first epoch, "
    calls = _training_calls(run)
    if same := _same_inputs(run):
        text = "every rank calls the model with the same batch, each time: their mean gradient is that of one rank"
        return Finding("samples", "wrong", text, same, "S4", cure)
    passes = [_first_pass(some) for some in calls]
    if not epochs and all(passes):
        twice = sum(map(len, passes)) - len(set.union(*map(set, passes)))
        if twice and _shards(passes, calls, twice, run.single):
            return _overlap(twice, calls[0][0]["frames"])
        disjoint = not twice and all(len(rows) < len(_rows(some)) for rows, some in zip(passes, calls, strict=True))
    if disjoint:
        return Finding("samples", "ok", f"{read or 'in a whole pass over the data '}none read by two ranks")
    if any(call["inputs"] is not None for some in calls for call in some):
        return Finding("samples", "unknown", "the batches differ; whether the ranks' shares overlap is not known")
    return Finding("samples", "unknown", "what the model was called with is not known")


def _overlap(twice: int, frames) -> Finding:
    text = f"{twice} sample{'s are' if twice > 1 else ' is'} in the shares of two ranks"
    cure = "Begin each share where the one before ends: data[rank::world_size], or a DistributedSampler."
    return Finding("samples", "wrong", text, frames, "S4", cure)


def _rows(calls) -> list[int]:
    return [row for call in calls for row in call["rows"] or ()]


def _first_pass(calls) -> list[int]:
    """The samples of one rank until one comes again; [] where they cannot be told apart."""
    if any(not call["rows"] or not call["rich"] for call in calls):
        return []
    rows = _rows(calls)
    return rows[: next((i for i, row in enumerate(rows) if row in rows[:i]), len(rows))]


def _shards(passes, calls, twice: int, single) -> bool:
    """Are these shares of one pass over the data, and not samples drawn at random, of which two may be the same?"""
    rows = [_rows(some) for some in calls]
    again = [some[len(part) : 2 * len(part)] for part, some in zip(passes, rows, strict=True)]
    if all(part and set(more) == set(part) for part, more in zip(passes, again, strict=True)):
        return True
    for a, b in itertools.permutations(passes, 2):
        if a[-twice:] == b[:twice]:
            return True
    whole = isinstance(single, str) or _first_pass(_training_calls(single)[0])
    return not isinstance(single, str) and set(whole) == set.union(*map(set, passes))


def split(run: AuditedRun) -> Finding:
    """Does a rank train on what another one validates on?"""
    trained = [set(_rows(calls)) for calls in _training_calls(run)]
    phases = [[call for calls in audit.evaluations() for call in calls] for audit in run.audits.values()]
    validated = [set(_rows(calls)) for calls in phases]
    if not run.data_parallel or not all(trained) or not any(validated):
        return Finding("split", "unknown", "the samples of training and of validation are not known on all ranks")
    own = any(a & b for a, b in zip(trained, validated, strict=True))
    across = {row for a, b in itertools.permutations(range(run.world), 2) for row in trained[a] & validated[b]}
    if across and not own and len(across) > max(1, 0.05 * len(set.union(*validated))):
        text = f"{len(across)} samples that one rank validates on are trained on by another: the ranks split otherwise"
        cure = "Split with one seed on all ranks: random_split(data, lengths, torch.Generator().manual_seed(0))."
        calls = next(filter(None, phases))
        return Finding("split", "wrong", text, calls[0]["frames"], "S4", cure)
    if across or own:
        return Finding("split", "unknown", "samples of the training are evaluated, on the same rank, too: as meant?")
    return Finding("split", "ok", "no sample of the training is evaluated on any rank, as far as both were read")


def draws(run: AuditedRun) -> Finding:
    """Random numbers that make samples."""
    if not run.data_parallel:
        return Finding("draws", "unknown", ALONE)
    fetches = [[event for event in events if event["gradients"]] for events in run.of("fetch").values()]
    workers = {event["worker"] for events in fetches for event in events}
    drawn, unclear = False, ""
    cure = "Seed them with the rank: random.seed(seed + rank), numpy.random.seed(seed + rank), torch.manual_seed(...)."
    for worker in workers:
        rows = list(zip(*([e for e in events if e["worker"] == worker] for events in fetches), strict=False))
        for name in {name for row in rows for event in row for name in event["drawn"]}:
            states = [[event["drawn"].get(name) for event in row] for row in rows]
            drawn = True
            if len(states) >= 2 and all(None not in row and len(set(row)) == 1 for row in states):
                frames = next((event["frames"] for row in rows for event in row if event["frames"]), ())
                frames = frames or (run.first("epoch") or {"frames": ()})["frames"]
                whose = "torch's generator" if name == "torch" else name
                text = f"while samples are made, {whose} gives the same numbers on all ranks, in {len(rows)} batches"
                return Finding("draws", "wrong", text, frames, "S15", cure)
    rows = list(zip(*run.of("draw").values(), strict=False))
    begins = [(audit.of("backward") or [{"at": 0}])[0]["at"] for audit in run.audits.values()]
    for call_site in dict.fromkeys((row[0]["of"], row[0]["frames"][0]) for row in rows):
        here = [row for row in rows if (row[0]["of"], row[0]["frames"][0]) == call_site]
        loop = [row for row in here if row[0]["at"] > begins[0]]
        drawn = drawn or bool(loop)
        if len(loop) < 2 or any(len({(event["of"], event["state"]) for event in row}) > 1 for row in here):
            continue
        frames = here[0][0]["frames"]
        line = source_lines.text_at(frames[0].file, frames[0].line)
        if here[0][0]["many"] or AUGMENTS.search(" ".join([line, *(frame.function for frame in frames)])):
            text = f"{call_site[0]} gives the same numbers on all ranks, in each of {len(here)} calls"
            return Finding("draws", "wrong", text, frames, "S15", cure)
        unclear = f"{call_site[0]} gives the same numbers on all ranks; whether that is meant is not known"
    if unclear or not drawn:
        return Finding("draws", "unknown", unclear or "no random numbers were drawn for samples, as far as is seen")
    return Finding("draws", "ok", "the ranks draw different numbers for their samples")


def _training_calls(run: AuditedRun) -> list[list[dict]]:
    return [audit.training_calls() for audit in run.audits.values()]


def _same_inputs(run: AuditedRun):
    """The frames of the call; None if a batch differed, was constant, or could not be compared."""
    rows = list(zip(*_training_calls(run), strict=False))
    if not rows or any(call["inputs"] is None or call["constant"] for row in rows for call in row):
        return None
    same = all(len({call["inputs"] for call in row}) == 1 for row in rows)
    return rows[0][0]["frames"] if same else None


def reshuffled(run: AuditedRun) -> Finding:
    compared = False
    for epochs in _epochs(run, trains=True).values():
        orders = [ranks for _, ranks in sorted(epochs.items())]
        if len(orders) < 2 or not next(iter(orders[0].values()))["shuffles"]:
            continue
        pairs = [(orders[0][rank]["indices"], orders[1][rank]["indices"]) for rank in orders[0]]
        lengths = [min(len(a), len(b)) for a, b in pairs]
        if min(lengths) < FEW:
            continue
        compared = True
        if all(a[:n] == b[:n] for (a, b), n in zip(pairs, lengths, strict=True)):
            epoch = next(iter(orders[0].values()))
            cure = "Call sampler.set_epoch(epoch) before each epoch." if epoch["distributed"] else "Seed only once."
            text = "the second epoch has the order of the first"
            return Finding("reshuffled", "wrong", text, epoch["frames"], "S1", cure)
    if compared:
        return Finding("reshuffled", "ok", "the second epoch had another order than the first")
    return Finding("reshuffled", "unknown", "no DataLoader that shuffles was read for two epochs")


def dropout(run: AuditedRun) -> Finding:
    calls = list(zip(*run.of("dropout").values(), strict=False))
    if not calls:
        unseen = any(call["drops"] for rank_calls in _training_calls(run) for call in rank_calls)
        text = "the model has dropout, which was not seen (compiled?)" if unseen else "no dropout was seen"
        return Finding("dropout", "unknown", text)
    if not run.data_parallel:
        return Finding("dropout", "unknown", ALONE)
    same = [len({(draw["state"], tuple(draw["shape"])) for draw in row}) == 1 for row in calls]
    if not all(same):
        return Finding("dropout", "ok", "the ranks draw from different states of their generators")
    text = f"the ranks draw the same masks, in each of {len(calls)} calls: their generators have the same state"
    cure = "Once the model is built, seed each rank differently: torch.manual_seed(seed + rank)."
    return Finding("dropout", "wrong", text, calls[0][0]["frames"], "S15", cure)
