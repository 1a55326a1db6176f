"""03.2: a loop that skips missing gradients adds up those of different parameters; a detector, and the repair."""

from ddp_course.grader.vocabulary import Wrong, check, driver_job, expect

from .driver import CASES, gradient, owners

DETECTOR, REPAIRED = "missing_gradients", "synchronize_gradients"
ON_TWO_RANKS = [scenario for scenario in CASES if "three" not in scenario]
ON_THREE_RANKS = [scenario for scenario in CASES if scenario not in ON_TWO_RANKS]
SCENARIOS = {2: ON_TWO_RANKS, 3: [*ON_THREE_RANKS, "rank 0 trained on code, rank 1 on prose"]}
DETECTIONS, REPAIRS = (
    [driver_job(world, function, scenarios, seconds=3.0) for world, scenarios in SCENARIOS.items()]
    for function in (DETECTOR, REPAIRED)
)
JOBS = DETECTIONS + REPAIRS
TOLERANCE = 1e-9  # float64 sums in another order


@check(
    f"{DETECTOR} names every parameter that ranks disagree about, and who lacks it, in {len(CASES)} cases", DETECTIONS
)
def names_what_is_missing(case, rank, result):
    returned, right = result["returned"], expected_result(case)
    expect(
        sorted_ranks(returned) == right,
        f"{DETECTOR} returned {returned!r} on rank {rank}, not {right!r}",
        lambda: where_to_look_for_names(returned, right, rank, case),
    )


@check("it leaves the gradients as they are", DETECTIONS)
def looking_changes_nothing(case, rank, result):
    for number, (name, values) in enumerate(result["after"].items()):
        has_gradient = rank in owners(case.scenario, case.world).get(name, [])
        right = [gradient(case.scenario, number, rank)] * 2 if has_gradient else None
        expect(
            values == right,
            f"after {DETECTOR} the gradient of {name} on rank {rank} is {shown(values)}; it was {shown(right)}",
            "a detector changes nothing: what does yours write to?",
        )


@check(f"{REPAIRED} averages each parameter with itself, a missing gradient counting as zero", REPAIRS)
def no_two_parameters_are_mixed(case, rank, result):
    for number, (name, values) in enumerate(result["after"].items()):
        owning_ranks = owners(case.scenario, case.world).get(name, [])
        if owning_ranks:
            right = sum(gradient(case.scenario, number, owner) for owner in owning_ranks) / case.world
            if values is None or not max(abs(value - right) for value in values) <= 1e-3:
                raise Wrong(
                    f"after {REPAIRED} the gradient of {name} on rank {rank} is {shown(values)}; the mean over the "
                    f"ranks is {right:g}",
                    where_to_look_for_means(values, number, owning_ranks, rank, case),
                )


@check("to the precision of float64", REPAIRS)
def means_keep_their_digits(case, rank, result):
    for number, (name, values) in enumerate(result["after"].items()):
        right = sum(gradient(case.scenario, number, owner) for owner in owners(case.scenario, case.world).get(name, []))
        gap = max(abs(value - right / case.world) for value in values or [right / case.world])
        expect(
            gap < TOLERANCE,
            f"after {REPAIRED} the gradient of {name} on rank {rank} is {gap:.1g} from the mean over the ranks",
            "the last digits are lost: in which dtype are the gradients sent and added?",
        )


@check("a parameter that no rank used, or that is frozen, keeps None", REPAIRS)
def unused_parameters_keep_none(case, rank, result):
    for name, values in result["after"].items():
        expect(
            values is None or owners(case.scenario, case.world).get(name),
            f"no rank had a gradient of {name}; after {REPAIRED} it is {shown(values)} on rank {rank}",
            "in one process it would be None, and weight decay would not change the parameter",
        )


def expected_result(case):
    """The right return value of missing_gradients."""
    return {
        name: [rank for rank in range(case.world) if rank not in owning_ranks]
        for name, owning_ranks in owners(case.scenario, case.world).items()
        if 0 < len(owning_ranks) < case.world
    }


def sorted_ranks(returned):
    """`returned` with each list of ranks in order, for a comparison."""
    if not isinstance(returned, dict):
        return returned
    return {name: sorted(ranks) if isinstance(ranks, list) else ranks for name, ranks in returned.items()}


def shown(values):
    """The [smallest, largest] value of a gradient, or None, as a message shows it."""
    if values is None:
        return "None"
    return f"{values[0]:g}" if values[0] == values[1] else f"{values[0]:g} to {values[1]:g}"


def where_to_look_for_names(returned, right, rank, case):
    if not isinstance(returned, dict):
        return "the return value: {name of a parameter: [ranks that have no gradient of it]}, on every rank"
    if any(sorted_ranks(result["returned"]) == right for result in case.results):
        return f"how rank {rank} learns which gradients the other ranks have"
    if "zero" in case.scenario:
        return "what your function takes for a missing gradient: None is one, a gradient of zeros is not"
    if set(returned) - set(right):
        return "ranks agree about a parameter if none of them has its gradient, or all have"
    return "which ranks *lack* the gradient, and whether every rank is asked"


def where_to_look_for_means(values, number, owning_ranks, rank, case):
    world = case.world
    if values is None and rank in owning_ranks:
        return "which of your lines sets a gradient to None that this rank had"
    if values is None:
        return "a rank that has no gradient needs the mean as well: what does it put in .grad before it takes part?"
    total = sum(gradient(case.scenario, number, owner) for owner in owning_ranks)
    if len(owning_ranks) < world and abs(values[0] - total / len(owning_ranks)) < 1e-3:
        return "a rank without a gradient counts as zero, as its samples do in one process: divide by the world size"
    if any(abs(values[0] - total / divisor) < 1e-3 for divisor in range(1, world)):
        return "what the sum is divided by"
    return "which tensor of another rank was added to this one: does every rank hand over the same list?"
