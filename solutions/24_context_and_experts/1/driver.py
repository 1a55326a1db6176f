"""Inside a rank, for 24.1: the answer merges two blocks of attention, on one rank and in a ring of ranks."""

import torch
import torch.distributed as dist

HEADS, QUERIES, SIZE = 2, 6, 4
WINDOW = 16  # tokens of the ring, over all ranks
INFINITE = float("inf")


def drive(merge, scenario, first, keys):
    """The gaps of out, lse and their gradients to attention over both blocks; for a ring, those that `ring` returns.

    first: how many of the `keys` keys the first block has
    """
    if scenario.startswith("a ring"):
        return ring(merge, in_zigzag="zigzag" in scenario)
    q, k, v = (random_tensor(seed, (HEADS, n, SIZE)) for seed, n in ((1, QUERIES), (2, keys), (3, keys)))
    scores = q @ k.transpose(-1, -2) + score_offsets(scenario, first, keys)
    right = block(scores, v)
    blocks = block(scores[..., :first], v[:, :first]), block(scores[..., first:], v[:, first:])
    inputs = [tensor.clone().requires_grad_() for pair in blocks for tensor in pair]
    returned = merge(*inputs)
    out, lse = returned if isinstance(returned, (tuple, list)) and len(returned) == 2 else (returned, None)
    result = {"out": gap(out, right[0]), "lse": gap(lse, right[1])}
    result |= {"nan": nan_count(out, lse), "shapes": shapes(out, lse)}
    if result["out"] < INFINITE and result["lse"] < INFINITE:
        result["gradients"] = gradient_gaps(inputs, (out, lse), right)
    return result


def score_offsets(scenario, first, keys):
    """The numbers to add to the scores, of shape (QUERIES, keys)."""
    offsets = torch.zeros(QUERIES, keys, dtype=torch.float64)
    if scenario == "scores around 3000":
        offsets += 3000
    elif scenario == "scores around -3000":
        offsets -= 3000
    elif scenario == "the second block 3000 above the first":
        offsets[:, first:] += 3000
    elif scenario.startswith("masked"):  # queries 0, 1 and 3 see one block, query 2 neither, 4 and 5 both
        offsets[0, first:] = offsets[1, :first] = offsets[2] = offsets[3, :first] = -INFINITE
    return offsets


def block(scores, v):
    """Attention over these keys: (out, lse). Where all scores are -inf: (0, -inf), with gradients of 0."""
    top = scores.detach().amax(-1)
    top = top.masked_fill(top == -INFINITE, 0)
    weights = torch.exp(scores - top[..., None])
    total = weights.sum(-1)
    masked, total = total == 0, total.masked_fill(total == 0, 1)
    return weights @ v / total[..., None], (top + total.log()).masked_fill(masked, -INFINITE)


def gradient_gaps(inputs, merged, right):
    """{argument: gap} of the gradients of a loss that depends on out and lse.

    Where a block is masked, its gradients need only be finite.
    """
    out_cotangent, lse_cotangent = random_tensor(4, merged[0].shape), random_tensor(5, merged[1].shape)
    masked = right[1] == -INFINITE
    loss = (merged[0] * out_cotangent).sum() + (merged[1].masked_fill(masked, 0) * lse_cotangent).sum()
    if not loss.requires_grad:
        return dict.fromkeys(("out_a", "lse_a", "out_b", "lse_b"), INFINITE)
    gradients = torch.autograd.grad(loss, inputs, allow_unused=True)
    gaps = {}
    for name, (out, lse), out_gradient, lse_gradient in (
        ("a", inputs[:2], *gradients[:2]),
        ("b", inputs[2:], *gradients[2:]),
    ):
        masked = lse == -INFINITE
        share = torch.exp((lse - right[1]).masked_fill(masked, -INFINITE)).detach()
        right_out_gradient = share[..., None] * out_cotangent
        right_lse_gradient = (share * ((out_cotangent * (out - right[0])).sum(-1) + lse_cotangent)).detach()
        rows = masked[..., None]
        gaps[f"out_{name}"] = gap(zero_where(rows, out_gradient), zero_where(rows, right_out_gradient))
        gaps[f"lse_{name}"] = gap(zero_where(masked, lse_gradient), zero_where(masked, right_lse_gradient))
    return gaps


def zero_where(masked, gradient):
    """The gradient, with 0 where a block is masked, unless it is not finite there; None stays None."""
    return gradient if gradient is None else gradient.masked_fill(masked & gradient.isfinite(), 0)


def ring(merge, in_zigzag):
    """The gaps of the output and its gradients in causal attention over the keys of all ranks, merged block by block.

    in_zigzag: a rank has an early and a late chunk of the window, not one block.
    """
    rank, world = dist.get_rank(), dist.get_world_size()
    whole = [random_tensor(seed, (HEADS, WINDOW, SIZE)).requires_grad_() for seed in (6, 7, 8)]
    positions = torch.arange(WINDOW).view(world, -1)
    if in_zigzag:
        chunks = torch.arange(WINDOW).view(2 * world, -1)
        positions = torch.cat([chunks[:world], chunks.flip(0)[:world]], 1)
    own_positions, cotangent = positions[rank], random_tensor(9, (HEADS, WINDOW, SIZE))
    is_later = torch.arange(WINDOW) > torch.arange(WINDOW)[:, None]
    right, _ = block((whole[0] @ whole[1].transpose(-1, -2)).masked_fill(is_later, -INFINITE), whole[2])
    (right * cotangent).sum().backward()
    parts = [tensor.detach()[:, own_positions].clone().requires_grad_() for tensor in whole]
    q, k, v = parts
    out, lse = torch.zeros_like(q), q.new_full(q.shape[:-1], -INFINITE)
    for step in range(world):
        key_positions = positions[(rank - step) % world]
        scores = (q @ k.transpose(-1, -2)).masked_fill(key_positions > own_positions[:, None], -INFINITE)
        out, lse = merge(out, lse, *block(scores, v))
        if shapes(out, lse) != shapes(q, q[..., 0]):
            return {"out": INFINITE}  # all ranks return here, so that none waits for another
        if step < world - 1:
            k, v = Shift.apply(torch.stack([k, v]))
    (out * cotangent[:, own_positions]).sum().backward()
    gaps = {"out": gap(out, right[:, own_positions])}
    for name, part, whole_tensor in zip("qkv", parts, whole, strict=True):
        gaps[f"the gradient of {name}"] = gap(part.grad, whole_tensor.grad[:, own_positions])
    return gaps


class Shift(torch.autograd.Function):
    """Send x to the next rank and receive that of the one before; backward sends the gradient the other way."""

    @staticmethod
    def forward(ctx, x):
        return exchange(x, 1)

    @staticmethod
    def backward(ctx, gradient):
        return exchange(gradient, -1)


def exchange(x, distance):
    """Send x to the rank that is `distance` further in the ring; returns what this rank receives."""
    rank, world = dist.get_rank(), dist.get_world_size()
    x = x.contiguous()
    received, target, source = torch.empty_like(x), (rank + distance) % world, (rank - distance) % world
    for work in dist.batch_isend_irecv([dist.P2POp(dist.isend, x, target), dist.P2POp(dist.irecv, received, source)]):
        work.wait()
    return received


def random_tensor(seed, shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def gap(tensor, right):
    """The largest difference, 0 between equal infinities; infinite for NaN, a missing tensor or another shape."""
    if not torch.is_tensor(tensor) or tensor.shape != right.shape:
        return INFINITE
    tensor, right = tensor.detach(), right.detach()
    gaps = (tensor - right).abs().masked_fill(tensor == right, 0)
    return gaps.nan_to_num(nan=INFINITE, posinf=INFINITE).max().item()


def nan_count(*tensors):
    return sum(int(tensor.isnan().sum()) for tensor in tensors if torch.is_tensor(tensor))


def shapes(*tensors):
    return [list(tensor.shape) if torch.is_tensor(tensor) else None for tensor in tensors]
