"""Wrong and right answers to question 25.1; ddp_course/authoring/answers.py says how to read them."""

from ddp_course.authoring.answers import RightAnswer, WrongAnswer

ANSWERS = (
    WrongAnswer(
        "steps_from_the_mean", "leaves the mean in the parameters before the outer step, as the script does",
        check="rate_1_gives_the_mean", says="the first outer step moved the weights of rank 0 by 2 times the mean movement",
        look="which weights the outer optimizer steps from", edit="""
        -            parameter.copy_(global_weight)
    """),
    WrongAnswer(
        "steps_from_its_own", "steps from each worker's own weights",
        check="rate_1_gives_the_mean", says="in another direction than the mean movement", look="every worker has others",
        edit="""
        -            dist.all_reduce(parameter, op=dist.ReduceOp.AVG)
        -            parameter.grad = global_weight - parameter
        -            parameter.copy_(global_weight)
        +            parameter.grad = global_weight - parameter
        +            dist.all_reduce(parameter.grad, op=dist.ReduceOp.AVG)
    """),
    WrongAnswer(
        "no_copy", "keeps the parameters themselves as the global weights",
        check="the_outer_momentum_lasts", says="after step 3 a weight of rank 0", look="what it takes for the gradient",
        edit="""
        -        self.global_weights = [parameter.detach().clone() for parameter in self.local]  # after the last outer step
        +        self.global_weights = [parameter.detach() for parameter in self.local]
    """),
    WrongAnswer(
        "counts_like_torchs_averager", "looks before it counts: outer steps come after steps 1, 5, 9",
        check="outer_steps_come_when_they_should", says="after step 1 a weight of rank", look="after which steps", edit="""
        -        self.steps += 1
        -        if self.steps % self.every == 0:
        -            self.outer_step()
        +        if self.steps % self.every == 0:
        +            self.outer_step()
        +        self.steps += 1
    """),
    WrongAnswer(
        "asks_each_time", "all-reduces at every step whether an outer step is due",
        check="outer_steps_come_when_they_should", says="rank 0 started 3 operations, all_reduce first",
        look="between two outer steps", edit="""
        -        if self.steps % self.every == 0:
        +        agreed = torch.tensor(float(self.steps % self.every == 0))
        +        dist.all_reduce(agreed, op=dist.ReduceOp.MIN)
        +        if agreed:
    """),
    WrongAnswer(
        "averages_the_inner_state", "averages AdamW's averages as well, so that the workers agree about them",
        check="the_inner_optimizer_keeps_its_state", says="the state of AdamW on rank 0 is", look="besides weights", edit="""
                 self.outer.step()
        +        for state in self.inner.state.values():
        +            for value in state.values():
        +                if torch.is_tensor(value) and value.ndim:
        +                    dist.all_reduce(value, op=dist.ReduceOp.AVG)
        @@
                 self.every, self.steps = every, 0
        +        self.inner = inner
    """),
    WrongAnswer(
        "resets_the_inner_state", "lets each worker's AdamW begin again after an outer step",
        check="the_inner_optimizer_keeps_its_state", says="the state of AdamW on rank 0 is gone", look="besides weights", edit="""
                 self.outer.step()
        +        self.inner.state.clear()
        @@
                 self.every, self.steps = every, 0
        +        self.inner = inner
    """),
    WrongAnswer(
        "added_in_an_order_of_its_own", "adds up the weights beginning with its own",
        check="the_workers_agree", says="differ from rank 0's by a rounding", look="the order", edit="""
        -            dist.all_reduce(parameter, op=dist.ReduceOp.AVG)
        +            world, total = dist.get_world_size(), torch.zeros_like(parameter)
        +            parts = [torch.empty_like(parameter) for _ in range(world)]
        +            dist.all_gather(parts, parameter)
        +            for number in range(world):
        +                total += parts[(dist.get_rank() + number) % world]
        +            parameter.copy_(total / world)
    """),
    WrongAnswer(
        "sends_the_result_again", "broadcasts the new weights of rank 0 as well",
        check="each_weight_is_sent_once", says="in 3 outer steps", look="have already", edit="""
                 for parameter, global_weight in zip(self.local, self.global_weights, strict=True):
        +            dist.broadcast(parameter, src=0)
                     global_weight.copy_(parameter)
    """),
    WrongAnswer(
        "a_mean_without_momentum", "leaves the mean if there is no momentum, whatever the outer rate",
        check="the_outer_momentum_lasts", says="(every 2, SGD inside, outer rate 0.5, no momentum): after step 2",
        look="rate and Nesterov momentum", edit="""
        -        self.outer = torch.optim.SGD(self.local, lr, momentum, nesterov=momentum > 0)
        +        self.outer = torch.optim.SGD(self.local, lr if momentum else 1.0, momentum, nesterov=momentum > 0)
    """),
    RightAnswer(
        "means_of_what_each_computes", "each worker takes an outer step by its own movement; the results are averaged", text='''
        import torch
        import torch.distributed as dist
        from torch.nn.utils import parameters_to_vector, vector_to_parameters


        class DiLoCo:
            def __init__(self, inner, every, lr, momentum):
                self.local = [parameter for group in inner.param_groups for parameter in group["params"]]
                self.every, self.left, self.lr, self.momentum = every, every, lr, momentum
                self.global_weights = parameters_to_vector(self.local).detach().clone()
                self.buffer = torch.zeros_like(self.global_weights)

            def step(self):
                self.left -= 1
                if self.left:
                    return
                self.left = self.every
                gradient = self.global_weights - parameters_to_vector(self.local).detach()
                self.buffer = self.momentum * self.buffer + gradient
                self.global_weights = self.global_weights - self.lr * (gradient + self.momentum * self.buffer)
                dist.all_reduce(self.global_weights)
                self.global_weights /= dist.get_world_size()
                vector_to_parameters(self.global_weights.clone(), self.local)
    '''),
)
