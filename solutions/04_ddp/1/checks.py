"""04.1: a review says that DDP leaves initial weights unequal: six cases to forecast, and the code that measures."""

import json
import math
from numbers import Real
from pathlib import Path

from ddp_course.grader.answer_record import Call, Job, cases
from ddp_course.grader.verdict import Wrong

GIVEN = Path(__file__).with_name("given.py")
MEASURE, FORECAST = "largest_gaps", "forecast"
RIGHT = {  # given: kind, gap on 2 ranks, gap on 3
    "nothing differs": (None, 0, 0),
    "one weight of rank 1, by 0.5": ("parameters", 0.5, 0.5),
    "two weights of rank 1, by 0.75 and -0.75": ("parameters", 0.75, 0.75),
    "a frozen parameter of the last rank, by -2": ("parameters", 2, 2),
    "one weight, rank 1 by 0.5 and rank 2 by -0.5": ("parameters", 0.5, 1.0),
    "one weight, rank 0 by 0.5 and rank 2 by -0.5": ("parameters", 0.5, 1.0),
    "one weight in float64, rank 1 by 3e-8": ("parameters", 3e-8, 3e-8),
    "a whole number among the buffers, rank 1 by 3": ("buffers", 3, 3),
    "a mask that is a buffer, on rank 1": ("buffers", 1, 1),
    "a running mean, rank 1 by -0.25": ("buffers", 0.25, 0.25),
    "a tensor attribute, rank 1 by 4": ("attributes", 4, 4),
    "a tensor attribute of the outermost module, rank 1 by 2": ("attributes", 2, 2),
    "a tensor attribute of a submodule's submodule, rank 1 by 2": ("attributes", 2, 2),
    "a whole number that is a tensor attribute, rank 1 by 3": ("attributes", 3, 3),
    "a model without any tensors": (None, 0, 0),
}
KINDS = ("parameters", "buffers", "attributes")
WORDS = ("closed", "as it was", "grown")
SAME = 1e-9
CHANGES = {  # what the driver saw: how the sentence ends, where to look
    "values": ("", "what is all-reduced or broadcast: the model's own tensors, or copies"),
    "requires_grad": (": its requires_grad has changed", "what else is switched in the model, and for how long"),
    "training": (": its training mode has changed", "what else is switched in the model, and for how long"),
}


def measuring(world):
    return Job(world, MEASURE, tuple(Call([(given,)] * world, given) for given in RIGHT), driver=True)


# The claims come first: they do not depend on the answer, and serve all that are graded together.
JOBS = [
    Job(2, script=GIVEN, seconds=8.0, loads=("torch._dynamo",)),
    measuring(2),
    measuring(3),
    Job(1, FORECAST, (Call([()], "the six cases"),)),
]


def gaps_are_measured_right(records):
    """largest_gaps gives, on every rank, the largest difference between any two ranks, for each kind of tensor."""
    for case in cases(records[1:3]):
        kind, *by_world = RIGHT[case.given]
        right = dict.fromkeys(KINDS, 0.0)
        if kind:
            right[kind] = float(by_world[case.world - 2])
        for rank, result in enumerate(case.results):
            found = result["found"]
            if not same(found, right):
                raise Wrong(
                    f"different: {case.given}; with {case.world} ranks {MEASURE} returned {found!r} on rank {rank}, "
                    f"not {right!r}",
                    hint_at(found, case, kind),
                )
    return f"{MEASURE} is right about {len(RIGHT) - 2} differences, and about none, on 2 and 3 ranks"


def looking_changes_nothing(records):
    """largest_gaps leaves the model as it was: its values, what it trains, and its mode."""
    for case in cases(records[1:3]):
        for rank, result in enumerate(case.results):
            if result["changed"]:
                what, look = CHANGES[result["changed"]]
                raise Wrong(f"different: {case.given}; after {MEASURE} the model of rank {rank} is another{what}", look)
    return "measuring leaves the models as they were"


def the_forecast_comes_true(records):
    """forecast says for each of the six cases what has become of the gap after 20 updates."""
    [case] = cases(records[3:])
    [forecast] = case.results
    measured = json.loads(records[0].ranks[0].stdout)
    for name, (before, after) in measured.items():
        came = "closed" if after == 0 else "as it was" if abs(after - before) < SAME else "grown"
        said = forecast.get(name) if isinstance(forecast, dict) else forecast
        if said not in WORDS:
            raise Wrong(f"{FORECAST} says {said!r} of '{name}'; possible are {', '.join(WORDS)}", "the six names")
        if said != came:
            raise Wrong(
                f"'{name}': you said {said!r}; the gap was {before:.3g} at first and {after:.3g} after 20 updates",
                "put your own largest_gaps before and behind the line that you trust, in a script of two ranks",
            )
    gap = measured["parameters, averaged by hand"][1]
    return f"all six forecasts came true; averaged by hand, the gap of {gap:.3f} was the same after 20 updates"


CHECKS = [gaps_are_measured_right, looking_changes_nothing, the_forecast_comes_true]


def same(found, right):
    if not isinstance(found, dict) or set(found) != set(right):
        return False
    return all(isinstance(found[k], Real) and math.isclose(found[k], right[k], abs_tol=SAME) for k in right)


def hint_at(found, case, kind):
    if not isinstance(found, dict) or set(found) != set(KINDS):
        return f"the return value: a dict with the keys {', '.join(KINDS)}, and a number for each"
    if any(same(one["found"], case.results[0]["found"]) is False for one in case.results):
        return "the ranks do not agree about the gap: what does each compare itself with?"
    if "rank 2 by" in case.given:
        return "the largest difference between *any* two ranks, and not with rank 0 alone"
    if "attribute" in case.given:
        return "a tensor that is neither a parameter nor a buffer lies in the __dict__ of its module, or of a submodule"
    if "float64" in case.given:
        return "in which dtype is subtracted, and how many digits has it?"
    if kind == "buffers":
        return "which buffers there are: whole numbers, masks, and some that are not in state_dict()"
    return "element by element, over all tensors of the kind, and the largest counts"
