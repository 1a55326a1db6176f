"""Inside a rank, for 24.1: two blocks of attention merged by the answer, alone and in a ring of ranks."""

import torch
import torch.distributed as dist

HEADS, QUERIES, SIZE = 2, 6, 4
WINDOW = 16  # tokens that the ring has, over all ranks
INFINITE = float("inf")


def drive(merge, scenario, first, keys):
    """scenario: says which case. first: keys of the first block, out of `keys`."""
    if scenario.startswith("a ring"):
        return ring(merge, in_zigzag="zigzag" in scenario)
    q, k, v = (drawn(seed, (HEADS, n, SIZE)) for seed, n in ((1, QUERIES), (2, keys), (3, keys)))
    scores = q @ k.transpose(-1, -2) + shift(scenario, first, keys)
    right = block(scores, v)
    blocks = block(scores[..., :first], v[:, :first]), block(scores[..., first:], v[:, first:])
    inputs = [tensor.clone().requires_grad_() for pair in blocks for tensor in pair]
    returned = merge(*inputs)
    out, lse = returned if isinstance(returned, (tuple, list)) and len(returned) == 2 else (returned, None)
    result = {"out": gap(out, right[0]), "lse": gap(lse, right[1]), "nan": nans(out, lse), "shapes": shapes(out, lse)}
    if result["out"] < INFINITE and result["lse"] < INFINITE:
        result["gradients"] = gradient_gaps(inputs, (out, lse), right)
    return result


def shift(scenario, first, keys):
    """The numbers to add to the scores, by query and key."""
    added = torch.zeros(QUERIES, keys, dtype=torch.float64)
    if scenario == "scores around 3000":
        added += 3000
    elif scenario == "scores around -3000":
        added -= 3000
    elif scenario == "the second block 3000 above the first":
        added[:, first:] += 3000
    elif scenario.startswith("masked"):  # three queries see one block, or both, one sees neither
        added[0, first:] = added[1, :first] = added[2] = added[3, :first] = -INFINITE
    return added


def block(scores, v):
    """Attention over these keys: (out, lse). Where all scores are -inf: (0, -inf), with gradients of 0."""
    top = scores.detach().amax(-1)
    top = top.masked_fill(top == -INFINITE, 0)
    weights = torch.exp(scores - top[..., None])
    total = weights.sum(-1)
    nothing, total = total == 0, total.masked_fill(total == 0, 1)
    return weights @ v / total[..., None], (top + total.log()).masked_fill(nothing, -INFINITE)


def gradient_gaps(inputs, merged, right):
    """{argument: gap} of the gradients of a loss that reads out and lse. Where a block has nothing, they need only be
    finite."""
    out_of, lse_of = drawn(4, merged[0].shape), drawn(5, merged[1].shape)
    visible = right[1] > -INFINITE
    loss = (merged[0] * out_of).sum() + (merged[1].masked_fill(~visible, 0) * lse_of).sum()
    if not loss.requires_grad:
        return dict.fromkeys(("out_a", "lse_a", "out_b", "lse_b"), INFINITE)
    gradients = torch.autograd.grad(loss, inputs, allow_unused=True)
    gaps = {}
    for name, (out, lse), first, second in (("a", inputs[:2], *gradients[:2]), ("b", inputs[2:], *gradients[2:])):
        here = lse > -INFINITE
        row = here[..., None]
        share = torch.exp((lse - right[1]).masked_fill(~here, -INFINITE)).detach()
        both = share * ((out_of * (out - right[0])).sum(-1) + lse_of)
        gaps[f"out_{name}"] = gap(where_visible(first, row), where_visible(share[..., None] * out_of, row))
        gaps[f"lse_{name}"] = gap(where_visible(second, here), where_visible(both.detach(), here))
    return gaps


def where_visible(gradient, here):
    """0 in place of what is finite and not `here`."""
    return gradient if gradient is None else gradient.masked_fill(~here & gradient.isfinite(), 0)


def ring(merge, in_zigzag):
    """Causal attention over the keys of all ranks, two blocks merged at a time. Gaps of output and gradients."""
    rank, world = dist.get_rank(), dist.get_world_size()
    whole = [drawn(seed, (HEADS, WINDOW, SIZE)).requires_grad_() for seed in (6, 7, 8)]
    positions = torch.arange(WINDOW).view(world, -1)
    if in_zigzag:
        chunks = torch.arange(WINDOW).view(2 * world, -1)
        positions = torch.cat([chunks[:world], chunks.flip(0)[:world]], 1)
    own, cotangent = positions[rank], drawn(9, (HEADS, WINDOW, SIZE))
    later = torch.arange(WINDOW) > torch.arange(WINDOW)[:, None]
    right, _ = block((whole[0] @ whole[1].transpose(-1, -2)).masked_fill(later, -INFINITE), whole[2])
    (right * cotangent).sum().backward()
    parts = [tensor.detach()[:, own].clone().requires_grad_() for tensor in whole]
    q, k, v = parts
    out, lse = torch.zeros_like(q), q.new_full(q.shape[:-1], -INFINITE)
    for step in range(world):
        their_positions = positions[(rank - step) % world]
        scores = (q @ k.transpose(-1, -2)).masked_fill(their_positions > own[:, None], -INFINITE)
        out, lse = merge(out, lse, *block(scores, v))
        if shapes(out, lse) != shapes(q, q[..., 0]):
            return {"out": INFINITE}  # the same on all ranks: nobody waits
        if step < world - 1:
            k, v = Shift.apply(torch.stack([k, v]))
    (out * cotangent[:, own]).sum().backward()
    gaps = {"out": gap(out, right[:, own])}
    for name, part, all_of_it in zip("qkv", parts, whole, strict=True):
        gaps[f"the gradient of {name}"] = gap(part.grad, all_of_it.grad[:, own])
    return gaps


class Shift(torch.autograd.Function):
    """To the next rank; in backward to the one before."""

    @staticmethod
    def forward(ctx, x):
        return shifted(x, 1)

    @staticmethod
    def backward(ctx, gradient):
        return shifted(gradient, -1)


def shifted(x, by):
    rank, world = dist.get_rank(), dist.get_world_size()
    x = x.contiguous()
    got, to, source = torch.empty_like(x), (rank + by) % world, (rank - by) % world
    for work in dist.batch_isend_irecv([dist.P2POp(dist.isend, x, to), dist.P2POp(dist.irecv, got, source)]):
        work.wait()
    return got


def drawn(seed, shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def gap(tensor, right):
    """The largest difference, 0 between equal infinities; infinite if something is NaN, missing or of another shape."""
    if not torch.is_tensor(tensor) or tensor.shape != right.shape:
        return INFINITE
    tensor, right = tensor.detach(), right.detach()
    gaps = (tensor - right).abs().masked_fill(tensor == right, 0)
    return gaps.nan_to_num(nan=INFINITE, posinf=INFINITE).max().item()


def nans(*tensors):
    return sum(int(tensor.isnan().sum()) for tensor in tensors if torch.is_tensor(tensor))


def shapes(*tensors):
    return [list(tensor.shape) if torch.is_tensor(tensor) else None for tensor in tensors]
