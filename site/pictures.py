"""The parts of a page's pictures."""

from collections.abc import Callable

from ddp_course.base.quantity import with_prefix


def row(name: str, label: str, parts: dict[str, float], written: Callable[[float], str]) -> dict:
    """A bar of named parts. written: how the value of a part is printed."""
    bars = [{"name": part, "value": value, "label": written(value)} for part, value in parts.items()]
    return {"name": name, "label": label, "parts": bars}


def gigabytes(size: float) -> str:
    return with_prefix(size, "B")


def gpus(count: int) -> str:
    return f"{count:,} GPU{'s' * (count > 1)}"
