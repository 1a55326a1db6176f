"""08.3: sums of metrics are reduced but not used: find the ranks whose values add up to a number, then repair it."""

import math
from numbers import Real

import torch

from ddp_course.grader.vocabulary import (
    Call,
    Wrong,
    check,
    expect,
    expect_few_operations,
    function_job,
    jobs_of,
    number,
    plural,
)

from . import given as given_script

RELATIVE_ERROR = 1e-9
MAX_OPERATIONS, MAX_BYTES = 2, 8192  # of a rank
SECONDS = 2.5
# So many that a set of the names, too, has another order if it was filled in another order.
MANY = {f"metric {n}": float(n + 1) for n in range(63)}

SUBSETS = {  # scenario: (the ranks' values, the observed number, the ranks whose values add up to it)
    "the 300": ([100.0, 200.0], 300.0, [0, 1]),
    "rank 1's own number": ([50.0, 400.0], 400.0, [1]),
    "three of four": ([1.0, 10.0, 100.0, 1000.0], 1101.0, [0, 2, 3]),
    "all of five": ([1.0, 2.0, 4.0, 8.0, 16.0], 31.0, [0, 1, 2, 3, 4]),
    "no sum of these": ([1e-6, 1e-5, 1e-4], 1.1003e-5, None),
    "rounded on the way": ([0.1, 0.2, 0.4], 0.30000001192092896, [0, 1]),
    "a negative number": ([3.0, 10.0, -3.5], 6.5, [1, 2]),
    "one rank": ([2.5], 2.5, [0]),
    "the mean of both, which is no sum": ([50.0, 400.0], 225.0, None),
    "the sum of no rank": ([7.0, 8.0], 0.0, []),
    "small numbers beside a large one": ([4000000.0, 2.0, 0.25], 2.25, [1, 2]),
    "large numbers, rounded on the way": ([400000.7, 50.1, 7.0], 400050.8125, [0, 1]),
}
DETECT = function_job(1, "who_is_in", {name: subset[:2] for name, subset in SUBSETS.items()}, seconds=SECONDS)


def call(scenario, *ranks):
    """A call of evaluate; `ranks`: (sums, count) of each rank."""
    return Call([(dict(sums), count) for sums, count in ranks], scenario)


GIVEN_SUMS_AND_COUNTS = list(zip(given_script.SUMS, given_script.COUNTS, strict=True))
CALLS = [
    call("the numbers of the script", *GIVEN_SUMS_AND_COUNTS[:2]),
    call("rank 1 lists its metrics in another order", ({"a": 1.0, "b": 20.0}, 1), ({"b": 40.0, "a": 5.0}, 2)),
    call("rank 1 lists 63 metrics in another order", (MANY, 1), (dict(reversed(MANY.items())), 2)),
    call("30 million and 1, minus 30 million", ({"loss": 3e7 + 1}, 3), ({"loss": -3e7}, 2)),
    call(
        "one-element tensors and integers",
        ({"loss": torch.tensor(6.0), "correct": 3}, 4),
        ({"loss": torch.tensor([3.0]), "correct": 1}, 2),
    ),
    call("a metric is called count", ({"loss": 3.0, "count": 5.0}, 2), ({"loss": 4.5, "count": 7.0}, 3)),
    call("rank 0's loss is nan", ({"loss": math.nan, "correct": 1.0}, 2), ({"loss": 2.0, "correct": 2.0}, 2)),
    call("the numbers of the script", *GIVEN_SUMS_AND_COUNTS),
    call("rank 0 has no samples", ({"loss": 0.0}, 0), ({"loss": 3.0}, 2), ({"loss": 9.0}, 1)),
    call("one rank", ({"loss": 3.0, "correct": 1.0}, 4)),
]
REPAIRED = jobs_of("evaluate", CALLS, seconds=SECONDS, driver=True)
JOBS = [DETECT, *REPAIRED]


@check(f"who_is_in explains {len(SUBSETS)} numbers, the 300 among them", [DETECT], begin="{scenario}: ")
def the_ranks_in_a_number_are_found(case):
    [result], [(values, observed)], right = case.results, case.args, SUBSETS[case.scenario][2]
    look_at = "every subset of the ranks is a candidate, also the empty one; floats rarely add up to the last bit"
    if right is None:
        look_at = "how exactly sums are compared: only the seventh digit of `observed` may be another"
    elif isinstance(result, list):
        look_at = "do these ranks' numbers add up to `observed`?"
        if sorted(result, key=str) == right:
            look_at = "the order of the ranks in the list"
    expect(result == right, f"who_is_in({values}, {observed}) returned {result!r}, not {right!r}", look_at)


@check("every rank gets a dict with all metrics", REPAIRED)
def every_rank_has_the_metrics(case, rank, result):
    metrics, names = result["returned"], set(case.args[rank][0])
    words = "a dict with " + ", ".join(map(str, metrics)) if isinstance(metrics, dict) else repr(metrics)
    expect(
        isinstance(metrics, dict) and set(metrics) == names,
        f"rank {rank} returned {words}; a dict with {' and '.join(sorted(names))} is expected",
        f"the line that returns, on rank {rank}",
    )
    for name, value in metrics.items():
        expect(
            isinstance(number(value), Real),
            f"on rank {rank}, {name} is {value!r}",
            "a mean is one number: .item() or .tolist()",
        )


@check("each is the mean over the samples of all ranks, on 1, 2 and 3 ranks; a nan stays visible", REPAIRED)
def the_means_are_exact(case, rank, result):
    for name in sorted(result["returned"]):
        right, value = expected_mean(case, name), number(result["returned"][name])
        same = math.isnan(value) if math.isnan(right) else math.isclose(value, right, rel_tol=RELATIVE_ERROR)
        if not same:
            raise Wrong(
                f"on rank {rank}, {name} is {value!r}{likeness(case, rank, name, value)}; over the samples of all "
                f"ranks it is {right!r}",
                where_to_look(case, rank, name, value),
            )


@check("what it is handed stays as it is", REPAIRED)
def the_sums_are_unchanged(case, rank, result):
    before, after = result["before"], result["after"]
    expect(
        list(after.items()) == list(before.items()),  # in the same order, too
        f"rank {rank} handed over {show_sums(before)}, and holds {show_sums(after)} afterwards",
        "which of your lines writes into `sums`, or into a tensor that is in it?",
    )


@check(lambda started: f"{plural(max(started), 'collective')} for all metrics together", REPAIRED)
def few_collectives(case):
    return expect_few_operations(case, MAX_OPERATIONS, MAX_BYTES, "all numbers fit into one tensor")


def show_sums(sums):
    return "{" + ", ".join(f"{name}: {value}" for name, value in sums.items()) + "}"


def total_over_ranks(case, name):
    return math.fsum(number(sums[name]) for sums, _ in case.args)


def expected_mean(case, name):
    return total_over_ranks(case, name) / sum(count for _, count in case.args)


def rank_mean(case, rank, name):
    """The mean over this rank's samples; nan if it has none."""
    sums, count = case.args[rank]
    return number(sums[name]) / count if count else math.nan


def mistaken_means(case, rank, name):
    """The means that likely mistakes give on this rank, by the words for the mistake."""
    total, count = total_over_ranks(case, name), case.args[rank][1]
    return {
        "its own mean": rank_mean(case, rank, name),
        "the sum, not the mean": total,
        "the mean of the ranks' means": math.fsum(rank_mean(case, r, name) for r in range(case.world)) / case.world,
        "the sum over all ranks by its own count": total / count if count else math.nan,
    }


def likeness(case, rank, name, value):
    """A mistake that explains every metric of the rank, or a rank that is right, in words that follow the value; else
    ""."""
    right, returned = expected_mean(case, name), case.results[rank]["returned"]
    explained = {metric: mistaken_means(case, rank, metric) for metric in returned}
    if not math.isclose(value, right, rel_tol=1e-6):
        for words in explained[name]:
            if all(math.isclose(number(returned[m]), explained[m][words], rel_tol=1e-6) for m in returned):
                return f", {words}"
    values = [number(result["returned"][name]) for result in case.results]
    right_ranks = [r for r, other in enumerate(values) if math.isclose(other, right)]
    return f", while rank {right_ranks[0]} is right" if right_ranks and rank not in right_ranks else ""


def where_to_look(case, rank, name, value):
    """Where to look after a wrong mean."""
    if math.isclose(value, expected_mean(case, name), rel_tol=1e-6):
        return "the dtype of what is added and sent: float32 keeps seven digits"
    if "order" in case.scenario:
        return (
            "in which order the values are put into the tensor: a dict keeps the order in which it was filled, and a "
            "set has none to rely on"
        )
    if "million" in case.scenario:
        return "the dtype of what is added: float32 cannot tell 30,000,001 from 30,000,000"
    if "nan" in case.scenario:
        return "what happens to a nan on the way: a sum that leaves it out hides that one rank's numbers are wrong"
    if "while" in likeness(case, rank, name, value):
        return "which ranks have the result after the operation you chose? A reduce leaves it on one"
    return "which variable the returned numbers come from, and what they are divided by"
