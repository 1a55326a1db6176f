"""Wrong and right answers to question 04.3; ddp_course/authoring/answers.py says how to read them."""

from ddp_course.authoring.answers import RightAnswer, WrongAnswer

ANSWERS = (
    WrongAnswer(
        "bits_through_numpy", "reads the bits from a NumPy array, which cannot hold bfloat16",
        check="equal_replicas_pass", says="(all equal, in bfloat16): assert_replicas_equal raised on rank 0: TypeError",
        look="for some dtypes only", edit="""
        -        bits = parameter.detach().flatten().view(torch.uint8)  # as floats, -0.0 would equal 0.0
        +        bits = torch.from_numpy(parameter.detach().numpy().reshape(-1).view("uint8"))
    """),
    WrongAnswer(
        "nan_is_a_difference", "compares floats and signs: a NaN that all ranks hold is unequal to itself",
        check="equal_replicas_pass", says="(all equal, head.weight a NaN on every rank): assert_replicas_equal raised",
        look="a NaN is unequal to itself", edit="""
        -        bits = parameter.detach().flatten().view(torch.uint8)  # as floats, -0.0 would equal 0.0
        -        of_rank_0 = bits.clone()
        +        of_rank_0 = parameter.detach().clone()
                 dist.broadcast(of_rank_0, src=0)
        -        equal = torch.tensor([torch.equal(bits, of_rank_0)])
        +        alike = (parameter == of_rank_0) & (parameter.signbit() == of_rank_0.signbit())
        +        equal = torch.tensor([bool(alike.all())])
    """),
    WrongAnswer(
        "names_itself", "every rank names itself, whoever differs",
        check="the_first_difference_is_named", says="it should name head.weight and rank 1", edit="""
        -        for rank, is_equal in enumerate(gathered):
        -            assert is_equal, f"replicas differ: {name} on rank {rank} is not that of rank 0"
        +        for is_equal in gathered:
        +            assert is_equal, f"replicas differ: {name} differs, says rank {dist.get_rank()}"
    """),
    WrongAnswer(
        "no_names", "says only that something differs",
        check="the_first_difference_is_named", says="AssertionError: 'the replicas are not equal'", edit="""
        -    for name, parameter in model.named_parameters():
        +    for parameter in model.parameters():
        @@
        -        for rank, is_equal in enumerate(gathered):
        -            assert is_equal, f"replicas differ: {name} on rank {rank} is not that of rank 0"
        +        for is_equal in gathered:
        +            assert is_equal, "the replicas are not equal"
    """),
    WrongAnswer(
        "only_the_odd_rank_raises", "each rank compares with rank 0 and raises alone",
        check="different_replicas_raise_everywhere", says="raised on 1 of them, not on rank 0", edit="""
        +    different = []
             for name, parameter in model.named_parameters():
        -        bits = parameter.detach().flatten().view(torch.uint8)  # as floats, -0.0 would equal 0.0
        -        of_rank_0 = bits.clone()
        +        of_rank_0 = parameter.detach().clone()
                 dist.broadcast(of_rank_0, src=0)
        -        equal = torch.tensor([torch.equal(bits, of_rank_0)])
        -        gathered = [torch.empty_like(equal) for _ in range(dist.get_world_size())]
        -        dist.all_gather(gathered, equal)  # so that all ranks raise together
        -        for rank, is_equal in enumerate(gathered):
        -            assert is_equal, f"replicas differ: {name} on rank {rank} is not that of rank 0"
        +        if not torch.allclose(parameter, of_rank_0, rtol=0, atol=0, equal_nan=True):
        +            different.append(name)
        +    if different:
        +        raise AssertionError(f"replicas differ: {different[0]} on rank {dist.get_rank()} is not rank 0's")
    """),
    WrongAnswer(
        "returns_the_last_loss", "train returns the last loss alone",
        check="equals_one_process",
        says="on rank 0; before each step the loss of this rank's batch was [", edit="""
        -    return losses
        +    return losses[-1]
    """),
    WrongAnswer(
        "sums_gradients", "adds the gradients by hand and does not divide",
        check="equals_one_process", says="after your train head.weight is", on="unrepaired", edit="""
                 loss.backward()
        +        for parameter in model.head.parameters():
        +            dist.all_reduce(parameter.grad)
    """),
    WrongAnswer(
        "trainable_only", "does not look at frozen parameters",
        check="different_replicas_raise_everywhere",
        says="the frozen backbone.weight on rank 1; with 3 ranks assert_replicas_equal raised on no rank", edit="""
        -    for name, parameter in model.named_parameters():
        +    for name, parameter in model.head.named_parameters("head"):
    """),
    WrongAnswer(
        "unrepaired", "has the detector, and trains as before",
        check="replicas_stay_equal", says="after your train head.weight on rank 1 is not rank 0's", edit="""
        -    wrapped = nn.parallel.DistributedDataParallel(model)
        @@
        -        loss = nn.functional.mse_loss(wrapped(inputs), targets)
        +        loss = nn.functional.mse_loss(model(inputs), targets)
    """),
    WrongAnswer(
        "wraps_and_calls_the_bare_model", "builds the wrapper and calls the model without it",
        check="replicas_stay_equal", says="after your train head.weight on rank 1 is not rank 0's", edit="""
        -        loss = nn.functional.mse_loss(wrapped(inputs), targets)
        +        loss = nn.functional.mse_loss(wrapped.module(inputs), targets)
    """),
    WrongAnswer(
        "wraps_the_backbone", "wraps the frozen backbone",
        state="crashed", check="raises",
        says="DistributedDataParallel is not needed when a module doesn't have any parameter that requires a gradient",
        edit="""
        -    wrapped = nn.parallel.DistributedDataParallel(model)
        +    model.backbone = nn.parallel.DistributedDataParallel(model.backbone)
        @@
        -        loss = nn.functional.mse_loss(wrapped(inputs), targets)
        +        loss = nn.functional.mse_loss(model(inputs), targets)
    """),
    WrongAnswer(
        "repairs_what_it_finds", "broadcasts rank 0's parameters into the model itself: it raises, and has made them equal",
        check="looking_changes_nothing", says="assert_replicas_equal has changed", look="or copies", edit="""
        -        of_rank_0 = bits.clone()
        -        dist.broadcast(of_rank_0, src=0)
        -        equal = torch.tensor([torch.equal(bits, of_rank_0)])
        +        own_bits = bits.clone()
        +        dist.broadcast(bits, src=0)
        +        equal = torch.tensor([torch.equal(bits, own_bits)])
    """),
    RightAnswer(
        "gathers_hashes_and_averages_by_hand",
        "gathers a hash of every tensor; averages the gradients by hand, and no wrapper",
        text="""
        import hashlib

        import torch
        import torch.distributed as dist
        from torch import nn


        class ReplicasDiffer(RuntimeError):
            pass


        def fingerprint(tensor):
            return hashlib.md5(tensor.detach().reshape(-1).view(torch.uint8).numpy()).hexdigest()


        def assert_replicas_equal(model):
            own_hashes = [(name, fingerprint(p)) for name, p in model.named_parameters()]
            gathered = [None] * dist.get_world_size()
            dist.all_gather_object(gathered, own_hashes)
            for column in zip(*gathered, strict=True):
                for rank, entry in enumerate(column):
                    if entry != column[0]:
                        raise ReplicasDiffer(f"Rank {rank} and rank 0 have different values in {entry[0]!r}")


        def train(model, batches):
            assert_replicas_equal(model)
            optimizer = torch.optim.SGD((p for p in model.parameters() if p.requires_grad), lr=0.1)
            losses = []
            for inputs, targets in batches:
                loss = nn.functional.mse_loss(model(inputs), targets)
                (loss / dist.get_world_size()).backward()
                for parameter in model.head.parameters():
                    dist.all_reduce(parameter.grad)
                optimizer.step()
                optimizer.zero_grad()
                losses.append(loss.item())
            assert_replicas_equal(model)
            return losses
    """),
    RightAnswer(
        "lists_all_ranks", "the message lists all ranks that differ; the detector compares bytes",
        edit="""
        -        for rank, is_equal in enumerate(gathered):
        -            assert is_equal, f"replicas differ: {name} on rank {rank} is not that of rank 0"
        +        odd = [rank for rank, is_equal in enumerate(gathered) if not is_equal]
        +        assert not odd, f"{name} on ranks {odd} is not that of rank 0"
    """),
    RightAnswer(
        "wraps_the_head", "wraps the head inside the model; the detector gathers whole tensors",
        text="""
        import torch
        import torch.distributed as dist
        from torch import nn


        def assert_replicas_equal(model):
            for name, parameter in model.named_parameters():
                bits = parameter.detach().flatten().view(torch.uint8)
                copies = [torch.empty_like(bits) for _ in range(dist.get_world_size())]
                dist.all_gather(copies, bits)
                for rank, copy in enumerate(copies):
                    if not torch.equal(copy, copies[0]):
                        raise AssertionError(f"{name}: rank {rank} != rank 0")


        def train(model, batches):
            model.head = nn.parallel.DistributedDataParallel(model.head)
            optimizer = torch.optim.SGD(model.head.parameters(), lr=0.1)
            losses = []
            for inputs, targets in batches:
                loss = nn.functional.mse_loss(model(inputs), targets)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                losses.append(loss.item())
            return losses
    """),
)
