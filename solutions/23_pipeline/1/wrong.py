"""Wrong and right answers to question 23.1; ddp_course/authoring/answers.py says how to read them."""

from ddp_course.authoring.answers import RightAnswer, WrongAnswer

ANSWERS = (
    WrongAnswer(
        "computed_again", "keeps the inputs alone, and runs the stage once more before its backward",
        check="each_micro_batch_is_computed_once", says="rank 0 ran its stage forward 2 and backward 1 times", look="nothing is computed again",
        edit="""
        -        y = stage(x)
        +        with torch.no_grad():
        +            y = stage(x)
        @@
        -            y = loss(y, targets[number]) * len(targets[number]) / samples
        -        activations[number] = x, y
        +            y = loss(y, targets[number]) * len(targets[number]) / samples
        +        activations[number] = x
        @@
        -        x, y = activations.pop(number)
        +        x = activations.pop(number)
        +        y = stage(x)
        +        if rank == ranks - 1:
        +            y = loss(y, targets[number]) * len(targets[number]) / samples
    """),
    WrongAnswer(
        "the_whole_batch_at_once", "puts the micro-batches together, and needs no weights for the mean",
        check="each_micro_batch_is_computed_once", says="rank 0 ran its stage forward 1 and backward 1 times, for 2 micro-batches", look="put together", edit="""
             activations, sends = {}, []
        +    inputs, targets = [torch.cat(inputs)], [torch.cat(targets)]
    """),
    WrongAnswer(
        "a_sum_of_means", "adds up the means of the micro-batches",
        check="the_gradients_are_those_of_one_process", says="(2 equal micro-batches): after batch 0",
        look="how much of the batch's mean", edit="""
        -            y = loss(y, targets[number]) * len(targets[number]) / samples
        +            y = loss(y, targets[number])
    """),
    WrongAnswer(
        "sets_the_gradients_back", "begins every batch with gradients of zero",
        check="the_gradients_are_those_of_one_process", says="gradients added up): after batch 1", look="it stays", edit="""
             activations, sends = {}, []
        +    stage.zero_grad()
    """),
    WrongAnswer(
        "the_last_one_first", "runs backward for the micro-batch of the last forward, not for the one whose gradient has arrived",
        state="crashed", check="raises", says="(3 micro-batches of 3, 1 and 2 samples): rank 0 raised RuntimeError: Mismatch",
        edit="""
        -        x, y = activations.pop(number)
        +        x, y = activations.popitem()[1]
    """),
    WrongAnswer(
        "all_forwards_first", "works in the order of GPipe",
        check="little_is_held", says="autograd held 2 micro-batches at once on rank 1, where 1F1B holds at most 1",
        look="when the first backward comes", edit="""
        -    ahead = min(ranks - 1 - rank, len(inputs))
        +    ahead = len(inputs)
    """),
    WrongAnswer(
        "one_more_ahead", "runs one forward more than it has to",
        check="little_is_held", says="autograd held 2 micro-batches at once on rank 1", edit="""
        -    ahead = min(ranks - 1 - rank, len(inputs))
        +    ahead = min(ranks - rank, len(inputs))
    """),
    WrongAnswer(
        "one_at_a_time", "sends a micro-batch there and back before it begins with the next one",
        check="one_forward_one_backward", says="rank 0 computed F0 B0 F1 B1; 1F1B is F0 F1 B0 B1",
        look="how many forwards come first", edit="""
        -    ahead = min(ranks - 1 - rank, len(inputs))
        +    ahead = 0
    """),
    WrongAnswer(
        "in_groups", "runs as many forwards as it may hold, then as many backwards, and so on",
        check="does not end", says="with 3 ranks (4 equal micro-batches): no end", look="who sends while all of them receive", edit="""
        -    ahead = min(ranks - 1 - rank, len(inputs))
        -    for number in range(ahead):
        -        forward(number)
        -    for number in range(len(inputs)):
        -        if number + ahead < len(inputs):
        -            forward(number + ahead)
        -        backward(number)
        +    for start in range(0, len(inputs), ranks - rank):
        +        group = range(start, min(start + ranks - rank, len(inputs)))
        +        for number in group:
        +            forward(number)
        +        for number in group:
        +            backward(number)
    """),
    WrongAnswer(
        "padded_to_the_longest", "sends micro-batches of one size, the shorter ones filled up with zeros",
        check="each_number_is_sent_once", says="rank 0 handed 432 bytes to", look="as long as it is", edit="""
        -        tensor = torch.empty(len(inputs[number]), width, dtype=torch.float64)
        -        dist.recv(tensor, source)
        -        return tensor
        +        tensor = torch.empty(longest, width, dtype=torch.float64)
        +        dist.recv(tensor, source)
        +        return tensor[: len(inputs[number])].clone()
        +
        +    longest = max(len(micro_batch) for micro_batch in inputs)
        +
        +    def padded(tensor):
        +        return torch.cat([tensor, tensor.new_zeros(longest - len(tensor), width)])
        @@
        -            sends.append(dist.isend(y.detach(), rank + 1))
        +            sends.append(dist.isend(padded(y.detach()), rank + 1))
        @@
        -            sends.append(dist.isend(x.grad, rank - 1))
        +            sends.append(dist.isend(padded(x.grad), rank - 1))
    """),
    WrongAnswer(
        "meets_after_each_batch", "ends each batch with a barrier",
        check="each_number_is_sent_once", says="rank 0 started a barrier", look="waits for what it receives", edit="""
        -    for send in sends:
        -        send.wait()
        +    for send in sends:
        +        send.wait()
        +    dist.barrier()
    """),
    WrongAnswer(
        "sends_that_wait", "uses blocking sends, whose receivers are sending as well",
        check="does not end", says="rank 1 was in send to rank 0", look="who receives while all of them send", edit="""
        -            sends.append(dist.isend(y.detach(), rank + 1))
        +            dist.send(y.detach(), rank + 1)
        @@
        -            sends.append(dist.isend(x.grad, rank - 1))
        +            dist.send(x.grad, rank - 1)
    """),
    WrongAnswer(
        "as_many_as_ranks", "expects at least one micro-batch per rank",
        state="crashed", check="raises", says="with 3 ranks (1 micro-batch): rank 0 raised IndexError", look="inputs[number]",
        edit="""
        -    ahead = min(ranks - 1 - rank, len(inputs))
        +    ahead = ranks - 1 - rank
    """),
    RightAnswer(
        "a_list_and_autograd_grad",
        "lists the order first, starts all receives of activations at once, and adds up the gradients itself",
        text='''
        import torch
        import torch.distributed as dist


        def one_batch(stage, loss, inputs, targets, width):
            rank, ranks = dist.get_rank(), dist.get_world_size()
            total, parameters = len(torch.cat(targets)), list(stage.parameters())
            first = min(ranks - rank, len(inputs))
            order = [(True, number) for number in range(first)]
            for number in range(len(inputs)):
                order += [(False, number), (True, number + first)]
            buffers = [torch.empty(len(micro_batch), width, dtype=torch.float64) for micro_batch in inputs]
            coming = [dist.irecv(buffer, rank - 1) for buffer in buffers] if rank else []
            kept, works = [None] * len(inputs), []
            for is_forward, number in order:
                if number >= len(inputs):
                    continue
                if is_forward:
                    x = inputs[number]
                    if rank:
                        coming[number].wait()
                        x = buffers[number].requires_grad_()
                    y = stage(x)
                    if rank == ranks - 1:
                        y = loss(y, targets[number])
                    else:
                        works += dist.batch_isend_irecv([dist.P2POp(dist.isend, y.detach(), rank + 1)])
                    kept[number] = x, y
                else:
                    (x, y), kept[number] = kept[number], None
                    gradient = torch.tensor(len(targets[number]) / total, dtype=torch.float64)
                    if rank < ranks - 1:
                        gradient = torch.empty_like(y)
                        dist.recv(gradient, rank + 1)
                    gradients = torch.autograd.grad(y, [*parameters, *([x] if rank else [])], gradient)
                    for parameter, own in zip(parameters, gradients):
                        parameter.grad = own if parameter.grad is None else parameter.grad + own
                    if rank:
                        works.append(dist.isend(gradients[-1], rank - 1))
                    del y
            for work in works:
                work.wait()
    '''),
)
