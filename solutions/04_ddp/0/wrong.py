"""Wrong and right answers to question 04.0; ddp_course/authoring/answers.py says how to read them."""

from ddp_course.authoring.answers import RightAnswer, WrongAnswer

ANSWERS = (
    WrongAnswer(
        "accepts_every_batch", "splits any global batch, also into unequal shares",
        check="unequal_shares_are_refused", says="rank 0 raised no ValueError, and computed [25] samples per step", edit="""
        -    if batch_size % world_size:
        -        raise ValueError(f"{batch_size} samples cannot be shared equally by {world_size} ranks")
    """),
    WrongAnswer(
        "refuses_on_rank_0", "rank 0 refuses, and the others wait for it",
        check="does not end", says="rank 0 had returned", edit="""
        -    if batch_size % world_size:
        +    if rank == 0 and batch_size % world_size:
    """),
    WrongAnswer(
        "cuts_the_batch", "makes the global batch smaller instead of refusing it",
        check="unequal_shares_are_refused", says="computed [24] samples per step", edit="""
        -    if batch_size % world_size:
        -        raise ValueError(f"{batch_size} samples cannot be shared equally by {world_size} ranks")
        +    batch_size -= batch_size % world_size
    """),
    WrongAnswer(
        "every_rank_reads_everything", "computes the whole global batch on every rank",
        check="each_rank_computes_its_share", says="computed [48] samples per step", edit="""
        -        inputs, targets = (part[rank::world_size].to(device) for part in (inputs, targets))
        +        inputs, targets = inputs.to(device), targets.to(device)
    """),
    WrongAnswer(
        "a_batch_per_rank", "gives every rank a batch of its own instead of a share",
        check="each_rank_computes_its_share", says="its share is 24", edit="""
        -        inputs, targets = (part[rank::world_size].to(device) for part in (inputs, targets))
        +        inputs, targets = global_batch(step * world_size + rank, batch_size)
    """),
    WrongAnswer(
        "not_wrapped", "trains the bare network",
        check="replicas_stay_equal", says="the weights on rank 1 are up to", edit="""
        -    model = DistributedDataParallel(network)
        +    model = network
    """),
    WrongAnswer(
        "averages_at_the_end", "averages the weights once, after the last step",
        check="weights_equal_one_process", says="from those of one process", on="not_wrapped", edit="""
             return network
        +
        @@
        -    return network
        +    for parameter in network.parameters():
        +        dist.all_reduce(parameter.data)
        +        parameter.data /= world_size
        +    return network
    """),
    WrongAnswer(
        "all_take_the_first_share", "every rank takes the share of rank 0",
        check="weights_equal_one_process", says="from those of one process", edit="""
        -        inputs, targets = (part[rank::world_size].to(device) for part in (inputs, targets))
        +        inputs, targets = (part[: len(part) // world_size].to(device) for part in (inputs, targets))
    """),
    WrongAnswer(
        "local_rank_as_rank", "takes LOCAL_RANK for the rank, which is right on one node only",
        check="one_rank_prints", says="with 3 ranks: 2 of them printed", look="blanks 1 and 6", edit="""
        -    rank, world_size, local_rank = (int(os.environ[name]) for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"))
        +    local_rank, world_size = int(os.environ["LOCAL_RANK"]), int(os.environ["WORLD_SIZE"])
        +    rank = local_rank
    """),
    WrongAnswer(
        "no_rank_prints", "averages the loss and prints nothing",
        check="one_rank_prints", says="with 1 rank: 0 of them printed", edit="""
        -        if rank == 0:
        -            print(f"step {step + 1}  loss {loss.item():.6f}", flush=True)
    """),
    WrongAnswer(
        "prints_its_own_loss", "prints the loss of rank 0's share",
        check="losses_equal_one_process", says="with 2 ranks: step", edit="""
        -        loss = loss.detach() / world_size
        -        dist.all_reduce(loss)
    """),
    WrongAnswer(
        "prints_the_sum", "adds up the ranks' losses and does not divide",
        check="losses_equal_one_process", says="one process prints", edit="""
        -        loss = loss.detach() / world_size
        +        loss = loss.detach()
    """),
    WrongAnswer(
        "collective_on_one_rank", "calls the collective on the rank that prints, and on no other",
        check="does not end", says="rank 0 was in all_reduce", edit="""
        -        loss = loss.detach() / world_size
        -        dist.all_reduce(loss)
        -        if rank == 0:
        +        loss = loss.detach() / world_size
        +        if rank == 0:
        +            dist.all_reduce(loss)
    """),
    WrongAnswer(
        "no_group", "starts no process group",
        state="crashed", check="raises", says="Default process group has not been initialized", edit="""
        -    dist.init_process_group("nccl" if gpu else "gloo", timeout=timedelta(seconds=60), device_id=gpu)
    """),
    RightAnswer(
        "averages_by_hand", "no wrapper: gradients all-reduced after each backward; contiguous shares; the last rank prints",
        edit="""
        -    model = DistributedDataParallel(network)
        +    model = network
        @@
        -        inputs, targets = (part[rank::world_size].to(device) for part in (inputs, targets))
        +        inputs, targets = (part.to(device).chunk(world_size)[rank] for part in (inputs, targets))
        @@
                 loss.backward()
        +        for parameter in network.parameters():
        +            dist.all_reduce(parameter.grad)
        +            parameter.grad /= world_size
        @@
        -        if rank == 0:
        +        if rank == world_size - 1:
    """),
    RightAnswer(
        "trusts_the_broadcast", "seeds every rank differently: construction broadcasts rank 0's weights; asks the group for the rank",
        edit="""
        -    torch.manual_seed(0)
        +    torch.manual_seed(rank)
        @@
        -    rank, world_size, local_rank = (int(os.environ[name]) for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"))
        +    local_rank = int(os.environ["LOCAL_RANK"])
        @@
        -    dist.init_process_group("nccl" if gpu else "gloo", timeout=timedelta(seconds=60), device_id=gpu)
        +    dist.init_process_group("nccl" if gpu else "gloo", timeout=timedelta(seconds=60), device_id=gpu)
        +    rank, world_size = dist.get_rank(), dist.get_world_size()
    """),
)
