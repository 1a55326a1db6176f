"""The job that the flags of `plan` describe.

Sizes of the model that are not given are derived from its number of parameters, tokens per update from the GPUs.
"""

import argparse
import math

from ddp_course.base.errors import InputError
from ddp_course.plan.assumptions import KERNELS
from ddp_course.plan.calibration import calibrate
from ddp_course.plan.flags import DEFAULT_GPU, check_counts, read_cluster
from ddp_course.plan.job import Job, Model
from ddp_course.plan.models import read_parameters
from ddp_course.plan.search import divisors
from ddp_course.plan.trainers import TRAINERS

MOST_LAYERS = 10_000
COUNTS = ("layers", "width", "heads", "context", "vocabulary", "key_value_heads", "mlp", "experts_per_token")


def job_from(flags: argparse.Namespace) -> tuple[Job, list[str]]:
    """The job, and the flags that were derived or assumed, as text. Raises InputError if the flags make no sense."""
    missing = [f"--{name}" for name in ("params", "gpus", "memory", "link") if getattr(flags, name) is None]
    if missing:
        raise InputError(
            f"a plan needs {', '.join(missing)}, such as --params 7e9 --gpus 64 --memory 80GB --link 400Gb"
        )
    check_counts(flags, *COUNTS)
    cluster = read_cluster(flags, flags.memory, kernels=flags.kernels)
    model, derived = model_from(flags)
    tokens = flags.tokens_per_update
    if tokens is None:
        tokens = flags.context * divisible_windows(max(1, 2**22 // flags.context), flags.gpus)
        derived.append(f"--tokens-per-update {tokens}")
    if not 1 <= tokens < 1e12:
        raise InputError(f"--tokens-per-update is a number of tokens from 1 up, below 1e+12, got {tokens:g}")
    if tokens % flags.context:
        below = int(tokens // flags.context * flags.context)
        nearest = f"{f'{below:,} or ' if below else ''}{below + flags.context:,}"
        raise InputError(
            f"tokens per update are whole windows of {flags.context:,} tokens, got {tokens:,.10g}; take {nearest}"
        )
    if flags.gpu is None:
        derived.append(f"--gpu {DEFAULT_GPU}")
    trainer = TRAINERS.get(flags.trainer)
    job = Job(trainer.model(model) if trainer else model, cluster, int(tokens), flags.precision, trainer)
    if flags.measured is None:
        return job, derived
    if flags.kernels != KERNELS:
        raise InputError("--measured finds out what --kernels says; give one of them")
    return calibrate(job, flags.measured), derived


def model_from(flags: argparse.Namespace) -> tuple[Model, list[str]]:
    """The model, and the flags of its sizes that were derived from the number of parameters."""
    parameters, derived = read_parameters(flags.params, "--params"), []
    vocabulary = flags.vocabulary or (128_000 if parameters >= 2e9 else 50_000)
    mixture = _mixture_of_experts(flags)
    dense = mixture.get("active", parameters)  # width and layers are those of a dense model of this many parameters
    layers, width, heads = flags.layers, flags.width, flags.heads
    matrices, mlp_ratio = (3, 8 / 3) if flags.gated else (2, 4)

    def per_layer(width: int) -> float:
        return 4 * width**2 + matrices * width * (flags.mlp or mlp_ratio * width)

    def total(width: int) -> float:  # Llama's layers are about 128 times as wide as there are layers
        return (layers or max(1, round(width / 128))) * per_layer(width) + 2 * vocabulary * width

    if width is None:
        # the width is a multiple of this, so that tp can divide the heads
        multiple = 8 * heads if heads else 1024 if dense >= 5e9 else 512 if dense >= 1e9 else 64
        width = min(range(multiple, max(65536, multiple) + 1, multiple), key=lambda width: abs(total(width) - dense))
        derived.append(f"--width {width}")
    if layers is None:
        layers = max(1, round((dense - 2 * vocabulary * width) / per_layer(width)))
        derived.append(f"--layers {layers}")
    if layers > MOST_LAYERS:
        raise InputError(
            f"{dense:.3g} parameters at --width {width:,} would be {layers:,} layers; is --params or --width another "
            "one?"
        )
    if heads is None:
        head_size = 128 if width % 128 == 0 else 64
        heads = min(divisors(width), key=lambda heads: abs(math.log(width / heads / head_size)))
        derived.append(f"--heads {heads}")
    if width % heads:
        raise InputError(f"--width {width} does not divide into --heads {heads} of equal size")
    key_value_heads = flags.key_value_heads or heads
    if heads % key_value_heads:
        raise InputError(f"--key-value-heads is a divisor of --heads {heads}, got {key_value_heads}")
    model = Model(
        parameters,
        layers,
        width,
        heads,
        flags.context,
        vocabulary,
        key_value_ratio=key_value_heads / heads,
        mlp_ratio=flags.mlp / width if flags.mlp else mlp_ratio,
        keeps="gated" if flags.gated else "plain",
        **mixture,
    )
    counted = layers * per_layer(width)
    if not mixture and not 0.5 <= counted / model.layer_parameters <= 2:
        raise InputError(
            f"{layers:,} layers of width {width:,} are about {counted:.3g} parameters besides the tables, not "
            f"{model.layer_parameters:.3g}; is --params, --layers or --width another one?"
        )
    return model, derived


def _mixture_of_experts(flags: argparse.Namespace) -> dict[str, float]:
    """The fields of a Model that describe its experts; {} for a dense model."""
    if (flags.active is None) != (flags.expert_params is None):
        raise InputError("a mixture of experts needs both --active and --expert-params")
    if flags.active is None:
        return {}
    return {
        "active": read_parameters(flags.active, "--active"),
        "expert_parameters": read_parameters(flags.expert_params, "--expert-params"),
        "experts_per_token": flags.experts_per_token,
    }


def divisible_windows(most: int, gpus: int) -> int:
    """The largest number of windows, up to `most`, that is a multiple or a divisor of the number of GPUs."""
    if most >= gpus:
        return most // gpus * gpus
    return max(divisor for divisor in divisors(gpus) if divisor <= most)
