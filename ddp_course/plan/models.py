"""Transformers tensor by tensor: known models by name, and models like GPT-2 of about a given number of parameters."""

import math
import re
from collections.abc import Iterator
from dataclasses import replace

from ddp_course.base.errors import InputError
from ddp_course.plan.job import Model
from ddp_course.plan.schedule import Gradient


def transformer(
    layers: int,
    width: int,
    heads: int,
    vocabulary: int,
    context: int,
    *,
    mlp_ratio: float = 4.0,
    key_value_ratio: float = 1.0,
    gated: bool = False,
    tied: bool = True,
) -> Model:
    """A model with its number of parameters, counted tensor by tensor.

    gated: as Llama, with three matrices per MLP, no biases and no learned positions; else as GPT-2, with two matrices,
    biases and learned positions. tied: the output layer shares its weights with the token embedding.
    """
    keeps, positions = ("gated", 0) if gated else ("plain", context)
    uncounted = Model(
        math.inf,
        layers,
        width,
        heads,
        context,
        vocabulary,
        tables=2 - tied,
        key_value_ratio=key_value_ratio,
        mlp_ratio=mlp_ratio,
        keeps=keeps,
        positions=positions,
    )
    lookup_parameters = width * (positions + (0 if tied else vocabulary))
    return replace(uncounted, parameters=sum(tensors(uncounted)), lookup_parameters=lookup_parameters)


def tensors(model: Model) -> list[int]:
    """The number of elements of each parameter, in the order in which backward completes the gradients.

    An untied output layer comes first. A tied embedding is used at both ends, so its gradient is complete last.
    """
    forward = [*_embeddings(model), *(size for _ in range(model.layers) for size in _layer(model)), model.width]
    if model.keeps == "plain":
        forward.append(model.width)
    if model.tables == 2:
        forward.append(model.vocabulary * model.width)
    return forward[::-1]


def gradients(model: Model, bytes_per_element: float = 4) -> list[Gradient]:
    """The bytes and the cost (multiply-adds per token) of each gradient, in the order of `tensors`.

    An embedding lookup costs 0.
    """
    sizes, embedding_count = tensors(model), len(_embeddings(model))
    costs = sizes[:-embedding_count] + [0] * embedding_count
    if model.tables == 1:  # tied: the output layer's product is computed first, and its gradient complete last
        costs[0] += model.vocabulary * model.width
    return [Gradient(size * bytes_per_element, cost) for size, cost in zip(sizes, costs, strict=True)]


def _embeddings(model: Model) -> list[int]:
    """The number of elements of the token embedding and, if there is one, of the position embedding."""
    return [rows * model.width for rows in (model.vocabulary, model.positions) if rows]


def _layer(model: Model) -> Iterator[int]:
    """The number of elements of each parameter of a layer, in forward's order."""
    width, mlp = model.width, round(model.mlp_ratio * model.width)
    key_value = round(2 * width * model.key_value_ratio)  # outputs of the projections to keys and values
    if model.keeps == "plain":
        attention = (width * (width + key_value), width + key_value, width * width, width)
        yield from (width, width, *attention, width, width, width * mlp, mlp, mlp * width, width)
    else:
        attention = (width * width, width * key_value, width * width)
        yield from (width, *attention, width, width * mlp, width * mlp, mlp * width)


LARGEST_GPT2 = 3e12  # parameters
PREFIXES = {"": 1.0, "k": 1e3, "m": 1e6, "g": 1e9, "b": 1e9, "t": 1e12}
LLAMA_3 = {"vocabulary": 128256, "context": 8192, "gated": True, "tied": False}
MODELS = {
    "tiny": transformer(2, 64, 2, 256, 64),
    "laptop": transformer(6, 384, 6, 4096, 256),
    "gpt2": transformer(12, 768, 12, 50304, 1024),
    "gpt2-medium": transformer(24, 1024, 16, 50304, 1024),
    "gpt2-large": transformer(36, 1280, 20, 50304, 1024),
    "gpt2-xl": transformer(48, 1600, 25, 50304, 1024),
    "llama3-8b": transformer(32, 4096, 32, mlp_ratio=3.5, key_value_ratio=8 / 32, **LLAMA_3),
    "llama3-70b": transformer(80, 8192, 64, mlp_ratio=3.5, key_value_ratio=8 / 64, **LLAMA_3),
    "llama3-405b": transformer(126, 16384, 128, mlp_ratio=3.25, key_value_ratio=8 / 128, **LLAMA_3),
}


def read_parameters(text: str, flag: str) -> float:
    """The number in "7e9", "7B" or "350M". Raises InputError, with the flag's name, if it is none."""
    match = re.fullmatch(r"(\d+(?:\.\d*)?(?:[eE]\+?\d+)?)([kKmMbBtT]?)", text.strip())
    number = float(match[1]) * PREFIXES[match[2].lower()] if match else 0
    if not 1e5 <= number <= 1e14:
        raise InputError(f"{flag} is a number of parameters from 0.1M to 100T, such as 7e9, 7B or 350M, got {text!r}")
    return number


def named_model(name: str) -> Model:
    """The model of this name in MODELS, or for "350M" or "1.3B" a GPT-2 of about that many parameters.

    Raises InputError for any other name, and for more parameters than the largest GPT-2 here has.
    """
    if name.lower() in MODELS:
        return MODELS[name.lower()]
    try:
        parameters = read_parameters(name, "--model")
    except InputError:
        parameters = math.inf
    if parameters > LARGEST_GPT2:
        raise InputError(
            f"no model {name!r}; there are {', '.join(MODELS)}, or give a number of parameters from 0.1M to 3T, such "
            "as 350M or 1.3B"
        )
    # The width of a GPT-2 is about 64 times its number of layers.
    vocabulary = 50304 if parameters > 5e7 else 4096 if parameters > 2e6 else 256
    candidates = (transformer(layers, 64 * layers, layers, vocabulary, 1024) for layers in range(1, 400))
    return min(candidates, key=lambda model: abs(model.parameters - parameters))
