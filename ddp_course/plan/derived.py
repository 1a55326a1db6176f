"""What a plan derives where nothing is given: a model's shape from its parameters, the windows of an update."""

import argparse
import math
import re

from ddp_course.base.errors import InputError
from ddp_course.plan.memory import Model
from ddp_course.plan.search import divisors

MOST_LAYERS = 10_000


def model_from(given: argparse.Namespace) -> tuple[Model, list[str]]:
    """The model; what is not given of its shape is derived from the number of parameters."""
    parameters, said = count(given.params, "--params"), []
    vocabulary = given.vocabulary or (128_000 if parameters >= 2e9 else 50_000)
    if (given.active is None) != (given.expert_params is None):
        raise InputError("a mixture of experts needs both --active and --expert-params")
    experts = (
        {}
        if given.active is None
        else {
            "active": count(given.active, "--active"),
            "experts": count(given.expert_params, "--expert-params"),
            "chosen": given.experts_per_token,
        }
    )
    dense = experts.get("active", parameters)  # of as many, a token's way through the layers is made
    layers, width, heads = given.layers, given.width, given.heads
    matrices, inner = (3, 8 / 3) if given.gated else (2, 4)

    def per_layer(width: int) -> float:
        return 4 * width**2 + matrices * width * (given.mlp or inner * width)

    def tried(width: int) -> float:  # Llama's layers are about 128 times as wide as there are layers
        return (layers or max(1, round(width / 128))) * per_layer(width) + 2 * vocabulary * width

    if width is None:
        even = 8 * heads if heads else 1024 if dense >= 5e9 else 512 if dense >= 1e9 else 64  # tp can divide the heads
        width = min(range(even, max(65536, even) + 1, even), key=lambda one: abs(tried(one) - dense))
        said.append(f"--width {width}")
    if layers is None:
        layers = max(1, round((dense - 2 * vocabulary * width) / per_layer(width)))
        said.append(f"--layers {layers}")
    if layers > MOST_LAYERS:
        raise InputError(
            f"{dense:.3g} parameters at --width {width:,} would be {layers:,} layers; is --params or "
            "--width another one?"
        )
    if heads is None:
        heads = min(divisors(width), key=lambda one: abs(math.log(width / one / (128 if width % 128 == 0 else 64))))
        said.append(f"--heads {heads}")
    if width % heads:
        raise InputError(f"--width {width} does not divide into --heads {heads} of equal size")
    pairs = given.key_value_heads or heads
    if pairs > heads or heads % pairs:
        raise InputError(f"--key-value-heads is a divisor of --heads {heads}, got {pairs}")
    mlp, keeps = given.mlp / width if given.mlp else inner, "gated" if given.gated else "plain"
    model = Model(
        parameters,
        layers,
        width,
        heads,
        given.context,
        vocabulary,
        key_values=pairs / heads,
        mlp=mlp,
        keeps=keeps,
        **experts,
    )
    if not experts and not 0.5 <= layers * per_layer(width) / model.in_layers <= 2:
        raise InputError(
            f"{layers:,} layers of width {width:,} are about {layers * per_layer(width):.3g} parameters "
            f"besides the tables, not {model.in_layers:.3g}; is --params, --layers or --width another "
            "one?"
        )
    return model, said


def windows(wanted: int, gpus: int) -> int:
    """Per update, near as many as wanted: a number for each GPU if there are enough, else one for some of them."""
    return wanted // gpus * gpus if wanted >= gpus else max(one for one in divisors(gpus) if one <= wanted)


def count(text: str, flag: str) -> float:
    """7e9, 7B, 350M."""
    found = re.fullmatch(r"(\d+\.?\d*(?:[eE]\+?\d+)?)([kKmMbBtT]?)", text.strip())
    number = float(found[1]) * {"": 1, "k": 1e3, "m": 1e6, "b": 1e9, "t": 1e12}[found[2].lower()] if found else 0
    if not 1e5 <= number <= 1e14:
        raise InputError(f"{flag} is a number of parameters from 0.1M to 100T, such as 7e9, 7B or 350M, got {text!r}")
    return number
