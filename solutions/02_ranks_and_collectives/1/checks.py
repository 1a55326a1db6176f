"""02.1: the mean over the values of all ranks, exact and the same everywhere."""

import math
from numbers import Real

from ddp_course.grader.vocabulary import (
    Call,
    Mistake,
    Wrong,
    check,
    expect,
    expect_few_bytes,
    jobs_of,
    number,
    recognised,
    show,
)

RELATIVE_ERROR = 1e-9  # float64 sums are far better than this, float32 ones far worse
SMALL_MESSAGE = 1024  # bytes; enough for two numbers in any wrapping, not for the values


def call(scenario, *values_by_rank):
    return Call([(list(map(float, values)),) for values in values_by_rank], scenario)


CALLS = [
    call("4, 1 and 2 values", [1, 2, 3, 4], [10], [7, 8]),
    call("rank 1 has no values", [5, 6], [], [1]),
    call("only rank 2 has values", [], [], [2.5, 3.5]),
    call("30 million and 1, minus 30 million and 1, 2", [3e7, 1], [-3e7, 1], [2]),
    call("one value each: 0.4, 0.6, 0.7", [0.4], [0.6], [0.7]),  # the mean depends on the order of adding
    call("3,000, 2,000 and 7 values", range(3000), range(2000), range(7)),
    call("losses of nine digits", [0.123456789, 0.987654321], [0.314159265], [2.71828182]),
    call("losses of nine digits, all below a millionth", [1.23456789e-7], [2.34567891e-7, 3.45678912e-7], []),
    call("one value against three", [9], [1, 2, 3]),
    call("rank 0 has no values", [], [4, 5]),
    call("1, 2, 3 and 4 values", [1], [2] * 2, [3] * 3, [4] * 4),
    call("three values", [1, 2, 4]),
]
JOBS = jobs_of("global_mean", CALLS)


@check("every rank returns one number, also a rank that has no values")
def every_rank_returns_a_number(case, rank, result):
    is_number = isinstance(number(result), Real)
    some_rank_is_empty = not all(values for (values,) in case.args)
    expect(
        is_number and math.isfinite(number(result)),
        f"rank {rank} returned {show(number(result))}; it should be {expected_mean(case)}",
        "what a rank without values adds"
        if is_number and some_rank_is_empty
        else f"the line that returns, on rank {rank}",
    )


@check("it is the mean over all values, on 1, 2, 3 and 4 ranks, also where large values cancel")
def the_mean_is_exact(case, rank, result):
    mean, right = number(result), expected_mean(case)
    if not math.isclose(mean, right, rel_tol=RELATIVE_ERROR):
        words, look_at = likeness(case, rank)
        raise Wrong(f"rank {rank} returned {mean!r}{words}; the mean over all values is {right!r}", look_at)


@check("all ranks return the same bits")
def the_ranks_agree(case, rank, result):
    expect(
        number(result) == number(case.results[0]),
        f"rank {rank} returned {number(result)!r}, rank 0 {number(case.results[0])!r}",
        "the order in which each rank adds: a sum of floats depends on it",
    )


@check(lambda sent: f"a rank hands over {max(sent)} bytes at most, with 3,000 values as with one")
def few_bytes_are_sent(case, rank, result):
    purpose, look_at = f" for its {len(case.args[rank][0]):,} values", "which two numbers does a rank have to send?"
    return expect_few_bytes(rank, case.operations[rank], SMALL_MESSAGE, purpose, look_at, without=("recv",))


def expected_mean(case):
    all_values = [value for (values,) in case.args for value in values]
    return math.fsum(all_values) / len(all_values)


def likeness(case, rank):
    """The end of the message about a wrong result, "" or such as ", the mean of its own values"; and where to look."""
    mean, right = number(case.results[rank]), expected_mean(case)
    close = math.isclose(mean, right, rel_tol=1e-5)
    otherwise = "what is added over the ranks, and what it is divided by"
    if close or "million" in case.scenario:
        otherwise = "the dtype of what is added: float32 cannot tell 16,777,216 from 16,777,217"
    if "nine digits" in case.scenario:
        otherwise = "where digits are cut off: in each value, in what is sent, or in the result"
    if close:
        return "", otherwise
    means = {peer: math.fsum(values) / len(values) for peer, (values,) in enumerate(case.args) if values}
    on_means = "in a mean of means, a rank with one value counts as much as a rank with four"
    on_one_rank = "which ranks have the result after the operation you chose? A reduce leaves it on one"
    mistakes = [Mistake("the mean of the ranks' means", math.fsum(means.values()) / len(means), on_means)]
    if rank in means:
        mistakes.append(Mistake("the mean of its own values", means[rank], on_one_rank))
    words, look_at = recognised(mean, mistakes, otherwise, rel_tol=1e-5)
    for peer, result in enumerate(case.results):
        if not words and math.isclose(number(result), right, rel_tol=RELATIVE_ERROR):
            return f", while rank {peer} is right", on_one_rank
    return words, look_at
