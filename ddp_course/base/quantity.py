"""Numbers as people read them: three significant digits, grouped thousands, a unit."""

import math
from numbers import Integral, Real

PREFIXES = [(1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")]


def plain(value):
    """`value` without its wrapping: a one-element tensor, array or NumPy scalar becomes a Python number."""
    return value.item() if hasattr(value, "item") else value


def is_number(value) -> bool:
    """True for integers and floats; False for bools, although bool is a subclass of int."""
    return isinstance(value, Real) and not isinstance(value, bool)


def format_number(value) -> str:
    """Integers in full with thousands separated; floats to three significant digits (whole from 1,000 up).

    Floats below 0.0001 or from a million on are written like 1.2e-5. Anything else as `str`.
    """
    value = plain(value)
    if not is_number(value):
        return str(value)
    if isinstance(value, Integral):
        return f"{value:,}"
    if not math.isfinite(value) or value == 0:
        return str(float(value)).removesuffix(".0")
    exponent = math.floor(math.log10(abs(value)))
    if not -4 <= exponent < 6:
        mantissa, power = f"{value:.2e}".split("e")
        return f"{mantissa.rstrip('0').rstrip('.')}e{int(power)}"
    text = f"{value:,.{max(0, 2 - exponent)}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def quantity(value, unit: str = "") -> str:
    """`value` and its unit, as in "1,024 tokens/s"."""
    return f"{format_number(value)} {unit}".rstrip()


def with_prefix(value: float, unit: str) -> str:
    """`value` with a decimal prefix on its unit, as in "85.3 GFLOP/s" (G is 10^9, also for bytes)."""
    for size, prefix in PREFIXES:
        if abs(value) >= size:
            return f"{format_number(value / size)} {prefix}{unit}"
    return quantity(value, unit)
