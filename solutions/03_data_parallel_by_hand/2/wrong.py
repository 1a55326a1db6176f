"""Wrong and right answers to question 03.2; ddp_course/authoring/answers.py says how to read them."""

from ddp_course.authoring.answers import RightAnswer, WrongAnswer

ANSWERS = (
    WrongAnswer(
        "in_the_order_of_a_set", "sends all in the order of a set of names, which each process has in another order",
        check="no_two_parameters_are_mixed", says="after synchronize_gradients the gradient of", edit="""
        -    has_one = owners(model)
        -    for name, parameter in model.named_parameters():
        -        if any(has_one[name]):  # every rank comes to the same decision: it asks what all have, not what it has
        -            if parameter.grad is None:
        -                parameter.grad = torch.zeros_like(parameter)
        -            dist.all_reduce(parameter.grad)
        -            parameter.grad /= dist.get_world_size()
        +    has_one, parameters = owners(model), dict(model.named_parameters())
        +    used = [parameters[name] for name in {name for name in has_one if any(has_one[name])}]
        +    message = torch.cat([(p.grad if p.grad is not None else torch.zeros_like(p)).flatten() for p in used])
        +    dist.all_reduce(message)
        +    for parameter, mean in zip(used, message.split([p.numel() for p in used]), strict=True):
        +        parameter.grad = mean.view_as(parameter) / dist.get_world_size()
    """),
    WrongAnswer(
        "in_the_order_of_a_union", "sends all in the order of a union of sets of names",
        check="no_two_parameters_are_mixed", says="after synchronize_gradients the gradient of", edit="""
        -    has_one = owners(model)
        -    for name, parameter in model.named_parameters():
        -        if any(has_one[name]):  # every rank comes to the same decision: it asks what all have, not what it has
        -            if parameter.grad is None:
        -                parameter.grad = torch.zeros_like(parameter)
        -            dist.all_reduce(parameter.grad)
        -            parameter.grad /= dist.get_world_size()
        +    has_one, parameters = owners(model), dict(model.named_parameters())
        +    used = [parameters[name] for name in set().union([name for name in has_one if any(has_one[name])])]
        +    message = torch.cat([(p.grad if p.grad is not None else torch.zeros_like(p)).flatten() for p in used])
        +    dist.all_reduce(message)
        +    for parameter, mean in zip(used, message.split([p.numel() for p in used]), strict=True):
        +        parameter.grad = mean.view_as(parameter) / dist.get_world_size()
    """),
    WrongAnswer(
        "also_what_nobody_has", "reports parameters that nobody used, and frozen ones",
        check="names_what_is_missing", says="'frozen.weight': [0, 1]", edit="""
        -        if any(by_rank) and not all(by_rank)
        +        if not all(by_rank)
    """),
    WrongAnswer(
        "asks_once_per_model", "asks who has which gradient in the first step only",
        check="what_nobody_used_stays_none",
        says="no rank had a gradient of prose.weight; after synchronize_gradients it is 0", edit="""
        -    has_one = owners(model)
        +    if not hasattr(model, "_owners"):
        +        model._owners = owners(model)  # ask once: it costs a message
        +    has_one = model._owners
    """),
    WrongAnswer(
        "counts_gradients", "compares how many gradients the ranks have, not which",
        check="names_what_is_missing",
        says="(rank 0 trained on code, rank 1 on prose): missing_gradients returned {} on rank 0", edit='''
             """By name of a parameter that some ranks have a gradient for and others not: the ranks that have none."""
        +    if len({sum(column) for column in zip(*owners(model).values(), strict=True)}) == 1:
        +        return {}
    '''),
    WrongAnswer(
        "divides_by_the_owners", "averages over the ranks that have a gradient",
        check="no_two_parameters_are_mixed", says="on rank 0 is 30; the mean over the ranks is 15", edit="""
        -            parameter.grad /= dist.get_world_size()
        +            parameter.grad /= sum(has_one[name])
    """),
    WrongAnswer(
        "fills_while_it_looks", "the detector puts zeros where it finds nothing",
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
        "keeps_none_on_the_others", "a rank without a gradient helps with zeros and throws the result away",
        check="no_two_parameters_are_mixed", says="on rank 0 is None; the mean over the ranks is 25", edit="""
        -            if parameter.grad is None:
        -                parameter.grad = torch.zeros_like(parameter)
        -            dist.all_reduce(parameter.grad)
        -            parameter.grad /= dist.get_world_size()
        +            gradient = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
        +            dist.all_reduce(gradient)
        +            gradient /= dist.get_world_size()
    """),
    WrongAnswer(
        "only_rank_0_knows", "gathers the names on rank 0 alone",
        check="names_what_is_missing", says="on rank 1", edit="""
        +    lists = owners(model)
        +    if dist.get_rank():
        +        return {}
             return {
                 name: [rank for rank, has in enumerate(by_rank) if not has]
        -        for name, by_rank in owners(model).items()
        +        for name, by_rank in lists.items()
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
        "skips_what_one_lacks", "reduces only what every rank has, and leaves the rest unsynchronized",
        check="no_two_parameters_are_mixed",
        says="the gradient of code.weight on rank 0 is 30; the mean over the ranks is 15", edit="""
        -        if any(has_one[name]):  # every rank comes to the same decision: it asks what all have, not what it has
        +        if all(has_one[name]):
    """),
    WrongAnswer(
        "stays_away", "a rank without any gradient leaves at once",
        check="does not end", says="rank 0 had returned, rank 1 was in all_gather", edit='''
             """For each parameter: on which ranks it has a gradient. One small all-gather; the same answer on every rank."""
        +    if all(parameter.grad is None for parameter in model.parameters()):
        +        return {name: [False] for name, _ in model.named_parameters()}
    '''),
    WrongAnswer(
        "sums", "fills up with zeros and forgets to divide",
        check="no_two_parameters_are_mixed", says="the mean over the ranks is", edit="""
        -            parameter.grad /= dist.get_world_size()
    """),
    WrongAnswer(
        "unrepaired", "has the detector, and the loop as it was",
        check="does not end", says="(rank 1 has no gradient of prose): no end", edit="""
        -    has_one = owners(model)
        -    for name, parameter in model.named_parameters():
        -        if any(has_one[name]):  # every rank comes to the same decision: it asks what all have, not what it has
        -            if parameter.grad is None:
        -                parameter.grad = torch.zeros_like(parameter)
        +    for parameter in model.parameters():
        +        if parameter.grad is not None:
    """),
    WrongAnswer(
        "who_has_it", "names the ranks that have the gradient",
        check="names_what_is_missing", says="returned {'code.weight': [0]", edit="""
        -        name: [rank for rank, has in enumerate(by_rank) if not has]
        +        name: [rank for rank, has in enumerate(by_rank) if has]
    """),
    WrongAnswer(
        "zero_counts_as_missing", "the detector takes a gradient of zeros for none",
        check="names_what_is_missing",
        says="(rank 0's gradients are all zero, and rank 1 has none of prose): missing_gradients returned "
        "{'shared.weight': [0]", edit="""
        -    mine = torch.tensor([parameter.grad is not None for parameter in model.parameters()])
        +    mine = torch.tensor([parameter.grad is not None and bool(parameter.grad.any()) for parameter in model.parameters()])
    """),
    WrongAnswer(
        "zeros_become_none", "turns every mean of zeros into None",
        check="no_two_parameters_are_mixed",
        says="the gradient of prose.weight on rank 0 is None; the mean over the ranks is 0",
        look="takes a gradient away that this rank had", edit="""
        -    has_one = owners(model)
        -    for name, parameter in model.named_parameters():
        -        if any(has_one[name]):  # every rank comes to the same decision: it asks what all have, not what it has
        -            if parameter.grad is None:
        -                parameter.grad = torch.zeros_like(parameter)
        -            dist.all_reduce(parameter.grad)
        -            parameter.grad /= dist.get_world_size()
        +    for parameter in model.parameters():
        +        if parameter.grad is None:
        +            parameter.grad = torch.zeros_like(parameter)
        +        dist.all_reduce(parameter.grad)
        +        parameter.grad /= dist.get_world_size()
        +        if not parameter.grad.any():  # nobody had one
        +            parameter.grad = None
    """),
    WrongAnswer(
        "zeros_everywhere", "gives every parameter a gradient, also one that nobody used",
        check="what_nobody_used_stays_none",
        says="no rank had a gradient of prose.weight; after synchronize_gradients it is 0", edit="""
        -    has_one = owners(model)
        -    for name, parameter in model.named_parameters():
        -        if any(has_one[name]):  # every rank comes to the same decision: it asks what all have, not what it has
        +    for parameter in model.parameters():
        +        if parameter.requires_grad:
    """),
    WrongAnswer(
        "zeros_for_frozen_ones", "forgets that frozen parameters have no gradient either",
        check="what_nobody_used_stays_none", says="no rank had a gradient of frozen.weight", edit="""
        -        if any(has_one[name]):  # every rank comes to the same decision: it asks what all have, not what it has
        +        if any(has_one[name]) or not parameter.requires_grad:
    """),
    WrongAnswer(
        "none_where_the_sum_is_zero", "takes a sum of zeros for a sign that nobody had a gradient",
        check="no_two_parameters_are_mixed", look="what does it put in .grad",
        says="rank 1 has none of prose): after synchronize_gradients the gradient of prose.weight on rank 1 is None",
        edit="""
        -    has_one = owners(model)
        -    for name, parameter in model.named_parameters():
        -        if any(has_one[name]):  # every rank comes to the same decision: it asks what all have, not what it has
        -            if parameter.grad is None:
        -                parameter.grad = torch.zeros_like(parameter)
        -            dist.all_reduce(parameter.grad)
        -            parameter.grad /= dist.get_world_size()
        +    for parameter in model.parameters():
        +        total = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad.clone()
        +        dist.all_reduce(total)
        +        if parameter.grad is not None or total.any():
        +            parameter.grad = total / dist.get_world_size()
    """),
    WrongAnswer(
        "divides_by_two_or_more", "divides by the number of ranks that have a gradient, and by two at least",
        check="no_two_parameters_are_mixed", look="what the sum is divided by",
        says="the gradient of prose.weight on rank 0 is 26; the mean over the ranks is 17.3333", edit="""
        -            parameter.grad /= dist.get_world_size()
        +            parameter.grad /= max(2, sum(has_one[name]))
    """),
    RightAnswer(
        "names_in_sets_and_sorted", "asks sets of names, which it sorts before anything is sent",
        edit="""
        -    has_one = owners(model)
        -    for name, parameter in model.named_parameters():
        -        if any(has_one[name]):  # every rank comes to the same decision: it asks what all have, not what it has
        -            if parameter.grad is None:
        -                parameter.grad = torch.zeros_like(parameter)
        -            dist.all_reduce(parameter.grad)
        -            parameter.grad /= dist.get_world_size()
        +    has_one, parameters = owners(model), dict(model.named_parameters())
        +    nobody = {name for name in has_one if not any(has_one[name])}
        +    for name in sorted(parameters.keys() - nobody):
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
            everyones = [None] * dist.get_world_size()
            dist.all_gather_object(everyones, {name for name, p in model.named_parameters() if p.grad is not None})
            some, all_of_them = set.union(*everyones), set.intersection(*everyones)
            return {name: [r for r, names in enumerate(everyones) if name not in names] for name in some - all_of_them}


        def synchronize_gradients(model):
            trainable = [parameter for parameter in model.parameters() if parameter.requires_grad]
            parts = []
            for parameter in trainable:
                has = parameter.grad is not None
                parts += [parameter.grad.flatten() if has else torch.zeros(parameter.numel()), torch.tensor([float(has)])]
            flat = torch.cat(parts)
            dist.all_reduce(flat)
            pieces = flat.split([part.numel() for part in parts])
            for parameter, gradient, count in zip(trainable, pieces[::2], pieces[1::2], strict=True):
                parameter.grad = (gradient / dist.get_world_size()).view_as(parameter) if count > 0 else None
    """),
)
