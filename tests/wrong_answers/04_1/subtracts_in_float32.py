# mistake: subtracts in float32, where a small gap of float64 weights is none
# state: wrong
# check: gaps are measured right
# message: one weight in float64, rank 1 by 3e-8; with 2 ranks

import torch
import torch.distributed as dist


def forecast() -> dict[str, str]:
    """For each case what becomes of the gap between the ranks: "closed", "as it was" or "grown"."""
    return {
        "parameters, DDP": "closed",
        "buffers, DDP": "closed",
        "attributes, DDP": "as it was",
        "parameters, DDP(init_sync=False)": "as it was",
        "parameters, averaged by hand": "as it was",
        "dropout masks, one seed on every rank": "closed",
    }


def largest_gaps(model) -> dict[str, float]:
    """The largest difference between any two ranks, among parameters, buffers and tensors that are plain attributes."""
    kinds = {
        "parameters": list(model.parameters()),
        "buffers": list(model.buffers()),
        "attributes": [v for module in model.modules() for v in vars(module).values() if torch.is_tensor(v)],
    }
    return {kind: gap(tensors) for kind, tensors in kinds.items()}


def gap(tensors) -> float:
    if not tensors:
        return 0.0
    flat = torch.cat([tensor.detach().float().flatten() for tensor in tensors])
    largest, smallest = flat.clone(), flat.clone()
    dist.all_reduce(largest, dist.ReduceOp.MAX)
    dist.all_reduce(smallest, dist.ReduceOp.MIN)
    return (largest - smallest).max().item()
