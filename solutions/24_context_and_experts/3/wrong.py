"""Wrong and right answers to question 24.3; ddp_course/authoring/answers.py says how to read them."""

from ddp_course.authoring.answers import RightAnswer, WrongAnswer

ANSWERS = (
    WrongAnswer(
        "sorted_on_arrival", "takes all received rows as sorted by expert, though only those of each rank are",
        check="each_expert_computes_what_chose_it", says="which have not chosen it", look="which row is for which expert",
        edit="""
        -    arrived = own.repeat(world).repeat_interleave(counts[:, own].flatten())  # the expert of each row
        +    arrived = own.repeat_interleave(counts[:, own].sum(0))
    """),
    WrongAnswer(
        "one_call_per_rank", "calls an expert for the rows of each rank",
        check="each_expert_computes_what_chose_it", says="was called 2 times", look="brought together from all ranks", edit="""
        -        done[arrived == number] = expert(rows[arrived == number])
        +        for part in (arrived == number).nonzero().flatten().split(counts[:, number].tolist()):
        +            done[part] = expert(rows[part])
    """),
    WrongAnswer(
        "sorted_once_more", "sorts once more instead of applying the inverse permutation",
        check="the_output_is_that_of_one_process", says="the output on rank 0 is", look="each is one choice of a token",
        edit="""
        -    outputs = torch.zeros_like(back)
        -    outputs[order] = back
        +    outputs = back[order]
    """),
    WrongAnswer(
        "unweighted", "adds up the experts' outputs as they are",
        check="the_output_is_that_of_one_process", says=", that of weights which are all 1", look="the weights", edit="""
        -    return (weights[..., None] * outputs.view(*chosen.shape, x.shape[1])).sum(1)
        +    return outputs.view(*chosen.shape, x.shape[1]).sum(1)
    """),
    WrongAnswer(
        "no_backward_to_the_tokens", "sends the tokens by a call that autograd does not know",
        check="gradients_reach_tokens_and_weights", says="the gradient of x on rank 0 is missing", look="split sizes swapped",
        edit="""
        -    rows = Exchange.apply(x[order // chosen.shape[1]], send, receive)
        +    rows = exchanged(x[order // chosen.shape[1]].detach(), send, receive)
    """),
    WrongAnswer(
        "zeros_without_tokens", "returns new zeros on a rank without tokens, whose backward then sends nothing",
        check="gradients_reach_tokens_and_weights", says="(rank 1 has no tokens): the output on rank 1 has no gradient",
        look="takes part in backward too", edit="""
        -    return (weights[..., None] * outputs.view(*chosen.shape, x.shape[1])).sum(1)
        +    if not len(x):
        +        return torch.zeros(0, x.shape[1], dtype=x.dtype)
        +    return (weights[..., None] * outputs.view(*chosen.shape, x.shape[1])).sum(1)
    """),
    WrongAnswer(
        "nothing_to_do", "returns at once on a rank without tokens, whose experts the others wait for",
        check="does not end", says="(rank 1 has no tokens)", edit="""
        -    pairs = chosen.flatten()  # of a token and a choice
        +    if not len(x):
        +        return x
        +    pairs = chosen.flatten()
    """),
    WrongAnswer(
        "minus_one", "lets view() infer the width, which fails without rows",
        check="raises", state="crashed", says="(rank 1 has no tokens): rank 1 raised RuntimeError: cannot reshape", edit="""
        -    return (weights[..., None] * outputs.view(*chosen.shape, x.shape[1])).sum(1)
        +    return (weights[..., None] * outputs.view(*chosen.shape, -1)).sum(1)
    """),
    WrongAnswer(
        "experts_over_n", "divides the gradients of experts by the number of ranks",
        check="each_expert_has_its_whole_gradient", says="the gradient of expert", look="each expert is on one rank", edit="""
        +        for parameter in expert.parameters():
        +            parameter.register_hook(lambda gradient: gradient / world)
                 done[arrived == number] = expert(rows[arrived == number])
    """),
    WrongAnswer(
        "a_mean_over_its_tokens", "divides an expert's gradient by the tokens that it had",
        check="each_expert_has_its_whole_gradient", says="the gradient of expert", look="neither to be divided", edit="""
        +        for parameter in expert.parameters():
        +            parameter.register_hook(lambda gradient, n=(arrived == number).sum(): gradient / n.clamp(min=1))
                 done[arrived == number] = expert(rows[arrived == number])
    """),
    WrongAnswer(
        "filled_up", "pads every part to the size of the largest",
        check="only_chosen_rows_are_sent", says="rank 0 handed", look="nothing is filled up", edit="""
        -    got = rows.new_empty(sum(receive), rows.shape[1])
        -    dist.all_to_all_single(got, rows.contiguous(), receive, send)
        -    return got
        +    most, world = torch.tensor(max(send)), dist.get_world_size()
        +    dist.all_reduce(most, op=dist.ReduceOp.MAX)
        +    filled = rows.new_zeros(world, int(most), rows.shape[1])
        +    for index, part in zip(filled, rows.split(send)):
        +        index[: len(part)] = part
        +    got = torch.empty_like(filled)
        +    dist.all_to_all_single(got, filled)
        +    return torch.cat([part[:count] for part, count in zip(got, receive)])
    """),
    WrongAnswer(
        "gathered", "gathers all rows on all ranks, each of which takes those for its experts",
        check="only_chosen_rows_are_sent", says="bytes to all_gather", look="the ranks of its experts only", edit="""
        -    got = rows.new_empty(sum(receive), rows.shape[1])
        -    dist.all_to_all_single(got, rows.contiguous(), receive, send)
        -    return got
        +    rank, world = dist.get_rank(), dist.get_world_size()
        +    sizes = [torch.empty(world, dtype=torch.long) for _ in range(world)]
        +    dist.all_gather(sizes, torch.tensor(send))
        +    most = max(int(size.sum()) for size in sizes)
        +    filled = torch.cat([rows, rows.new_zeros(most - len(rows), rows.shape[1])])
        +    gathered = [torch.empty_like(filled) for _ in range(world)]
        +    dist.all_gather(gathered, filled)
        +    parts = [padded[: int(size.sum())].split(size.tolist()) for padded, size in zip(gathered, sizes)]
        +    return torch.cat([part[rank] for part in parts])
    """),
    RightAnswer(
        "weighed_by_the_expert", "torch's own exchange, and counts by all-to-all; the weights are sent with the rows",
        text='''
        import torch
        import torch.distributed as dist
        from torch.distributed.nn.functional import all_to_all_single


        def mixture(x, chosen, weights, experts, home):
            rank, world = dist.get_rank(), dist.get_world_size()
            by_rank = [[number for number, where in enumerate(home) if where == other] for other in range(world)]
            pairs = [[(token, choice) for number in numbers for token, choice in (chosen == number).nonzero().tolist()]
                     for numbers in by_rank]
            loads = torch.bincount(chosen.flatten(), minlength=len(home))
            own = by_rank[rank]
            coming = torch.empty(world * len(own), dtype=torch.long)
            going = torch.cat([loads[numbers] for numbers in by_rank])
            dist.all_to_all_single(coming, going, [len(own)] * world, [len(numbers) for numbers in by_rank])
            coming = coming.view(world, len(own))
            send, receive = [len(part) for part in pairs], coming.sum(1).tolist()
            tokens, choices = torch.tensor([pair for part in pairs for pair in part], dtype=torch.long).view(-1, 2).T
            rows = torch.cat([x[tokens], weights[tokens, choices][:, None]], 1)
            got = all_to_all_single(rows.new_empty(sum(receive), rows.shape[1]), rows, receive, send)
            pieces = got.split(coming.flatten().tolist())
            results = [None] * len(pieces)
            for index, number in enumerate(own):
                of_expert = pieces[index :: len(own)]
                joint = torch.cat(of_expert)
                weighed = experts[number](joint[:, :-1]) * joint[:, -1:]
                results[index :: len(own)] = weighed.split([len(piece) for piece in of_expert])
            done = torch.cat(results)
            back = all_to_all_single(done.new_empty(len(rows), x.shape[1]), done, send, receive)
            return torch.zeros_like(x).index_add(0, tokens, back)
    '''),
    RightAnswer(
        "inverse_by_argsort", "the inverse as an argsort, the counts of all ranks by a sum", edit="""
        -    counts = [torch.empty(len(home), dtype=torch.long) for _ in range(world)]
        -    dist.all_gather(counts, pairs.bincount(minlength=len(home)))
        -    counts = torch.stack(counts)  # of each rank, for each expert
        +    counts = torch.zeros(world, len(home), dtype=torch.long)
        +    counts[rank] = pairs.bincount(minlength=len(home))
        +    dist.all_reduce(counts)
        @@
        -    outputs = torch.zeros_like(back)
        -    outputs[order] = back
        +    outputs = back[order.argsort()]
    """),
)
