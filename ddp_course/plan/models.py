"""Transformers tensor by tensor: known models by name, and models like GPT-2 of about a given number of parameters."""

import math
from collections.abc import Iterator
from dataclasses import replace

from ddp_course.base.errors import InputError
from ddp_course.plan.job import Model
from ddp_course.plan.schedule import Gradient


def transformer(layers, width, heads, vocabulary, context, *, mlp=4.0, key_values=1.0, gated=False, tied=True) -> Model:
    """A model with its number of parameters, counted tensor by tensor.

    gated: as Llama, with three matrices per MLP, no biases and no learned positions; else as GPT-2, with two matrices,
    biases and learned positions. tied: the output layer is the token embedding.
    """
    keeps, positions = ("gated", 0) if gated else ("plain", context)
    uncounted = Model(
        math.inf, layers, width, heads, context, vocabulary, 2 - tied, key_values, mlp, keeps, positions=positions
    )
    looked_up = width * (positions + (0 if tied else vocabulary))
    return replace(uncounted, parameters=sum(tensors(uncounted)), looked_up=looked_up)


def tensors(model: Model) -> list[int]:
    """The number of elements of each parameter, in the order in which backward completes the gradients.

    An output layer of its own comes first. A tied embedding is used at both ends, so its gradient is complete last.
    """
    forward = [*_embeddings(model), *(size for _ in range(model.layers) for size in _layer(model)), model.width]
    if model.keeps == "plain":
        forward.append(model.width)
    if model.tables == 2:
        forward.append(model.vocabulary * model.width)
    return forward[::-1]


def gradients(model: Model, bytes_per_element: float = 4) -> list[Gradient]:
    """The bytes and the cost of each gradient, in the order of `tensors`. A lookup in an embedding costs nothing."""
    sizes, embedding_count = tensors(model), len(_embeddings(model))
    costs = sizes[:-embedding_count] + [0] * embedding_count
    if model.tables == 1:  # tied: the output layer's product is computed first, and its gradient complete last
        costs[0] += model.vocabulary * model.width
    return [Gradient(size * bytes_per_element, cost) for size, cost in zip(sizes, costs, strict=True)]


def _embeddings(model: Model) -> list[int]:
    return [rows * model.width for rows in (model.vocabulary, model.positions) if rows]


def _layer(model: Model) -> Iterator[int]:
    """The number of elements of each parameter of a layer, in forward's order."""
    width, mlp, key_value = model.width, round(model.mlp * model.width), round(2 * model.width * model.key_values)
    if model.keeps == "plain":
        attention = (width * (width + key_value), width + key_value, width * width, width)
        yield from (width, width, *attention, width, width, width * mlp, mlp, mlp * width, width)
    else:
        attention = (width * width, width * key_value, width * width)
        yield from (width, *attention, width, width * mlp, width * mlp, mlp * width)


LLAMA_3 = {"vocabulary": 128256, "context": 8192, "gated": True, "tied": False}
MODELS = {
    "tiny": transformer(2, 64, 2, 256, 64),
    "laptop": transformer(6, 384, 6, 4096, 256),
    "gpt2": transformer(12, 768, 12, 50304, 1024),
    "gpt2-medium": transformer(24, 1024, 16, 50304, 1024),
    "gpt2-large": transformer(36, 1280, 20, 50304, 1024),
    "gpt2-xl": transformer(48, 1600, 25, 50304, 1024),
    "llama3-8b": transformer(32, 4096, 32, mlp=3.5, key_values=8 / 32, **LLAMA_3),
    "llama3-70b": transformer(80, 8192, 64, mlp=3.5, key_values=8 / 64, **LLAMA_3),
    "llama3-405b": transformer(126, 16384, 128, mlp=3.25, key_values=8 / 128, **LLAMA_3),
}


def named_model(name: str) -> Model:
    """A known model, or one with about as many parameters as "350M" or "1.3B" says, in GPT-2's proportions."""
    if name.lower() in MODELS:
        return MODELS[name.lower()]
    unit = {"k": 1e3, "m": 1e6, "b": 1e9}.get(name[-1:].lower())
    try:
        wanted = float(name[:-1]) * unit if unit else 0.0
    except ValueError:
        wanted = 0.0
    if not 1e5 <= wanted < 1e13:
        raise InputError(
            f"no model {name!r}; there are {', '.join(MODELS)}, or give a number of parameters from 0.1M up, such as "
            "350M or 1.3B"
        )
    # The width of a GPT-2 is about 64 times its number of layers.
    vocabulary = 50304 if wanted > 5e7 else 4096 if wanted > 2e6 else 256
    candidates = (transformer(layers, 64 * layers, layers, vocabulary, 1024) for layers in range(1, 400))
    return min(candidates, key=lambda model: abs(model.parameters - wanted))
