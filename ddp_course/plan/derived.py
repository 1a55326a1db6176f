"""The job that the flags of `plan` describe, with what is derived where a flag is not given: a model's shape from its
parameters, the windows of an update."""

import argparse
import math

from ddp_course.base.errors import InputError
from ddp_course.plan.assumptions import KERNELS
from ddp_course.plan.flags import GPU, check_counts, read_cluster, read_parameters
from ddp_course.plan.job import Job, Model
from ddp_course.plan.measured import calibrated
from ddp_course.plan.search import divisors
from ddp_course.plan.trainers import TRAINERS

MOST_LAYERS = 10_000
COUNTS = ("layers", "width", "heads", "context", "vocabulary", "key_value_heads", "mlp", "experts_per_token")


def job_from(flags: argparse.Namespace) -> tuple[Job, list[str]]:
    """The job, and the flags that were derived. Raises InputError for what makes no sense."""
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
        tokens = flags.context * windows(max(1, 2**22 // flags.context), flags.gpus)
        derived.append(f"--tokens-per-update {tokens}")
    if not 1 <= tokens < 1e12:
        raise InputError(f"--tokens-per-update is a number of tokens from 1 up, got {tokens:g}")
    if tokens % flags.context:
        below = int(tokens // flags.context * flags.context)
        nearest = f"{f'{below:,} or ' if below else ''}{below + flags.context:,}"
        raise InputError(
            f"tokens per update are whole windows of {flags.context:,} tokens, got {tokens:,.10g}; take {nearest}"
        )
    if flags.gpu is None:
        derived.append(f"--gpu {GPU}")
    trainer = TRAINERS.get(flags.trainer)
    job = Job(trainer.model(model) if trainer else model, cluster, int(tokens), flags.precision, trainer)
    if flags.measured is None:
        return job, derived
    if flags.kernels != KERNELS:
        raise InputError("--measured finds out what --kernels says; give one of them")
    return calibrated(job, flags.measured), derived


def model_from(flags: argparse.Namespace) -> tuple[Model, list[str]]:
    """The model; what is not given of its shape is derived from the number of parameters."""
    parameters, derived = read_parameters(flags.params, "--params"), []
    vocabulary = flags.vocabulary or (128_000 if parameters >= 2e9 else 50_000)
    if (flags.active is None) != (flags.expert_params is None):
        raise InputError("a mixture of experts needs both --active and --expert-params")
    mixture = {}
    if flags.active is not None:
        mixture["active"] = read_parameters(flags.active, "--active")
        mixture["experts"] = read_parameters(flags.expert_params, "--expert-params")
        mixture["chosen"] = flags.experts_per_token
    dense = mixture.get("active", parameters)  # of as many, a token's way through the layers is made
    layers, width, heads = flags.layers, flags.width, flags.heads
    matrices, inner = (3, 8 / 3) if flags.gated else (2, 4)

    def per_layer(width: int) -> float:
        return 4 * width**2 + matrices * width * (flags.mlp or inner * width)

    def total(width: int) -> float:  # Llama's layers are about 128 times as wide as there are layers
        return (layers or max(1, round(width / 128))) * per_layer(width) + 2 * vocabulary * width

    if width is None:
        even = 8 * heads if heads else 1024 if dense >= 5e9 else 512 if dense >= 1e9 else 64  # tp can divide the heads
        width = min(range(even, max(65536, even) + 1, even), key=lambda width: abs(total(width) - dense))
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
        usual = 128 if width % 128 == 0 else 64  # units of a head
        heads = min(divisors(width), key=lambda heads: abs(math.log(width / heads / usual)))
        derived.append(f"--heads {heads}")
    if width % heads:
        raise InputError(f"--width {width} does not divide into --heads {heads} of equal size")
    pairs = flags.key_value_heads or heads
    if pairs > heads or heads % pairs:
        raise InputError(f"--key-value-heads is a divisor of --heads {heads}, got {pairs}")
    shape = {"key_values": pairs / heads, "mlp": flags.mlp / width if flags.mlp else inner}
    keeps = "gated" if flags.gated else "plain"
    model = Model(parameters, layers, width, heads, flags.context, vocabulary, keeps=keeps, **shape, **mixture)
    counted = layers * per_layer(width)
    if not mixture and not 0.5 <= counted / model.in_layers <= 2:
        raise InputError(
            f"{layers:,} layers of width {width:,} are about {counted:.3g} parameters besides the tables, not "
            f"{model.in_layers:.3g}; is --params, --layers or --width another one?"
        )
    return model, derived


def windows(wanted: int, gpus: int) -> int:
    """Per update, near as many as wanted: a number for each GPU if there are enough, else one for some of them."""
    if wanted >= gpus:
        return wanted // gpus * gpus
    return max(divisor for divisor in divisors(gpus) if divisor <= wanted)
