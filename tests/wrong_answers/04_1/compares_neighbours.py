# mistake: compares each rank with the next one: ranks 0 and 2 are twice as far apart
# state: wrong
# check: gaps are measured right
# message: one weight, rank 0 by 0.5 and rank 2 by -0.5; with 3 ranks

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
    flat = torch.cat([tensor.detach().double().flatten() for tensor in tensors])
    everyones = [torch.empty_like(flat) for _ in range(dist.get_world_size())]
    dist.all_gather(everyones, flat)
    return max((a - b).abs().max().item() for a, b in zip(everyones, everyones[1:], strict=False))
