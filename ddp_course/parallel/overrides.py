"""One configuration for all ranks from `key=value` texts: defaults, then a file, then the command line.

Read it on rank 0 and send it to the others with `sync.from_rank_0`: what cannot be read is then an InputError on every
rank, and `command_line.run` prints it once.
"""

import ast
import dataclasses
import inspect
import math
import textwrap
import types
import typing
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, TypeVar

from ddp_course.errors import InputError

Config = TypeVar("Config")


def read(kind: type[Config], settings: Sequence[str], file: str = "") -> Config:
    """A `kind`, which is a dataclass with defaults for all fields, from texts such as "steps=20".

    `file` holds such texts, one a line; lines that start with # are left out. What `settings` says counts more.
    Fields may be int, float, str, a Literal of texts, or one of these | None. Raises InputError for a key that does not
    exist, a value of another type, a key given twice, a file that cannot be read, and for what the dataclass's own
    `__post_init__` refuses with a ValueError.
    """
    values = _values(kind, _lines(file), f" in {file}") | _values(kind, settings)
    try:
        return kind(**values)
    except ValueError as error:
        raise InputError(str(error)) from None


def listing(kind: type) -> str:
    """Every key with its default and what it means, a block each: the docstring below the field."""
    explained, blocks = _docstrings(kind), []
    for field in dataclasses.fields(kind):
        default = "none" if field.default is None else field.default
        text = textwrap.indent(textwrap.fill(explained.get(field.name, ""), 96), " " * 4)
        blocks.append(f"- {field.name}={default}\n{text}")
    return "\n".join(blocks)


def random_name(kind: str) -> str:
    """A name for a run, such as "puzzles-5f0c1e". It does not come from the seed: two runs of one seed have two names.

    So every rank would draw another one, and one rank has to draw it for all.
    """
    return f"{kind}-{uuid.uuid4().hex[:6]}"


def _values(kind: type, settings: Sequence[str], where: str = "") -> dict[str, Any]:
    hints, values = typing.get_type_hints(kind), {}
    names = [field.name for field in dataclasses.fields(kind)]
    for setting in settings:
        name, equals, text = setting.partition("=")
        if not equals or name not in names:
            known = ", ".join(names)
            raise InputError(f"{setting!r}{where} is no setting; give key=value, where key is one of {known}")
        if name in values:
            raise InputError(f"{name} is given twice{where}: {values[name]!r} and {text!r}")
        values[name] = _value(name, text, hints[name], where)
    return values


def _value(name: str, text: str, hint: Any, where: str) -> Any:
    if isinstance(hint, types.UnionType):  # X | None
        [hint] = [one for one in typing.get_args(hint) if one is not types.NoneType]
        if text.lower() == "none":
            return None
    if typing.get_origin(hint) is Literal:
        if text not in (allowed := typing.get_args(hint)):
            raise InputError(f"{name}{where} must be one of {', '.join(allowed)}, not {text!r}")
        return text
    try:
        value = hint(text)
    except ValueError:
        value = math.nan
    if hint is not str and not math.isfinite(value):
        raise InputError(f"{name}{where} must be of type {hint.__name__}, not {text!r}")
    return value


def _lines(file: str) -> list[str]:
    if not file:
        return []
    try:
        lines = Path(file).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not UTF-8 text"
        raise InputError(f"cannot read the settings in {file}: {reason}") from None
    return [line.strip() for line in lines if line.strip() and not line.strip().startswith("#")]


def _docstrings(kind: type) -> dict[str, str]:
    """Field -> the text below it. Python drops it when it compiles, so it is read from the source."""
    [body] = ast.parse(textwrap.dedent(inspect.getsource(kind))).body
    found = {}
    for above, below in zip(body.body, body.body[1:], strict=False):
        if isinstance(above, ast.AnnAssign) and isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant):
            found[above.target.id] = " ".join(str(below.value.value).split())
    return found
