"""Wrong and right answers to question 24.2; ddp_course/authoring/answers.py says how to read them."""

from ddp_course.authoring.answers import RightAnswer, WrongAnswer

ANSWERS = (
    WrongAnswer(
        "as_handed_out", "changes nothing",
        check="each_token_is_computed_once", says="rank 0 gives its tokens the positions [0, 1, 2, 3, 4, 5, 6, 7]",
        look="the second one does not follow the first", on="given", edit="""
        -KINDS, PAD, WINDOWS, LENGTH, WIDTH, STEPS = 32, 0, 8, 64, 32, 60
        +KINDS, PAD, WINDOWS, LENGTH, WIDTH, STEPS = 32, 0, 8, 64, 32, 30
    """),
    WrongAnswer(
        "the_whole_window", "computes every window on every rank",
        check="each_token_is_computed_once", says="all of them have to be there once", edit="""
        -        return torch.cat([chunks[rank], chunks[-1 - rank]], -1)  # an early and a late chunk, for equal work
        +        return whole
    """),
    WrongAnswer(
        "blocks_of_equal_work", "cuts into blocks of equally many pairs, which have different numbers of tokens",
        check="raises", state="crashed", says="ValueError: model got tokens of shapes [[4, 11], [4, 5]], by rank", edit="""
        -        chunks = whole.chunk(2 * world, -1)
        -        return torch.cat([chunks[rank], chunks[-1 - rank]], -1)  # an early and a late chunk, for equal work
        +        start, end = (round(whole.shape[-1] * (part / world) ** 0.5) for part in (rank, rank + 1))
        +        return whole[..., start:end]
    """),
    WrongAnswer(
        "in_blocks", "cuts into blocks: right, but the last rank has most of the work",
        check="all_ranks_have_equal_work", says="the ranks have [36, 100] pairs", look="late tokens see more", edit="""
        -        chunks = whole.chunk(2 * world, -1)
        -        return torch.cat([chunks[rank], chunks[-1 - rank]], -1)  # an early and a late chunk, for equal work
        +        return whole.chunk(world, -1)[rank]
    """),
    WrongAnswer(
        "a_target_for_the_last", "rolls the windows, so that the target of the last token is the first one",
        check="the_loss_is_that_of_one_process", says=", with the first token as the target of the last", look="has none",
        edit="""
        -    targets = F.pad(windows[:, 1:], (0, 1), value=PAD)
        +    targets = windows.roll(-1, 1)
    """),
    WrongAnswer(
        "returns_its_part", "trains right, and returns this rank's part of the loss",
        check="the_loss_is_that_of_one_process", says=", this rank's part of it", look="the loss returned", edit="""
        -    for tensor in [loss, *(parameter.grad for parameter in model.parameters())]:
        +    for tensor in [parameter.grad for parameter in model.parameters()]:
    """),
    WrongAnswer(
        "gradients_averaged", "averages the ranks' parts of the gradients, which have to be added",
        check="the_gradients_are_those_of_one_process", says=", one part in 2 of it", look="or their mean",
        edit="""
        -    for tensor in [loss, *(parameter.grad for parameter in model.parameters())]:
        -        dist.all_reduce(tensor)
        +    dist.all_reduce(loss)
        +    for parameter in model.parameters():
        +        dist.all_reduce(parameter.grad, op=dist.ReduceOp.AVG)
    """),
    WrongAnswer(
        "its_own_mean_backward", "returns the right loss, and starts backward from the rank's own mean",
        check="the_gradients_are_those_of_one_process", says="away from one process", look="what backward starts from", edit="""
        -    loss.backward()
        +    (loss * count / own(targets).ne(PAD).sum().clamp(min=1)).backward()
    """),
    WrongAnswer(
        "no_target_no_backward", "skips backward on a rank without a target, for which the other waits; pairs each early "
        "token with its mirror image",
        check="dies", state="crashed", says="(windows of 2, 1, 2 and 1 tokens): rank 1 was killed by SIGABRT in all_reduce",
        edit="""
        -        chunks = whole.chunk(2 * world, -1)
        -        return torch.cat([chunks[rank], chunks[-1 - rank]], -1)  # an early and a late chunk, for equal work
        +        early = torch.arange(rank, windows.shape[1] // 2, world)
        +        return whole[..., torch.cat([early, windows.shape[1] - 1 - early])]
        @@
        -    loss.backward()
        -    loss = loss.detach()
        +    if own(targets).ne(PAD).any():
        +        loss.backward()
        +    for parameter in model.parameters():
        +        parameter.grad = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
        +    loss = loss.detach()
    """),
    WrongAnswer(
        "half_of_the_bytes", "sends its gradients in float32, and adds the received ones to its own in float64",
        check="the_ranks_agree_to_the_last_bit", says="by a rounding", look="the one that it has sent", edit="""
        -    for tensor in [loss, *(parameter.grad for parameter in model.parameters())]:
        -        dist.all_reduce(tensor)
        +    dist.all_reduce(loss)
        +    for parameter in model.parameters():
        +        both = [torch.empty_like(parameter.grad, dtype=torch.float32) for _ in range(world)]
        +        dist.all_gather(both, parameter.grad.float())
        +        parameter.grad += sum(part for other, part in enumerate(both) if other != rank)
    """),
    RightAnswer(
        "striped", "gives every rank each N-th token, as Striped Attention does, and all-reduces the number of targets",
        text='''
        import torch
        import torch.distributed as dist
        import torch.nn.functional as F


        def backward(model, windows):
            rank, world = dist.get_rank(), dist.get_world_size()
            own = torch.arange(rank, windows.shape[1], world)
            following = torch.cat([windows, torch.zeros_like(windows[:, :1])], 1)[:, own + 1]
            losses = F.cross_entropy(model(windows[:, own], own).transpose(1, 2), following, ignore_index=0, reduction="none")
            losses.sum().backward()
            sums = torch.stack([losses.detach().sum(), (following != 0).sum()])
            dist.all_reduce(sums)
            flat = torch.cat([parameter.grad.flatten() for parameter in model.parameters()])
            dist.all_reduce(flat)
            flat /= sums[1]
            for parameter in model.parameters():
                piece, flat = flat[: parameter.numel()], flat[parameter.numel() :]
                parameter.grad = piece.view_as(parameter).clone()
            return (sums[0] / sums[1]).item()
    '''),
    RightAnswer(
        "the_late_chunk_first", "the late chunk before the early one, and positions in the same order", edit="""
        -        return torch.cat([chunks[rank], chunks[-1 - rank]], -1)  # an early and a late chunk, for equal work
        +        return torch.cat([chunks[-1 - rank], chunks[rank]], -1)
    """),
)
