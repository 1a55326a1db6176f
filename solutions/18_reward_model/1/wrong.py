"""Wrong and right answers to question 18.1; ddp_course/authoring/answers.py says how to read them."""

from ddp_course.authoring.answers import RightAnswer, WrongAnswer

ANSWERS = (
    WrongAnswer(
        "as_it_was", "the detector is right, the loop is as it was",
        check="replicas_end_equal", says="the head of rank 1 is", edit="""
        -    dist.broadcast(head, src=0)
             for _ in range(steps):
                 _, gradient = loss_and_gradient(head, chosen, rejected)
        -        dist.all_reduce(gradient)
        -        head -= rate * gradient / dist.get_world_size()
        +        head -= rate * gradient
    """),
    WrongAnswer(
        "every_rank_saves", "every rank returns the head to be saved",
        check="one_rank_saves", says="rank 1 returned a head", edit="""
        -    return head if dist.get_rank() == 0 else None
        +    return head
    """),
    WrongAnswer(
        "heads_averaged_at_the_end", "trains without communication and averages the heads after the last step",
        check="the_global_batch_is_learned", says="(3 steps): the head is", edit="""
        -        dist.all_reduce(gradient)
        -        head -= rate * gradient / dist.get_world_size()
        +        head -= rate * gradient
        +    dist.all_reduce(head)
        +    head /= dist.get_world_size()
    """),
    WrongAnswer(
        "trained_head_looked_at", "the detector reads the head that rank 0 trained in place, not the one that is saved",
        check="the_shares_are_read_right", says="the heads averaged at the end", look="the head that was returned", edit="""
        -    saved = train(torch.zeros(world, dtype=torch.float64), chosen, torch.zeros_like(chosen), 1, rate)
        -    box = [saved]
        +    own_head = torch.zeros(world, dtype=torch.float64)
        +    train(own_head, chosen, torch.zeros_like(chosen), 1, rate)
        +    box = [own_head]
    """),
    WrongAnswer(
        "pairs_gathered", "sends all pairs to all ranks, and each computes everything",
        check="pairs_stay_where_they_are", says="handed", edit="""
        +    gathered = [None] * dist.get_world_size()
        +    dist.all_gather_object(gathered, (chosen, rejected))
        +    pairs = [torch.cat(part) for part in zip(*gathered, strict=True)]
             for _ in range(steps):
        -        _, gradient = loss_and_gradient(head, chosen, rejected)
        -        dist.all_reduce(gradient)
        -        head -= rate * gradient / dist.get_world_size()
        +        head -= rate * loss_and_gradient(head, *pairs)[1]
    """),
    WrongAnswer(
        "slope_forgotten", "the detector takes the learning rate for the whole step",
        check="the_shares_are_read_right", says="returned [0.5, 0, 0]", edit="""
        -    full_step = rate / 2  # softplus has the slope 1/2 at 0
        +    full_step = rate
    """),
    WrongAnswer(
        "starts_differ", "averages gradients, but every rank begins with its own head",
        check="replicas_end_equal", says="the head of rank 1 is", edit="""
        -    dist.broadcast(head, src=0)
    """),
    WrongAnswer(
        "summed", "sums the gradients and does not divide",
        check="the_global_batch_is_learned", says="from that of one process on all pairs", edit="""
        -        head -= rate * gradient / dist.get_world_size()
        +        head -= rate * gradient
    """),
    WrongAnswer(
        "trains_for_each_rank", "the detector trains once for each rank, each time with another rank's pairs marked",
        check="it_is_called_once", says="shares called train 3 times on rank 0", text="""
        import torch
        import torch.distributed as dist
        import torch.nn.functional as F


        def loss_and_gradient(head, chosen, rejected):
            head = head.detach().requires_grad_()
            loss = F.softplus(rejected @ head - chosen @ head).mean()
            return loss.item(), torch.autograd.grad(loss, head)[0]


        def shares(train):
            result = []
            for marked in range(dist.get_world_size()):
                chosen = torch.full((1, 1), float(dist.get_rank() == marked), dtype=torch.float64)
                saved = train(torch.zeros(1, dtype=torch.float64), chosen, torch.zeros_like(chosen), 1, 1.0)
                box = [saved]
                dist.broadcast_object_list(box, src=0)
                result.append(box[0].item() / 0.5)
            return result


        def train(head, chosen, rejected, steps, rate):
            dist.broadcast(head, src=0)
            for _ in range(steps):
                _, gradient = loss_and_gradient(head, chosen, rejected)
                dist.all_reduce(gradient)
                head -= rate * gradient / dist.get_world_size()
            return head if dist.get_rank() == 0 else None
    """),
    RightAnswer(
        "differences",
        "heads are averaged after every step; the detector runs each rank's pairs alone and compares lengths",
        text='''
        import torch
        import torch.distributed as dist


        def slopes(head, chosen, rejected):
            gap = chosen - rejected
            return -(torch.sigmoid(-(gap @ head))[:, None] * gap).mean(0)


        def told_by_rank_0(tensor):
            box = torch.zeros(dist.get_world_size(), 2, dtype=torch.float32) if tensor is None else tensor.clone()
            dist.broadcast(box, src=0)
            return box


        def shares(train):
            """Rank r's pairs all lie in a plane of two features of its own; the head starts somewhere."""
            rank, world = dist.get_rank(), dist.get_world_size()
            start = torch.linspace(0.5, -0.5, 2 * world)
            marks = torch.zeros(world, 4, 2 * world)
            for peer in range(world):
                marks[peer, :, 2 * peer : 2 * peer + 2] = torch.tensor([[1.0, 0.5], [0.2, -1.0], [2.0, 1.0], [0.0, 0.3]])
            saved = train(start.clone(), marks[rank], -marks[rank], 1, 0.1)
            moved = (told_by_rank_0(None if saved is None else saved.view(world, 2)) - start.view(world, 2)).flatten()
            result = []
            for peer in range(world):
                full_step = -0.1 * slopes(start, marks[peer], -marks[peer])
                result.append((moved @ full_step / (full_step @ full_step)).item())
            return result


        def train(head, chosen, rejected, steps, rate):
            world = dist.get_world_size()
            head.mul_(float(dist.get_rank() == 0))
            dist.all_reduce(head)
            for _ in range(steps):
                head.sub_(slopes(head, chosen, rejected), alpha=rate)
                dist.all_reduce(head)
                head.div_(world)
            if dist.get_rank() == 0:
                return head.clone()
    '''),
    RightAnswer(
        "rank_0_decides",
        "rank 0 collects the gradients, moves its head and sends it to all; the shares come from a linear system",
        text="""
        import torch
        import torch.distributed as dist
        import torch.nn.functional as F


        def slope(head, chosen, rejected):
            head = head.clone().requires_grad_()
            F.softplus((rejected - chosen) @ head).mean().backward()
            return head.grad


        def shares(train):
            world, rank = dist.get_world_size(), dist.get_rank()
            numbers = torch.Generator().manual_seed(0)  # the same numbers everywhere: every rank has the pairs of all
            start = torch.randn(7, dtype=torch.float64, generator=numbers)
            pairs = torch.randn(world, 2, 5, 7, dtype=torch.float64, generator=numbers)
            saved = train(start.clone(), pairs[rank, 0], pairs[rank, 1], 1, 0.01)
            gathered = [None] * world
            dist.all_gather_object(gathered, saved)
            full_step = torch.stack([-0.01 * slope(start, *pair) for pair in pairs], dim=1)
            return torch.linalg.lstsq(full_step, (gathered[0] - start)[:, None]).solution.flatten()


        def train(head, chosen, rejected, steps, rate):
            for step in range(steps + 1):
                dist.broadcast(head, src=0)
                if step < steps:
                    gradient = slope(head, chosen, rejected)
                    dist.reduce(gradient, dst=0)
                    head -= rate * gradient / dist.get_world_size()
            return None if dist.get_rank() else head
    """),
)
