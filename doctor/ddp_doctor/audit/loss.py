"""Reads from autograd's graph how a loss was reduced: mean or sum, over how many values, times which factor."""

import math

# Prefixes of the names of autograd nodes that change neither the reduction nor the magnitude of the factor.
PASS_THROUGH = ("ToCopy", "View", "Squeeze", "Unsqueeze", "Clone", "Reshape", "Alias", "UnsafeView", "Neg")
OTHER = "other", 1.0, None


def loss_kind(node, depth=0):
    """(reduction, factor, count): "mean", "sum" or "other", what it is multiplied by, and the number of its values.

    The count is None where the graph does not tell.
    """
    if node is None or depth > 20:
        return OTHER
    name = node.name().split("::")[-1]
    inputs = [function for function, _ in node.next_functions if function is not None]
    reduction = getattr(node, "_saved_reduction", None)
    if name.startswith("Mean") or reduction == 1:
        return "mean", 1.0, _count(node)
    if name.startswith("Sum") or reduction == 2:
        return "sum", 1.0, _count(node)
    if name.startswith(PASS_THROUGH) and len(inputs) == 1:
        return loss_kind(inputs[0], depth + 1)
    if name.startswith(("DivBackward", "MulBackward")) and len(inputs) == 1:
        other = node._saved_other
        if other is None or other.numel() != 1:
            return OTHER
        reduction, factor, count = loss_kind(inputs[0], depth + 1)
        return reduction, factor / other.item() if name.startswith("Div") else factor * other.item(), count
    if name.startswith("AddBackward") and inputs:
        terms = [loss_kind(term, depth + 1) for term in inputs if not term.name().endswith("AccumulateGrad")]
        return terms[0] if len({term[:2] for term in terms}) == 1 else OTHER
    return OTHER


def _count(node):
    """The number of values that a mean or sum runs over, without ignored targets; None where the node does not tell."""
    target = getattr(node, "_saved_target", None)
    if target is not None and hasattr(node, "_saved_ignore_index"):
        return int((target != node._saved_ignore_index).sum())
    numel = getattr(node, "_saved_self_sym_numel", None)
    if numel is not None:
        return int(numel)
    sizes = getattr(node, "_saved_self_sym_sizes", None)
    if sizes is not None:
        return int(math.prod(sizes))
    tensor = getattr(node, "_saved_self", None)
    return None if tensor is None else tensor.numel()
