"""Wrong and right answers to question 06.1; ddp_course/authoring/answers.py says how to read them."""

from ddp_course.authoring.answers import RightAnswer, WrongAnswer

ANSWERS = (
    WrongAnswer(
        "averages_weights", "averages the weights after each step, not the gradients before it",
        check="the_global_batch_is_learned", says=", AdamW): rank", edit="""
        -    model = DistributedDataParallel(module)
             for number, (inputs, targets) in enumerate(micro_batches, start=1):
                 last = number % accumulate == 0
        -        with contextlib.nullcontext() if last else model.no_sync():
        -            loss = model(inputs, targets) / accumulate
        -            loss.backward()
        +        (module(inputs, targets) / accumulate).backward()
        @@
                     optimizer.zero_grad()
        +            for parameter in module.parameters():
        +                dist.all_reduce(parameter.data)
        +                parameter.data /= dist.get_world_size()
    """),
    WrongAnswer(
        "backward_only", "no_sync around the backward alone: every micro-batch communicates",
        check="gradients_are_sent_once_per_step", says="in 1 step; the gradients have",
        look="which micro-batches communicate", edit="""
        +        loss = model(inputs, targets) / accumulate
                 with contextlib.nullcontext() if last else model.no_sync():
        -            loss = model(inputs, targets) / accumulate
    """),
    WrongAnswer(
        "agreed_once_more", "broadcasts the weights of rank 0 after each step, though they are equal",
        check="gradients_are_sent_once_per_step", says="bytes to broadcast; the weights have",
        look="what is broadcast in each step", edit="""
                     optimizer.zero_grad()
        +            for parameter in module.parameters():
        +                dist.broadcast(parameter.data, src=0)
    """),
    WrongAnswer(
        "compares_first_and_last", "the detector compares the first rank with the last and no other",
        check="broken_versions_are_caught", says="rank 1 ends with two numbers exchanged", edit="""
        -    return all(torch.equal(other, gathered[0]) for other in gathered)
        +    return torch.equal(gathered[0], gathered[-1])
    """),
    WrongAnswer(
        "divisor_lost", "moves the line and loses the division by the micro-batches",
        check="the_global_batch_is_learned", says="the ranks agree with each other", edit="""
        -            loss = model(inputs, targets) / accumulate
        +            loss = model(inputs, targets)
    """),
    WrongAnswer(
        "looks_at_the_loss", "the detector compares the ranks' losses, which differ by their data",
        check="right_versions_pass", says="returned False, but the weights are equal", edit="""
        -    weight = module.weight.detach()
        +    weight = module(*micro_batches_of(dist.get_rank(), 1)[0]).detach()
    """),
    WrongAnswer(
        "rank_0_is_asked", "the detector decides on rank 0 and the others say True",
        check="all_ranks_agree", says="returned True on rank 1 and False on rank 0", edit="""
        -    return all(torch.equal(other, gathered[0]) for other in gathered)
        +    return dist.get_rank() > 0 or all(torch.equal(other, gathered[0]) for other in gathered)
    """),
    WrongAnswer(
        "trains_one_step", "the detector makes one step, and the loop may be right in that",
        check="broken_versions_are_caught", says="(only the first step communicates)", look="how many steps", edit="""
        -    train(module, optimizer, micro_batches_of(dist.get_rank(), 12), 4)
        +    train(module, optimizer, micro_batches_of(dist.get_rank(), 4), 4)
    """),
    WrongAnswer(
        "trains_twice", "the detector trains a second time, to be sure",
        check="it_is_called_once", says="replicas_agree called train 2 times on rank 0", look="one call is enough", edit="""
             train(module, optimizer, micro_batches_of(dist.get_rank(), 12), 4)
        +    train(module, optimizer, micro_batches_of(dist.get_rank(), 12), 4)
    """),
    RightAnswer(
        "by_hand",
        "no wrapper; all gradients in one message before the step; the detector compares each weight's minimum and maximum",
        text="""
        import torch
        import torch.distributed as dist
        from torch import nn


        def replicas_agree(train):
            torch.manual_seed(5)
            module = nn.Bilinear(3, 1, 1)
            forward = module.forward
            module.forward = lambda inputs, targets: forward(inputs, targets).square().mean()
            torch.manual_seed(dist.get_rank())
            micro_batches = [(torch.randn(2, 3), torch.randn(2, 1)) for _ in range(4)]
            train(module, torch.optim.AdamW(module.parameters(), lr=0.01), micro_batches, 2)
            low = nn.utils.parameters_to_vector(module.parameters()).detach()
            high = low.clone()
            dist.all_reduce(low, dist.ReduceOp.MIN)
            dist.all_reduce(high, dist.ReduceOp.MAX)
            return float((high - low).max()) < 1e-9


        def train(module, optimizer, micro_batches, accumulate):
            weights = list(module.parameters())
            while micro_batches:
                now, micro_batches = micro_batches[:accumulate], micro_batches[accumulate:]
                total = sum(module(*other) for other in now) / (len(now) * dist.get_world_size())
                gradients = torch.autograd.grad(total, weights)
                flat = torch.cat([other.flatten() for other in gradients])
                dist.all_reduce(flat)
                for weight, piece in zip(weights, flat.split([other.numel() for other in weights]), strict=True):
                    weight.grad = piece.view_as(weight)
                optimizer.step()
    """),
    RightAnswer(
        "flag_moved", "keeps the flag and moves it one line up; the detector collects lists of numbers",
        edit="""
        -    weight = module.weight.detach()
        -    gathered = [torch.empty_like(weight) for _ in range(dist.get_world_size())]
        -    dist.all_gather(gathered, weight)
        -    return all(torch.equal(other, gathered[0]) for other in gathered)
        +    gathered = [None] * dist.get_world_size()
        +    dist.all_gather_object(gathered, module.weight.tolist())
        +    return max(abs(a - b) for other in gathered for a, b in zip(other, gathered[0], strict=True)) < 1e-12
        @@
        -        with contextlib.nullcontext() if last else model.no_sync():
        -            loss = model(inputs, targets) / accumulate
        -            loss.backward()
        +        model.require_backward_grad_sync = last
        +        loss = model(inputs, targets) / accumulate
        +        loss.backward()
    """),
    RightAnswer(
        "with_a_hook", "a communication hook of torch as well as no_sync; the detector's optimizer has momentum",
        edit="""
             model = DistributedDataParallel(module)
        +    model.register_comm_hook(None, default_hooks.allreduce_hook)
        @@
        -from torch.nn.parallel import DistributedDataParallel
        +from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
        +from torch.nn.parallel import DistributedDataParallel
        @@
        -    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
        +    optimizer = torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.5)
    """),
)
