"""Inside a rank, for 27.2: the loss, and the gradient that reaches the policy."""

import torch


def drive(dpo_loss, policy, reference, beta):
    """The learner's loss, and the gradient of `policy`; None if the loss is no number with a graph."""
    policy.requires_grad_()
    loss = dpo_loss(policy, reference, beta)
    if torch.is_tensor(loss) and loss.requires_grad and loss.numel() == 1:
        loss.backward()
    return {"loss": loss, "gradient": policy.grad}
