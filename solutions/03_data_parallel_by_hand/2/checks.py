"""03.2: a loop that skips missing gradients pairs the tensors of different parameters; a detector, and the repair."""

from ddp_course.grader.answer_record import Call, Job, cases
from ddp_course.grader.verdict import Wrong

from .driver import CASES, gradient, owners

DETECTOR, REPAIRED = "missing_gradients", "synchronize_gradients"
ON_TWO = [case for case in CASES if "three" not in case]
ON_THREE = [case for case in CASES if "three" in case] + ON_TWO[1:2]


def job(world, function, whats):
    return Job(world, function, tuple(Call([(what,)] * world, what) for what in whats), seconds=3.0, driver=True)


DETECTIONS = 2
JOBS = [job(2, DETECTOR, ON_TWO), job(3, DETECTOR, ON_THREE), job(2, REPAIRED, ON_TWO), job(3, REPAIRED, ON_THREE)]


def names_what_is_missing(records):
    """missing_gradients names, on every rank, each parameter that only some ranks have a gradient for, and who lacks
    it."""
    for case in cases(records[:DETECTIONS]):
        for rank, result in enumerate(case.results):
            returned, right = result["returned"], expected(case)
            if plain(returned) != right:
                raise Wrong(
                    f"{case.where}{DETECTOR} returned {returned!r} on rank {rank}, not {right!r}",
                    hint_at(returned, right, rank, case),
                )
    return f"{DETECTOR} names every parameter that ranks disagree about, and who lacks it, in {len(CASES)} cases"


def looking_changes_nothing(records):
    """missing_gradients leaves every gradient, and every None, as it was."""
    for case in cases(records[:DETECTIONS]):
        for rank, result in enumerate(case.results):
            for number, (name, found) in enumerate(result["after"].items()):
                had = rank in owners(case.given, case.world).get(name, [])
                right = [gradient(case.given, number, rank)] * 2 if had else None
                if found != right:
                    raise Wrong(
                        f"{case.where}after {DETECTOR} the gradient of {name} on rank {rank} is {shown(found)}; "
                        f"it was {shown(right)}",
                        "a detector looks; what does yours write to?",
                    )
    return "it leaves the gradients as they are"


def no_two_parameters_are_mixed(records):
    """After synchronize_gradients every gradient is the mean over the ranks, where a missing one counts as zero."""
    for case in cases(records[DETECTIONS:]):
        for rank, result in enumerate(case.results):
            for number, (name, found) in enumerate(result["after"].items()):
                having = owners(case.given, case.world).get(name, [])
                if not having:
                    continue
                right = sum(gradient(case.given, number, one) for one in having) / case.world
                if found is None or max(abs(one - right) for one in found) > 1e-3:
                    raise Wrong(
                        f"{case.where}after {REPAIRED} the gradient of {name} on rank {rank} is {shown(found)}; "
                        f"the mean over the ranks is {right:g}",
                        place_to_look(found, number, having, rank, case),
                    )
    return "synchronize_gradients averages each parameter with itself, a missing gradient counting as zero"


def what_nobody_used_stays_none(records):
    """After synchronize_gradients a parameter without a gradient on any rank has none, as on one process."""
    for case in cases(records[DETECTIONS:]):
        for rank, result in enumerate(case.results):
            for name, found in result["after"].items():
                if found is not None and not owners(case.given, case.world).get(name):
                    raise Wrong(
                        f"{case.where}no rank had a gradient of {name}; after {REPAIRED} it is {shown(found)} on "
                        f"rank {rank}",
                        "on one process it would be None, and weight decay would leave the parameter alone",
                    )
    return "a parameter that nobody used, or that is frozen, keeps None"


CHECKS = [names_what_is_missing, looking_changes_nothing, no_two_parameters_are_mixed, what_nobody_used_stays_none]


def expected(case):
    world = case.world
    return {
        name: [rank for rank in range(world) if rank not in having]
        for name, having in owners(case.given, world).items()
        if 0 < len(having) < world
    }


def plain(returned):
    if not isinstance(returned, dict):
        return returned
    return {name: sorted(ranks) if isinstance(ranks, list) else ranks for name, ranks in returned.items()}


def shown(found):
    if found is None:
        return "None"
    return f"{found[0]:g}" if found[0] == found[1] else f"{found[0]:g} to {found[1]:g}"


def hint_at(returned, right, rank, case):
    if not isinstance(returned, dict):
        return "the return value: {name of a parameter: [ranks that have no gradient of it]}, on every rank"
    if any(plain(one["returned"]) == right for one in case.results):
        return f"what rank {rank} knows of the others"
    if "zero" in case.given:
        return "what your function asks of a gradient: one of zeros is there, None is not"
    if set(returned) - set(right):
        return "a parameter that no rank has a gradient for, or every rank, is none that they disagree about"
    return "which ranks *lack* the gradient, and whether every rank is asked"


def place_to_look(found, number, having, rank, case):
    world = case.world
    if found is None and rank in having:
        return "which of your lines takes a gradient away that this rank had"
    if found is None:
        return "a rank that has no gradient needs the mean as well: what does it put in .grad before it takes part?"
    total = sum(gradient(case.given, number, one) for one in having)
    if len(having) < world and abs(found[0] - total / len(having)) < 1e-3:
        return "a rank without a gradient counts as zero, as its samples do on one process: divide by the world size"
    if any(abs(found[0] - total / divisor) < 1e-3 for divisor in range(1, world)):
        return "what the sum is divided by"
    return "which tensor of another rank was added to this one: does every rank hand over the same list?"
