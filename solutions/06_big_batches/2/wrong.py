"""Wrong and right answers to question 06.2; ddp_course/authoring/answers.py says how to read them."""

from ddp_course.authoring.answers import RightAnswer, WrongAnswer

ANSWERS = (
    WrongAnswer(
        "a_step_after_each_epoch", "steps at the end of an epoch also if no micro-batch is left over",
        check="every_micro_batch_counts_once", says="epochs of [8, 7] micro-batches, 4 a step, AdamW): rank", edit="""
        -            optimizer.step()
        -            optimizer.zero_grad()
        +            if len(group) == accumulate:
        +                optimizer.step()
        +                optimizer.zero_grad(set_to_none=False)
        +        optimizer.step()
        +        optimizer.zero_grad(set_to_none=False)
    """),
    WrongAnswer(
        "every_micro_batch_talks", "uses the leftovers correctly, but every micro-batch communicates",
        check="gradients_are_sent_once_per_step", says="handed 2,528 bytes to", edit="""
        -            for number, inputs in enumerate(group, start=1):
        -                with contextlib.nullcontext() if number == len(group) else model.no_sync():
        -                    (model(inputs) / len(group)).backward()
        +            for inputs in group:
        +                (model(inputs) / len(group)).backward()
    """),
    WrongAnswer(
        "keeps_the_tensors", "the detector notes the tensors in .grad and reads their values after the training",
        check="the_sizes_are_read_right", says="(no division at all): step_sizes", look="zero_grad may clear", edit="""
        -    optimizer.register_step_pre_hook(lambda *_: sizes.append(module.weight.grad.item()))
        +    optimizer.register_step_pre_hook(lambda *_: sizes.append(module.weight.grad))
        @@
        -    return sizes
        +    return [size.item() for size in sizes]
    """),
    WrongAnswer(
        "scales_the_learning_rate", "divides a short step by `accumulate`, and makes up for that by a larger learning rate",
        check="every_micro_batch_counts_once", says="4 a step, AdamW): rank", edit="""
        -                    (model(inputs) / len(group)).backward()
        +                    (model(inputs) / accumulate).backward()
        +            for settings in optimizer.param_groups:
        +                settings["lr"] *= accumulate / len(group)
                     optimizer.step()
        +            for settings in optimizer.param_groups:
        +                settings["lr"] /= accumulate / len(group)
    """),
    WrongAnswer(
        "trains_epoch_by_epoch", "the detector calls train for each epoch by itself",
        check="the_sizes_are_read_right", says="adds the rest to the next epoch",
        look="how often train is called: 2 times here", edit="""
        -    train(module, optimizer, [[torch.ones(3)] * micro_batches] * epochs, accumulate)
        +    for _ in range(epochs):
        +        train(module, optimizer, [[torch.ones(3)] * micro_batches], accumulate)
    """),
    WrongAnswer(
        "trains_twice", "the detector trains a second time, on another model",
        check="it_is_called_once", says="step_sizes called train 2 times on rank 0",
        look="one call makes all epochs", edit="""
             train(module, optimizer, [[torch.ones(3)] * micro_batches] * epochs, accumulate)
        +    other = OneWeight()
        +    train(other, torch.optim.SGD(other.parameters(), lr=1.0), [[torch.ones(3)]], accumulate)
    """),
    RightAnswer(
        "by_steps", "divides the gradients before the step; the detector watches the weight at every forward",
        text="""
        import torch
        import torch.distributed as dist
        from torch import nn


        class Watched(nn.Module):
            def __init__(self):
                super().__init__()
                self.weight = nn.Parameter(torch.zeros(1))
                self.seen = []

            def forward(self, inputs):
                self.seen.append(self.weight.item())
                return self.weight.sum()


        def step_sizes(train, epochs, micro_batches, accumulate):
            module = Watched()
            batches = [[torch.zeros(1)] * micro_batches for _ in range(epochs)]
            train(module, torch.optim.SGD(module.parameters(), lr=2.0**-10), batches, accumulate)
            places = [*module.seen, module.weight.item()]
            return [(a - b) * 2**10 for a, b in zip(places, places[1:], strict=False) if a != b]


        def train(module, optimizer, epochs, accumulate):
            for micro_batches in epochs:
                waiting = 0
                for place, inputs in enumerate(micro_batches, start=1):
                    module(inputs).backward()
                    waiting += 1
                    if waiting == accumulate or place == len(micro_batches):
                        for parameter in module.parameters():
                            dist.all_reduce(parameter.grad)
                            parameter.grad /= waiting * dist.get_world_size()
                        optimizer.step()
                        optimizer.zero_grad(set_to_none=False)
                        waiting = 0
    """),
)
