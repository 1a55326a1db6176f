"""Wrong and right answers to question 03.1; ddp_course/authoring/answers.py says how to read them."""

from ddp_course.authoring.answers import RightAnswer, WrongAnswer

ANSWERS = (
    WrongAnswer(
        "compares_bit_by_bit", "demands equal bits where sums were added in another order",
        check="right_versions_pass", says="gradients_are_right returned False, but that version is right", edit="""
        -    return gap.item() < 1e-9
        +    return gap.item() == 0.0
    """),
    WrongAnswer(
        "holds_old_tensors", "compares the tensors that .grad held before the synchronization",
        check="right_versions_pass", says="(the mean, in new tensors): gradients_are_right returned False", edit="""
        +    gradients = [parameter.grad for parameter in model.parameters()]
             synchronize(model)
        -    pairs = zip(model.parameters(), reference.parameters(), strict=True)
        -    gap = torch.stack([(own.grad - right.grad).abs().max() for own, right in pairs]).max()
        +    pairs = zip(gradients, reference.parameters(), strict=True)
        +    gap = torch.stack([(own - right.grad).abs().max() for own, right in pairs]).max()
    """),
    WrongAnswer(
        "leaves_the_sum", "writes the detector and forgets the repair",
        check="gradients_become_the_mean", says="on rank 0 is 3 times the mean over the ranks", edit="""
        -        parameter.grad /= dist.get_world_size()
    """),
    WrongAnswer(
        "looks_whether_ranks_agree", "takes equal gradients on all ranks for right ones",
        check="broken_versions_are_caught",
        says="(the sum): gradients_are_right returned True, but that version is wrong", edit="""
        -    global_batch = [torch.cat(parts) for parts in zip(*map(batch, range(world)), strict=True)]
        -    model, reference = make_model(), make_model()
        -    for network, (inputs, targets) in ((model, batch(rank)), (reference, global_batch)):
        -        nn.functional.mse_loss(network(inputs), targets).backward()
        +    model = make_model()
        +    inputs, targets = batch(rank)
        +    nn.functional.mse_loss(model(inputs), targets).backward()
             synchronize(model)
        -    pairs = zip(model.parameters(), reference.parameters(), strict=True)
        -    gap = torch.stack([(own.grad - right.grad).abs().max() for own, right in pairs]).max()
        -    dist.all_reduce(gap.nan_to_num_(torch.inf), dist.ReduceOp.MAX)  # one wrong rank is enough; MAX may drop NaN
        +    flat = torch.cat([parameter.grad.flatten() for parameter in model.parameters()])
        +    everyones = [torch.empty_like(flat) for _ in range(world)]
        +    dist.all_gather(everyones, flat)
        +    gap = torch.stack([(other - everyones[0]).abs().max() for other in everyones]).max()
    """),
    WrongAnswer(
        "nan_passes", "counts elements that are further off than the limit, which NaN never is",
        check="broken_versions_are_caught", says="(NaN in every element): gradients_are_right returned True", edit="""
        -    gap = torch.stack([(own.grad - right.grad).abs().max() for own, right in pairs]).max()
        -    dist.all_reduce(gap.nan_to_num_(torch.inf), dist.ReduceOp.MAX)  # one wrong rank is enough; MAX may drop NaN
        -    return gap.item() < 1e-9
        +    off = torch.tensor(sum(int(((own.grad - right.grad).abs() > 1e-9).sum()) for own, right in pairs))
        +    dist.all_reduce(off)  # one wrong rank is enough
        +    return off.item() == 0
    """),
    WrongAnswer(
        "own_verdict", "every rank reports its own gap",
        check="all_ranks_agree",
        says="gradients_are_right returned False on rank 1 and True on rank 0", edit="""
        -    dist.all_reduce(gap.nan_to_num_(torch.inf), dist.ReduceOp.MAX)  # one wrong rank is enough; MAX may drop NaN
    """),
    WrongAnswer(
        "returns_the_gap", "returns the gap, not a verdict",
        check="all_ranks_agree", says="it should be True or False", edit="""
        -    return gap.item() < 1e-9
        +    return gap.item()
    """),
    WrongAnswer(
        "in_bfloat16", "rounds the gradients to bfloat16 before they are added",
        check="gradients_become_the_mean", says="times the mean, by element", look="in which dtype are they sent", edit="""
        -        dist.all_reduce(parameter.grad)
        -        parameter.grad /= dist.get_world_size()
        +        rounded = parameter.grad.bfloat16().to(parameter.dtype)
        +        dist.all_reduce(rounded)
        +        parameter.grad.copy_(rounded / dist.get_world_size())
    """),
    RightAnswer(
        "one_message_new_tensors",
        "one message for all gradients, of the one dtype that the models have; new tensors become .grad",
        edit="""
        -    for parameter in model.parameters():
        -        dist.all_reduce(parameter.grad)
        -        parameter.grad /= dist.get_world_size()
        +    parameters = list(model.parameters())
        +    flat = torch.cat([parameter.grad.flatten() for parameter in parameters])
        +    dist.all_reduce(flat)
        +    flat /= dist.get_world_size()
        +    for parameter, piece in zip(parameters, flat.split([p.numel() for p in parameters]), strict=True):
        +        parameter.grad = piece.view_as(parameter)
    """),
    RightAnswer(
        "plain_sgd", "trains with plain SGD and compares losses; the repair divides first",
        text="""
        import torch
        import torch.distributed as dist
        from torch import nn


        def make_model():
            torch.manual_seed(0)
            return nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 1)).double()


        def batch(rank):
            inputs = torch.randn(8, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(rank))
            return inputs, inputs.sum(1, keepdim=True).sin()


        def train(inputs, targets, synchronize):
            model = make_model()
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            for _ in range(5):
                optimizer.zero_grad()
                nn.functional.mse_loss(model(inputs), targets).backward()
                synchronize(model)
                optimizer.step()
            return nn.utils.parameters_to_vector(model.parameters()).detach()


        def gradients_are_right(synchronize):
            losses = train(*batch(dist.get_rank()), synchronize)
            batches = [batch(rank) for rank in range(dist.get_world_size())]
            reference = train(torch.cat([b[0] for b in batches]), torch.cat([b[1] for b in batches]), lambda model: None)
            verdicts = [None] * dist.get_world_size()
            dist.all_gather_object(verdicts, torch.allclose(losses, reference, rtol=1e-6, atol=1e-8))
            return all(verdicts)


        def synchronize_gradients(model):
            for parameter in model.parameters():
                parameter.grad = parameter.grad / dist.get_world_size()
            for work in [dist.all_reduce(parameter.grad, async_op=True) for parameter in model.parameters()]:
                work.wait()
    """),
    RightAnswer(
        "two_models", "the detector tries two models, one of them a single weight",
        edit="""
             rank, world = dist.get_rank(), dist.get_world_size()
        +    small = nn.Linear(6, 1, bias=False).double()
        +    small.weight.grad = torch.full_like(small.weight, rank + 1.0)
        +    synchronize(small)
        +    off = (small.weight.grad - (world + 1) / 2).abs().max()
        @@
             gap = torch.stack([(own.grad - right.grad).abs().max() for own, right in pairs]).max()
        +    gap = torch.maximum(gap, off)
    """),
    RightAnswer(
        "all_at_once", "starts all of its all-reduces, waits for each, and divides then",
        edit="""
        -        dist.all_reduce(parameter.grad)
        +        parameter.work = dist.all_reduce(parameter.grad, async_op=True)
        +    for parameter in model.parameters():
        +        parameter.work.wait()
    """),
    RightAnswer(
        "coalesced", "all gradients in one coalesced call, with a tensor of its own for each mean",
        edit="""
        -    for parameter in model.parameters():
        -        dist.all_reduce(parameter.grad)
        -        parameter.grad /= dist.get_world_size()
        +    gradients = [parameter.grad for parameter in model.parameters()]
        +    dist.all_reduce_coalesced(gradients)
        +    for parameter in model.parameters():
        +        parameter.grad = parameter.grad / dist.get_world_size()
    """),
)
