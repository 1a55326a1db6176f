# mistake: sends rank 0's gradient to all: equal replicas that know one part of the pairs
# state: wrong
# check: the joint batch is learned
# message: it is rank 0's, trained on its own pairs

import torch
import torch.distributed as dist
import torch.nn.functional as F


def loss_and_gradient(head, chosen, rejected):
    """The mean pairwise loss of some pairs and its gradient, shaped like `head`: (features,)."""
    head = head.detach().requires_grad_()
    loss = F.softplus(rejected @ head - chosen @ head).mean()
    return loss.item(), torch.autograd.grad(loss, head)[0]


def shares(train) -> list[float]:
    """How much of one update of the head that `train` saves comes from the pairs of rank 0, rank 1, ..."""
    rank, world, rate = dist.get_rank(), dist.get_world_size(), 1.0
    chosen = torch.zeros(1, world, dtype=torch.float64)
    chosen[0, rank] = 1.0  # the mark of this rank: nobody else's pairs move this number of the head
    saved = train(torch.zeros(world, dtype=torch.float64), chosen, torch.zeros_like(chosen), 1, rate)
    box = [saved]
    dist.broadcast_object_list(box, src=0)
    alone = rate / 2  # softplus has the slope 1/2 at 0
    return [moved / alone for moved in box[0].tolist()]


def train(head, chosen, rejected, steps, rate):
    """`steps` updates of `head`, in place, on this rank's pairs. Returns what is saved: rank 0's head, else None."""
    dist.broadcast(head, src=0)
    for _ in range(steps):
        _, gradient = loss_and_gradient(head, chosen, rejected)
        dist.broadcast(gradient, src=0)
        head -= rate * gradient
    return head if dist.get_rank() == 0 else None
