"""Inside a rank, for 24.1: the answer merges two blocks of attention, on one rank and as a ring of two ranks does."""

import math

import torch
import torch.distributed as dist

from ddp_course.grader.harness.tensors import largest_gap, random_tensor

HEADS, QUERIES, SIZE = 2, 6, 4
WINDOW = 16  # tokens of the ring, over all ranks


def drive(merge, scenario, first, keys):
    """The gaps of out, lse and their gradients to attention over both blocks; for a ring, those that `ring` returns.

    first: how many of the `keys` keys the first block has
    """
    if scenario.startswith("a ring"):
        return ring(merge, in_zigzag="zigzag" in scenario)
    q, k, v = (random_tensor(seed, HEADS, n, SIZE) for seed, n in ((1, QUERIES), (2, keys), (3, keys)))
    scores = q @ k.transpose(-1, -2) + score_offsets(scenario, first, keys)
    right = block(scores, v)
    blocks = block(scores[..., :first], v[:, :first]), block(scores[..., first:], v[:, first:])
    inputs = [tensor.clone().requires_grad_() for pair in blocks for tensor in pair]
    returned = merge(*inputs)
    out, lse = returned if isinstance(returned, (tuple, list)) and len(returned) == 2 else (returned, None)
    result = {"out": largest_gap(out, right[0]), "lse": largest_gap(lse, right[1])}
    result |= {"nan": nan_count(out, lse), "shapes": shapes(out, lse)}
    if result["out"] < math.inf and result["lse"] < math.inf:
        result["gradients"] = gradient_gaps(inputs, (out, lse), right)
    return result


def score_offsets(scenario, first, keys):
    """The numbers to add to the scores, of shape (QUERIES, keys) or (HEADS, QUERIES, keys)."""
    offsets = torch.zeros(QUERIES, keys, dtype=torch.float64)
    if scenario == "scores around 20,000":
        offsets += 20_000
    elif scenario == "scores around -20,000":
        offsets -= 20_000
    elif scenario == "the second block 3000 above the first":
        offsets[:, first:] += 3000
    elif scenario == "queries 3000 apart":
        offsets = offsets + 3000 * torch.arange(HEADS * QUERIES).view(HEADS, QUERIES, 1)
    elif scenario.startswith("masked"):  # queries 0, 1 and 3 see one block, query 2 neither, 4 and 5 both
        offsets[0, first:] = offsets[1, :first] = offsets[2] = offsets[3, :first] = -math.inf
    return offsets


def block(scores, v):
    """Attention over these keys: (out, lse). Where all scores are -inf: (0, -inf), with gradients of 0."""
    top = scores.detach().amax(-1)
    top = top.masked_fill(top == -math.inf, 0)
    weights = torch.exp(scores - top[..., None])
    total = weights.sum(-1)
    masked, total = total == 0, total.masked_fill(total == 0, 1)
    return weights @ v / total[..., None], (top + total.log()).masked_fill(masked, -math.inf)


def gradient_gaps(inputs, merged, right):
    """{argument: gap} of the gradients of a loss that depends on out and lse.

    Where a block is masked, its gradients need only be finite.
    """
    right_out, right_lse = right
    nothing = right_lse == -math.inf
    out_cotangent, lse_cotangent = random_tensor(4, *right_out.shape), random_tensor(5, *right_lse.shape)
    loss = (merged[0] * out_cotangent).sum() + (merged[1].masked_fill(nothing, 0) * lse_cotangent).sum()
    if not loss.requires_grad:
        return dict.fromkeys(("out_a", "lse_a", "out_b", "lse_b"), math.inf)
    gradients = torch.autograd.grad(loss, inputs, allow_unused=True)
    gaps = {}
    for name, (out, lse), of_block in zip("ab", (inputs[:2], inputs[2:]), (gradients[:2], gradients[2:]), strict=True):
        masked, share = lse == -math.inf, torch.exp(lse - right_lse.masked_fill(nothing, 0))
        right_of_lse = share * ((out_cotangent * (out - right_out)).sum(-1) + lse_cotangent)
        out_gradient, lse_gradient = zero_where(masked[..., None], of_block[0]), zero_where(masked, of_block[1])
        gaps[f"out_{name}"] = largest_gap(out_gradient, share[..., None] * out_cotangent)
        gaps[f"lse_{name}"] = largest_gap(lse_gradient, right_of_lse)
    return gaps


def zero_where(masked, gradient):
    """The gradient, with 0 where a block is masked, unless it is not finite there; None stays None."""
    return gradient if gradient is None else gradient.masked_fill(masked & gradient.isfinite(), 0)


def ring(merge, in_zigzag):
    """The gaps of the output and its gradients in causal attention, merged block by block in the order of a ring.

    Nothing is sent: each rank has queries at some positions, and the keys and values of the whole window.

    in_zigzag: a rank has an early and a late chunk of the window, not one block.
    """
    rank, world = dist.get_rank(), dist.get_world_size()
    q, k, v = (random_tensor(seed, HEADS, WINDOW, SIZE).requires_grad_() for seed in (6, 7, 8))
    positions = torch.arange(WINDOW).view(world, -1)
    if in_zigzag:
        chunks = torch.arange(WINDOW).view(2 * world, -1)
        positions = torch.cat([chunks[:world], chunks.flip(0)[:world]], 1)
    own = positions[rank]
    is_later = torch.arange(WINDOW) > own[:, None]
    scores = (q[:, own] @ k.transpose(-1, -2)).masked_fill(is_later, -math.inf)
    right, _ = block(scores, v)
    out, lse = torch.zeros_like(right), torch.full_like(right[..., 0], -math.inf)
    for step in range(world):
        keys = positions[(rank - step) % world]
        out, lse = merge(out, lse, *block(scores[..., keys], v[:, keys]))
        if shapes(out, lse) != shapes(right, right[..., 0]):
            return {"out": math.inf}
    cotangent = random_tensor(9, *right.shape)
    right_gradients, gradients = (
        torch.autograd.grad((y * cotangent).sum(), (q, k, v), retain_graph=True, allow_unused=True)
        for y in (right, out)
    )
    gaps = {"out": largest_gap(out, right)}
    for name, gradient, right_gradient in zip("qkv", gradients, right_gradients, strict=True):
        gaps[f"the gradient of {name}"] = largest_gap(gradient, right_gradient)
    return gaps


def nan_count(*tensors):
    return sum(int(tensor.isnan().sum()) for tensor in tensors if torch.is_tensor(tensor))


def shapes(*tensors):
    return [list(tensor.shape) if torch.is_tensor(tensor) else None for tensor in tensors]
