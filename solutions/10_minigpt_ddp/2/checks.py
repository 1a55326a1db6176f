"""10.2: a trainer whose loss and batch depend on the number of processes, silently; a detector, and the repair."""

import math
import re
from collections import Counter

import torch

from ddp_course.grader.answer_record import Call, Job, cases
from ddp_course.grader.verdict import Wrong
from ddp_course.grader.vocabulary import Mistake, number, recognised

from .driver import some_window

TRAIN, DETECTOR = "train", "not_the_same_run"
CONTEXT, UPDATES, RATE = 8, 5, 0.1
WHOSE = "which micro-batches, and whose, are in the number that is called the loss"
WARM = 2  # updates after which DDP has sent all that it sends at the start
PLANS = {"192 tokens, micro-batches of 2": (192, 2), "192 tokens, micro-batches of 1": (192, 1)}
SHORT = f"192 tokens, micro-batches of 1, {WARM} updates"
UNFIT = {  # tokens per update, micro-batch size: the nearest that fit depend on the world size
    "200 tokens, micro-batches of 2": (200, 2),
    "90 tokens, micro-batches of 1": (90, 1),
    "100 tokens, micro-batches of 2": (100, 2),
    "8 tokens, micro-batches of 2": (8, 2),  # less than one micro-batch on each rank
}


def trained(world):
    plans = {given: (*plan, UPDATES) for given, plan in {**PLANS, **UNFIT}.items()} | {SHORT: (192, 1, WARM)}
    calls = tuple(Call([plan] * world, given) for given, plan in plans.items())
    return Job(world, TRAIN, calls, seconds=6.0, driver=True)  # DDP takes more than a second to load


def curve(tokens_per_update, weights=None):
    """The losses and the weights of one process on whole updates."""
    weights, losses = torch.zeros(3, dtype=torch.float64), []
    for update in range(UPDATES):
        rows = [some_window(update, number) for number in range(tokens_per_update // CONTEXT)]
        inputs, targets = (torch.cat(part) for part in zip(*rows, strict=True))
        errors = inputs @ weights - targets
        losses.append((errors**2).mean().item())
        weights = weights - RATE * 2 * (inputs * errors[:, None]).mean(0)
    return losses, weights


def of_one_micro_batch(world, tokens_per_update, micro_batch_size, rank=0, all_of_it=False):
    """What the given script calls the loss: of this rank's last micro-batch; or of all of this rank's."""
    weights, losses = torch.zeros(3, dtype=torch.float64), []
    steps = tokens_per_update // (world * micro_batch_size * CONTEXT)
    for update in range(UPDATES):
        mine = []
        for micro in range(0 if all_of_it else steps - 1, steps):
            first = (micro * world + rank) * micro_batch_size
            mine += [some_window(update, first + i) for i in range(micro_batch_size)]
        inputs, targets = (torch.cat(part) for part in zip(*mine, strict=True))
        losses.append(((inputs @ weights - targets) ** 2).mean().item())
        rows = [some_window(update, number) for number in range(steps * world * micro_batch_size)]
        inputs, targets = (torch.cat(part) for part in zip(*rows, strict=True))
        weights = weights - RATE * 2 * (inputs * (inputs @ weights - targets)[:, None]).mean(0)
    return losses


ONE = curve(192)[0]
NUDGED = [loss * (1 + 1e-12) for loss in ONE]  # what another order of adding does
CURVES = {  # given: ({world size: losses}, those that are another run)
    "equal": ({1: ONE, 2: ONE, 4: ONE}, []),
    "equal but for rounding": ({1: ONE, 2: NUDGED, 4: NUDGED}, []),
    "the given script": ({n: of_one_micro_batch(n, 192, 2) for n in (1, 2, 4)} | {1: ONE}, [2, 4]),
    "the given script, rank 1's losses": ({1: ONE, 2: of_one_micro_batch(2, 192, 2, 1)}, [2]),
    "the last loss is off by 0.1 %": ({1: ONE, 2: ONE, 4: [*ONE[:-1], ONE[-1] * 1.001]}, [4]),
    "one loss is NaN": ({1: ONE, 2: [*ONE[:2], math.nan, *ONE[3:]], 4: ONE}, [2]),
    "a run that ended early": ({1: ONE, 2: ONE[:3], 4: ONE}, [2]),
    "a run that went on": ({1: ONE, 2: [*ONE, 0.5], 3: ONE}, [2]),
    "tiny losses, twice as large": ({1: [1e-9, 2e-9], 2: [2e-9, 4e-9]}, [2]),
    "large losses, equal but for rounding": ({1: [3e8, 2e8], 8: [3e8 + 1e-5, 2e8]}, []),
    "in another order of sizes": ({4: [1.0, 0.5], 2: [*ONE, 0.5], 1: ONE}, [2, 4]),
    "one process alone": ({1: ONE}, []),
    "losses equal to seven digits": ({1: [0.5, 3e-4], 2: [0.5 + 4e-8, 3e-4 + 2e-11]}, []),
    "losses of 1e-15, three times as large": ({1: [1e-15, 2e-15], 2: [3e-15, 6e-15]}, [2]),
    "losses of 1e12, equal to seven digits": ({1: [1e12, 2e12], 2: [1e12 + 9e4, 2e12]}, []),
    "a small loss behind a large one, twice as large": ({1: [0.5, 1e-8], 2: [0.5, 2e-8]}, [2]),
    "losses that end at 0": ({1: [0.5, 0.0], 2: [0.5, 0.0], 4: [0.5, 0.25]}, [4]),
    "the last loss is off by 0.005 %": ({1: ONE, 2: [*ONE[:-1], ONE[-1] * 1.00005]}, [2]),
    "the last loss is off by 0.002 %": ({1: ONE, 2: [*ONE[:-1], ONE[-1] * 1.00002]}, [2]),
}
REPAIRED = [trained(2), trained(4), trained(3), trained(1)]
DETECT = Job(1, DETECTOR, tuple(Call([(curves,)], given) for given, (curves, _) in CURVES.items()))
JOBS = [*REPAIRED, DETECT]


def what_does_not_divide_is_refused(records):
    """An update that does not divide raises ValueError on every rank, unread, and names the nearest sizes that do."""
    for case in repaired(records):
        tokens, micro_batch_size, _ = case.args[0]
        fits = nearest(tokens, micro_batch_size * CONTEXT * case.world)
        for rank, result in enumerate(case.results):
            if tokens in fits:
                if result["refusal"]:
                    raise Wrong(
                        f"{case.where}rank {rank} refused {tokens} tokens: {result['refusal']!r}; they do divide",
                        "by what the tokens of an update have to divide",
                    )
                continue
            if result["raised"]:
                raise Wrong(
                    f"{case.where}rank {rank} raised {result['raised']}; it should be a ValueError that names the "
                    "nearest sizes",
                    "the class of what is raised: a ValueError, wherever an update does not divide"
                    if max(fits) > tokens > min(fits)
                    else "how many micro-batches fit into this update, and a ValueError where there is none",
                )
            if result["refusal"] is None:
                used = micro_batch_size * CONTEXT * case.world * len(steps_read(result, micro_batch_size))
                raise Wrong(
                    f"{case.where}{tokens} tokens do not divide by {case.world} x {micro_batch_size} x {CONTEXT}, and "
                    f"rank {rank} raised no ValueError; it trained on {used} tokens an update",
                    "what // does with what is left over: where anything is, a ValueError is to be raised",
                )
            if result["read"]:
                raise Wrong(
                    f"{case.where}rank {rank} objected after it had read {len(result['read'])} windows",
                    "what is known before the first update",
                )
            named = {int(one) for one in re.findall(r"\d+", result["refusal"])}  # all are below 1,000
            if missing := [one for one in fits if one not in named]:
                raise Wrong(
                    f"{case.where}rank {rank} said {result['refusal']!r}, which does not name {missing[0]}; the "
                    f"nearest that divide are {' and '.join(map(str, fits))}",
                    "the multiples below and above",
                )
    return "what does not divide is refused on every rank, before a window is read, with the nearest sizes that do"


def the_loss_is_that_of_the_update(records):
    """The losses are those of all tokens of the update, the same numbers at any world size and on every rank."""
    for case, tokens in fitting(records):
        right, _ = curve(tokens)
        for rank, result in enumerate(case.results):
            losses = result["result"][0] if isinstance(result["result"], list) else None
            if not isinstance(losses, list) or len(losses) != UPDATES:
                raise Wrong(
                    f"{case.where}{TRAIN} returned {result['result']!r} on rank {rank}; it should be (losses, weights) "
                    f"with {UPDATES} losses",
                    "the line that returns",
                )
            losses = [number(one) for one in losses]
            bad = [u for u in range(UPDATES) if not math.isclose(losses[u], right[u], rel_tol=1e-9)]
            if bad:
                words, look = recognised(losses[bad[0]], mistakes(case, rank, bad[0]), WHOSE)
                raise Wrong(
                    f"{case.where}the loss of update {bad[0]} is {losses[bad[0]]:.6f} on rank {rank}{words}; of all "
                    f"{tokens} tokens it is {right[bad[0]]:.6f}",
                    look,
                )
    return "the losses are those of whole updates, the same at 1, 2, 3 and 4 ranks, on every rank"


def the_weights_are_those_of_one_process(records):
    """The weights are those of one process on whole updates, on every rank."""
    for case, tokens in fitting(records):
        _, right = curve(tokens)
        for rank, result in enumerate(case.results):
            weights = result["result"][1]
            if not torch.is_tensor(weights) or weights.shape != right.shape:
                raise Wrong(f"{case.where}rank {rank} returned {weights!r} for weights", "the line that returns")
            if not torch.allclose(weights.double(), right, rtol=0, atol=1e-9):
                raise Wrong(
                    f"{case.where}rank {rank} ended with weights {weights.tolist()}; one process on whole updates gets "
                    f"{right.tolist()}",
                    "the gradient: what each micro-batch adds to it, what is summed over ranks, what it is divided by",
                )
    return "the weights are those of one process"


def the_windows_are_shared(records):
    """Each window of an update is read once, by one rank."""
    for case, tokens in fitting(records):
        times = Counter(tuple(one) for result in case.results for one in result["read"])
        for update in range(UPDATES):
            for window in range(tokens // CONTEXT):
                if times[update, window] != 1:
                    raise Wrong(
                        f"{case.where}window {window} of update {update} was read {times[update, window]} times by "
                        "all ranks together",
                        "which windows a rank takes: N ranks that each train on all of them are no faster than one",
                    )
    return "each window of an update is read by one rank"


def little_is_said(records):
    """At most two collectives an update, however many micro-batches there are; what begins the run is not counted."""
    starts = {case.world: case for case in repaired(records) if case.given == SHORT}
    for case, _ in fitting(records):
        for rank, operations in enumerate(case.operations):
            counted = operations[len(starts[case.world].operations[rank]) :]
            if len(counted) > 2 * (UPDATES - WARM):
                names = ", ".join(dict.fromkeys(one.op for one in counted))
                raise Wrong(
                    f"{case.where}rank {rank} called {len(counted)} collectives ({names}) in its last {UPDATES - WARM} "
                    "updates; two an update are enough",
                    "what each of them is for: only the gradients and the loss are needed, and once an update",
                )
    return "two collectives an update at most"


def the_detector_tells_runs_apart(records):
    """not_the_same_run returns the world sizes whose losses are not those of one process, smallest first."""
    for case in cases(records[len(REPAIRED) :]):
        [result], (curves, right) = case.results, CURVES[case.given]
        if not isinstance(result, list) or [number(one) for one in result] != right:
            missed = isinstance(result, list) and [one for one in right if one not in result]
            raise Wrong(
                f"{case.given}: {DETECTOR} returned {result!r}, not {right!r} ({curves})",
                "the order of the list: the smallest world size comes first"
                if isinstance(result, list) and sorted(result, key=str) == sorted(right, key=str)
                else "what it overlooks: a NaN compares as unequal to everything, zip ends with the shorter list, and "
                "a limit that does not follow each loss means nothing for a tiny one"
                if missed
                else "what it takes for a difference: sums in another order differ in their last digits, relative to "
                "size",
            )
    return f"{DETECTOR} tells the curves of both versions apart, and lets rounding pass, in {len(CURVES)} cases"


CHECKS = [
    what_does_not_divide_is_refused,
    the_loss_is_that_of_the_update,
    the_weights_are_those_of_one_process,
    the_windows_are_shared,
    little_is_said,
    the_detector_tells_runs_apart,
]


def repaired(records):
    return cases(records[: len(REPAIRED)])


def fitting(records):
    """(case, tokens per update) of the calls whose update divides at any world size here."""
    return ((case, case.args[0][0]) for case in repaired(records) if case.given in PLANS)


def nearest(tokens, together):
    """The multiples of `together` that are nearest to `tokens`: below, unless that is 0, and above; or itself."""
    steps, rest = divmod(tokens, together)
    return [n * together for n in (steps, steps + 1) if n] if rest else [tokens]


def steps_read(result, micro_batch_size):
    """The micro-batches that a rank took in update 0."""
    return [window for update, window in result["read"] if update == 0][::micro_batch_size]


def mistakes(case, rank, update):
    """What a wrong loss may be."""
    tokens, micro_batch_size, _ = case.args[0]
    own = [
        of_one_micro_batch(case.world, tokens, micro_batch_size, rank, all_of_it=one)[update] for one in (False, True)
    ]
    yield Mistake("that of its own last micro-batch", own[0], WHOSE)
    yield Mistake("that of its own micro-batches", own[1], WHOSE)
    for count, what in ((case.world, "ranks"), (tokens // (case.world * micro_batch_size * CONTEXT), "micro-batches")):
        if count > 1:
            right = curve(tokens)[0][update]
            look = f"by what the sum over all {what} is divided, and how often"
            yield Mistake(f"{count} times too large", right * count, look)
            yield Mistake(f"divided by {count} once too often", right / count, look)
