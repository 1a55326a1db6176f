"""Wrong and right answers to question 17.4; ddp_course/authoring/answers.py says how to read them."""

from ddp_course.authoring.answers import RightAnswer, WrongAnswer

ANSWERS = (
    WrongAnswer("ddp_inside", "wraps the blocks in torch's DDP", check="started_by_hand",
                says="to all_reduce, called by no line of your file", look="no wrapper's", text='''
        from torch import nn
        class FullySharded(nn.parallel.DistributedDataParallel):
            def __init__(self, blocks, make_optimizer):
                super().__init__(nn.Sequential(*blocks))
                self.optimizer = make_optimizer([p for p in self.parameters() if p.requires_grad])
            def step(self):
                self.optimizer.step()
                self.optimizer.zero_grad()
    '''),
    WrongAnswer("a_frozen_block_stays", "releases a block when its gradient is reduced, which a frozen one's never is",
                check="one_block_is_whole_at_a_time", says="in backward of block 0, rank 0 holds", look="has computed", edit="""
                         parameter.grad = None
        -        self.release()
        +            self.release()
    """),
    WrongAnswer("whole_until_backward", "keeps every block from its forward to its backward",
                check="one_block_is_whole_at_a_time", says="in forward of block 2, rank", look="has computed", edit="""
        -            x = End.apply(x, block.release, block.gather)
        +            x = End.apply(x, lambda: None, block.gather)
    """),
    WrongAnswer("the_last_micro_batch", "replaces the gradient of the micro-batch before",
                check="the_weights_are_those_of_one_process", says="away from one process", look="added up", edit="""
        -            self.shard.grad = own if self.shard.grad is None else self.shard.grad + own
        +            self.shard.grad = own
    """),
    WrongAnswer("all_reduce_and_slice", "all-reduces the whole gradient, and takes its part of that",
                check="little_is_sent", says="started 12 all_reduce with", look="its part of the mean", edit="""
        -            reduce_scatter_single(own, gradient, op=dist.ReduceOp.AVG)
        +            dist.all_reduce(gradient, op=dist.ReduceOp.AVG)
        +            own = gradient.chunk(dist.get_world_size())[dist.get_rank()].clone()
    """),
    WrongAnswer("gathers_all_gradients", "gathers the gradients of all ranks, and averages its part itself",
                check="little_is_sent", says="started 36 all_gather with", look="its part of the mean", edit="""
        -            reduce_scatter_single(own, gradient, op=dist.ReduceOp.AVG)
        +            everyones = gradient.new_empty(dist.get_world_size() * len(gradient))
        +            all_gather_single(everyones, gradient)
        +            own = everyones.view(-1, dist.get_world_size(), len(own)).mean(0)[dist.get_rank()].clone()
    """),
    WrongAnswer("frozen_parts_too", "gives the optimizer the parts of frozen blocks as well",
                check="the_optimizer_gets_the_trained_parts", says="the optimizer of rank 0 got", look="make_optimizer", edit="""
        -        self.optimizer = make_optimizer([block.shard for block in self.blocks if block.shard.requires_grad])
        +        self.optimizer = make_optimizer([block.shard for block in self.blocks])
    """),
    RightAnswer("hooks", "hooks on the tensors between the blocks in place of functions of autograd", edit="""
        -        x = x.detach().requires_grad_()  # or no backward would reach the input of the first block
        +        x = x.detach().requires_grad_().view_as(x)  # no leaf: its hook would run before the weights' gradients
        @@
        -            x = block.module(End.apply(x, block.gather, block.finish))
        -            x = End.apply(x, block.release, block.gather)
        +            block.gather()
        +            x.register_hook(lambda _, block=block: block.finish())
        +            x = block.module(x)
        +            x.register_hook(lambda _, block=block: block.gather())
        +            block.release()
    """),
)
