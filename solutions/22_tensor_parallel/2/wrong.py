"""Wrong and right answers to question 22.2; ddp_course/authoring/answers.py says how to read them."""

from ddp_course.authoring.answers import RightAnswer, WrongAnswer

ANSWERS = (
    WrongAnswer(
        "all_counted_on_every_rank", "adds up the squares of all weights over the ranks, so that whole weights count once per rank",
        check="the_norm_is_that_of_one_process", says="clip returned", look="those of whole weights count once", edit="""
        -        squares = of_cut if parameter.cut else of_whole
        +        squares = of_cut
    """),
    WrongAnswer(
        "no_message", "computes the squares in two sums, and sends neither",
        check="the_norm_is_that_of_one_process", says="(a small limit): clip returned 21.5282 on rank 0",
        look="squares added over the ranks", edit="""
        -    dist.all_reduce(of_cut)
    """),
    WrongAnswer(
        "clips_upwards", "enlarges gradients whose norm is below the limit",
        check="the_gradients_are_those_of_one_process", says="(a limit that is not reached): the gradient of first",
        look="never more than 1", edit="""
        -    if norm > max_norm:
        +    if norm > 0:
    """),
    WrongAnswer(
        "decides_by_its_own_part", "scales if the norm of what this rank holds is above the limit",
        check="the_gradients_are_those_of_one_process", says="(a limit above what any rank holds): the gradient of first",
        look="one factor", edit="""
        -    dist.all_reduce(of_cut)
        +    own = (of_cut + of_whole).sqrt().item()
        +    dist.all_reduce(of_cut)
        @@
        -    if norm > max_norm:
        +    if own > max_norm:
    """),
    WrongAnswer(
        "zeros_for_none", "gives a weight without a gradient one of zeros",
        check="no_gradient_is_made", says="(a small limit): on rank 0 clip has given", look="weight decay", edit="""
        -    parameters = [parameter for parameter in parameters if parameter.grad is not None]
             for parameter in parameters:
        +        if parameter.grad is None:
        +            parameter.grad = torch.zeros_like(parameter)
                 squares = of_cut if parameter.cut else of_whole
    """),
    WrongAnswer(
        "added_in_an_order_of_its_own", "each rank adds up the ranks' parts beginning with its own",
        check="whole_gradients_stay_equal", says="differs from rank 0's by a rounding", look="the order", edit="""
        -    dist.all_reduce(of_cut)
        -    norm = (of_cut + of_whole).sqrt().item()
        +    parts = [torch.zeros_like(of_cut) for _ in range(dist.get_world_size())]
        +    dist.all_gather(parts, of_cut)
        +    norm = of_whole.clone()
        +    for step in range(len(parts)):
        +        norm += parts[(dist.get_rank() + step) % len(parts)]
        +    norm = norm.sqrt().item()
    """),
    WrongAnswer(
        "divides_by_zero", "divides by the norm before it knows whether there is anything to scale",
        check="raises", state="crashed", says="(all gradients are zero): rank 0 raised ZeroDivisionError", edit="""
        -    if norm > max_norm:
        -        for parameter in parameters:
        -            parameter.grad *= max_norm / norm
        +    for parameter in parameters:
        +        parameter.grad *= min(1.0, max_norm / norm)
    """),
    WrongAnswer(
        "gathers_the_gradients", "gathers every gradient that is cut, and computes the norm of the whole",
        check="little_is_sent", says="operations with", look="gradients stay where they are", edit="""
        -        squares = of_cut if parameter.cut else of_whole
        -        squares += parameter.grad.double().square().sum()
        -    dist.all_reduce(of_cut)
        +        parts = [torch.empty_like(parameter.grad) for _ in range(dist.get_world_size() if parameter.cut else 1)]
        +        if parameter.cut:
        +            dist.all_gather(parts, parameter.grad)
        +        else:
        +            parts = [parameter.grad]
        +        of_whole += torch.cat(parts).double().square().sum()
    """),
    WrongAnswer(
        "a_message_each", "sends a sum for every parameter that is cut",
        check="little_is_sent", says="rank 0 started 3 operations with 24 bytes", look="sums of squares are numbers",
        edit="""
        -        squares = of_cut if parameter.cut else of_whole
        -        squares += parameter.grad.double().square().sum()
        -    dist.all_reduce(of_cut)
        +        squares = parameter.grad.double().square().sum()
        +        if parameter.cut:
        +            dist.all_reduce(squares)
        +        of_whole += squares
    """),
    RightAnswer(
        "divided_by_the_ranks", "whole weights give each rank's share of their squares to one sum", text='''
        import torch
        import torch.distributed as dist
        from torch.nn.utils import clip_grads_with_norm_, get_total_norm


        def clip(parameters, max_norm):
            cut = [p.grad for p in parameters if p.cut and p.grad is not None]
            whole = [p.grad for p in parameters if not p.cut and p.grad is not None]
            squares = get_total_norm(cut).double() ** 2 if cut else torch.zeros((), dtype=torch.float64)
            if whole:
                squares = squares + get_total_norm(whole).double() ** 2 / dist.get_world_size()
            dist.all_reduce(squares)
            norm = squares.sqrt()
            clip_grads_with_norm_(parameters, max_norm, norm)
            return norm
    '''),
)
