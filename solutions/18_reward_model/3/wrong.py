"""Wrong and right answers to question 18.3; ddp_course/authoring/answers.py says how to read them."""

from ddp_course.authoring.answers import RightAnswer, WrongAnswer

ANSWERS = (
    WrongAnswer(
        "a_float_for_a_prompt", "gathers the prompts' numbers as floats",
        check="the_loss_is_exact", says="two prompts have numbers that a float cannot tell apart): the loss", edit="""
        -    dist.all_gather_object(gathered, prompts.tolist())
        -    joint = torch.tensor(sum(gathered, []), dtype=torch.int64)
        +    dist.all_gather_object(gathered, prompts.double().tolist())
        +    joint = torch.tensor(sum(gathered, []), dtype=torch.float64)
    """),
    WrongAnswer(
        "all_pairs_on_all_ranks", "sends all pairs to all ranks, and each computes everything",
        check="a_rank_scores_its_own_pairs", says="scored", edit="""
        -    dist.all_gather_object(gathered, prompts.tolist())
        -    joint = torch.tensor(sum(gathered, []), dtype=torch.int64)
        +    dist.all_gather_object(gathered, (chosen, rejected, prompts))
        +    chosen, rejected, prompts = (torch.cat(part) for part in zip(*gathered, strict=True))
        +    joint = prompts
        @@
        -    message = torch.cat([loss.detach().view(1), *(gradient.flatten() for gradient in gradients)])
        -    dist.all_reduce(message)
        -    chunks = message[1:].split([gradient.numel() for gradient in gradients])
        -    return message[0].item(), [chunk.view_as(gradient) for chunk, gradient in zip(chunks, gradients, strict=True)]
        +    return loss.item(), list(gradients)
    """),
    WrongAnswer(
        "adds_to_grad", "lets backward add the gradient to that of an earlier step",
        check="the_gradient_is_exact", says="the gradient on rank 0 is off", edit="""
        -    gradients = torch.autograd.grad(loss, list(head.parameters()))
        +    loss.backward()
        +    gradients = [parameter.grad for parameter in head.parameters()]
    """),
    WrongAnswer(
        "sends_features", "scores its own pairs only, and sends their features along with the prompts' numbers",
        check="a_rank_scores_its_own_pairs", says="handed", edit="""
        -    dist.all_gather_object(gathered, prompts.tolist())
        -    joint = torch.tensor(sum(gathered, []), dtype=torch.int64)
        +    dist.all_gather_object(gathered, (chosen, rejected, prompts))
        +    joint = torch.cat([numbers for _, _, numbers in gathered])
    """),
    WrongAnswer(
        "gradients_by_name", "returns the gradients in the order of the parameters' names",
        check="the_gradient_is_exact", says="returned gradients of shapes", edit="""
        -    gradients = torch.autograd.grad(loss, list(head.parameters()))
        +    gradients = torch.autograd.grad(loss, [weight for _, weight in sorted(head.named_parameters())])
    """),
    WrongAnswer(
        "no_pairs_no_part", "a rank without pairs returns before the all-reduce",
        check="does not end", says="rank 1 was in all_gather", edit="""
             joint = torch.tensor(sum(gathered, []), dtype=torch.int64)
        +    if not len(prompts):
        +        return 0.0, [torch.zeros_like(parameter) for parameter in head.parameters()]
    """),
    WrongAnswer(
        "own_divisor", "each rank divides by its own sum of weights, and the means are averaged",
        check="the_loss_is_exact", says="each rank dividing by its own weights", edit="""
        -    total = len(joint.unique())  # each prompt's weights add up to 1
        +    total = weights.sum().clamp(min=1e-12) * dist.get_world_size()
    """),
    WrongAnswer(
        "own_first", "gathers the messages and adds its own first: another order on every rank",
        check="the_ranks_agree_to_the_last_bit", says="by a rounding", edit="""
        -    dist.all_reduce(message)
        +    gathered = [torch.empty_like(message) for _ in range(dist.get_world_size())]
        +    dist.all_gather(gathered, message)
        +    rank = dist.get_rank()
        +    message = sum(gathered[rank:] + gathered[:rank])
    """),
    RightAnswer(
        "wrapper",
        "DDP does the averaging; prompts are counted with padded tensors; the loss is a mean of prompts' means",
        text="""
        import torch
        import torch.distributed as dist
        import torch.nn.functional as F
        from torch.nn.parallel import DistributedDataParallel


        def joint_loss_and_gradients(head, chosen, rejected, prompts):
            world = dist.get_world_size()
            most = torch.tensor(len(prompts))
            dist.all_reduce(most, dist.ReduceOp.MAX)
            padded = torch.zeros(int(most), 2, dtype=torch.int64)
            padded[: len(prompts), 0], padded[: len(prompts), 1] = prompts, 1
            gathered = [torch.empty_like(padded) for _ in range(world)]
            dist.all_gather(gathered, padded)
            joint = torch.cat(gathered)
            names, counts = joint[joint[:, 1] == 1, 0].unique(return_counts=True)

            head.zero_grad()
            model = DistributedDataParallel(head)
            rewards = model(torch.cat([chosen, rejected]))
            losses = F.softplus(rewards[len(chosen) :] - rewards[: len(chosen)])
            loss = torch.zeros((), dtype=torch.float64) + 0 * rewards.sum()
            for name, count in zip(names, counts, strict=True):
                loss = loss + losses[prompts == name].sum() / count / len(names)
            (loss * world).backward()
            value = loss.detach()
            dist.all_reduce(value)
            return value, [parameter.grad for parameter in head.parameters()]
    """),
    RightAnswer(
        "weights_by_hand", "counts prompts in dictionaries, and reduces loss and gradients at once without waiting in between",
        edit="""
        -    gathered = [None] * dist.get_world_size()
        -    dist.all_gather_object(gathered, prompts.tolist())
        -    joint = torch.tensor(sum(gathered, []), dtype=torch.int64)
        -    weights = 1 / (prompts[:, None] == joint).sum(dim=1).double()
        -    total = len(joint.unique())  # each prompt's weights add up to 1
        +    gathered = [None] * dist.get_world_size()
        +    dist.all_gather_object(gathered, Counter(prompts.tolist()))
        +    counts = sum(gathered, Counter())
        +    weights = torch.tensor([1 / counts[prompt] for prompt in prompts.tolist()], dtype=torch.float64)
        +    total = len(counts)
        @@
        -    message = torch.cat([loss.detach().view(1), *(gradient.flatten() for gradient in gradients)])
        -    dist.all_reduce(message)
        -    chunks = message[1:].split([gradient.numel() for gradient in gradients])
        -    return message[0].item(), [chunk.view_as(gradient) for chunk, gradient in zip(chunks, gradients, strict=True)]
        +    loss, gradients = loss.detach(), [gradient.contiguous() for gradient in gradients]
        +    under_way = [dist.all_reduce(tensor, async_op=True) for tensor in (loss, *gradients)]
        +    for work in reversed(under_way):
        +        work.wait()
        +    return loss.numpy(), gradients
        @@
        +from collections import Counter
        +
         import torch
         import torch.distributed as dist
    """),
)
