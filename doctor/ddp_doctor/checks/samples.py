"""Checks which rank reads which samples, in which order, and whether ranks draw different random numbers."""

import itertools
import re

from ddp_doctor import source_lines
from ddp_doctor.audited import AuditedRun
from ddp_doctor.checks.finding import Finding, ok, require, unknown, wrong

FEW = 7  # samples: fewer may come in the same order twice by chance
NOT_DATA_PARALLEL = "the ranks do not train one model together, as far as is seen"
OWN_SHARE = "Give the DataLoader a DistributedSampler, or each rank its own share: data[rank::world_size]."
AUGMENTS = re.compile(r"augm|nois|crop|flip|jitter|mix|cutout|transform|mask|corrupt|rotat|eras|shift|scale", re.I)


def _epochs(run: AuditedRun, trains: bool):
    """{loader: {epoch: {rank: its epoch event, and what it read}}} of the epochs that all ranks have.

    trains: those read with gradients enabled, else those read without. An epoch of training has a backward pass before
    the next epoch begins: without one the script only looked at a batch.
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
            samples = [batch["samples"] for batch in batches]
            by_loader.setdefault(begin["loader"], {}).setdefault(begin["epoch"], {})[rank] = begin | {
                "indices": [i for event in events if event["event"] == "indices" for i in event["indices"]],
                "samples": None if None in samples else list(itertools.chain.from_iterable(samples)),
                "complete": any(event["event"] == "exhausted" for event in events),
                "end": batches[-1]["at"],
                "distinctive": all(batch["distinctive"] for batch in batches),
            }
    return {
        loader: {epoch: ranks for epoch, ranks in epochs.items() if len(ranks) == run.world}
        for loader, epochs in by_loader.items()
    }


def epoch_list(run: AuditedRun, trains: bool):
    """[{rank: its epoch event, and what it read}] of the epochs of training, or of validation, of all loaders."""
    return [ranks for epochs in _epochs(run, trains).values() for _, ranks in sorted(epochs.items())]


def own_samples(run: AuditedRun) -> Finding:
    require(run.data_parallel, NOT_DATA_PARALLEL)
    epochs = [list(ranks.values()) for ranks in epoch_list(run, trains=True)]
    for by_rank in epochs:
        if finding := _same_samples(by_rank):
            return finding
    if frames := _same_inputs(run):
        text = "every rank calls the model with the same batch, each time: their mean gradient is that of one rank"
        return wrong(text, frames, "S4", OWN_SHARE)
    calls = _training_calls(run)
    passes = [_first_pass(rank_calls) for rank_calls in calls]
    complete = [by_rank for by_rank in epochs if all(epoch["complete"] and epoch["samples"] for epoch in by_rank)]
    if any(
        by_rank[0]["distributed"] or not _count_shared([epoch["samples"] for epoch in by_rank]) for by_rank in complete
    ):
        count = sum(len(epoch["samples"]) for epoch in complete[0])
        return ok(f"{count} samples in the first epoch, none read by two ranks")
    if not epochs and all(passes):
        shared = _count_shared(passes)
        if shared and _are_shards(passes, calls, shared, run.single):
            return _overlap(shared, calls[0][0]["frames"])
        passes_end = all(len(a) < len(_samples(rank_calls)) for a, rank_calls in zip(passes, calls, strict=True))
        if not shared and passes_end:
            return ok("in a whole pass over the data none read by two ranks")
    if any(call["inputs"] is not None for rank_calls in calls for call in rank_calls):
        return unknown("the batches differ; whether the ranks' shares overlap is not known")
    return unknown("what the model was called with is not known")


def _same_samples(by_rank: list[dict]) -> Finding | None:
    """A finding if the ranks read the same samples in this epoch, or shares that overlap."""
    epoch, samples = by_rank[0], [rank_epoch["samples"] for rank_epoch in by_rank]
    if None in samples:
        return None
    unique = [set(rank_samples) for rank_samples in samples]
    shortest = min(map(len, samples))
    varied = min(map(len, unique)) > max(3, shortest // 2)
    if varied and all(rank_samples[:shortest] == samples[0][:shortest] for rank_samples in samples):
        text = "every rank reads the same samples in the same order: their mean gradient is that of one rank"
        return wrong(text, epoch["frames"], "S4", OWN_SHARE)
    if not all(rank_epoch["complete"] for rank_epoch in by_rank):
        return None
    common = len(set.intersection(*unique))
    if varied and shortest > FEW and common > 0.9 * min(map(len, unique)):
        return wrong(f"every rank reads all {common} samples in each epoch", epoch["frames"], "S4", OWN_SHARE)
    if epoch["distributed"]:
        indices = [i for rank_epoch in by_rank for i in rank_epoch["indices"]]
        repeated = len(indices) - len(set(indices))
        if repeated > len(by_rank) * (epoch["batch_size"] or 1):
            unread = epoch["size"] - len(set(indices))
            text = f"{repeated} samples are read by more than one rank, and {unread} of {epoch['size']} by none"
            cure = "Give all ranks the same seed, epoch and num_replicas, and each its own rank."
            return wrong(text, epoch["frames"], "S4", cure)
        return None
    all_unique = all(len(a) == len(b) for a, b in zip(samples, unique, strict=True))
    distinctive = all(rank_epoch["distinctive"] for rank_epoch in by_rank)
    shared = _count_shared(samples)
    return _overlap(shared, epoch["frames"]) if shared and all_unique and distinctive else None


def _count_shared(samples: list[list[int]]) -> int:
    """How many samples are read by more than one rank, counted once for each rank but one."""
    unique = [set(rank_samples) for rank_samples in samples]
    return sum(map(len, unique)) - len(set.union(*unique))


def _overlap(count: int, frames) -> Finding:
    text = f"{count} sample{'s are' if count > 1 else ' is'} in the shares of two ranks"
    cure = "Begin each share where the one before ends: data[rank::world_size], or a DistributedSampler."
    return wrong(text, frames, "S4", cure)


def _samples(calls) -> list[int]:
    return [sample for call in calls for sample in call["samples"] or ()]


def _first_pass(calls) -> list[int]:
    """The samples of one rank until one comes again; [] where they cannot be told apart."""
    if any(not call["samples"] or not call["distinctive"] for call in calls):
        return []
    samples = _samples(calls)
    return samples[: next((i for i, sample in enumerate(samples) if sample in samples[:i]), len(samples))]


def _are_shards(passes, calls, shared: int, single) -> bool:
    """Whether the first passes are shards of one data set, and not samples drawn at random, two of which may be equal.

    They are if each rank's second pass has the samples of its first, if the last samples of one rank are the first of
    another, or if all of them are the first pass of the run on a single process.
    """
    second_passes = [
        _samples(rank_calls)[len(first) : 2 * len(first)] for first, rank_calls in zip(passes, calls, strict=True)
    ]
    if all(set(first) == set(second) for first, second in zip(passes, second_passes, strict=True)):
        return True
    if any(a[-shared:] == b[:shared] for a, b in itertools.permutations(passes, 2)):
        return True
    if isinstance(single, str):
        return False
    return set(_first_pass(_training_calls(single)[0])) == set.union(*map(set, passes))


def split(run: AuditedRun) -> Finding:
    """Whether a rank trains on samples that another one validates on."""
    trained = [set(_samples(calls)) for calls in _training_calls(run)]
    evaluations = [[call for calls in audit.evaluations() for call in calls] for audit in run.audits.values()]
    validated = [set(_samples(calls)) for calls in evaluations]
    known = run.data_parallel and all(trained) and any(validated)
    require(known, "the samples of training and of validation are not known on all ranks")
    own = any(a & b for a, b in zip(trained, validated, strict=True))
    across = set.union(*(trained[a] & validated[b] for a, b in itertools.permutations(range(run.world), 2)))
    if across and not own and len(across) > max(1, 0.05 * len(set.union(*validated))):
        text = f"{len(across)} samples that one rank validates on are trained on by another: "
        text += "the ranks split the data differently"
        cure = "Split with one seed on all ranks: random_split(data, lengths, torch.Generator().manual_seed(0))."
        calls = next(filter(None, evaluations))
        return wrong(text, calls[0]["frames"], "S4", cure)
    if across or own:
        return unknown("samples of the training are evaluated; whether they should be is not known")
    return ok("no sample of the training is evaluated on any rank, as far as both were read")


def draws(run: AuditedRun) -> Finding:
    """Whether the ranks draw different random numbers while they make samples, or augment them in the loop."""
    require(run.data_parallel, NOT_DATA_PARALLEL)
    fetches = [[event for event in events if event["gradients"]] for events in run.of("fetch").values()]
    workers = {event["worker"] for events in fetches for event in events}
    any_draw, unclear = False, ""
    cure = "Seed them with the rank: random.seed(seed + rank), numpy.random.seed(seed + rank), torch.manual_seed(...)."
    for worker in workers:
        rows = list(zip(*([e for e in events if e["worker"] == worker] for events in fetches), strict=False))
        for name in {name for row in rows for event in row for name in event["drawn"]}:
            states = [[event["drawn"].get(name) for event in row] for row in rows]
            any_draw = True
            if len(states) >= 2 and all(None not in row and len(set(row)) == 1 for row in states):
                frames = next((event["frames"] for row in rows for event in row if event["frames"]), ())
                frames = frames or (run.first("epoch") or {"frames": ()})["frames"]
                title = "torch's generator" if name == "torch" else name
                text = f"while samples are made, {title} gives the same numbers on all ranks, in {len(rows)} batches"
                return wrong(text, frames, "S15", cure)
    rows = run.rows("draw")
    begin = (run.lowest.of("backward") or [{"at": 0}])[0]["at"]
    for generator, frame in dict.fromkeys((row[0]["generator"], row[0]["frames"][0]) for row in rows):
        calls = [row for row in rows if (row[0]["generator"], row[0]["frames"][0]) == (generator, frame)]
        in_loop = [row for row in calls if row[0]["at"] > begin]
        if len(in_loop) < 2:
            continue
        any_draw = True
        if any(len({(event["generator"], event["state"]) for event in row}) > 1 for row in calls):
            continue
        frames = calls[0][0]["frames"]
        line = source_lines.text_at(frame.file, frame.line)
        if calls[0][0]["is_array"] or AUGMENTS.search(" ".join([line, *(frame.function for frame in frames)])):
            text = f"{generator} gives the same numbers on all ranks, in each of {len(calls)} calls"
            return wrong(text, frames, "S15", cure)
        unclear = f"{generator} gives the same numbers on all ranks; whether that is meant is not known"
    if unclear or not any_draw:
        return unknown(unclear or "no random numbers were drawn for samples, as far as is seen")
    return ok("the ranks draw different numbers for their samples")


def _training_calls(run: AuditedRun) -> list[list[dict]]:
    return [audit.training_calls() for audit in run.audits.values()]


def _same_inputs(run: AuditedRun):
    """The frames of the first training call if the ranks' inputs are equal in every call; else None.

    None, too, if an input is constant or could not be compared.
    """
    rows = list(zip(*_training_calls(run), strict=False))
    if not rows or any(call["inputs"] is None or call["constant"] for row in rows for call in row):
        return None
    all_equal = all(len({call["inputs"] for call in row}) == 1 for row in rows)
    return rows[0][0]["frames"] if all_equal else None


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
            return wrong(text, epoch["frames"], "S1", cure)
    if compared:
        return ok("the second epoch had another order than the first")
    return unknown("no DataLoader that shuffles was read for two epochs")


def dropout(run: AuditedRun) -> Finding:
    calls = run.rows("dropout")
    if not calls:
        has_dropout = any(call["has_dropout"] for rank_calls in _training_calls(run) for call in rank_calls)
        text = "the model has dropout, which was not seen (compiled?)" if has_dropout else "no dropout was seen"
        return unknown(text)
    require(run.data_parallel, NOT_DATA_PARALLEL)
    if any(len({(call["state"], tuple(call["shape"])) for call in row}) > 1 for row in calls):
        return ok("the ranks draw from different states of their generators")
    text = f"the ranks draw the same masks, in each of {len(calls)} calls: their generators have the same state"
    cure = "Once the model is built, seed each rank differently: torch.manual_seed(seed + rank)."
    return wrong(text, calls[0][0]["frames"], "S15", cure)
