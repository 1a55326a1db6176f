"""Wrong and right answers to question 17.1; ddp_course/authoring/answers.py says how to read them."""

from ddp_course.authoring.answers import RightAnswer, WrongAnswer

ANSWERS = (
    WrongAnswer(
        "a_whole_optimizer", "averages the gradients as DDP does, and keeps the whole optimizer on every rank",
        check="each_rank_holds_its_share", says="the optimizer of rank 0 got 78 of 78 elements; its share is 39",
        look="this rank's part", text='''
        import torch
        import torch.distributed as dist


        class ShardedOptimizer:
            def __init__(self, parameters, make_optimizer):
                self.parameters, self.optimizer = parameters, make_optimizer(parameters)

            def step(self, max_norm=None):
                for parameter in self.parameters:
                    dist.all_reduce(parameter.grad, op=dist.ReduceOp.AVG)
                norm = torch.nn.utils.clip_grad_norm_(self.parameters, max_norm or float("inf"))
                self.optimizer.step()
                return norm.item()
    '''),
    WrongAnswer(
        "whole_parameters", "deals out whole parameters, one after the other, of whatever size",
        check="each_rank_holds_its_share", says="got 70 of 78 elements", look="this rank's part", text='''
        import torch
        import torch.distributed as dist


        class ShardedOptimizer:
            def __init__(self, parameters, make_optimizer):
                self.parameters = parameters
                self.optimizer = make_optimizer(parameters[dist.get_rank() :: dist.get_world_size()])

            def step(self, max_norm=None):
                for parameter in self.parameters:
                    dist.all_reduce(parameter.grad, op=dist.ReduceOp.AVG)
                norm = torch.nn.utils.clip_grad_norm_(self.parameters, max_norm or float("inf"))
                self.optimizer.step()
                for number, parameter in enumerate(self.parameters):
                    dist.broadcast(parameter.data, src=number % dist.get_world_size())
                return norm.item()
    '''),
    WrongAnswer(
        "norm_of_its_part", "clips by the norm of the part that the rank holds",
        check="the_norm_is_that_of_the_whole_gradient", says="step 0 returned the norm", look="added over the ranks",
        edit="""
        -        dist.all_reduce(squares)
    """),
    WrongAnswer(
        "norm_after_clipping", "returns the norm that is left after clipping",
        check="the_norm_is_that_of_the_whole_gradient", says="SGD, clipped in some steps): step 0 returned the norm 2 ",
        look="before clipping", edit="""
        -        return norm.item()
        +        return min(norm.item(), max_norm or float("inf"))
    """),
    WrongAnswer(
        "clips_upwards", "scales every gradient to the largest norm, also a smaller one",
        check="the_weights_are_those_of_one_process", says="clipped in some steps", look="never larger", edit="""
        -        if max_norm is not None and norm > max_norm:
        +        if max_norm is not None:
    """),
    WrongAnswer(
        "another_part", "gives the optimizer the part of the next rank",
        check="the_weights_are_those_of_one_process", says="after step 0 parameter 0", look="this rank's part", edit="""
        -        self.shard = torch.nn.Parameter(self.flat(p.detach() for p in parameters).chunk(world)[rank].clone())
        +        self.shard = torch.nn.Parameter(self.flat(p.detach() for p in parameters).chunk(world)[rank - 1].clone())
    """),
    WrongAnswer(
        "gathers_all_gradients", "gathers the whole gradients of all ranks and averages them itself",
        check="little_is_sent", says="bytes to all_gather in", look="a reduce-scatter or an all-reduce", edit="""
        -        reduce_scatter_single(gradient, whole, op=dist.ReduceOp.AVG)
        +        everyones = [torch.empty_like(whole) for _ in range(dist.get_world_size())]
        +        dist.all_gather(everyones, whole)
        +        gradient = (sum(everyones) / len(everyones)).chunk(len(everyones))[dist.get_rank()].clone()
    """),
    WrongAnswer(
        "reduces_twice", "all-reduces the gradient for its norm, and scatters it after that",
        check="little_is_sent", says="handed", look="an average is a reduce-scatter or an all-reduce", edit="""
        -        squares = gradient.square().sum()
        -        dist.all_reduce(squares)
        -        norm = squares.sqrt()
        +        dist.all_reduce(total, op=dist.ReduceOp.AVG)
        +        norm = total.norm()
        @@
        -        reduce_scatter_single(gradient, whole, op=dist.ReduceOp.AVG)
        +        total = whole.clone()
        +        reduce_scatter_single(gradient, whole, op=dist.ReduceOp.AVG)
    """),
    RightAnswer(
        "all_reduce_and_slice", "ZeRO-1: an all-reduce, of which the rank takes its part", edit="""
        -        reduce_scatter_single(gradient, whole, op=dist.ReduceOp.AVG)
        -        squares = gradient.square().sum()
        -        dist.all_reduce(squares)
        -        norm = squares.sqrt()
        +        dist.all_reduce(whole)
        +        whole /= dist.get_world_size()
        +        norm = whole.norm()
        +        gradient = whole.chunk(dist.get_world_size())[dist.get_rank()].clone()
    """),
    RightAnswer(
        "cut_one_by_one", "cuts every parameter by itself, clips with torch's formula", text='''
        import torch
        import torch.distributed as dist
        import torch.nn.functional as F

        from ddp_course.distributed.torch_versions import all_gather_single, reduce_scatter_single


        class ShardedOptimizer:
            def __init__(self, parameters, make_optimizer):
                self.parameters = parameters
                self.shards = [torch.nn.Parameter(self.padded(p.detach()).chunk(self.world)[self.rank].clone())
                               for p in parameters]
                self.optimizer = make_optimizer(self.shards)

            rank = property(lambda self: dist.get_rank())
            world = property(lambda self: dist.get_world_size())

            def padded(self, tensor):
                return F.pad(tensor.flatten(), (0, -tensor.numel() % self.world))

            def step(self, max_norm=None):
                for parameter, shard in zip(self.parameters, self.shards):
                    shard.grad = torch.empty_like(shard)
                    reduce_scatter_single(shard.grad, self.padded(parameter.grad) / self.world)
                squares = sum(shard.grad.square().sum() for shard in self.shards)
                dist.all_reduce(squares)
                norm = squares.sqrt()
                if max_norm is not None:
                    for shard in self.shards:
                        shard.grad *= torch.clamp(max_norm / (norm + 1e-6), max=1.0)
                self.optimizer.step()
                for parameter, shard in zip(self.parameters, self.shards):
                    whole = self.padded(parameter.detach())
                    all_gather_single(whole, shard.detach())
                    parameter.data = whole[: parameter.numel()].view_as(parameter)
                return norm
    '''),
)
