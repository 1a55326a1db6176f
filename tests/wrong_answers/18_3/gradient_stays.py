# mistake: returns the joint loss and the gradient of this rank's part
# state: wrong
# check: the gradient is exact
# message: the gradient on rank

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

    loss = (weights * F.softplus(head(rejected) - head(chosen))).sum() / total
    gradients = torch.autograd.grad(loss, list(head.parameters()))
    joint_loss = loss.detach().clone()
    dist.all_reduce(joint_loss)
    return joint_loss.item(), list(gradients)
