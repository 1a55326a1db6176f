"""18.2: modes that are one formula and a cap that does not bound; a detector of broken promises, and the repair."""

import math

import torch

from ddp_course.grader.answer_record import Call, Job, cases
from ddp_course.grader.verdict import Wrong

from . import driver
from . import given as given_script

DETECTOR, REPAIRED = "broken_promises", "weighted_loss"
CLOSE = 1e-9
TRIALS = [(given, mode, None) for given in driver.WEIGHTS for mode in given_script.MODES]
CAPPED = [(given, mode, cap) for given, mode, _ in TRIALS[3:] for cap in (0.5, 1.5, 100.0)]


def job(function, *arguments):
    return Job(1, function, tuple(Call([one], given) for given, one in arguments), seconds=4.0, driver=True)


DETECT = job(DETECTOR, *((what, (what,)) for what in driver.VERSIONS))
REPAIR = job(REPAIRED, *((f"{one[0]}, mode {one[1]}, cap {one[2]}", ("own", *one)) for one in TRIALS + CAPPED))
JOBS = [DETECT, REPAIR]


def kept_promises_are_believed(records):
    """broken_promises names no promise that is kept."""
    for case, found, broken in verdicts(records[0]):
        wrongly = [one for one in found if one not in broken]
        if wrongly:
            raise Wrong(
                f"{DETECTOR} of the loss {case.given!r} returned {found!r}; it keeps {wrongly[0]!r}",
                "how each promise is tested: by the other modes, or by what its own line says? And how exactly: "
                "a right loss may divide in another order",
            )
    return "the detector believes every promise that is kept"


def broken_promises_are_named(records):
    """broken_promises names every promise that is broken."""
    for case, found, broken in verdicts(records[0]):
        missed = [one for one in broken if one not in found]
        if missed:
            raise Wrong(
                f"{DETECTOR} of the loss {case.given!r} returned {found!r}; it breaks {missed[0]!r} as well",
                blind_spot(missed[0]),
            )
    given = driver.VERSIONS["the given one"][1]
    return f"and names every other one in {len(driver.VERSIONS)} losses; the given loss breaks {', '.join(given)}"


def the_modes_differ_as_promised(records):
    """Without a cap, weighted_loss gives each loss the factor of its mode."""
    for case, found, right in factors(records[1], capped=False):
        if not close(found, right):
            raise Wrong(
                f"{case.given}: the factors are {shown(found)}, not {shown(right)}",
                "the line of the docstring for this mode, and what n x weight / sum is another name for",
            )
    return "your modes give the factors that they promise"


def the_cap_bounds(records):
    """With a cap, each factor is the one without it or the cap, whichever is smaller."""
    for case, found, right in factors(records[1], capped=True):
        cap = case.args[0][3]
        if not close(found, right):
            raise Wrong(
                f"{case.given}: the factors are {shown(found)}, not {shown(right)}",
                "which number is cut off, in which modes, and what happens to it after that"
                if max(found.tolist()) > cap + CLOSE
                else "a factor below the cap stays as it is, and the cap holds in every mode",
            )
    return "and your cap bounds the factors, in every mode, and changes no other"


def the_weights_stay(records):
    """weighted_loss leaves the weights that it is handed as they were."""
    for case in cases([records[1]]):
        [(_, _, after)], before = case.results, driver.WEIGHTS[case.args[0][1]]
        if after.tolist() != before:
            raise Wrong(
                f"{case.given}: the weights were {before}, and are {after.tolist()} when weighted_loss has returned",
                "which operations write into the tensor that they are given: those whose name ends in _, and *=, /=",
            )
    return "the weights stay as they are"


CHECKS = [
    kept_promises_are_believed,
    broken_promises_are_named,
    the_modes_differ_as_promised,
    the_cap_bounds,
    the_weights_stay,
]


def verdicts(record):
    """(case, what the detector named, what is broken) of each loss."""
    for case in cases([record]):
        [result] = case.results
        names = sorted(result, key=str) if isinstance(result, set) else result
        if not isinstance(names, list) or not set(names) <= set(driver.PROMISES):
            raise Wrong(
                f"{DETECTOR} of the loss {case.given!r} returned {str(result)[:80]}",
                f"the value returned: a list of names out of {', '.join(driver.PROMISES)}",
            )
        yield case, names, driver.VERSIONS[case.given][1]


def factors(record, capped):
    """(case, factors found, right factors) of each trial with or without a cap; raises Wrong if the loss is no mean."""
    for case in cases([record]):
        _, given, mode, cap = case.args[0]
        if (cap is not None) == capped:
            [(found, loss, _)] = case.results
            right, right_loss = driver.right(given, mode, cap)
            if close(found, right) and not math.isclose(loss.item(), right_loss.item(), rel_tol=CLOSE):
                raise Wrong(
                    f"{case.given}: the loss is {loss.item():.8g}, not {right_loss.item():.8g}, though its factors "
                    "are right",
                    "what is added to the weighted losses",
                )
            yield case, found, right


def close(found, right):
    return bool(torch.allclose(found, right, rtol=CLOSE, atol=CLOSE))


def shown(found):
    return f"[{', '.join(f'{one:.6g}' for one in found.tolist())}]"


def blind_spot(promise):
    if promise == "cap":
        return "is every factor compared with the one without a cap, in all modes, and for caps below 1 as well?"
    return f"the weights in your test: with which of them would mode {promise!r} and the broken one be equal?"
