"""Wrong and right answers to question 25.2; ddp_course/authoring/answers.py says how to read them."""

from ddp_course.authoring.answers import RightAnswer, WrongAnswer

ANSWERS = (
    WrongAnswer(
        "a_sum", "adds up what the ranks send",
        check="the_largest_are_sent", says="the sum over the ranks", look="mean", edit="""
        -                mean.index_add_(0, at, value / world)
        +                mean.index_add_(0, at, value)
    """),
    WrongAnswer(
        "largest_not_in_size", "takes the largest numbers, and never a negative one",
        check="the_largest_are_sent", says="after step 1 the gradient of parameter 1 on rank 0 is wrong", look="-3", edit="""
        -            largest = total.abs().topk(min(self.k, total.numel())).indices
        +            largest = total.topk(min(self.k, total.numel())).indices
    """),
    WrongAnswer(
        "keeps_nothing", "forgets what it has not sent: the small numbers never arrive",
        check="a_rank_keeps_what_it_has_not_sent", says="what rank 0 keeps of parameter 1 is wrong, nothing",
        look="what happens to", edit="""
        -            self.kept[number] = total.view_as(parameter)
    """),
    WrongAnswer(
        "keeps_what_it_has_sent", "keeps the sum of all gradients, so that each number is sent over and over",
        check="a_rank_keeps_what_it_has_not_sent", says="all of the gradient", look="once more", edit="""
        -            total[largest] = 0
    """),
    WrongAnswer(
        "keeps_the_last_rest_only", "keeps what it has not sent of this gradient, and drops what it kept before",
        check="nothing_is_lost", says="after step 2", look="kept before", edit="""
        -            total[largest] = 0
        -            self.kept[number] = total.view_as(parameter)
        +            rest = parameter_gradient.clone()
        +            rest[largest] = 0
        +            self.kept[number] = rest.view_as(parameter)
        @@
        -            total = (self.kept[number] + parameter.grad).flatten()
        +            parameter_gradient = parameter.grad.flatten()
        +            total = (self.kept[number] + parameter.grad).flatten()
    """),
    WrongAnswer(
        "chooses_by_the_gradient", "chooses by the gradient alone: what is kept may wait for ever",
        check="kept_numbers_compete", says="after step 2 the gradient of parameter 1 on rank 0", look="the k largest of what",
        edit="""
        -            largest = total.abs().topk(min(self.k, total.numel())).indices
        +            largest = parameter.grad.flatten().abs().topk(min(self.k, total.numel())).indices
    """),
    WrongAnswer(
        "kept_by_position", "leaves out parameters without a gradient, and so mixes up what is kept",
        check="a_parameter_without_a_gradient_waits", says="after step 2 the gradient of parameter 2 on rank 0",
        look="belong to which", edit="""
        -        for number, parameter in enumerate(self.parameters):
        -            if parameter.grad is None:
        -                continue
        +        for number, parameter in enumerate(p for p in self.parameters if p.grad is not None):
    """),
    WrongAnswer(
        "none_is_zero", "treats a missing gradient as zeros, and sends kept numbers",
        check="a_parameter_without_a_gradient_waits", says="is there, though it had none", look=".grad is None", edit="""
        -                continue
        +                parameter.grad = torch.zeros_like(parameter)
    """),
    WrongAnswer(
        "added_in_an_order_of_its_own", "adds what the ranks sent beginning with its own",
        check="all_ranks_get_the_same", says="differs from rank 0's by a rounding", look="the order", edit="""
        -            for value, at in zip(values, indices, strict=True):
        -                mean.index_add_(0, at, value / world)
        +            for step in range(world):
        +                other = (dist.get_rank() + step) % world
        +                mean.index_add_(0, indices[other], values[other] / world)
    """),
    WrongAnswer(
        "sends_zeros", "all-reduces the whole gradient with zeros where nothing is sent",
        check="little_is_sent", says="for 48 numbers and their places", look="zeros cost", edit="""
        -            values = [torch.empty_like(total[largest]) for _ in range(world)]
        -            indices = [torch.empty_like(largest) for _ in range(world)]
        -            dist.all_gather(values, total[largest])
        -            dist.all_gather(indices, largest)
        @@
        -            for value, at in zip(values, indices, strict=True):
        -                mean.index_add_(0, at, value / world)
        +            mean[largest] = total[largest]
        +            dist.all_reduce(mean, op=dist.ReduceOp.AVG)
    """),
    WrongAnswer(
        "all_as_large_as_the_kth", "sends all numbers that are not smaller than the k-th, also if many are equal",
        check="little_is_sent", says="(fewer than k numbers of a gradient are not zero): rank 0 handed",
        look="if several are equally large", edit="""
        -            largest = total.abs().topk(min(self.k, total.numel())).indices
        +            kth = total.abs().topk(min(self.k, total.numel())).values[-1]
        +            [largest] = torch.where(total.abs() >= kth)
    """),
    WrongAnswer(
        "all_as_large_are_gone", "sends k numbers, and drops all others that are as large as the smallest of them",
        check="nothing_is_lost", says="(many numbers are equally large): after step 1", look="as large as", edit="""
        -            total[largest] = 0
        +            total[total.abs() >= total[largest].abs().min()] = 0
    """),
    RightAnswer(
        "sparse_tensor", "all-reduces a sparse tensor, of which gloo sends indices and values", edit="""
        -            values = [torch.empty_like(total[largest]) for _ in range(world)]
        -            indices = [torch.empty_like(largest) for _ in range(world)]
        -            dist.all_gather(values, total[largest])
        -            dist.all_gather(indices, largest)
        -            mean = torch.zeros_like(total)
        -            for value, at in zip(values, indices, strict=True):
        -                mean.index_add_(0, at, value / world)
        +            mean = torch.sparse_coo_tensor(largest[None], total[largest], total.shape)
        +            dist.all_reduce(mean)
        +            mean = mean.to_dense() / world
    """),
    RightAnswer(
        "one_message", "sends all parameters in one message, with the positions as floating-point numbers", text='''
        import torch
        import torch.distributed as dist


        class TopK:
            def __init__(self, parameters, k):
                self.parameters, self.k = list(parameters), k
                self.kept = [torch.zeros_like(parameter) for parameter in self.parameters]

            def reduce(self):
                those = [(p, kept) for p, kept in zip(self.parameters, self.kept) if p.grad is not None]
                if not those:
                    return
                parts, offset = [], 0
                for parameter, kept in those:
                    kept += parameter.grad
                    flat = kept.view(-1)
                    at = flat.abs().argsort(descending=True)[: self.k]
                    parts.append(torch.stack([flat[at], (at + offset).to(flat)]))
                    flat[at] = 0
                    offset += flat.numel()
                message, world = torch.cat(parts, 1), dist.get_world_size()
                everyone = message.new_empty(world, *message.shape)
                dist.all_gather(list(everyone), message)
                mean = message.new_zeros(offset)
                for values, indices in everyone:
                    mean[indices.long()] += values
                mean /= world
                for (parameter, _), part in zip(those, mean.split([p.numel() for p, _ in those])):
                    parameter.grad = part.view_as(parameter).clone()
    '''),
)
