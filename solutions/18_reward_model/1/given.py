"""Train a reward head on pairs: every rank takes its part of the file, and rank 0's head is saved."""

import torch
import torch.distributed as dist
import torch.nn.functional as F

FEATURES, PAIRS, STEPS, RATE = 8, 64, 40, 0.5


def pairs_of(part):
    """Features of the chosen and of the rejected lines of one part of the file, (PAIRS, FEATURES) each.

    The file is sorted by what is wrong with the rejected line. Each mistake shows in a feature of its own.
    """
    numbers = torch.Generator().manual_seed(part)
    chosen, rejected = torch.randn(2, PAIRS, FEATURES, dtype=torch.float64, generator=numbers)
    rejected[:, part % FEATURES] -= 3
    return chosen, rejected


def loss_and_gradient(head, chosen, rejected):
    """The mean pairwise loss of some pairs and its gradient, shaped like `head`: (FEATURES,)."""
    head = head.detach().requires_grad_()
    loss = F.softplus(rejected @ head - chosen @ head).mean()
    return loss.item(), torch.autograd.grad(loss, head)[0]


def train(head, chosen, rejected, steps, rate):
    """`steps` steps of `head`, in place, on this rank's pairs. Returns what is saved: rank 0's head, else None."""
    for step in range(steps):
        loss, gradient = loss_and_gradient(head, chosen, rejected)
        head -= rate * gradient
        if step in (0, steps - 1):
            print(f"step {step + 1}: loss {loss:.3f}", flush=True)
    return head if dist.get_rank() == 0 else None


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(dist.get_rank())  # the ranks are not to draw the same dropout masks
    head = 0.1 * torch.randn(FEATURES, dtype=torch.float64)
    saved = train(head, *pairs_of(dist.get_rank()), STEPS, RATE)
    if saved is not None:
        for part in range(dist.get_world_size()):
            chosen, rejected = pairs_of(part)
            right = (chosen @ saved > rejected @ saved).double().mean().item()
            print(f"the saved head ranks {right:.0%} of the pairs in part {part} right", flush=True)
    dist.barrier()  # a rank that left now would close a connection that another may still be opening
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
