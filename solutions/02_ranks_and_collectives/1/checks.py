"""02.1: the mean over the values of all ranks, exact and the same everywhere."""

import math
from numbers import Real

import torch

from ddp_course.grader.answer_record import Call, Job, cases
from ddp_course.grader.messages import assert_little_is_sent
from ddp_course.grader.verdict import Wrong
from ddp_course.grader.vocabulary import Mistake, number, recognised

RELATIVE_ERROR = 1e-9  # float64 sums are far better than this, float32 ones far worse
SMALL_MESSAGE = 1024  # bytes; enough for two numbers in any wrapping, not for the values


def call(given, *values):
    return Call([(list(map(float, mine)),) for mine in values], given)


def job(*calls):
    return Job(world=len(calls[0].args), function="global_mean", calls=calls)


JOBS = [
    job(
        call("4, 1 and 2 values", [1, 2, 3, 4], [10], [7, 8]),
        call("rank 1 has no values", [5, 6], [], [1]),
        call("only rank 2 has values", [], [], [2.5, 3.5]),
        call("30 million and 1, minus 30 million and 1, 2", [3e7, 1], [-3e7, 1], [2]),
        call("one value each: 0.1, 0.2, 0.3", [0.1], [0.2], [0.3]),
        call("3,000, 2,000 and 7 values", range(3000), range(2000), range(7)),
        call("losses of nine digits", [0.123456789, 0.987654321], [0.314159265], [2.71828182]),
        call("losses of nine digits, all below a millionth", [1.23456789e-7], [2.34567891e-7, 3.45678912e-7], []),
    ),
    job(call("one value against three", [9], [1, 2, 3]), call("rank 0 has no values", [], [4, 5])),
    job(call("1, 2, 3 and 4 values", [1], [2] * 2, [3] * 3, [4] * 4)),
    job(call("three values", [1, 2, 4])),
]


def every_rank_returns_a_number(records):
    """Every rank returns one number, also a rank without values."""
    for case in cases(records):
        for rank, result in enumerate(case.results):
            if not isinstance(number(result), Real) or not math.isfinite(number(result)):
                spread = isinstance(number(result), Real) and not all(mine for (mine,) in case.args)
                raise Wrong(
                    f"{case.where}rank {rank} returned {shown(result)}; it should be {expected(case)}",
                    "what a rank adds that has no values" if spread else f"the line that returns, on rank {rank}",
                )
    return "every rank returns one number, also a rank that has no values"


def the_mean_is_exact(records):
    """The result is the mean over all values of all ranks, to nine digits, on every rank."""
    for case in cases(records):
        right = [math.isclose(number(one), expected(case), rel_tol=RELATIVE_ERROR) for one in case.results]
        if not all(right):
            rank = right.index(False)
            words, look = what_it_is(case, rank)
            raise Wrong(
                f"{case.where}rank {rank} returned {number(case.results[rank])!r}{words}; the mean over all values is "
                f"{expected(case)!r}",
                look,
            )
    return "it is the mean over all values, on 1, 2, 3 and 4 ranks, also where large values cancel"


def the_ranks_agree(records):
    """The result is the same on every rank, to the last bit."""
    for case in cases(records):
        for rank, result in enumerate(case.results):
            if number(result) != number(case.results[0]):
                raise Wrong(
                    f"{case.where}rank {rank} returned {number(result)!r}, rank 0 {number(case.results[0])!r}",
                    "the order in which each rank adds: a sum of floats depends on it",
                )
    return "all ranks return the same bits"


def little_travels(records):
    """What a rank sends does not grow with the number of its values."""
    most = assert_little_is_sent(
        cases(records),
        SMALL_MESSAGE,
        lambda case, rank: f"for its {len(case.args[rank][0]):,} values",
        "which two numbers about its values does a rank have to pass on?",
    )
    return f"a rank hands over {most} bytes at most, with 3,000 values as with one"


CHECKS = [every_rank_returns_a_number, the_mean_is_exact, the_ranks_agree, little_travels]


def shown(result):
    return repr(number(result)) if not torch.is_tensor(number(result)) else f"a tensor of {result.numel()} numbers"


def expected(case):
    values = [value for (mine,) in case.args for value in mine]
    return math.fsum(values) / len(values)


def what_it_is(case, rank):
    """The words behind a wrong result, and where to look."""
    found, lists = number(case.results[rank]), [mine for (mine,) in case.args]
    close = math.isclose(found, expected(case), rel_tol=1e-5)
    otherwise = "what is added over the ranks, and what it is divided by"
    if close or "million" in case.given:
        otherwise = "the dtype of what is added: float32 cannot tell 16,777,216 from 16,777,217"
    if "nine digits" in case.given:
        otherwise = "where digits are cut off: of each value, of what travels, and of the result"
    if close:
        return "", otherwise
    own = {r: math.fsum(mine) / len(mine) for r, mine in enumerate(lists) if mine}
    by_means = "a rank with one value counts as much there as a rank with four"
    on_one_rank = "which ranks have the result after the operation you chose? A reduce leaves it on one"
    mistakes = [Mistake("the mean of the ranks' means", math.fsum(own.values()) / len(own), by_means)]
    if rank in own:
        mistakes.append(Mistake("the mean of its own values", own[rank], on_one_rank))
    words, look = recognised(found, mistakes, otherwise, rel_tol=1e-5)
    right = [r for r, one in enumerate(case.results) if math.isclose(number(one), expected(case), rel_tol=1e-9)]
    return (words, look) if words or not right else (f", while rank {right[0]} is right", on_one_rank)
