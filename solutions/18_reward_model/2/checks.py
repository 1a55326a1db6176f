"""18.2: modes that are one formula and a cap that does not bound; a detector of broken promises, and the repair."""

import math

import torch

from ddp_course.grader.vocabulary import Wrong, check, driver_job, expect, show

from . import driver
from .given import MODES

DETECTOR, REPAIRED = "broken_promises", "weighted_loss"
CLOSE = 1e-9
PROMISES = (*MODES, "cap")


def trials(*caps):
    """Calls of the learner's loss, {scenario: arguments}: all weights and modes, with each of these caps."""
    calls = [(weights, mode, cap) for weights in driver.WEIGHTS for mode in MODES for cap in caps]
    return {f"{weights}, mode {mode}, cap {cap}": ("own", weights, mode, cap) for weights, mode, cap in calls}


UNCAPPED, CAPPED = trials(None), trials(0.5, 1.5, 100.0)
DETECT = driver_job(1, DETECTOR, list(driver.VERSIONS), seconds=4.0)
REPAIR = driver_job(1, REPAIRED, UNCAPPED | CAPPED, seconds=4.0)
JOBS = [DETECT, REPAIR]


@check("the detector believes every promise that is kept", [DETECT], begin="")
def kept_promises_are_believed(case):
    names, broken = returned_names(case), driver.VERSIONS[case.scenario][1]
    for promise in names:
        expect(
            promise in broken,
            f"{DETECTOR} of the loss {case.scenario!r} returned {names!r}; it keeps {promise!r}",
            "how each promise is tested: by the other modes, or by its own line? And how exactly: a right loss may "
            "divide in another order",
        )


@check(
    f"and names every other one in {len(driver.VERSIONS)} losses; the given loss breaks "
    f"{', '.join(driver.VERSIONS['the given one'][1])}",
    [DETECT],
    begin="",
)
def broken_promises_are_named(case):
    names = returned_names(case)
    for promise in driver.VERSIONS[case.scenario][1]:
        expect(
            promise in names,
            f"{DETECTOR} of the loss {case.scenario!r} returned {names!r}; it breaks {promise!r} as well",
            "is every factor compared with the one without a cap, in all modes, and for caps below 1 as well?"
            if promise == "cap"
            else f"the weights in your test: with which of them would mode {promise!r} and the broken one be equal?",
        )


@check("your modes give the factors that they promise", [REPAIR], scenarios=UNCAPPED, begin="{scenario}: ")
def the_modes_differ_as_promised(case):
    expect_factors(case, "the line of the docstring for this mode, and what n x weight / sum is another name for")


@check(
    "and your cap bounds the factors, in every mode, and changes no other",
    [REPAIR],
    scenarios=CAPPED,
    begin="{scenario}: ",
)
def the_cap_bounds(case):
    look_at = "a factor below the cap stays as it is, and the cap holds in every mode"
    if max(case.results[0][0].tolist()) > case.args[0][3] + CLOSE:
        look_at = "which number is cut off, in which modes, and what happens to it after that"
    expect_factors(case, look_at)


@check("the weights stay as they are", [REPAIR], begin="{scenario}: ")
def the_weights_stay(case):
    [(_, _, weights)], right = case.results, driver.WEIGHTS[case.args[0][1]]
    expect(
        weights.tolist() == right,
        f"the weights were {right}, and are {weights.tolist()} when weighted_loss has returned",
        "which operations write into the tensor that they are given: those whose name ends in _, and *=, /=",
    )


def returned_names(case):
    """The promises that the detector named. Raises Wrong if it returned no list or set of promises."""
    [result] = case.results
    names = sorted(result, key=str) if isinstance(result, set) else result
    if not isinstance(names, list) or any(name not in PROMISES for name in names):
        raise Wrong(
            f"{DETECTOR} of the loss {case.scenario!r} returned {str(result)[:80]}",
            f"the value returned: a list of names out of {', '.join(PROMISES)}",
        )
    return names


def expect_factors(case, look_at):
    """Raise Wrong unless the factors of the pairs are the right ones, and the loss is their mean."""
    [(factors, loss, _)] = case.results
    right, right_loss = driver.right(*case.args[0][1:])
    expect(
        torch.allclose(factors, right, rtol=CLOSE, atol=CLOSE),
        f"the factors are {show(factors)}, not {show(right)}",
        look_at,
    )
    expect(
        math.isclose(loss.item(), right_loss.item(), rel_tol=CLOSE),
        f"the loss is {loss.item():.8g}, not {right_loss.item():.8g}, though its factors are right",
        "what is added to the weighted losses",
    )
