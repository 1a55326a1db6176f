"""A verifiable reward: whether a completion parses as Python. It is never executed."""

import ast
from collections.abc import Sequence

import torch
from torch import Tensor

from ddp_course.data.python_code import syntax_tree


def parses(prompt: str, completion: str, min_statements: int = 1) -> bool:
    """Whether `prompt` and `completion` together are Python, with at least `min_statements` new statements.

    The text is parsed up to its last complete line, since the limit of tokens may cut the line after it.
    A statement is new if it starts on a line after the prompt's last. Bare constants do not count, so blank lines,
    comments and docstrings earn nothing.
    """
    tree = syntax_tree(prompt + completion[: completion.rfind("\n") + 1])
    if tree is None:
        return False
    first_new_line = len(prompt.splitlines()) + 1
    new_statements = sum(
        isinstance(node, ast.stmt) and node.lineno >= first_new_line and not _is_bare_constant(node)
        for node in ast.walk(tree)
    )
    return new_statements >= min_statements


def _is_bare_constant(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


class Parses:
    """The reward of `parses`: 1.0 for a completion that parses, else 0.0. `score` is called like a reward model's."""

    def __init__(self, min_statements: int) -> None:
        self._min_statements = min_statements

    def score(self, prompts: Sequence[str], completions: Sequence[str]) -> Tensor:
        """Rewards, (n,) of float32."""
        pairs = zip(prompts, completions, strict=True)
        return torch.tensor([float(parses(*pair, self._min_statements)) for pair in pairs])
