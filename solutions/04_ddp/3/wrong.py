"""Wrong and right answers to question 04.3; ddp_course/authoring/answers.py says how to read them."""

from ddp_course.authoring.answers import RightAnswer, WrongAnswer

ANSWERS = (
    WrongAnswer(
        "always_raises", "compares with another model, and all replicas differ",
        check="equal_replicas_pass", says="assert_replicas_equal raised on rank", edit="""
        -        bits = parameter.detach().flatten().view(torch.uint8)  # as floats, -0.0 would equal 0.0
        -        of_rank_0 = bits.clone()
        -        dist.broadcast(of_rank_0, src=0)
        -        equal = torch.tensor([torch.equal(bits, of_rank_0)])
        +        of_rank_0 = parameter.detach().clone()
        +        dist.all_reduce(of_rank_0)
        +        equal = torch.tensor([torch.equal(parameter, of_rank_0)])
    """),
    WrongAnswer(
        "averages_too_late", "averages gradients after the step that uses them",
        check="replicas_stay_equal", says="after your train head.weight on rank 1 is not rank 0's",
        on="unrepaired", edit="""
                 optimizer.step()
        +        for parameter in model.head.parameters():
        +            dist.all_reduce(parameter.grad)
        +            parameter.grad /= dist.get_world_size()
    """),
    WrongAnswer(
        "compares_floats", "compares floats: 0.0 equals -0.0, whose bits differ",
        check="different_replicas_raise_everywhere",
        says="head.bias is 0.0 on ranks 0 and 2, -0.0 on rank 1; with 3 ranks assert_replicas_equal raised on no rank",
        edit="""
        -        bits = parameter.detach().flatten().view(torch.uint8)  # as floats, -0.0 would equal 0.0
        -        of_rank_0 = bits.clone()
        +        of_rank_0 = parameter.detach().clone()
                 dist.broadcast(of_rank_0, src=0)
        -        equal = torch.tensor([torch.equal(bits, of_rank_0)])
        +        equal = torch.tensor([torch.allclose(parameter, of_rank_0, rtol=0, atol=0, equal_nan=True)])
        @@
        -    wrapped = nn.parallel.DistributedDataParallel(model)
        @@
        -        loss = nn.functional.mse_loss(wrapped(inputs), targets)
        +        loss = nn.functional.mse_loss(model(inputs), targets)
        @@
                 optimizer.step()
        +        for parameter in model.head.parameters():
        +            dist.all_reduce(parameter.data)
        +            parameter.data /= dist.get_world_size()
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
        "compares_with_the_mean", "compares rank 0's tensor with the mean of all",
        check="different_replicas_raise_everywhere",
        says="rank 1 above, rank 2 as far below; with 3 ranks assert_replicas_equal raised on no rank", edit="""
        -        bits = parameter.detach().flatten().view(torch.uint8)  # as floats, -0.0 would equal 0.0
        -        of_rank_0 = bits.clone()
        +        mean = parameter.detach().clone()
        +        dist.all_reduce(mean)
        +        mean /= dist.get_world_size()
        +        of_rank_0 = parameter.detach().clone()
                 dist.broadcast(of_rank_0, src=0)
        -        equal = torch.tensor([torch.equal(bits, of_rank_0)])
        -        everyones = [torch.empty_like(equal) for _ in range(dist.get_world_size())]
        -        dist.all_gather(everyones, equal)  # all ranks learn what one has found, and raise together
        -        for rank, one in enumerate(everyones):
        -            assert one, f"replicas differ: {name} on rank {rank} is not that of rank 0"
        +        if (mean.nan_to_num(1e9) - of_rank_0.nan_to_num(1e9)).abs().max() > 1e-14:
        +            odd = torch.tensor(not torch.equal(parameter, of_rank_0))
        +            everyones = [torch.empty_like(odd) for _ in range(dist.get_world_size())]
        +            dist.all_gather(everyones, odd)
        +            rank = [bool(one) for one in everyones].index(True)
        +            raise AssertionError(f"replicas differ: {name} on rank {rank} is not that of rank 0")
    """),
    WrongAnswer(
        "forgets_the_bias", "averages the gradient of the weight and not of the bias",
        check="replicas_stay_equal", says="after your train head.bias on rank 1 is not rank 0's",
        on="unrepaired", edit="""
                 loss.backward()
        +        dist.all_reduce(model.head.weight.grad)
        +        model.head.weight.grad /= dist.get_world_size()
    """),
    WrongAnswer(
        "gap_with_a_tolerance", "allows a gap of 1e-6",
        check="different_replicas_raise_everywhere",
        says="one element of head.bias, by 1e-12, on the last rank; with 2 ranks assert_replicas_equal raised on no rank",
        edit="""
        -        bits = parameter.detach().flatten().view(torch.uint8)  # as floats, -0.0 would equal 0.0
        -        of_rank_0 = bits.clone()
        +        of_rank_0 = parameter.detach().clone()
                 dist.broadcast(of_rank_0, src=0)
        -        equal = torch.tensor([torch.equal(bits, of_rank_0)])
        +        equal = torch.tensor([torch.allclose(parameter, of_rank_0, rtol=0, atol=1e-6, equal_nan=True)])
    """),
    WrongAnswer(
        "largest_gap_and_nan", "raises if the gap is larger than zero, and a NaN is not",
        check="different_replicas_raise_everywhere",
        says="head.weight is NaN on the last rank; with 2 ranks assert_replicas_equal raised on no rank", edit="""
        -        bits = parameter.detach().flatten().view(torch.uint8)  # as floats, -0.0 would equal 0.0
        -        of_rank_0 = bits.clone()
        +        of_rank_0 = parameter.detach().clone()
                 dist.broadcast(of_rank_0, src=0)
        -        equal = torch.tensor([torch.equal(bits, of_rank_0)])
        +        equal = torch.tensor([not (parameter - of_rank_0).abs().max() > 0])
    """),
    WrongAnswer(
        "last_difference", "goes on to the last difference",
        check="the_first_difference_is_named", says="it should name head.weight and rank 1", edit='''
             """Raise AssertionError on every rank, naming the first parameter and rank that differ from rank 0's, if any do."""
        +    found = None
        @@
        -            assert one, f"replicas differ: {name} on rank {rank} is not that of rank 0"
        +            if not one:
        +                found = f"replicas differ: {name} on rank {rank} is not that of rank 0"
        +    assert found is None, found
    '''),
    WrongAnswer(
        "loss_after_each_update", "train returns the loss after each update",
        check="equals_one_process", says="before each update the loss of this rank's batch was [", edit="""
        -        losses.append(loss.item())
        +        with torch.no_grad():
        +            losses.append(nn.functional.mse_loss(model(inputs), targets).item())
    """),
    WrongAnswer(
        "names_itself", "every rank names itself, whoever differs",
        check="the_first_difference_is_named", says="it should name head.weight and rank 1", edit="""
        -        for rank, one in enumerate(everyones):
        -            assert one, f"replicas differ: {name} on rank {rank} is not that of rank 0"
        +        for one in everyones:
        +            assert one, f"replicas differ: {name} differs, says rank {dist.get_rank()}"
    """),
    WrongAnswer(
        "no_names", "says only that something differs",
        check="the_first_difference_is_named", says="AssertionError: 'the replicas are not equal'", edit="""
        -    for name, parameter in model.named_parameters():
        +    for parameter in model.parameters():
        @@
        -        for rank, one in enumerate(everyones):
        -            assert one, f"replicas differ: {name} on rank {rank} is not that of rank 0"
        +        for one in everyones:
        +            assert one, "the replicas are not equal"
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
        -        everyones = [torch.empty_like(equal) for _ in range(dist.get_world_size())]
        -        dist.all_gather(everyones, equal)  # all ranks learn what one has found, and raise together
        -        for rank, one in enumerate(everyones):
        -            assert one, f"replicas differ: {name} on rank {rank} is not that of rank 0"
        +        if not torch.allclose(parameter, of_rank_0, rtol=0, atol=0, equal_nan=True):
        +            different.append(name)
        +    if different:
        +        raise AssertionError(f"replicas differ: {different[0]} on rank {dist.get_rank()} is not rank 0's")
    """),
    WrongAnswer(
        "rank_0_for_all", "copies rank 0's weights to all after each update: the others' samples are lost",
        check="equals_one_process", says="after your train head.weight is", on="unrepaired", edit="""
                 optimizer.step()
        +        for parameter in model.parameters():
        +            dist.broadcast(parameter.data, src=0)
    """),
    WrongAnswer(
        "returns_the_last_loss", "train returns the last loss alone",
        check="equals_one_process",
        says="on rank 0; before each update the loss of this rank's batch was [", edit="""
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
        "sums_of_tensors", "compares sums",
        check="different_replicas_raise_everywhere",
        says="two elements of head.weight swapped on rank 1; with 3 ranks assert_replicas_equal raised on no rank",
        edit="""
        +import math
        +
         import torch
        @@
        -        bits = parameter.detach().flatten().view(torch.uint8)  # as floats, -0.0 would equal 0.0
        -        of_rank_0 = bits.clone()
        +        of_rank_0 = parameter.detach().clone()
                 dist.broadcast(of_rank_0, src=0)
        -        equal = torch.tensor([torch.equal(bits, of_rank_0)])
        +        sums = parameter.nan_to_num(1e9).sum(), of_rank_0.nan_to_num(1e9).sum()
        +        equal = torch.tensor([math.isclose(*sums, rel_tol=0, abs_tol=1e-14)])
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
        "weights_averaged_at_the_end", "averages the weights once, when all is over",
        check="equals_one_process", says="(6 updates): after your train head.weight is", on="unrepaired", edit="""
                 losses.append(loss.item())
        +    for parameter in model.head.parameters():
        +        dist.all_reduce(parameter.data)
        +        parameter.data /= dist.get_world_size()
    """),
    WrongAnswer(
        "wraps_and_calls_the_bare_model", "builds the wrapper and calls the model without it",
        check="replicas_stay_equal", says="after your train head.weight on rank 1 is not rank 0's", edit="""
        -        loss = nn.functional.mse_loss(wrapped(inputs), targets)
        +        loss = nn.functional.mse_loss(wrapped.module(inputs), targets)
    """),
    WrongAnswer(
        "wraps_the_backbone", "wraps what is frozen",
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
        "scales_the_learning_rate", "multiplies the learning rate by the number of ranks",
        check="equals_one_process", says="from that of one process on the joint batches", edit="""
        -    optimizer = torch.optim.SGD(model.head.parameters(), lr=0.1)
        +    optimizer = torch.optim.SGD(model.head.parameters(), lr=0.1 * dist.get_world_size())
    """),
    WrongAnswer(
        "names_every_parameter", "the message lists all parameters, with what was found about each",
        check="the_first_difference_is_named", says="also names", text="""
        import torch
        import torch.distributed as dist
        from torch import nn


        def assert_replicas_equal(model) -> None:
            mine = {name: one.detach().numpy().tobytes() for name, one in model.named_parameters()}
            everyones = [None] * dist.get_world_size()
            dist.all_gather_object(everyones, mine)
            found = {
                name: next((f"on rank {r}" for r, one in enumerate(everyones) if one[name] != everyones[0][name]), "equal")
                for name in mine
            }
            assert set(found.values()) == {"equal"}, f"replicas differ: {found}"


        def train(model, batches):
            wrapped = nn.parallel.DistributedDataParallel(model)
            optimizer = torch.optim.SGD(model.head.parameters(), lr=0.1)
            losses = []
            for inputs, targets in batches:
                loss = nn.functional.mse_loss(wrapped(inputs), targets)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                losses.append(loss.item())
            return losses
    """),
    WrongAnswer(
        "repairs_what_it_finds", "broadcasts rank 0's parameters into the model itself: it raises, and has made them equal",
        check="looking_changes_nothing", says="is another than before", look="or copies", edit="""
        -        of_rank_0 = bits.clone()
        -        dist.broadcast(of_rank_0, src=0)
        -        equal = torch.tensor([torch.equal(bits, of_rank_0)])
        +        mine = bits.clone()
        +        dist.broadcast(bits, src=0)
        +        equal = torch.tensor([torch.equal(bits, mine)])
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


        def assert_replicas_equal(model):
            mine = [(name, hashlib.md5(p.detach().numpy().tobytes()).hexdigest()) for name, p in model.named_parameters()]
            everyones = [None] * dist.get_world_size()
            dist.all_gather_object(everyones, mine)
            for column in zip(*everyones, strict=True):
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
        -        for rank, one in enumerate(everyones):
        -            assert one, f"replicas differ: {name} on rank {rank} is not that of rank 0"
        +        odd = [rank for rank, one in enumerate(everyones) if not one]
        +        assert not odd, f"{name} on ranks {odd} is not that of rank 0"
    """),
    RightAnswer(
        "wraps_the_head", "wraps the head alone; the detector gathers whole tensors",
        text="""
        import torch
        import torch.distributed as dist
        from torch import nn


        def assert_replicas_equal(model):
            for name, parameter in model.named_parameters():
                bits = parameter.detach().flatten().view(torch.int64)
                copies = [torch.empty_like(bits) for _ in range(dist.get_world_size())]
                dist.all_gather(copies, bits)
                for rank, copy in enumerate(copies):
                    if not torch.equal(copy, copies[0]):
                        raise AssertionError(f"{name}: rank {rank} != rank 0")


        def train(model, batches):
            head = nn.parallel.DistributedDataParallel(model.head)
            optimizer = torch.optim.SGD(head.parameters(), lr=0.1)
            losses = []
            for inputs, targets in batches:
                with torch.no_grad():
                    hidden = torch.tanh(model.backbone(inputs))
                loss = nn.functional.mse_loss(head(hidden), targets)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                losses.append(loss.item())
            return losses
    """),
)
