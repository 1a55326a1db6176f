"""Wrong and right answers to question 08.4; ddp_course/authoring/answers.py says how to read them."""

from ddp_course.authoring.answers import RightAnswer, WrongAnswer

ANSWERS = (
    WrongAnswer(
        "a_message_a_batch", "all-reduces after each batch, the same number of times on every rank",
        check="few_messages", says="rank 0 started 3 operations", text="""
        import math

        import torch
        import torch.distributed as dist
        from torch.nn.utils.rnn import pad_sequence


        @torch.no_grad()
        def evaluate(model, samples, batch_size):
            was_training = {module: module.training for module in model.modules()}
            model.eval()
            world = dist.get_world_size()
            mine = samples[dist.get_rank() :: world]
            sums = torch.zeros(2, dtype=torch.float64)
            for first in range(0, -(-len(samples) // world), batch_size):
                pair = torch.zeros(2, dtype=torch.float64)
                if batch := mine[first : first + batch_size]:
                    inputs = pad_sequence([sample[:-1] for sample in batch], batch_first=True)
                    targets = pad_sequence([sample[1:] for sample in batch], batch_first=True, padding_value=-100)
                    pair += torch.stack([model(inputs, targets), (targets != -100).sum()])
                dist.all_reduce(pair)
                sums += pair
            for module, training in was_training.items():
                module.training = training
            loss = (sums[0] / sums[1]).item()
            return {"loss": loss, "perplexity": math.exp(loss), "tokens": int(sums[1])}
    """),
    WrongAnswer(
        "back_to_train", "calls model.train() in the end",
        check="the_model_is_as_it_was", says="its frozen part", on="stays_in_training_mode", edit="""
        -    was_training = {module: module.training for module in model.modules()}
        +    model.eval()
        @@
        -    for module, training in was_training.items():
        -        module.training = training
        +    model.train()
    """),
    WrongAnswer(
        "children_only", "keeps the modes of the model and of its direct children",
        check="the_model_is_as_it_was", says="the dropout in its block came back in another mode", edit="""
        -    was_training = {module: module.training for module in model.modules()}
        +    was_training = {module: module.training for module in (model, *model.children())}
    """),
    WrongAnswer(
        "everybody_everything", "evaluates all samples on every rank",
        check="the_work_is_shared", says="the ranks evaluated 11 + 11 texts; there are 11",
        on="stays_in_training_mode", edit="""
        -    mine = samples[dist.get_rank() :: dist.get_world_size()]
        +    model.eval()
        +    mine = samples
        @@
        -    dist.all_reduce(sums)
    """),
    WrongAnswer(
        "leaves_grad_off", "switches the recording of gradients off and never on again",
        check="the_model_is_as_it_was", says="no gradients were recorded any more", edit="""
        -    with torch.no_grad():
        -        for first in range(0, len(mine), batch_size):
        -            batch = mine[first : first + batch_size]
        -            inputs = pad_sequence([sample[:-1] for sample in batch], batch_first=True)
        -            targets = pad_sequence([sample[1:] for sample in batch], batch_first=True, padding_value=-100)
        -            sums += torch.stack([model(inputs, targets), (targets != -100).sum()])
        +    torch.set_grad_enabled(False)
        +    for first in range(0, len(mine), batch_size):
        +        batch = mine[first : first + batch_size]
        +        inputs = pad_sequence([sample[:-1] for sample in batch], batch_first=True)
        +        targets = pad_sequence([sample[1:] for sample in batch], batch_first=True, padding_value=-100)
        +        sums += torch.stack([model(inputs, targets), (targets != -100).sum()])
    """),
    WrongAnswer(
        "mean_of_perplexities", "averages the ranks' perplexities",
        check="the_numbers_are_exact", says="the mean of the ranks' perplexities",
        on="stays_in_training_mode", edit="""
             was_training = {module: module.training for module in model.modules()}
        +    model.eval()
        @@
                 module.training = training
        +    own = torch.stack([(sums[0] / sums[1]).exp().nan_to_num(), (sums[1] > 0).double()])
        +    dist.all_reduce(own)
        @@
        -    return {"loss": loss, "perplexity": math.exp(loss), "tokens": int(sums[1])}
        +    return {"loss": loss, "perplexity": (own[0] / own[1]).item(), "tokens": int(sums[1])}
    """),
    WrongAnswer(
        "one_at_a_time", "ignores the batch size",
        check="the_work_is_shared", says="in batches of [1, 1, 1", on="stays_in_training_mode", edit="""
        +    model.eval()
             mine = samples[dist.get_rank() :: dist.get_world_size()]
             sums = torch.zeros(2, dtype=torch.float64)  # of the losses, of the targets
        -    for first in range(0, len(mine), batch_size):
        -        batch = mine[first : first + batch_size]
        +    for first in range(0, len(mine), 1):
        +        batch = mine[first : first + 1]
    """),
    WrongAnswer(
        "only_rank_0_returns", "returns the dict on rank 0",
        check="all_ranks_have_one_dict", says="rank 1 returned None", on="stays_in_training_mode", edit="""
             was_training = {module: module.training for module in model.modules()}
        +    model.eval()
        @@
        -    return {"loss": loss, "perplexity": math.exp(loss), "tokens": int(sums[1])}
        +    if dist.get_rank() == 0:
        +        return {"loss": loss, "perplexity": math.exp(loss), "tokens": int(sums[1])}
    """),
    WrongAnswer(
        "packs_texts", "joins the texts of a batch into one row",
        check="the_numbers_are_exact", says="loss is", on="stays_in_training_mode", edit="""
             was_training = {module: module.training for module in model.modules()}
        +    model.eval()
        @@
        -        inputs = pad_sequence([sample[:-1] for sample in batch], batch_first=True)
        -        targets = pad_sequence([sample[1:] for sample in batch], batch_first=True, padding_value=-100)
        +        inputs = torch.cat([sample[:-1] for sample in batch])[None]
        +        targets = torch.cat([sample[1:] for sample in batch])[None]
    """),
    WrongAnswer(
        "padded_by_the_sampler", "takes the samples that DistributedSampler deals",
        check="the_numbers_are_exact", says="tokens is", on="stays_in_training_mode", edit="""
         from torch.nn.utils.rnn import pad_sequence
        +from torch.utils.data import DistributedSampler
        @@
        -    mine = samples[dist.get_rank() :: dist.get_world_size()]
        +    model.eval()
        +    mine = [samples[i] for i in DistributedSampler(samples, shuffle=False)]
    """),
    WrongAnswer(
        "rank_0_alone", "rank 0 evaluates everything and tells the others",
        check="the_work_is_shared", says="rank 0 evaluated 11 texts", on="stays_in_training_mode", edit="""
        -    mine = samples[dist.get_rank() :: dist.get_world_size()]
        +    model.eval()
        +    mine = samples if dist.get_rank() == 0 else []
    """),
    WrongAnswer(
        "records_gradients", "forgets no_grad",
        check="the_model_is_as_it_was", says="recorded what backward would need",
        on="stays_in_training_mode", edit="""
        -@torch.no_grad()
        @@
             was_training = {module: module.training for module in model.modules()}
        +    model.eval()
        @@
        -        sums += torch.stack([model(inputs, targets), (targets != -100).sum()])
        +        sums += torch.stack([model(inputs, targets).detach(), (targets != -100).sum()])
    """),
    WrongAnswer(
        "remembers_one_flag", "restores the mode of the whole model from one flag",
        check="the_model_is_as_it_was", says="its frozen part", on="stays_in_training_mode", edit="""
        -    was_training = {module: module.training for module in model.modules()}
        +    was_training = model.training
        +    model.eval()
        @@
        -    for module, training in was_training.items():
        -        module.training = training
        +    model.train(was_training)
    """),
    WrongAnswer(
        "stays_in_training_mode", "does not switch to evaluation mode",
        check="the_numbers_are_exact", says="loss is", on="leaves_grad_off", edit="""
         from torch.nn.utils.rnn import pad_sequence
        +
        +
        +@torch.no_grad()
        @@
        -    model.eval()
             mine = samples[dist.get_rank() :: dist.get_world_size()]
             sums = torch.zeros(2, dtype=torch.float64)  # of the losses, of the targets
        -    torch.set_grad_enabled(False)
    """),
    WrongAnswer(
        "texts_not_tokens", "weights every text alike",
        check="the_numbers_are_exact", says="the mean of the texts' means", on="stays_in_training_mode", edit="""
        +    model.eval()
             mine = samples[dist.get_rank() :: dist.get_world_size()]
        +    texts = torch.zeros(2, dtype=torch.float64)
        @@
        -        sums += torch.stack([model(inputs, targets), (targets != -100).sum()])
        +        for row, target in zip(inputs, targets, strict=True):
        +            count = (target != -100).sum()
        +            texts += torch.stack([model(row[None], target[None]) / count, torch.ones(())])
        +            sums[1] += count
        @@
        -    loss = (sums[0] / sums[1]).item()
        +    dist.all_reduce(texts)
        +    loss = (texts[0] / texts[1]).item()
    """),
    WrongAnswer(
        "adds_its_own_first", "gathers the ranks' sums, and each rank adds its own first",
        check="all_ranks_have_one_dict", says="on rank 0", look="divides the same two sums", edit="""
        -    dist.all_reduce(sums)
        +    rank, world = dist.get_rank(), dist.get_world_size()
        +    everyones = [torch.empty_like(sums) for _ in range(world)]
        +    dist.all_gather(everyones, sums)
        +    sums = sum(everyones)
        +    loss = sum((everyones[(rank + k) % world][0] / sums[1]).item() for k in range(world))
        @@
        -    loss = (sums[0] / sums[1]).item()
    """),
    WrongAnswer(
        "deals_whole_batches", "deals batches to the ranks instead of texts",
        check="the_work_is_shared", says="its share is", look="dealt out", edit="""
        -    mine = samples[dist.get_rank() :: dist.get_world_size()]
        +    joint = batch_size * dist.get_world_size()
        +    mine = [
        +        sample
        +        for start in range(dist.get_rank() * batch_size, len(samples), joint)
        +        for sample in samples[start : start + batch_size]
        +    ]
    """),
    WrongAnswer(
        "freezes_the_model", "switches requires_grad off in place of the recording, and never on again",
        check="the_model_is_as_it_was", says="the parameters of the model do not train any more", edit="""
        -    with torch.no_grad():
        +    model.requires_grad_(False)
        +    if True:
    """),
    WrongAnswer(
        "clears_the_gradients", "clears the gradients of the model before it begins",
        check="the_model_is_as_it_was", says="the gradient that the model had accumulated is gone", edit="""
             model.eval()
        +    model.zero_grad()
    """),
    WrongAnswer(
        "sorts_the_samples", "sorts the list of samples by length, that of the caller",
        check="the_model_is_as_it_was", says="the list of samples is another one", edit="""
        -    mine = samples[dist.get_rank() :: dist.get_world_size()]
        +    samples.sort(key=len)
        +    mine = samples[dist.get_rank() :: dist.get_world_size()]
    """),
    WrongAnswer(
        "children_and_all_below", "gives each direct child its mode back, with all that is below it",
        check="the_model_is_as_it_was", says="the frozen part of its block came back in another mode", edit="""
        -    was_training = {module: module.training for module in model.modules()}
        +    was_training = {module: module.training for module in [model, *model.children()]}
        @@
        -        module.training = training
        +        module.train(training)
    """),
    WrongAnswer(
        "a_message_a_sum", "sends each sum by itself, and a barrier after them",
        check="few_messages", says="rank 0 started 3 operations", look="fit into one message", edit="""
        -    dist.all_reduce(sums)
        +    dist.all_reduce(sums[:1])
        +    dist.all_reduce(sums[1:])
        +    dist.barrier()
    """),
    RightAnswer(
        "sorted_and_gathered", "sorts the texts by length, deals them out, gathers the sums as objects",
        text="""
        import math

        import torch
        import torch.distributed as dist


        def evaluate(model, samples, batch_size):
            rank, world = dist.get_rank(), dist.get_world_size()
            order = sorted(range(len(samples)), key=lambda i: (len(samples[i]), i))[rank::world]
            training = [module for module in model.modules() if module.training]
            loss_sum, tokens = 0.0, 0
            with torch.inference_mode():
                for module in training:
                    module.training = False
                try:
                    for batch in (order[i : i + batch_size] for i in range(0, len(order), batch_size)):
                        longest = max(len(samples[i]) for i in batch)
                        rows = torch.full((len(batch), longest), -100)
                        for row, i in zip(rows, batch, strict=True):
                            row[: len(samples[i])] = samples[i]
                        inputs, targets = rows[:, :-1].clamp(min=0), rows[:, 1:]
                        loss_sum += float(model(inputs, targets))
                        tokens += sum(len(samples[i]) - 1 for i in batch)
                finally:
                    for module in training:
                        module.training = True
            everyones = [None] * world
            dist.all_gather_object(everyones, (loss_sum, tokens))
            loss_sum, tokens = (sum(column) for column in zip(*everyones, strict=True))
            return {"tokens": tokens, "loss": loss_sum / tokens, "perplexity": math.exp(loss_sum / tokens)}
    """),
    RightAnswer(
        "two_reduces_on_chunks", "deals contiguous chunks; rank 0 divides and broadcasts",
        text="""
        import torch
        import torch.distributed as dist
        from torch.nn.utils.rnn import pad_sequence


        @torch.no_grad()
        def evaluate(model, samples, batch_size):
            was_training = {module: module.training for module in model.modules()}
            model.eval()
            share = torch.arange(len(samples)).tensor_split(dist.get_world_size())[dist.get_rank()]
            mine = [samples[i] for i in share.tolist()]
            sums = torch.zeros(2, dtype=torch.float64)  # of the losses, of the targets
            for first in range(0, len(mine), batch_size):
                batch = mine[first : first + batch_size]
                inputs = pad_sequence([sample[:-1] for sample in batch], batch_first=True)
                targets = pad_sequence([sample[1:] for sample in batch], batch_first=True, padding_value=-100)
                sums += torch.stack([model(inputs, targets), (targets != -100).sum()])
            for module, training in was_training.items():
                module.training = training

            dist.reduce(sums, dst=0)
            dist.broadcast(sums, src=0)
            loss = (sums[0] / sums[1]).item()
            return {"loss": loss, "perplexity": torch.tensor(loss, dtype=torch.float64).exp(), "tokens": int(sums[1])}
    """),
    RightAnswer(
        "works_on_a_copy", "evaluates a deep copy, so that no mode has to be restored",
        edit="""
        +import copy
         import math
        @@
        -    was_training = {module: module.training for module in model.modules()}
        -    model.eval()
        +    model = copy.deepcopy(model).eval()
        @@
        -    for module, training in was_training.items():
        -        module.training = training
    """),
    RightAnswer(
        "inference_mode", "works in inference mode, with tensors that know no gradient, and reduces them outside of it",
        edit="""
        -    sums = torch.zeros(2, dtype=torch.float64)  # of the losses, of the targets
        -    with torch.no_grad():
        +    with torch.inference_mode():
        +        sums = torch.zeros(2, dtype=torch.float64)  # of the losses, of the targets
    """),
)
