"""03.2: a loop that skips missing gradients pairs the tensors of different parameters; a detector, and the repair."""

from ddp_course.grader.vocabulary import Wrong, check, driver_job, expect

from .driver import CASES, gradient, owners

DETECTOR, REPAIRED = "missing_gradients", "synchronize_gradients"
ON_TWO = [case for case in CASES if "three" not in case]
ON_THREE = [case for case in CASES if "three" in case] + ON_TWO[1:2]


DETECTIONS, REPAIRS = (
    [driver_job(world, function, whats, seconds=3.0) for world, whats in ((2, ON_TWO), (3, ON_THREE))]
    for function in (DETECTOR, REPAIRED)
)
JOBS = DETECTIONS + REPAIRS


@check(
    f"{DETECTOR} names every parameter that ranks disagree about, and who lacks it, in {len(CASES)} cases", DETECTIONS
)
def names_what_is_missing(case, rank, result):
    returned, right = result["returned"], expected_result(case)
    expect(
        plain(returned) == right,
        f"{DETECTOR} returned {returned!r} on rank {rank}, not {right!r}",
        lambda: hint_at(returned, right, rank, case),
    )


@check("it leaves the gradients as they are", DETECTIONS)
def looking_changes_nothing(case, rank, result):
    for number, (name, values) in enumerate(result["after"].items()):
        has_gradient = rank in owners(case.scenario, case.world).get(name, [])
        right = [gradient(case.scenario, number, rank)] * 2 if has_gradient else None
        expect(
            values == right,
            f"after {DETECTOR} the gradient of {name} on rank {rank} is {shown(values)}; it was {shown(right)}",
            "a detector looks; what does yours write to?",
        )


@check(f"{REPAIRED} averages each parameter with itself, a missing gradient counting as zero", REPAIRS)
def no_two_parameters_are_mixed(case, rank, result):
    for number, (name, values) in enumerate(result["after"].items()):
        having = owners(case.scenario, case.world).get(name, [])
        if having:
            right = sum(gradient(case.scenario, number, owner) for owner in having) / case.world
            if values is None or not max(abs(value - right) for value in values) <= 1e-3:
                raise Wrong(
                    f"after {REPAIRED} the gradient of {name} on rank {rank} is {shown(values)}; the mean over the "
                    f"ranks is {right:g}",
                    look_at_mean(values, number, having, rank, case),
                )


@check("a parameter that nobody used, or that is frozen, keeps None", REPAIRS)
def what_nobody_used_stays_none(case, rank, result):
    for name, values in result["after"].items():
        expect(
            values is None or owners(case.scenario, case.world).get(name),
            f"no rank had a gradient of {name}; after {REPAIRED} it is {shown(values)} on rank {rank}",
            "on one process it would be None, and weight decay would leave the parameter alone",
        )


def expected_result(case):
    world = case.world
    return {
        name: [rank for rank in range(world) if rank not in having]
        for name, having in owners(case.scenario, world).items()
        if 0 < len(having) < world
    }


def plain(returned):
    if not isinstance(returned, dict):
        return returned
    return {name: sorted(ranks) if isinstance(ranks, list) else ranks for name, ranks in returned.items()}


def shown(values):
    if values is None:
        return "None"
    return f"{values[0]:g}" if values[0] == values[1] else f"{values[0]:g} to {values[1]:g}"


def hint_at(returned, right, rank, case):
    if not isinstance(returned, dict):
        return "the return value: {name of a parameter: [ranks that have no gradient of it]}, on every rank"
    if any(plain(result["returned"]) == right for result in case.results):
        return f"what rank {rank} knows of the others"
    if "zero" in case.scenario:
        return "what your function asks of a gradient: one of zeros is there, None is not"
    if set(returned) - set(right):
        return "a parameter that no rank has a gradient for, or every rank, is none that they disagree about"
    return "which ranks *lack* the gradient, and whether every rank is asked"


def look_at_mean(values, number, having, rank, case):
    world = case.world
    if values is None and rank in having:
        return "which of your lines takes a gradient away that this rank had"
    if values is None:
        return "a rank that has no gradient needs the mean as well: what does it put in .grad before it takes part?"
    total = sum(gradient(case.scenario, number, owner) for owner in having)
    if len(having) < world and abs(values[0] - total / len(having)) < 1e-3:
        return "a rank without a gradient counts as zero, as its samples do on one process: divide by the world size"
    if any(abs(values[0] - total / divisor) < 1e-3 for divisor in range(1, world)):
        return "what the sum is divided by"
    return "which tensor of another rank was added to this one: does every rank hand over the same list?"
