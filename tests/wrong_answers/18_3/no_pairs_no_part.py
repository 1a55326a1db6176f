# mistake: a rank without pairs returns before the all-reduce
# state: wrong
# check: does not end
# message: rank 1 was in all_gather

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
    if not len(prompts):
        return 0.0, [torch.zeros_like(one) for one in head.parameters()]
    weights = 1 / (prompts[:, None] == joint).sum(dim=1).double()
    total = len(joint.unique())  # each prompt's weights add up to 1

    loss = (weights * F.softplus(head(rejected) - head(chosen))).sum() / total
    gradients = torch.autograd.grad(loss, list(head.parameters()))
    message = torch.cat([loss.detach().view(1), *(one.flatten() for one in gradients)])
    dist.all_reduce(message)
    pieces = message[1:].split([one.numel() for one in gradients])
    return message[0].item(), [piece.view_as(one) for piece, one in zip(pieces, gradients, strict=True)]
