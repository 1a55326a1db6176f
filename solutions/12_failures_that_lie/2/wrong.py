"""Wrong and right answers to question 12.2; ddp_course/authoring/answers.py says how to read them."""

from ddp_course.authoring.answers import RightAnswer, WrongAnswer

ANSWERS = (
    WrongAnswer(
        "without_a_tolerance", "compares the sums exactly, and takes a NaN for a difference from itself",
        check="every_difference_is_seen", says="odd_ranks returned [] on rank 0", on="given", edit="""
        -    return [rank for rank, other in enumerate(totals) if not torch.isclose(other, totals[0], rtol=1e-3)]
        +    return [rank for rank, other in enumerate(totals) if other.item() != totals[0].item()]
    """),
    WrongAnswer(
        "compares_numbers", "sends sums of all tensors, and one of them is NaN",
        check="equal_replicas_pass", says="returned [0, 1, 2, 3] on rank 0, not []", look="not equal to itself",
        edit="""
        -    digests = [None] * dist.get_world_size()
        -    dist.all_gather_object(digests, fingerprint(model, optimizer))
        +    total = torch.stack([part.double().sum() for part in [*model.parameters(), *model.buffers()]]).sum()
        +    totals = [torch.zeros_like(total) for _ in range(dist.get_world_size())]
        +    dist.all_gather(totals, total.detach())
        +    digests = [total.item() if total == total else object() for total in totals]
    """),
    WrongAnswer(
        "pythons_hash", "uses hash(), which differs from process to process",
        check="equal_replicas_pass", says="not []", look="from process to process", edit="""
        -    return digest.digest()
        +    return hash(b"".join(bits(part) if torch.is_tensor(part) else repr(part).encode() for part in parts))
    """),
    WrongAnswer(
        "gradients_too", "compares the gradients, which are each rank's own",
        check="equal_replicas_pass", says="not []", look="what you compare besides the state", edit="""
        -    parts = [*model.parameters()]
        +    parts = [*model.parameters(), *(p.grad for p in model.parameters() if p.grad is not None)]
    """),
    WrongAnswer(
        "batch_norm_too", "compares all buffers, and raises the alarm in every run with a BatchNorm",
        check="equal_replicas_pass", says="running statistics of a BatchNorm", look="the buffers of BatchNorm", edit="""
        -        if not isinstance(module, torch.nn.modules.batchnorm._BatchNorm):
        -            parts += module.buffers(recurse=False)
        +        parts += module.buffers(recurse=False)
    """),
    WrongAnswer(
        "no_norms_at_all", "leaves the norm out, and its trained weights with it",
        check="every_difference_is_seen", says="the last bit of a weight of the norm", look="every bit", edit="""
        -    parts = [*model.parameters()]
        +    parts = [value for name, value in model.named_parameters() if "norm" not in name]
    """),
    WrongAnswer(
        "prints_the_tensors", "hashes what a print shows, which is four digits of the corners",
        check="every_difference_is_seen", says="the last bit of one weight, on rank 1", look="every bit", edit="""
        -        digest.update(bits(part) if torch.is_tensor(part) else repr(part).encode())
        +        digest.update(repr(part).encode())
    """),
    WrongAnswer(
        "as_float32", "rounds every number to float32 first",
        check="every_difference_is_seen", says="the last bit of a weight without dimensions", look="every bit", edit="""
        -    return tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes()
        +    return tensor.detach().float().contiguous().view(-1).view(torch.uint8).numpy().tobytes()
    """),
    WrongAnswer(
        "parameters_only", "looks at the parameters, as the wrapper does when it is made",
        check="every_difference_is_seen", says="a buffer that is called running_mean, on rank", look="buffers", edit="""
        -            parts += module.buffers(recurse=False)
        +            pass
    """),
    WrongAnswer(
        "state_dict", "takes what a checkpoint would hold",
        check="every_difference_is_seen", says="a buffer that is not in the state_dict",
        look="also those outside the state_dict", edit="""
        -    parts = [*model.parameters()]
        -    for module in model.modules():
        -        if not isinstance(module, torch.nn.modules.batchnorm._BatchNorm):
        -            parts += module.buffers(recurse=False)
        +    parts = [value for name, value in model.state_dict().items() if "norm.running" not in name]
    """),
    WrongAnswer(
        "trained_only", "leaves out what is frozen",
        check="every_difference_is_seen", says="the last bit of a frozen weight", look="frozen", edit="""
        -    parts = [*model.parameters()]
        +    parts = [p for p in model.parameters() if p.requires_grad]
    """),
    WrongAnswer(
        "order_does_not_matter", "hashes tensor by tensor and sorts, so that two layers may change places",
        check="every_difference_is_seen", says="two layers that changed places", look="which number stands where",
        edit="""
        -    for part in parts:
        -        digest.update(bits(part) if torch.is_tensor(part) else repr(part).encode())
        +    for part in sorted(bits(part) if torch.is_tensor(part) else repr(part).encode() for part in parts):
        +        digest.update(part)
    """),
    WrongAnswer(
        "adds_up_the_bits", "adds up the bytes, in which nothing has a place",
        check="every_difference_is_seen", says="two weights that changed places", look="which number stands where",
        edit="""
        -        digest.update(bits(part) if torch.is_tensor(part) else repr(part).encode())
        +        digest.update(str(sum(bits(part)) if torch.is_tensor(part) else part).encode())
    """),
    WrongAnswer(
        "without_the_optimizer", "leaves out the optimizer's state",
        check="every_difference_is_seen", says="the last bit of the momentum", look="the optimizer's state", edit="""
        -            parts += optimizer.state.get(parameter, {}).values()
        +            pass
    """),
    WrongAnswer(
        "without_the_settings", "leaves out the learning rate",
        check="every_difference_is_seen", says="the learning rate of the second group", look="every param_group",
        edit="""
        -        parts += [part for setting in group.items() if setting[0] != "params" for part in setting]
    """),
    WrongAnswer(
        "first_group_only", "looks into the first group of the optimizer alone",
        check="every_difference_is_seen", says="the learning rate of the second group", look="every param_group",
        edit="""
        -    for group in optimizer.param_groups:
        +    for group in optimizer.param_groups[:1]:
    """),
    WrongAnswer(
        "believes_rank_0", "compares with rank 0",
        check="the_odd_ranks_are_named", says="returned [1, 2, 3] on rank 0, not [0]", look="rank 0 may be the odd one",
        edit="""
        -    [(most, count)] = Counter(digests).most_common(1)
        -    if 2 * count <= len(digests):
        -        return list(range(len(digests)))
        +    most = digests[0]
    """),
    WrongAnswer(
        "most_common_is_enough", "lets the larger or the first group decide",
        check="the_odd_ranks_are_named", says="returned [1, 2] on rank 0, not [0, 1, 2, 3]", look="without such a majority, all",
        edit="""
        -    if 2 * count <= len(digests):
        -        return list(range(len(digests)))
    """),
    WrongAnswer(
        "tells_rank_0", "gathers on rank 0, and the others report that all is well",
        check="the_odd_ranks_are_named", says="returned [] on rank 1, not", look="every rank has to know", edit="""
        -    digests = [None] * dist.get_world_size()
        -    dist.all_gather_object(digests, fingerprint(model, optimizer))
        +    digests = [None] * dist.get_world_size() if dist.get_rank() == 0 else None
        +    dist.gather_object(fingerprint(model, optimizer), digests)
        +    if digests is None:
        +        return []
    """),
    WrongAnswer(
        "sends_it_all", "sends the state, and compares it at the other end",
        check="little_is_sent", says="bytes in all", look="a fingerprint has a fixed size", edit="""
        -    return digest.digest()
        +    return b"".join(bits(part) if torch.is_tensor(part) else repr(part).encode() for part in parts)
    """),
    WrongAnswer(
        "tensor_by_tensor", "one message for each tensor",
        check="little_is_sent", says="operations with", edit="""
        -    digests = [None] * dist.get_world_size()
        -    dist.all_gather_object(digests, fingerprint(model, optimizer))
        +    digests = [None] * dist.get_world_size()
        +    dist.all_gather_object(digests, fingerprint(model, optimizer))
        +    for parameter in model.parameters():
        +        lowest = torch.tensor(sum(bits(parameter)))
        +        dist.all_reduce(lowest, op=dist.ReduceOp.MIN)
    """),
    WrongAnswer(
        "random_projection", "seeds the global generator for a projection",
        check="nothing_is_touched", says="changed the random state", look="has to go on as one that is not", edit="""
             digest = hashlib.sha256()
        +    torch.manual_seed(0)
    """),
    WrongAnswer(
        "resets_the_gradients", "sets the gradients to zero, so that nothing of them is compared",
        check="nothing_is_touched", says="changed a gradient", edit="""
             digest = hashlib.sha256()
        +    optimizer.zero_grad()
    """),
    WrongAnswer(
        "evaluation_mode", "switches to eval() for the look, and not back",
        check="nothing_is_touched", says="changed the mode of a module", edit="""
             digest = hashlib.sha256()
        +    model.eval()
    """),
    WrongAnswer(
        "buffers_by_their_name", "leaves out every buffer that has a name of BatchNorm's",
        check="every_difference_is_seen", says="a buffer that is called running_mean, on rank", look="whose they are",
        edit="""
        -    for module in model.modules():
        -        if not isinstance(module, torch.nn.modules.batchnorm._BatchNorm):
        -            parts += module.buffers(recurse=False)
        +    for name, buffer in model.named_buffers():
        +        if not name.endswith(("running_mean", "running_var", "num_batches_tracked")):
        +            parts.append(buffer)
    """),
    WrongAnswer(
        "tensors_of_the_state", "compares the tensors of the optimizer's state alone",
        check="every_difference_is_seen", says="the count of updates that is no tensor", look="what is no tensor in it",
        edit="""
        -            parts += optimizer.state.get(parameter, {}).values()
        +            parts += filter(torch.is_tensor, optimizer.state.get(parameter, {}).values())
    """),
    WrongAnswer(
        "prints_the_settings", "hashes what a print shows of the settings, four digits of a tensor",
        check="every_difference_is_seen", says="the last bit of a learning rate that is a tensor",
        look="show four digits", edit="""
        -        parts += [part for setting in group.items() if setting[0] != "params" for part in setting]
        +        parts += [setting for setting in group.items() if setting[0] != "params"]
    """),
    WrongAnswer(
        "a_majority_for_each_part", "lets parameters and optimizer vote one after the other",
        check="the_odd_ranks_are_named", look="without such a majority, all",
        says="the momentum on another, on ranks 1 and 2): odd_ranks returned [1, 2] on rank 0, not [0, 1, 2]", edit="""
        +    model_alone = torch.optim.SGD(model.parameters(), lr=0)
        +    return sorted({*odd(model, model_alone), *odd(torch.nn.Identity(), optimizer)})
        +
        +
        +def odd(model, optimizer):
             digests = [None] * dist.get_world_size()
    """),
    WrongAnswer(
        "makes_entries", "asks the optimizer for the state of parameters that have none, which gives them one",
        check="nothing_is_touched", says="changed the optimizer's state", look="has to go on as one that is not", edit="""
        -            parts += optimizer.state.get(parameter, {}).values()
        +            parts += optimizer.state[parameter].values()
    """),
    WrongAnswer(
        "train_behind_eval", "switches to eval() for the look, and back to train() in every module",
        check="nothing_is_touched", says="changed the mode of a module", edit="""
             digest = hashlib.sha256()
        +    was = model.training
        +    model.eval()
        +    model.train(was)
    """),
    RightAnswer(
        "eight_bytes", "64 bits of a hash in a tensor, and all_gather", edit="""
        -    digests = [None] * dist.get_world_size()
        -    dist.all_gather_object(digests, fingerprint(model, optimizer))
        +    own = torch.tensor([int.from_bytes(fingerprint(model, optimizer)[:8], "little", signed=True)])
        +    gathered = [torch.zeros_like(own) for _ in range(dist.get_world_size())]
        +    dist.all_gather(gathered, own)
        +    digests = [one.item() for one in gathered]
    """),
    RightAnswer(
        "rank_0_counts", "rank 0 counts and broadcasts whom it found", edit="""
        -    digests = [None] * dist.get_world_size()
        -    dist.all_gather_object(digests, fingerprint(model, optimizer))
        -    [(most, count)] = Counter(digests).most_common(1)
        -    if 2 * count <= len(digests):
        -        return list(range(len(digests)))
        -    return [rank for rank, digest in enumerate(digests) if digest != most]
        +    own = torch.frombuffer(bytearray(fingerprint(model, optimizer)), dtype=torch.uint8)
        +    gathered = [torch.zeros_like(own) for _ in range(dist.get_world_size())]
        +    odd = torch.zeros(dist.get_world_size(), dtype=torch.uint8)
        +    dist.gather(own, gathered if dist.get_rank() == 0 else None)
        +    if dist.get_rank() == 0:
        +        digests = [bytes(one.tolist()) for one in gathered]
        +        [(most, count)] = Counter(digests).most_common(1)
        +        for rank, digest in enumerate(digests):
        +            odd[rank] = digest != most or 2 * count <= len(digests)
        +    dist.broadcast(odd, src=0)
        +    return odd.nonzero().flatten().tolist()
    """),
)  # fmt: skip
