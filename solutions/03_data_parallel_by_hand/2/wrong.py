"""Wrong and right answers to question 03.2; ddp_course/authoring/answers.py says how to read them."""

from ddp_course.authoring.answers import RightAnswer, WrongAnswer

ANSWERS = (
    WrongAnswer(
        "in_the_order_of_a_set", "sends all gradients in the order of a set of names, which differs between processes",
        check="no_two_parameters_are_mixed", says="after synchronize_gradients the gradient of", edit="""
        -    has_gradient = owners(model)
        -    for name, parameter in model.named_parameters():
        -        if any(has_gradient[name]):  # decided by the flags of all ranks, so the same on every rank
        -            if parameter.grad is None:
        -                parameter.grad = torch.zeros_like(parameter)
        -            dist.all_reduce(parameter.grad)
        -            parameter.grad /= dist.get_world_size()
        +    has_gradient, parameters = owners(model), dict(model.named_parameters())
        +    used = [parameters[name] for name in {name for name in has_gradient if any(has_gradient[name])}]
        +    message = torch.cat([(p.grad if p.grad is not None else torch.zeros_like(p)).flatten() for p in used])
        +    dist.all_reduce(message)
        +    for parameter, mean in zip(used, message.split([p.numel() for p in used]), strict=True):
        +        parameter.grad = mean.view_as(parameter) / dist.get_world_size()
    """),
    WrongAnswer(
        "reports_unused_parameters", "reports parameters that no rank used, and frozen ones",
        check="names_what_is_missing", says="'frozen.weight': [0, 1]", edit="""
        -        if any(by_rank) and not all(by_rank)
        +        if not all(by_rank)
    """),
    WrongAnswer(
        "adds_in_float32", "sends one message of float32, to save bytes",
        check="means_keep_their_digits", says="the gradient of shared.bias on rank 0 is 3e-07 from the mean", edit="""
        -            dist.all_reduce(parameter.grad)
        -            parameter.grad /= dist.get_world_size()
        +            message = parameter.grad.float()
        +            dist.all_reduce(message)
        +            parameter.grad.copy_(message / dist.get_world_size())
    """),
    WrongAnswer(
        "asks_once_per_model", "asks who has which gradient in the first step only",
        check="unused_parameters_keep_none",
        says="no rank had a gradient of prose.weight; after synchronize_gradients it is 0", edit="""
        -    has_gradient = owners(model)
        +    if not hasattr(model, "_owners"):
        +        model._owners = owners(model)  # ask once: it costs a message
        +    has_gradient = model._owners
    """),
    WrongAnswer(
        "divides_by_the_owners", "averages over the ranks that have a gradient",
        check="no_two_parameters_are_mixed", says="on rank 0 is 10; the mean over the ranks is 5", edit="""
        -            parameter.grad /= dist.get_world_size()
        +            parameter.grad /= sum(has_gradient[name])
    """),
    WrongAnswer(
        "fills_while_it_looks", "the detector replaces missing gradients by zeros",
        check="looking_changes_nothing", says="it was None", edit="""
        +    has = owners(model)
        +    for name, parameter in model.named_parameters():
        +        if parameter.grad is None and any(has[name]):
        +            parameter.grad = torch.zeros_like(parameter)
             return {
                 name: [rank for rank, has in enumerate(by_rank) if not has]
        -        for name, by_rank in owners(model).items()
        +        for name, by_rank in has.items()
    """),
    WrongAnswer(
        "own_list", "looks at its own gradients only",
        check="names_what_is_missing", says="missing_gradients returned", edit="""
        -    return {
        -        name: [rank for rank, has in enumerate(by_rank) if not has]
        -        for name, by_rank in owners(model).items()
        -        if any(by_rank) and not all(by_rank)
        -    }
        +    return {name: [dist.get_rank()] for name, parameter in model.named_parameters() if parameter.grad is None}
    """),
    WrongAnswer(
        "stays_away", "a rank without any gradient returns before the all-gather",
        check="does not end", says="rank 0 had returned, rank 1 was in all_gather", edit='''
             """For each parameter: on which ranks it has a gradient. One small all-gather; the same answer on every rank."""
        +    if all(parameter.grad is None for parameter in model.parameters()):
        +        return {name: [False] for name, _ in model.named_parameters()}
    '''),
    WrongAnswer(
        "unrepaired", "has the detector, and the loop of the given script",
        check="does not end", says="(rank 1 has no gradient of prose): no end", edit="""
        -    has_gradient = owners(model)
        -    for name, parameter in model.named_parameters():
        -        if any(has_gradient[name]):  # decided by the flags of all ranks, so the same on every rank
        -            if parameter.grad is None:
        -                parameter.grad = torch.zeros_like(parameter)
        +    for parameter in model.parameters():
        +        if parameter.grad is not None:
    """),
    WrongAnswer(
        "zeros_for_frozen_ones", "forgets that frozen parameters have no gradient either",
        check="unused_parameters_keep_none", says="no rank had a gradient of frozen.weight", edit="""
        -        if any(has_gradient[name]):  # decided by the flags of all ranks, so the same on every rank
        +        if any(has_gradient[name]) or not parameter.requires_grad:
    """),
    WrongAnswer(
        "zeros_in_float32", "fills in zeros of the default dtype, whatever that of the parameter is",
        state="crashed", check="raises", says="raised RuntimeError", edit="""
        -                parameter.grad = torch.zeros_like(parameter)
        +                parameter.grad = torch.zeros(parameter.shape)
    """),
    RightAnswer(
        "names_in_sets_and_sorted", "uses sets of names, sorted before anything is sent",
        edit="""
        -    has_gradient = owners(model)
        -    for name, parameter in model.named_parameters():
        -        if any(has_gradient[name]):  # decided by the flags of all ranks, so the same on every rank
        -            if parameter.grad is None:
        -                parameter.grad = torch.zeros_like(parameter)
        -            dist.all_reduce(parameter.grad)
        -            parameter.grad /= dist.get_world_size()
        +    has_gradient, parameters = owners(model), dict(model.named_parameters())
        +    unused = {name for name in has_gradient if not any(has_gradient[name])}
        +    for name in sorted(parameters.keys() - unused):
        +        parameter = parameters[name]
        +        if parameter.grad is None:
        +            parameter.grad = torch.zeros_like(parameter)
        +        dist.all_reduce(parameter.grad)
        +        parameter.grad /= dist.get_world_size()
    """),
    RightAnswer(
        "names_and_one_message",
        "gathers sets of names; sends one flat tensor with a count of owners behind each gradient",
        text="""
        import torch
        import torch.distributed as dist


        def missing_gradients(model):
            gathered = [None] * dist.get_world_size()
            dist.all_gather_object(gathered, {name for name, p in model.named_parameters() if p.grad is not None})
            some, all_of_them = set.union(*gathered), set.intersection(*gathered)
            return {name: [r for r, names in enumerate(gathered) if name not in names] for name in some - all_of_them}


        @torch.no_grad()
        def synchronize_gradients(model):
            trainable = [parameter for parameter in model.parameters() if parameter.requires_grad]
            parts = []
            for parameter in trainable:
                has = parameter.grad is not None
                gradient = parameter.grad if has else torch.zeros_like(parameter)
                parts += [gradient.flatten(), torch.tensor([float(has)])]
            flat = torch.cat(parts)
            dist.all_reduce(flat)
            pieces = flat.split([part.numel() for part in parts])
            for parameter, gradient, count in zip(trainable, pieces[::2], pieces[1::2], strict=True):
                parameter.grad = (gradient / dist.get_world_size()).view_as(parameter) if count > 0 else None
    """),
)
