"""10.2: a trainer whose loss and batch depend on the number of processes, silently; a detector, and the repair."""

import math
import re
from collections import Counter
from itertools import product

import torch

from ddp_course.grader.vocabulary import (
    Mistake,
    Wrong,
    check,
    driver_job,
    expect,
    function_job,
    number,
    numbers,
    recognised,
)

from .driver import CONTEXT, some_window

TRAIN, DETECTOR = "train", "not_the_same_run"
STEPS, LEARNING_RATE = 5, 0.1
LOOK_AT_LOSS = "which micro-batches, and of which ranks, are in the number that is called the loss"
FIRST_STEPS = 2  # after which DDP has sent all that it sends at the start of a run
PLANS = {"192 tokens, micro-batches of 2": (192, 2), "192 tokens, micro-batches of 1": (192, 1)}
SHORT_RUN = f"192 tokens, micro-batches of 1, {FIRST_STEPS} steps"
UNFIT = {  # tokens per update, micro-batch size: the nearest that fit depend on the world size
    "200 tokens, micro-batches of 2": (200, 2),
    "90 tokens, micro-batches of 1": (90, 1),
    "100 tokens, micro-batches of 2": (100, 2),
    "8 tokens, micro-batches of 2": (8, 2),  # less than one micro-batch on each rank
}


def train_job(world):
    calls = {scenario: (*plan, STEPS) for scenario, plan in {**PLANS, **UNFIT}.items()}
    calls[SHORT_RUN] = (192, 1, FIRST_STEPS)
    return driver_job(world, TRAIN, calls, seconds=6.0)  # if the answer uses DDP, each rank loads torch._dynamo


def one_process(tokens_per_update, counted=None):
    """The losses and final weights of one process on whole steps. counted: the windows in the loss, if not all."""
    weights, losses = torch.zeros(3, dtype=torch.float64), []
    for step in range(STEPS):
        windows = range(tokens_per_update // CONTEXT)
        inputs, targets = global_batch(step, windows)
        counted_inputs, counted_targets = global_batch(step, windows if counted is None else counted)
        losses.append(((counted_inputs @ weights - counted_targets) ** 2).mean().item())
        weights = weights - LEARNING_RATE * 2 * (inputs * (inputs @ weights - targets)[:, None]).mean(0)
    return losses, weights


def global_batch(step, windows):
    """Inputs and targets of these windows, concatenated."""
    return [torch.cat(part) for part in zip(*(some_window(step, number) for number in windows), strict=True)]


def losses_of_rank(world, tokens_per_update, micro_batch_size, rank=0, only_last=True):
    """The losses over a rank's last micro-batch, as in the given script; or over all of its micro-batches."""
    micro_batches = range(tokens_per_update // (world * micro_batch_size * CONTEXT))
    starts = [(micro * world + rank) * micro_batch_size for micro in micro_batches[-1 if only_last else 0 :]]
    return one_process(tokens_per_update, [start + i for start in starts for i in range(micro_batch_size)])[0]


ONE = one_process(192)[0]
ROUNDED = [loss * (1 + 1e-12) for loss in ONE]  # as by another order of summation
CURVES = {  # scenario: ({world size: losses}, the world sizes whose losses are not those of one process)
    "equal": ({1: ONE, 2: ONE, 4: ONE}, []),
    "equal but for rounding": ({1: ONE, 2: ROUNDED, 4: ROUNDED}, []),
    "the given script": ({1: ONE} | {world: losses_of_rank(world, 192, 2) for world in (2, 4)}, [2, 4]),
    "the given script, rank 1's losses": ({1: ONE, 2: losses_of_rank(2, 192, 2, rank=1)}, [2]),
    "the last loss is off by 0.1 %": ({1: ONE, 2: ONE, 4: [*ONE[:-1], ONE[-1] * 1.001]}, [4]),
    "one loss is NaN": ({1: ONE, 2: [*ONE[:2], math.nan, *ONE[3:]], 4: ONE}, [2]),
    "a run that ended early": ({1: ONE, 2: ONE[:3], 4: ONE}, [2]),
    "a run that went on": ({1: ONE, 2: [*ONE, 0.5], 3: ONE}, [2]),
    "tiny losses, twice as large": ({1: [1e-9, 2e-9], 2: [2e-9, 4e-9]}, [2]),
    # As texts of six digits they are 3.00000e8 and 3.00001e8.
    "large losses, equal but for rounding": ({1: [3.000005e8 - 1e-5, 2e8], 8: [3.000005e8 + 1e-5, 2e8]}, []),
    "in another order of sizes": ({4: [1.0, 0.5], 2: [*ONE, 0.5], 1: ONE}, [2, 4]),
    "one process only": ({1: ONE}, []),
    "losses equal to seven digits": ({1: [-0.5, 3.0], 2: [-0.5 - 4e-8, 3.0 + 2e-7]}, []),
    "losses of 1e-15, three times as large": ({1: [1e-15, 2e-15], 2: [3e-15, 6e-15]}, [2]),
    "losses of 1e12, equal to seven digits": ({1: [1e12, 2e12], 2: [1e12 + 9e4, 2e12]}, []),
    "a small loss behind a large one, twice as large": ({1: [0.5, 1e-8], 2: [0.5, 2e-8]}, [2]),
    "losses that end at 0": ({1: [0.5, 0.0], 2: [0.5, 0.0], 4: [0.5, 0.25]}, [4]),
    "the last loss is off by 0.005 %": ({1: ONE, 2: [*ONE[:-1], ONE[-1] * 1.00005]}, [2]),
    "the last loss is off by 0.002 %": ({1: ONE, 2: [*ONE[:-1], ONE[-1] * 1.00002]}, [2]),
}
REPAIRED = [train_job(2), train_job(4), train_job(3), train_job(1)]
DETECT = function_job(1, DETECTOR, {scenario: (curves,) for scenario, (curves, _) in CURVES.items()})
JOBS = [*REPAIRED, DETECT]


@check(
    "what does not divide is refused on every rank, before a window is read, with the nearest sizes that do", REPAIRED
)
def what_does_not_divide_is_refused(case, rank, result):
    tokens, micro_batch_size, _ = case.args[0]
    fits, refusal = nearest(tokens, micro_batch_size * CONTEXT * case.world), result["refusal"]
    if tokens in fits:
        expect(
            not refusal,
            f"rank {rank} refused {tokens} tokens: {refusal!r}; they do divide",
            "the number of which the tokens of a step have to be a multiple",
        )
        return
    expect(
        not result["raised"],
        f"rank {rank} raised {result['raised']}; it should be a ValueError that names the nearest sizes",
        "the class of what is raised: a ValueError, wherever a step does not divide"
        if max(fits) > tokens > min(fits)
        else "how many micro-batches fit into this step, and a ValueError where there is none",
    )
    used = CONTEXT * case.world * sum(step == 0 for step, _ in result["read"])
    expect(
        refusal is not None,
        f"{tokens} tokens do not divide by {case.world} x {micro_batch_size} x {CONTEXT}, and rank {rank} raised no "
        f"ValueError; it trained on {used} tokens a step",
        "what // does with what is left over: where anything is, a ValueError is to be raised",
    )
    expect(
        not result["read"],
        f"rank {rank} objected after it had read {len(result['read'])} windows",
        "what is known before the first step",
    )
    named = set(map(int, re.findall(r"\d+", refusal)))  # all are below 1,000
    for size in fits:
        expect(
            size in named,
            f"rank {rank} said {refusal!r}, which does not name {size}; the nearest that divide are "
            f"{' and '.join(map(str, fits))}",
            "the multiples below and above",
        )


@check("the losses are those of whole steps, the same at 1, 2, 3 and 4 ranks, on every rank", REPAIRED, scenarios=PLANS)
def the_loss_is_that_of_the_step(case, rank, result):
    tokens, returned = case.args[0][0], result["result"]
    losses = numbers(returned[0]) if isinstance(returned, list) and len(returned) == 2 else None
    expect(
        losses is not None and len(losses) == STEPS,
        f"{TRAIN} returned {returned!r} on rank {rank}; it should be (losses, weights), where losses is a list or "
        f"tensor of {STEPS} numbers",
        "the line that returns",
    )
    for step, (loss, right) in enumerate(zip(losses, one_process(tokens)[0], strict=True)):
        if not math.isclose(loss, right, rel_tol=1e-9):
            words, look_at = recognised(loss, mistakes(case, rank, step), LOOK_AT_LOSS)
            raise Wrong(
                f"the loss of step {step} is {loss:.10g} on rank {rank}{words}; of all {tokens} tokens it is "
                f"{right:.10g}",
                look_at,
            )


@check("the weights are those of one process", REPAIRED, scenarios=PLANS)
def the_weights_are_those_of_one_process(case, rank, result):
    weights, (_, right) = result["result"][1], one_process(case.args[0][0])
    if isinstance(weights, list) and numbers(weights):  # an array of numpy is a list in the records
        weights = torch.tensor(numbers(weights), dtype=torch.float64)
    expect(
        torch.is_tensor(weights) and weights.shape == right.shape,
        f"rank {rank} returned {weights!r} for weights; it should be a tensor of {len(right)} numbers",
        "the line that returns",
    )
    expect(
        torch.allclose(weights.double(), right, rtol=0, atol=1e-9),
        f"rank {rank} ended with weights {weights.tolist()}; one process on whole steps gets {right.tolist()}",
        "the gradient: what each micro-batch adds to it, what is summed over ranks, what it is divided by",
    )


@check("each window of a step is read by one rank", REPAIRED, scenarios=PLANS)
def the_windows_are_shared(case):
    times = Counter(tuple(window) for result in case.results for window in result["read"])
    for step, window in product(range(STEPS), range(case.args[0][0] // CONTEXT)):
        expect(
            times[step, window] == 1,
            f"window {window} of step {step} was read {times[step, window]} times by all ranks together",
            "which windows a rank takes: N ranks that each train on all of them are no faster than one",
        )


@check("two collectives a step at most", REPAIRED)
def few_collectives(cases):
    [short_run] = [case for case in cases if case.scenario == SHORT_RUN]
    last_steps = STEPS - FIRST_STEPS
    for case in cases:
        for rank, operations in enumerate(case.operations if case.scenario in PLANS else ()):
            counted = operations[len(short_run.operations[rank]) :]  # those of the last steps
            names = ", ".join(dict.fromkeys(operation.op for operation in counted))
            expect(
                len(counted) <= 2 * last_steps,
                f"{case.where}rank {rank} called {len(counted)} collectives ({names}) in its last {last_steps} "
                "steps; two a step are enough",
                "what each of them is for: only the gradients and the loss are needed, and once a step",
            )


@check(
    f"{DETECTOR} tells the curves of both versions apart, and lets rounding pass, in {len(CURVES)} cases",
    [DETECT],
    begin="{scenario}: ",
)
def the_detector_tells_runs_apart(case):
    [result], (curves, right) = case.results, CURVES[case.scenario]
    is_list = isinstance(result, list)
    look_at = "what it takes for a difference: sums in another order differ in their last digits, relative to size"
    if is_list and sorted(result, key=str) == sorted(right, key=str):
        look_at = "the order of the list: the smallest world size comes first"
    elif is_list and any(size not in result for size in right):
        look_at = "what it overlooks: a NaN compares as unequal to everything, zip ends with the shorter list, and a "
        look_at += "limit that is not relative to each loss means nothing for a tiny one"
    expect(
        is_list and list(map(number, result)) == right,
        f"{DETECTOR} returned {result!r}, not {right!r} ({curves})",
        look_at,
    )


def nearest(tokens, unit):
    """The multiples of `unit` that are nearest to `tokens`: below, unless that is 0, and above; or itself."""
    count, rest = divmod(tokens, unit)
    return [n * unit for n in (count, count + 1) if n] if rest else [tokens]


def mistakes(case, rank, step):
    """Mistakes that explain a wrong loss."""
    tokens, micro_batch_size, _ = case.args[0]
    right = one_process(tokens)[0][step]
    yield Mistake("seven digits of it", right, "the dtype in which losses are added up and sent")
    for words, only_last in (("that of its own last micro-batch", True), ("that of its own micro-batches", False)):
        losses = losses_of_rank(case.world, tokens, micro_batch_size, rank, only_last)
        yield Mistake(words, losses[step], LOOK_AT_LOSS)
    micro_batches = tokens // (case.world * micro_batch_size * CONTEXT)
    for count, parts in ((case.world, "ranks"), (micro_batches, "micro-batches")):
        if count > 1:
            look = f"by what the sum over all {parts} is divided, and how often"
            yield Mistake(f"{count} times too large", right * count, look)
            yield Mistake(f"divided by {count} once too often", right / count, look)
