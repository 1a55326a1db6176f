"""18.2: modes that are one formula and a cap that does not bound; a detector of broken promises, and the repair."""

from pathlib import Path

import torch

from ddp_course.lab.answer_record import Call, Job, cases
from ddp_course.lab.questions import broken_18_2, drive_18_2
from ddp_course.lab.verdict import Wrong

TITLE = "promises of a docstring"
GIVEN = Path(broken_18_2.__file__)
HINTS = [
    "n times w / sum of w, and w / mean of w: what is the difference? And which number does the cap bound in the given "
    "function, and which was it to bound?",
    "broken_promises: read the factors out. The loss is the mean of factor x loss, so its derivative by loss number i "
    "is factor i / n: torch.autograd.grad(loss, losses), or a loss that is 1 for pair i and 0 for the others. Then "
    "each promise is an equation between factors.",
    "cap is kept if the factors with a cap are the factors without it, cut off at the cap, in all three modes and for "
    "caps below and above 1. weighted_loss: first the factors by the mode, then factors.clamp(max=cap), then the mean.",
]
DRIVER = Path(drive_18_2.__file__)
DETECTOR, REPAIRED = "broken_promises", "weighted_loss"
CLOSE = 1e-9
TRIALS = [(given, mode, None) for given in drive_18_2.WEIGHTS for mode in broken_18_2.MODES]
CAPPED = [(given, mode, cap) for given, mode, _ in TRIALS[3:] for cap in (0.5, 1.5, 100.0)]


def job(function, *arguments):
    return Job(1, function, tuple(Call([one], given) for given, one in arguments), seconds=4.0, driver=DRIVER)


DETECT = job(DETECTOR, *((what, (what,)) for what in drive_18_2.VERSIONS))
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
    given = drive_18_2.VERSIONS["the given one"][1]
    return f"and names every other one in {len(drive_18_2.VERSIONS)} losses; the given loss breaks {', '.join(given)}"


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


CHECKS = [kept_promises_are_believed, broken_promises_are_named, the_modes_differ_as_promised, the_cap_bounds]


def verdicts(record):
    """(case, what the detector named, what is broken) of each loss."""
    for case in cases([record]):
        [result] = case.results
        # a set cannot travel as one: it comes as its repr
        names = sorted(one for one in drive_18_2.PROMISES if repr(one) in result) if isinstance(result, str) else result
        if not isinstance(names, list) or not set(names) <= set(drive_18_2.PROMISES):
            raise Wrong(
                f"{DETECTOR} of the loss {case.given!r} returned {str(result)[:80]}",
                f"the value returned: a list of names out of {', '.join(drive_18_2.PROMISES)}",
            )
        yield case, names, drive_18_2.VERSIONS[case.given][1]


def factors(record, capped):
    """(case, factors found, right factors) of each trial with or without a cap; raises Wrong if the loss is no mean."""
    for case in cases([record]):
        _, given, mode, cap = case.args[0]
        if (cap is not None) == capped:
            [(found, loss)] = case.results
            right, right_loss = drive_18_2.right(given, mode, cap)
            if close(found, right) and abs(loss.item() - right_loss.item()) > CLOSE:
                raise Wrong(
                    f"{case.given}: the loss is {loss.item():.6g}, not {right_loss.item():.6g}, though its factors "
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
