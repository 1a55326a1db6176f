"""Wrong and right answers to question 12.2; ddp_course/authoring/answers.py says how to read them."""

from ddp_course.authoring.answers import RightAnswer, WrongAnswer

ANSWERS = (
    WrongAnswer(
        "pythons_hash", "uses hash(), which differs from process to process",
        check="equal_replicas_pass", says="not []", look="from process to process", edit="""
        -    return digest.digest()
        +    return hash(b"".join(bits(part) if torch.is_tensor(part) else repr(part).encode() for part in parts))
    """),
    WrongAnswer(
        "batch_norm_too", "compares all buffers, and raises the alarm in every run with a BatchNorm",
        check="equal_replicas_pass", says="running statistics of a BatchNorm", look="the buffers of BatchNorm", edit="""
        -        if not isinstance(module, torch.nn.modules.batchnorm._BatchNorm):
        -            parts += module.buffers(recurse=False)
        +        parts += module.buffers(recurse=False)
    """),
    WrongAnswer(
        "numbers_alone", "compares no setting of a group but numbers, and so not the betas of Adam, which are a tuple",
        check="every_difference_is_found", says="the betas of the second group, on rank 1", look="also a tuple",
        edit="""
        -        parts += [part for setting in group.items() if setting[0] != "params" for part in setting]
        +        parts += [setting for setting in group.values() if isinstance(setting, (int, float, torch.Tensor))]
    """),
    WrongAnswer(
        "as_float64", "converts every number to float64, which rounds large integers",
        check="every_difference_is_found", says="the last bit of a large integer", look="above 2**53", edit="""
        -    return tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes()
        +    return tensor.detach().cpu().double().contiguous().view(-1).view(torch.uint8).numpy().tobytes()
    """),
    WrongAnswer(
        "most_common_is_enough", "lets the larger or the first group decide",
        check="the_odd_ranks_are_named", says="returned [1, 2] on rank 0, not [0, 1, 2, 3]", look="without such a majority, all",
        edit="""
        -    if 2 * count <= len(digests):
        -        return list(range(len(digests)))
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
        check="nothing_is_touched", says="changed the random state", look="has to continue as one that is not", edit="""
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
    RightAnswer(
        "eight_bytes", "64 bits of a hash in a tensor, and all_gather", edit="""
        -    digests = [None] * dist.get_world_size()
        -    dist.all_gather_object(digests, fingerprint(model, optimizer))
        +    own = torch.tensor([int.from_bytes(fingerprint(model, optimizer)[:8], "little", signed=True)])
        +    gathered = [torch.zeros_like(own) for _ in range(dist.get_world_size())]
        +    dist.all_gather(gathered, own)
        +    digests = [digest.item() for digest in gathered]
    """),
    RightAnswer(
        "rank_0_counts", "rank 0 finds the odd ranks and broadcasts them", edit="""
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
        +        digests = [bytes(digest.tolist()) for digest in gathered]
        +        [(most, count)] = Counter(digests).most_common(1)
        +        for rank, digest in enumerate(digests):
        +            odd[rank] = digest != most or 2 * count <= len(digests)
        +    dist.broadcast(odd, src=0)
        +    return odd.nonzero().flatten().tolist()
    """),
)
