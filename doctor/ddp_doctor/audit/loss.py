"""What a loss is of its own batch, from autograd's graph: its mean, its sum, and times which factor."""

PASSES = ("ToCopy", "View", "Squeeze", "Unsqueeze", "Clone", "Reshape", "Alias", "UnsafeView", "Neg")


def loss_kind(node, depth=0):
    """("mean", "sum" or "other", factor): what the loss is of its own batch, as far as autograd's graph tells."""
    if node is None or depth > 20:
        return "other", 1.0
    name = node.name().split("::")[-1]
    below = [one for one, _ in node.next_functions if one is not None]
    reduction = getattr(node, "_saved_reduction", None)
    if name.startswith("Mean") or reduction == 1:
        return "mean", 1.0
    if name.startswith("Sum") or reduction == 2:
        return "sum", 1.0
    if name.startswith(PASSES) and len(below) == 1:
        return loss_kind(below[0], depth + 1)
    if name.startswith(("DivBackward", "MulBackward")) and len(below) == 1:
        other = node._saved_other
        if other is None or other.numel() != 1:
            return "other", 1.0
        kind, factor = loss_kind(below[0], depth + 1)
        return kind, factor / other.item() if name.startswith("Div") else factor * other.item()
    if name.startswith("AddBackward") and below:
        kinds = {loss_kind(one, depth + 1) for one in below if not one.name().endswith("AccumulateGrad")}
        return kinds.pop() if len(kinds) == 1 else ("other", 1.0)
    return "other", 1.0
