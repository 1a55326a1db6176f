"""How a loss is made of its own batch, from autograd's graph: its mean, its sum, of how many values, times what."""

import math

PASSES = ("ToCopy", "View", "Squeeze", "Unsqueeze", "Clone", "Reshape", "Alias", "UnsafeView", "Neg")
OTHER = "other", 1.0, None


def loss_kind(node, depth=0):
    """("mean", "sum" or "other", factor, number of values or None), as far as the graph tells."""
    if node is None or depth > 20:
        return OTHER
    name = node.name().split("::")[-1]
    below = [node for node, _ in node.next_functions if node is not None]
    reduction = getattr(node, "_saved_reduction", None)
    if name.startswith("Mean") or reduction == 1:
        return "mean", 1.0, _count(node)
    if name.startswith("Sum") or reduction == 2:
        return "sum", 1.0, _count(node)
    if name.startswith(PASSES) and len(below) == 1:
        return loss_kind(below[0], depth + 1)
    if name.startswith(("DivBackward", "MulBackward")) and len(below) == 1:
        other = node._saved_other
        if other is None or other.numel() != 1:
            return OTHER
        kind, factor, count = loss_kind(below[0], depth + 1)
        return kind, factor / other.item() if name.startswith("Div") else factor * other.item(), count
    if name.startswith("AddBackward") and below:
        parts = [loss_kind(node, depth + 1) for node in below if not node.name().endswith("AccumulateGrad")]
        return parts[0] if len({part[:2] for part in parts}) == 1 else OTHER
    return OTHER


def _count(node):
    target = getattr(node, "_saved_target", None)
    if target is not None and hasattr(node, "_saved_ignore_index"):
        return int((target != node._saved_ignore_index).sum())
    for name in ("_saved_self_sym_numel", "_saved_self_sym_sizes", "_saved_self"):
        value = getattr(node, name, None)
        if value is not None:
            return int(value.numel() if hasattr(value, "numel") else math.prod(value) if name[-1] == "s" else value)
    return None
