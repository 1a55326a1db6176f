"""04.1: a review says that DDP leaves initial weights unequal: six cases to forecast, and the code that measures."""

import json
import math
from numbers import Real
from pathlib import Path

from ddp_course.grader.vocabulary import Job, check, driver_job, expect, function_job

from .driver import MODELS

MEASURE, FORECAST = "largest_gaps", "forecast"
KINDS = ("parameters", "buffers", "attributes")
OUTCOMES = ("closed", "unchanged", "grown")
TOLERANCE = 1e-9
# This script runs once for all answers of a lane. It runs first: after a failed job of an answer it would not run.
CLAIMS = Job(2, script=Path(__file__).with_name("given.py"), seconds=8.0, loads=("torch._dynamo",))
MEASURING = [driver_job(world, MEASURE, MODELS.keys()) for world in (2, 3)]
FORECASTING = function_job(1, FORECAST, {"the six cases": ()})
JOBS = [CLAIMS, *MEASURING, FORECASTING]


@check(
    f"{MEASURE} is right about {len(MODELS) - 2} differences, and about none, on 2 and 3 ranks",
    MEASURING,
    begin="different: {scenario}; ",
)
def gaps_are_measured_right(case, rank, result):
    _, kind, *by_world = MODELS[case.scenario]
    right = dict.fromkeys(KINDS, 0.0)
    if kind:
        right[kind] = float(by_world[case.world - 2])
    expect(
        same(result["gaps"], right),
        f"with {case.world} ranks {MEASURE} returned {result['gaps']!r} on rank {rank}, not {right!r}",
        lambda: where_to_look(result["gaps"], case, kind),
    )


@check("measuring leaves the models as they were", MEASURING, begin="different: {scenario}; ")
def looking_changes_nothing(case, rank, result):
    changed = result["changed"]
    expect(
        not changed,
        f"{MEASURE} has changed the {changed} of the model on rank {rank}",
        "what is all-reduced or broadcast: the model's own tensors, or copies"
        if changed == "values"
        else "what you switch in the model, and whether you switch it back",
    )


@check(
    lambda gaps: f"all six forecasts came true; averaged by hand, the gap of {gaps[0]:.3f} was the same after 20 steps",
    [CLAIMS, FORECASTING],
)
def the_forecast_comes_true(records):
    claims, forecasting = records
    [forecast] = forecasting.ranks[0].results
    measured = json.loads(claims.ranks[0].stdout)
    for name, (before, after) in measured.items():
        outcome = "closed" if after == 0 else "unchanged" if abs(after - before) < TOLERANCE else "grown"
        predicted = forecast.get(name) if isinstance(forecast, dict) else forecast
        expect(
            predicted in OUTCOMES,
            f"{FORECAST} says {predicted!r} of '{name}'; possible are {', '.join(OUTCOMES)}",
            "the six names",
        )
        event = "the suggested line" if "seed" in name else "20 steps"
        expect(
            predicted == outcome,
            f"'{name}': you said {predicted!r}; the gap was {before:.3g} at first and {after:.3g} after {event}",
            "call your own largest_gaps before and after the line that you trust, in a script with two ranks",
        )
    return measured["parameters, averaged by hand"][1]


def same(gaps, right):
    if not isinstance(gaps, dict) or set(gaps) != set(right):
        return False
    return all(
        isinstance(gaps[kind], Real) and math.isclose(gaps[kind], right[kind], abs_tol=TOLERANCE) for kind in right
    )


def where_to_look(gaps, case, kind):
    if not isinstance(gaps, dict) or set(gaps) != set(KINDS):
        return f"the return value: a dict with the keys {', '.join(KINDS)}, and a number for each"
    if not all(same(result["gaps"], case.results[0]["gaps"]) for result in case.results):
        return "the ranks do not agree about the gap: what does each compare itself with?"
    if "rank 2 by" in case.scenario:
        return "the largest difference between *any* two ranks, and not with rank 0 alone"
    if "attribute" in case.scenario:
        return "a tensor that is neither a parameter nor a buffer lies in the __dict__ of its module, or of a submodule"
    if "float64" in case.scenario or "8-bit" in case.scenario:
        return "in which dtype do you subtract: how many digits does it have, and how large can a number be?"
    if kind == "buffers":
        return "which buffers there are: integers, masks, and some that are not in state_dict()"
    return "element by element, over all tensors of the kind, and the largest counts"
