"""Wrong and right answers to question 08.4; ddp_course/authoring/answers.py says how to read them."""

from ddp_course.authoring.answers import RightAnswer, WrongAnswer

ANSWERS = (
    WrongAnswer(
        "a_message_a_batch", "all-reduces after each batch, the same number of times on every rank",
        check="few_collectives", says="rank 0 started 3 operations", text="""
        import math

        import torch
        import torch.distributed as dist
        from torch.nn.utils.rnn import pad_sequence


        @torch.no_grad()
        def evaluate(model, samples, batch_size):
            was_training = {module: module.training for module in model.modules()}
            model.eval()
            world = dist.get_world_size()
            own_samples = samples[dist.get_rank() :: world]
            sums = torch.zeros(2, dtype=torch.float64)
            for first in range(0, -(-len(samples) // world), batch_size):
                pair = torch.zeros(2, dtype=torch.float64)
                if batch := own_samples[first : first + batch_size]:
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
        "eval_after_train", "sets training mode, then evaluation mode again for what was in it: a part in training mode loses it",
        check="the_model_is_as_it_was", says="a model in evaluation mode): on rank 0 the frozen part of its block", edit="""
        -    was_training = {module: module.training for module in model.modules()}
        +    in_evaluation = [module for module in model.modules() if not module.training]
        @@
        -    for module, training in was_training.items():
        -        module.training = training
        +    model.train()
        +    for module in in_evaluation:
        +        module.eval()
    """),
    WrongAnswer(
        "mean_of_perplexities", "averages the ranks' perplexities",
        check="the_numbers_are_exact", says="the mean of the ranks' perplexities",
        edit="""
         from torch.nn.utils.rnn import pad_sequence
        +
        +
        +@torch.no_grad()
        @@
        -    with torch.no_grad():
        -        for first in range(0, len(own_samples), batch_size):
        -            batch = own_samples[first : first + batch_size]
        -            inputs = pad_sequence([sample[:-1] for sample in batch], batch_first=True)
        -            targets = pad_sequence([sample[1:] for sample in batch], batch_first=True, padding_value=-100)
        -            sums += torch.stack([model(inputs, targets), (targets != -100).sum()])
        +    for first in range(0, len(own_samples), batch_size):
        +        batch = own_samples[first : first + batch_size]
        +        inputs = pad_sequence([sample[:-1] for sample in batch], batch_first=True)
        +        targets = pad_sequence([sample[1:] for sample in batch], batch_first=True, padding_value=-100)
        +        sums += torch.stack([model(inputs, targets), (targets != -100).sum()])
        @@
                 module.training = training
        +    own = torch.stack([(sums[0] / sums[1]).exp().nan_to_num(), (sums[1] > 0).double()])
        +    dist.all_reduce(own)
        @@
        -    return {"loss": loss, "perplexity": math.exp(loss), "tokens": int(sums[1])}
        +    return {"loss": loss, "perplexity": (own[0] / own[1]).item(), "tokens": int(sums[1])}
    """),
    WrongAnswer(
        "only_rank_0_returns", "returns the dict on rank 0",
        check="all_ranks_have_one_dict", says="rank 1 returned None", on="mean_of_perplexities",
        edit="""
        -    own = torch.stack([(sums[0] / sums[1]).exp().nan_to_num(), (sums[1] > 0).double()])
        -    dist.all_reduce(own)
        @@
        -    return {"loss": loss, "perplexity": (own[0] / own[1]).item(), "tokens": int(sums[1])}
        +    if dist.get_rank() == 0:
        +        return {"loss": loss, "perplexity": math.exp(loss), "tokens": int(sums[1])}
    """),
    WrongAnswer(
        "packs_texts", "joins the texts of a batch into one row",
        check="the_numbers_are_exact", says="loss is", on="only_rank_0_returns",
        edit="""
        -        inputs = pad_sequence([sample[:-1] for sample in batch], batch_first=True)
        -        targets = pad_sequence([sample[1:] for sample in batch], batch_first=True, padding_value=-100)
        +        inputs = torch.cat([sample[:-1] for sample in batch])[None]
        +        targets = torch.cat([sample[1:] for sample in batch])[None]
        @@
        -    if dist.get_rank() == 0:
        -        return {"loss": loss, "perplexity": math.exp(loss), "tokens": int(sums[1])}
        +    return {"loss": loss, "perplexity": math.exp(loss), "tokens": int(sums[1])}
    """),
    WrongAnswer(
        "rank_0_alone", "rank 0 evaluates all texts, the other ranks none",
        check="the_work_is_shared", says="rank 0 evaluated 11 texts", on="only_rank_0_returns",
        edit="""
        -    own_samples = samples[dist.get_rank() :: dist.get_world_size()]
        +    own_samples = samples if dist.get_rank() == 0 else []
        @@
        -    if dist.get_rank() == 0:
        -        return {"loss": loss, "perplexity": math.exp(loss), "tokens": int(sums[1])}
        +    return {"loss": loss, "perplexity": math.exp(loss), "tokens": int(sums[1])}
    """),
    WrongAnswer(
        "records_gradients", "forgets no_grad",
        check="the_model_is_as_it_was", says="recorded what backward would need", on="rank_0_alone",
        edit="""
        -@torch.no_grad()
        @@
        -    own_samples = samples if dist.get_rank() == 0 else []
        +    own_samples = samples[dist.get_rank() :: dist.get_world_size()]
        @@
        -        sums += torch.stack([model(inputs, targets), (targets != -100).sum()])
        +        sums += torch.stack([model(inputs, targets).detach(), (targets != -100).sum()])
    """),
    WrongAnswer(
        "adds_its_own_first", "gathers the ranks' sums, and each rank adds its own first",
        check="all_ranks_have_one_dict", says="on rank 0", look="divides the same two sums", edit="""
        -    dist.all_reduce(sums)
        +    rank, world = dist.get_rank(), dist.get_world_size()
        +    gathered = [torch.empty_like(sums) for _ in range(world)]
        +    dist.all_gather(gathered, sums)
        +    sums = sum(gathered)
        +    loss = sum((gathered[(rank + k) % world][0] / sums[1]).item() for k in range(world))
        @@
        -    loss = (sums[0] / sums[1]).item()
    """),
    WrongAnswer(
        "deals_whole_batches", "deals batches to the ranks instead of texts",
        check="the_work_is_shared", says="its share is", look="dealt out", edit="""
        -    own_samples = samples[dist.get_rank() :: dist.get_world_size()]
        +    global_batch = batch_size * dist.get_world_size()
        +    own_samples = [
        +        sample
        +        for start in range(dist.get_rank() * batch_size, len(samples), global_batch)
        +        for sample in samples[start : start + batch_size]
        +    ]
    """),
    WrongAnswer(
        "a_message_a_sum", "sends each sum by itself, and a barrier after them",
        check="few_collectives", says="rank 0 started 3 operations", look="fit into one message", edit="""
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
            gathered = [None] * world
            dist.all_gather_object(gathered, (loss_sum, tokens))
            loss_sum, tokens = (sum(column) for column in zip(*gathered, strict=True))
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
            own_samples = [samples[i] for i in share.tolist()]
            sums = torch.zeros(2, dtype=torch.float64)  # of the losses, of the targets
            for first in range(0, len(own_samples), batch_size):
                batch = own_samples[first : first + batch_size]
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
        "inference_mode", "adds up in inference mode, and all-reduces the inference tensor outside of it",
        edit="""
        -    sums = torch.zeros(2, dtype=torch.float64)  # of the losses, of the targets
        -    with torch.no_grad():
        +    with torch.inference_mode():
        +        sums = torch.zeros(2, dtype=torch.float64)  # of the losses, of the targets
    """),
)
