"""The shape of a transformer: how many parameters, in which tensors, and how many operations a token costs."""

from collections.abc import Iterator
from dataclasses import dataclass

from ddp_course.base.errors import InputError
from ddp_course.plan.schedule import Gradient


@dataclass(frozen=True)
class Shape:
    """A decoder-only transformer. gated: three matrices per MLP and no biases (Llama); else two, and biases (GPT-2)."""

    layers: int
    width: int
    vocabulary: int
    context: int
    mlp: int = 0  # units of an MLP's inner layer; 0: four times the width
    key_values: float = 1.0  # heads of keys and values over those of queries
    gated: bool = False
    tied: bool = True  # the output layer is the token embedding

    def tensors(self) -> list[int]:
        """Elements of each parameter in the order in which backward makes the gradients, the output's first.

        A tied embedding is used at both ends, so its gradient is complete at the end of backward.
        """
        forward = [*self._embeddings(), *(size for _ in range(self.layers) for size in self._layer()), self.width]
        if not self.gated:
            forward.append(self.width)
        if not self.tied:
            forward.append(self.vocabulary * self.width)
        return forward[::-1]

    def gradients(self, bytes_each: float = 4) -> list[Gradient]:
        """The same as backward makes them: rows that are looked up cost nothing, the output layer comes first."""
        output, looked_up = self.vocabulary * self.width, len(list(self._embeddings()))
        found = [Gradient(elements * bytes_each, elements) for elements in self.tensors()]
        found[-looked_up:] = [Gradient(one.bytes, 0) for one in found[-looked_up:]]
        if self.tied:  # its product is computed first, and its gradient complete last
            found[0] = Gradient(found[0].bytes, found[0].cost + output)
        return found

    @property
    def parameters(self) -> int:
        return sum(self.tensors())

    def flops_per_token(self, context: int | None = None) -> float:
        """Of forward and backward: 6 per parameter of a matrix product, and 12 layers x width x context of attention.

        The causal mask is not subtracted, as in PaLM's appendix B, whose count most reports of MFU follow.
        """
        looked_up = sum(self._embeddings()) - (self.vocabulary * self.width if self.tied else 0)
        used = self.parameters - looked_up
        return 6.0 * used + 12.0 * self.layers * self.width * (context or self.context)

    def _embeddings(self) -> Iterator[int]:
        yield self.vocabulary * self.width
        if not self.gated:
            yield self.context * self.width  # learned positions

    def _layer(self) -> Iterator[int]:
        width, mlp = self.width, self.mlp or 4 * self.width
        key_value = round(2 * width * self.key_values)
        if self.gated:
            yield from (width, width * width, width * key_value, width * width, width, *3 * (width * mlp,))
        else:
            attention = (width * (width + key_value), width + key_value, width * width, width)
            yield from (width, width, *attention, width, width, width * mlp, mlp, mlp * width, width)


SHAPES = {
    "tiny": Shape(layers=2, width=64, vocabulary=256, context=64),
    "laptop": Shape(layers=6, width=384, vocabulary=4096, context=256),
    "gpt2": Shape(layers=12, width=768, vocabulary=50304, context=1024),
    "gpt2-medium": Shape(layers=24, width=1024, vocabulary=50304, context=1024),
    "gpt2-large": Shape(layers=36, width=1280, vocabulary=50304, context=1024),
    "gpt2-xl": Shape(layers=48, width=1600, vocabulary=50304, context=1024),
    "llama3-8b": Shape(32, 4096, 128256, 8192, mlp=14336, key_values=8 / 32, gated=True, tied=False),
    "llama3-70b": Shape(80, 8192, 128256, 8192, mlp=28672, key_values=8 / 64, gated=True, tied=False),
    "llama3-405b": Shape(126, 16384, 128256, 8192, mlp=53248, key_values=8 / 128, gated=True, tied=False),
}


def shape(name: str) -> Shape:
    """A known model, or one with about as many parameters as "350M" or "1.3B" says, in GPT-2's proportions."""
    if name.lower() in SHAPES:
        return SHAPES[name.lower()]
    unit = {"k": 1e3, "m": 1e6, "b": 1e9}.get(name[-1:].lower())
    try:
        wanted = float(name[:-1]) * unit if unit else 0.0
    except ValueError:
        wanted = 0.0
    if not 1e5 <= wanted < 1e13:
        raise InputError(
            f"no model {name!r}; there are {', '.join(SHAPES)}, or give a number of parameters from 0.1M "
            f"up, such as 350M or 1.3B"
        )
    # GPT-2's layers are about 64 times as wide as there are layers
    vocabulary = 50304 if wanted > 5e7 else 4096 if wanted > 2e6 else 256
    found = min(
        (Shape(layers, 64 * layers, vocabulary, 1024) for layers in range(1, 400)),
        key=lambda one: abs(one.parameters - wanted),
    )
    return found
