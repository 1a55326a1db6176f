"""Wrong and right answers to question 06.3; ddp_course/authoring/answers.py says how to read them."""

from ddp_course.authoring.answers import RightAnswer, WrongAnswer

ANSWERS = (
    WrongAnswer(
        "counts_padding", "divides by all targets, the ignored ones too",
        check="the_loss_is_exact", says="one process has", look="which targets the divisor counts", edit="""
        -    count = torch.tensor(sum(int((targets != IGNORED).sum()) for _, targets in micro_batches))
        +    count = torch.tensor(sum(targets.numel() for _, targets in micro_batches))
    """),
    WrongAnswer(
        "equal_lengths_tested", "the detector's micro-batches all have the same number of targets",
        check="broken_versions_are_caught", says="the mean of the micro-batches' means", edit="""
        -    by_rank = [micro_batches_of(rank, [[8, 8], [3 * rank + 1]]) for rank in range(world)]
        +    by_rank = [micro_batches_of(rank, [[4, 6], [5, 5]]) for rank in range(world)]
    """),
    WrongAnswer(
        "not_for_all", "the detector compares with the mean over its own rank's tokens",
        check="right_versions_pass", says="is exact to rounding", edit="""
        -    model, batches = make_model(), [batch for own in by_rank for batch in own]
        +    model, batches = make_model(), by_rank[dist.get_rank()]
    """),
    WrongAnswer(
        "rank_0_decides", "the detector compares on rank 0, the others say True",
        check="all_ranks_agree", says="returned True on rank 1 and False on rank 0", edit="""
        -    exact = torch.tensor(float(max(gaps) < 1e-10))
        -    dist.all_reduce(exact, dist.ReduceOp.MIN)
        -    return bool(exact)
        +    return dist.get_rank() > 0 or max(gaps) < 1e-10
    """),
    WrongAnswer(
        "rank_0_tells_the_others", "the detector compares on rank 0, which tells the others the answer",
        check="broken_versions_are_caught", says="except on rank 0", edit="""
        -    dist.all_reduce(exact, dist.ReduceOp.MIN)
        +    dist.broadcast(exact, src=0)
    """),
    WrongAnswer(
        "tokens_of_the_rank", "counts the targets of its own rank only",
        check="the_loss_is_exact", says="ragged lengths", on="world_size_forgotten", edit="""
        -    dist.all_reduce(count)
        @@
        -    return global_loss.item(), [parameter.grad for parameter in module.parameters()]
        +    return global_loss.item() / dist.get_world_size(), [parameter.grad for parameter in module.parameters()]
    """),
    WrongAnswer(
        "world_size_forgotten", "forgets that DDP divides by the number of ranks",
        check="the_gradient_is_exact", says="it is 0.5 times as long", edit="""
        -            (loss * dist.get_world_size()).backward()
        +            loss.backward()
    """),
    WrongAnswer(
        "asks_twice", "the detector calls the function once for the loss and once for the gradients",
        check="it_is_called_once", says="is_token_mean called the function 2 times on rank 0",
        look="one call gives the loss and the gradients", edit="""
        -    loss, gradients = function(make_model(), by_rank[dist.get_rank()])
        +    loss, _ = function(make_model(), by_rank[dist.get_rank()])
        +    _, gradients = function(make_model(), by_rank[dist.get_rank()])
    """),
    RightAnswer(
        "divides_at_the_end",
        "no wrapper; sums everything, one message, divides in the end; the detector takes gradients by autograd",
        text='''
        import torch
        import torch.distributed as dist
        import torch.nn.functional as F
        from torch import nn


        def summed(module, batches):
            """Summed loss and number of targets."""
            loss = sum(
                F.cross_entropy(module(inputs).flatten(0, 1), targets.flatten(), reduction="sum") for inputs, targets in batches
            )
            return loss, sum((targets >= 0).sum().item() for _, targets in batches)


        def is_token_mean(function):
            torch.manual_seed(9)
            module = nn.Sequential(nn.Embedding(4, 3), nn.Linear(3, 4)).double()
            batches = []
            for size in range(1, 2 * dist.get_world_size() + 1):
                targets = torch.randint(4, (size, 3))
                targets[0, : size % 3] = -100
                batches.append((torch.randint(4, (size, 3)), targets))
            loss, count = summed(module, batches)
            gradients = torch.autograd.grad(loss / count, list(module.parameters()))
            found, theirs = function(module, batches[dist.get_rank() :: dist.get_world_size()])
            same = torch.allclose(torch.as_tensor(found).double(), (loss / count).detach(), rtol=1e-9)
            same = same and all(torch.allclose(a, b, rtol=1e-9, atol=1e-12) for a, b in zip(theirs, gradients, strict=True))
            verdicts = [None] * dist.get_world_size()
            dist.all_gather_object(verdicts, same)
            return all(verdicts)


        def loss_and_gradients(module, micro_batches):
            loss, count = summed(module, micro_batches)
            gradients = torch.autograd.grad(loss, list(module.parameters()))
            sizes = [own.numel() for own in gradients]
            extra = torch.stack([loss.detach(), torch.tensor(float(count), dtype=torch.float64)])
            message = torch.cat([extra, *(own.flatten() for own in gradients)])
            dist.all_reduce(message)
            pieces = (message[2:] / message[1]).split(sizes)
            return message[0] / message[1], [piece.view_as(own) for piece, own in zip(pieces, gradients, strict=True)]
    '''),
    RightAnswer(
        "unequal_numbers_of_micro_batches", "the detector gives rank r r + 1 micro-batches",
        edit="""
        -    by_rank = [micro_batches_of(rank, [[8, 8], [3 * rank + 1]]) for rank in range(world)]
        +    by_rank = [micro_batches_of(rank, [[8, 8], [3], [5]][: rank + 1]) for rank in range(world)]
    """),
)
