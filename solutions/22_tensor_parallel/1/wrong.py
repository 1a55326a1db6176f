"""Wrong and right answers to question 22.1; ddp_course/authoring/answers.py says how to read them."""

from ddp_course.authoring.answers import RightAnswer, WrongAnswer

ANSWERS = (
    WrongAnswer(
        "the_whole_layer", "keeps everything on every rank, which is right and saves nothing",
        check="each_rank_holds_its_part", says="rank 0 has 486 numbers in its parameters, not 246", look="both weights",
        text='''
        import torch.nn.functional as F
        from torch import nn


        class ParallelMLP(nn.Module):
            def __init__(self, first, second):
                super().__init__()
                self.first, self.second = first, second

            def forward(self, x):
                gate, up = self.first(x).chunk(2, -1)
                return self.second(F.silu(gate) * up)
    '''),
    WrongAnswer(
        "cut_as_one", "cuts the fused weight as one matrix: rank 0 has gate only, rank 1 up",
        check="the_output_is_that_of_one_process", says="the output is", look="which rows of the first layer", edit="""
        -            return nn.Parameter(torch.cat([half.chunk(world)[rank] for half in fused.detach().chunk(2)]))
        +            return nn.Parameter(fused.detach().chunk(world)[rank].clone())
    """),
    WrongAnswer(
        "no_sum", "returns its part of the output",
        check="the_output_is_that_of_one_process", says="the output is", edit="""
        -        return Leave.apply(F.linear(F.silu(gate) * up, self.second_weight)) + self.second_bias
        +        return F.linear(F.silu(gate) * up, self.second_weight) + self.second_bias
    """),
    WrongAnswer(
        "no_backward_message", "leaves each rank its part of the input's gradient",
        check="the_input_gets_its_whole_gradient", says="the gradient of the input is", look="a part of the sum for x",
        edit="""
        -        gate, up = F.linear(Enter.apply(x), self.first_weight, self.first_bias).chunk(2, -1)
        +        gate, up = F.linear(x, self.first_weight, self.first_bias).chunk(2, -1)
    """),
    WrongAnswer(
        "summed_in_both_directions", "all-reduces the gradient of the output as well, which every rank has whole",
        check="the_input_gets_its_whole_gradient", says="the gradient of the input is", look="not summed again", edit="""
             def backward(ctx, gradient):
        -        return gradient
        +        gradient = gradient.clone()
        +        dist.all_reduce(gradient)
        +        return gradient
    """),
    WrongAnswer(
        "a_bias_that_stands_still", "keeps the output bias as it was",
        check="the_weights_learn_as_in_one_process", says="after 1 steps the bias of second on some rank is", look="every copy gets", edit="""
        -        return Leave.apply(F.linear(F.silu(gate) * up, self.second_weight)) + self.second_bias
        +        return Leave.apply(F.linear(F.silu(gate) * up, self.second_weight)) + self.second_bias.detach()
    """),
    WrongAnswer(
        "a_first_bias_that_stands_still", "keeps the bias of the first layer as it was",
        check="the_weights_learn_as_in_one_process", says="after 1 steps the layer is", look="does every parameter", edit="""
        -        gate, up = F.linear(Enter.apply(x), self.first_weight, self.first_bias).chunk(2, -1)
        +        gate, up = F.linear(Enter.apply(x), self.first_weight, self.first_bias.detach()).chunk(2, -1)
    """),
    WrongAnswer(
        "enters_twice", "applies Enter to x once for gate and once for up, and so sends two gradients of x",
        check="one_message_each_way", says="the output and the gradient of the input are", look="the gradient of x, once",
        edit="""
        -        gate, up = F.linear(Enter.apply(x), self.first_weight, self.first_bias).chunk(2, -1)
        +        halves = zip(self.first_weight.chunk(2), self.first_bias.chunk(2))
        +        gate, up = (F.linear(Enter.apply(x), weight, bias) for weight, bias in halves)
    """),
    WrongAnswer(
        "gathers_the_hidden_layer", "sends the wide hidden layer as well",
        check="one_message_each_way", says="the output and the gradient of the input are", look="the hidden layer", edit="""
        -        return Leave.apply(F.linear(F.silu(gate) * up, self.second_weight)) + self.second_bias
        +        hidden = F.silu(gate) * up
        +        parts = [torch.empty_like(hidden) for _ in range(dist.get_world_size())]
        +        dist.all_gather(parts, hidden.detach())
        +        return Leave.apply(F.linear(hidden, self.second_weight)) + self.second_bias
    """),
    RightAnswer(
        "given_layers_kept", "keeps the given bias, and a view of the given weight", edit="""
        -        self.second_weight = nn.Parameter(second.weight.detach().chunk(world, 1)[rank].clone())
        -        self.second_bias = nn.Parameter(second.bias.detach().clone())
        +        self.second_weight = nn.Parameter(second.weight.detach().chunk(world, 1)[rank])
        +        self.second_bias = second.bias
    """),
    RightAnswer(
        "a_hook", "separate weights for gate and up, a hook on the input, and the other ranks' parts added without a gradient", text='''
        import torch.distributed as dist
        import torch.nn.functional as F
        from torch import nn


        class ParallelMLP(nn.Module):
            def __init__(self, first, second):
                super().__init__()
                rank, world = dist.get_rank(), dist.get_world_size()
                gate, up = first.weight.detach().chunk(2)
                gate_bias, up_bias = first.bias.detach().chunk(2)
                self.gate, self.gate_bias = (nn.Parameter(t.chunk(world)[rank].clone()) for t in (gate, gate_bias))
                self.up, self.up_bias = (nn.Parameter(t.chunk(world)[rank].clone()) for t in (up, up_bias))
                self.down = nn.Parameter(second.weight.detach().chunk(world, 1)[rank].clone())
                self.bias = nn.Parameter(second.bias.detach().clone())

            def forward(self, x):
                x = x.clone()
                x.register_hook(self.summed)
                hidden = F.silu(F.linear(x, self.gate, self.gate_bias)) * F.linear(x, self.up, self.up_bias)
                part = F.linear(hidden, self.down)
                rest = part.detach().clone()
                dist.all_reduce(rest)
                return part + (rest - part.detach()) + self.bias

            @staticmethod
            def summed(gradient):
                gradient = gradient.clone().contiguous()
                dist.all_reduce(gradient)
                return gradient
    '''),
)
