"""Wrong and right answers to question 04.1; ddp_course/authoring/answers.py says how to read them."""

from ddp_course.authoring.answers import RightAnswer, WrongAnswer

ANSWERS = (
    WrongAnswer(
        "averaging_closes_the_gap", "forecasts that averaged gradients make the replicas equal",
        check="the_forecast_comes_true",
        says="'parameters, averaged by hand': you said 'closed'; the gap was", edit="""
        -        "parameters, averaged by hand": "unchanged",
        +        "parameters, averaged by hand": "closed",
    """),
    WrongAnswer(
        "empty_kinds", "does not handle a model without tensors",
        state="crashed", check="raises", says="a model without any tensors): rank", edit="""
        -    if not tensors:
        -        return 0.0
    """),
    WrongAnswer(
        "leaves_a_case_out", "forecasts five cases",
        check="the_forecast_comes_true", says="forecast says None of 'buffers, DDP'", edit="""
        -        "buffers, DDP": "closed",
    """),
    WrongAnswer(
        "leaves_it_frozen", "switches requires_grad off to work on the tensors, and leaves it off",
        check="looking_changes_nothing", says="largest_gaps has changed the requires_grad of the model", edit='''
             """The largest difference between any two ranks, among parameters, buffers and tensors that are plain attributes."""
        +    model.requires_grad_(False)  # no autograd here
    '''),
    WrongAnswer(
        "measures_in_place", "all-reduces the model's own tensors",
        check="looking_changes_nothing", says="largest_gaps has changed the values of the model", edit="""
        -    flat = torch.cat([tensor.detach().double().flatten() for tensor in tensors])
        -    largest, smallest = flat.clone(), flat.clone()
        -    dist.all_reduce(largest, dist.ReduceOp.MAX)
        -    dist.all_reduce(smallest, dist.ReduceOp.MIN)
        -    return (largest - smallest).max().item()
        +    largest = 0.0
        +    for tensor in tensors:
        +        smallest = tensor.detach().double()
        +        highest = tensor.detach().clone()
        +        if highest.dtype is torch.bool:
        +            highest = highest.byte()
        +        dist.all_reduce(highest, dist.ReduceOp.MAX)
        +        dist.all_reduce(smallest, dist.ReduceOp.MIN)
        +        largest = max(largest, (highest.double() - smallest).max().item())
        +    return largest
    """),
    WrongAnswer(
        "state_dict", "takes parameters and buffers from state_dict, which not all buffers are in",
        check="gaps_are_measured_right", says="a mask that is a buffer, on rank 1; with 2 ranks", edit="""
        -        "buffers": list(model.buffers()),
        +        "buffers": [v for name, v in model.state_dict().items() if name not in dict(model.named_parameters())],
    """),
    WrongAnswer(
        "adds_gaps_up", "adds up the gaps of all tensors of a kind, in place of the largest",
        check="gaps_are_measured_right", says="and a frozen one by 0.25; with 2 ranks largest_gaps returned", edit="""
        -    return {kind: gap(tensors) for kind, tensors in kinds.items()}
        +    return {kind: sum(gap([tensor]) for tensor in tensors) for kind, tensors in kinds.items()}
    """),
    RightAnswer(
        "gathers_everything", "gathers all tensors as objects and compares every pair",
        text="""
        import itertools

        import torch
        import torch.distributed as dist


        def forecast():
            result = dict.fromkeys(["parameters, DDP", "buffers, DDP", "dropout masks, one seed on every rank"], "closed")
            result["attributes, DDP"] = result["parameters, DDP(init_sync=False)"] = "unchanged"
            result["parameters, averaged by hand"] = "unchanged"
            return result


        def largest_gaps(model):
            own = {"parameters": [], "buffers": [], "attributes": []}
            for _, module in model.named_modules():
                own["parameters"] += [p.detach() for p in module.parameters(recurse=False)]
                own["buffers"] += list(module.buffers(recurse=False))
                own["attributes"] += [x for x in module.__dict__.values() if isinstance(x, torch.Tensor)]
            gathered = [None] * dist.get_world_size()
            dist.all_gather_object(gathered, own)
            gaps = {kind: torch.tensor(0.0, dtype=torch.float64) for kind in own}
            for first, second in itertools.combinations(gathered, 2):
                for kind in own:
                    for a, b in zip(first[kind], second[kind], strict=True):
                        gaps[kind] = torch.maximum(gaps[kind], (a.double() - b.double()).abs().max())
            return gaps
    """),
    RightAnswer(
        "rank_by_rank", "broadcasts the tensors of each rank in turn, as arrays; the numbers are NumPy's",
        edit="""
        -    if not tensors:
        -        return 0.0
        -    flat = torch.cat([tensor.detach().double().flatten() for tensor in tensors])
        -    largest, smallest = flat.clone(), flat.clone()
        -    dist.all_reduce(largest, dist.ReduceOp.MAX)
        -    dist.all_reduce(smallest, dist.ReduceOp.MIN)
        -    return (largest - smallest).max().item()
        +    gathered = []
        +    for rank in range(dist.get_world_size()):
        +        box = [[tensor.detach().double().numpy() for tensor in tensors]]
        +        dist.broadcast_object_list(box, src=rank)
        +        gathered.append(box[0])
        +    gaps = [abs(a - b).max() for first in gathered for second in gathered for a, b in zip(first, second, strict=True)]
        +    return max(gaps, default=0.0)
    """),
)
