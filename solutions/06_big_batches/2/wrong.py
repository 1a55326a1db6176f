"""Wrong and right answers to question 06.2; ddp_course/authoring/answers.py says how to read them."""

from ddp_course.authoring.answers import RightAnswer, WrongAnswer

ANSWERS = (
    WrongAnswer(
        "averages_weights", "averages the weights after each step, not the gradients before it",
        check="every_micro_batch_counts_once", says="4 an update, AdamW: rank", edit="""
        -    model = DistributedDataParallel(module)
        @@
        -            for number, inputs in enumerate(group, start=1):
        -                with contextlib.nullcontext() if number == len(group) else model.no_sync():
        -                    (model(inputs) / len(group)).backward()
        +            for inputs in group:
        +                (module(inputs) / len(group)).backward()
                     optimizer.step()
                     optimizer.zero_grad()
        +            for parameter in module.parameters():
        +                torch.distributed.all_reduce(parameter.data)
        +                parameter.data /= torch.distributed.get_world_size()
    """),
    WrongAnswer(
        "calculated", "the detector works out what a right loop would do and trains nothing",
        check="the_sizes_are_read_right", says="not [1, 1, 1, 1]", edit="""
        -    return sizes
        +    return [1.0] * (epochs * -(-micro_batches // accumulate))
    """),
    WrongAnswer(
        "counts_through", "counts the micro-batches through the epochs: an update may hold two epochs",
        check="every_micro_batch_counts_once", says="from one process on the global batches", edit="""
        -    for micro_batches in epochs:
        +    for micro_batches in [[one for epoch in epochs for one in epoch]]:
    """),
    WrongAnswer(
        "every_micro_batch_talks", "is right about the leftovers and lets every micro-batch talk",
        check="gradients_travel_once_an_update", says="handed over 2,528 bytes in 9 updates", edit="""
        -            for number, inputs in enumerate(group, start=1):
        -                with contextlib.nullcontext() if number == len(group) else model.no_sync():
        -                    (model(inputs) / len(group)).backward()
        +            for inputs in group:
        +                (model(inputs) / len(group)).backward()
    """),
    WrongAnswer(
        "long_last_update", "adds the rest to the last full update of the epoch",
        check="every_micro_batch_counts_once", says="from one process on the global batches", on="rest_kept", edit="""
        -            last = (i + 1) % accumulate == 0
        +            last = (i + 1) % accumulate == 0 and len(micro_batches) - i > accumulate or i + 1 == len(micro_batches)
    """),
    WrongAnswer(
        "rest_kept", "takes the zero_grad at the start of an epoch out",
        check="every_micro_batch_counts_once", says="adds the rest to the next epoch", edit="""
        -        for first in range(0, len(micro_batches), accumulate):
        -            group = micro_batches[first : first + accumulate]
        -            for number, inputs in enumerate(group, start=1):
        -                with contextlib.nullcontext() if number == len(group) else model.no_sync():
        -                    (model(inputs) / len(group)).backward()
        -            optimizer.step()
        -            optimizer.zero_grad()
        +        for i, inputs in enumerate(micro_batches):
        +            last = (i + 1) % accumulate == 0
        +            with contextlib.nullcontext() if last else model.no_sync():
        +                (model(inputs) / accumulate).backward()
        +            if last:
        +                optimizer.step()
        +                optimizer.zero_grad()
    """),
    WrongAnswer(
        "rest_lost", "leaves the loop as it was: the rest of an epoch is thrown away",
        check="every_micro_batch_counts_once", says="throws the rest of an epoch away", on="rest_kept", edit="""
             for micro_batches in epochs:
        +        optimizer.zero_grad()
    """),
    WrongAnswer(
        "rounds_the_sizes", "the detector rounds the sizes to two digits",
        check="the_sizes_are_read_right", says="returned [1, 1, 1.33, 1, 1.33, 1] on rank 0", edit="""
        -    optimizer.register_step_pre_hook(lambda *_: sizes.append(module.weight.grad.item()))
        +    optimizer.register_step_pre_hook(lambda *_: sizes.append(round(module.weight.grad.item(), 2)))
    """),
    WrongAnswer(
        "scales_the_learning_rate", "makes up for a short update by a larger learning rate",
        check="every_micro_batch_counts_once", says="4 an update, AdamW: rank", edit="""
        -                    (model(inputs) / len(group)).backward()
        +                    (model(inputs) / accumulate).backward()
        +            for settings in optimizer.param_groups:
        +                settings["lr"] *= accumulate / len(group)
                     optimizer.step()
        +            for settings in optimizer.param_groups:
        +                settings["lr"] /= accumulate / len(group)
    """),
    WrongAnswer(
        "short_update_is_silent", "flushes at the end of the epoch, after a last micro-batch that did not talk",
        check="every_micro_batch_counts_once", says="and the ranks differ from each other", edit="""
        -                with contextlib.nullcontext() if number == len(group) else model.no_sync():
        +                with contextlib.nullcontext() if number == accumulate else model.no_sync():
    """),
    WrongAnswer(
        "short_update_too_small", "steps at the end of an epoch, but divides by a full update's number",
        check="every_micro_batch_counts_once", says="a short last update, divided as if it were full",
        on="rest_kept", edit="""
        -            last = (i + 1) % accumulate == 0
        +            last = (i + 1) % accumulate == 0 or i + 1 == len(micro_batches)
    """),
    WrongAnswer(
        "sizes_after_the_step", "the detector notes where the weight is, not how far it moved",
        check="the_sizes_are_read_right", says="not [1, 1, 1, 1]", edit="""
        -    optimizer.register_step_pre_hook(lambda *_: sizes.append(module.weight.grad.item()))
        +    optimizer.register_step_post_hook(lambda *_: sizes.append(-module.weight.item()))
    """),
    WrongAnswer(
        "trains_epoch_by_epoch", "the detector calls train for each epoch anew",
        check="the_sizes_are_read_right", says="adds the rest to the next epoch",
        look="how often train is called: 2 times here", edit="""
        -    train(module, optimizer, [[torch.ones(3)] * micro_batches] * epochs, accumulate)
        +    for _ in range(epochs):
        +        train(module, optimizer, [[torch.ones(3)] * micro_batches], accumulate)
    """),
    WrongAnswer(
        "trains_twice", "the detector trains a second time, on another model",
        check="it_is_called_once", says="update_sizes called train 2 times on rank 0",
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


        def update_sizes(train, epochs, micro_batches, accumulate):
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
