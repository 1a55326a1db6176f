# mistake: sends the gradients of the chosen and of the rejected scores one after the other
# state: wrong
# check: a rank scores its own pairs
# message: handed over

import torch
import torch.distributed as dist
import torch.nn.functional as F


def joint_loss_and_gradients(head, chosen, rejected, prompts):
    """(the loss, [its gradient for each parameter of `head`]) of the joint batch, the same on every rank.

    head: (n, features) -> rewards (n,). chosen, rejected: this rank's pairs, (n, features); n may be 0.
    prompts: (n,) of int64, which prompt a pair belongs to.
    """
    everyones = [None] * dist.get_world_size()
    dist.all_gather_object(everyones, prompts.tolist())
    joint = torch.tensor(sum(everyones, []), dtype=torch.int64)
    weights = 1 / (prompts[:, None] == joint).sum(dim=1).double()
    total = len(joint.unique())  # each prompt's weights add up to 1

    lose, win = head(rejected), head(chosen)
    sums = [torch.zeros_like(one) for one in head.parameters()]
    for a, b in ((lose, win.detach()), (lose.detach(), win)):
        loss = (weights * F.softplus(a - b)).sum() / total
        for total_gradient, mine in zip(sums, torch.autograd.grad(loss, list(head.parameters())), strict=True):
            dist.all_reduce(mine)
            total_gradient += mine
    joint_loss = loss.detach().clone()
    dist.all_reduce(joint_loss)
    return joint_loss.item(), sums
