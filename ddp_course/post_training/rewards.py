"""A verifiable reward: is what the model wrote Python? It is parsed, and never executed."""

import ast
from collections.abc import Sequence

import torch
from torch import Tensor

from ddp_course.data.python_code import syntax_tree


def parses(prompt: str, completion: str, min_statements: int = 1) -> bool:
    """Whether `prompt` and `completion` together are Python, with at least `min_statements` new statements.

    The text counts up to its last complete line: where the number of tokens ran out is not the model's fault.
    A statement is new if it starts on a line after the prompt's last. A bare constant is none, so neither blank lines
    nor comments nor docstrings earn anything.
    """
    whole = (prompt + completion)[: len(prompt) + completion.rfind("\n") + 1]
    tree = syntax_tree(whole)
    if tree is None:
        return False
    first_new_line = len(prompt.splitlines()) + 1
    new = sum(
        isinstance(node, ast.stmt) and node.lineno >= first_new_line and not _is_bare_constant(node)
        for node in ast.walk(tree)
    )
    return new >= min_statements


def _is_bare_constant(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


class Parses:
    """1.0 for a completion that parses, 0.0 for one that does not; called like a reward model's `score`."""

    def __init__(self, min_statements: int) -> None:
        self._min_statements = min_statements

    def score(self, prompts: Sequence[str], completions: Sequence[str]) -> Tensor:
        """float32, shape (n,)."""
        pairs = zip(prompts, completions, strict=True)
        return torch.tensor([float(parses(*pair, self._min_statements)) for pair in pairs])
