"""Wrong and right answers to question 10.2; ddp_course/authoring/answers.py says how to read them."""

from ddp_course.authoring.answers import RightAnswer, WrongAnswer

ANSWERS = (
    WrongAnswer(
        "divides_by_the_loss", "divides by the loss of one process, which may be 0",
        state="crashed", check="raises", says="losses that end at 0): rank 0 raised ZeroDivisionError", edit="""
        -        return len(a) == len(b) and all(math.isclose(x, y, rel_tol=1e-6) for x, y in zip(a, b, strict=True))
        +        return len(a) == len(b) and all(abs(x - y) / abs(y) < 1e-6 for x, y in zip(a, b, strict=True))
    """),
    WrongAnswer(
        "compares_what_is_printed", "compares six printed digits, which can differ for losses that are equal but for rounding",
        check="the_detector_tells_runs_apart", says="large losses, equal but for rounding: not_the_same_run returned [8]",
        edit="""
        -        return len(a) == len(b) and all(math.isclose(x, y, rel_tol=1e-6) for x, y in zip(a, b, strict=True))
        +        return [f"{x:.5e}" for x in a] == [f"{y:.5e}" for y in b]
    """),
    WrongAnswer(
        "three_collectives", "calls a barrier after every step",
        check="few_collectives", says="called 9 collectives (all_reduce, barrier) in its last 3 steps",
        look="what each of them is for", edit="""
                 weights.grad = None
        +        dist.barrier()
    """),
    WrongAnswer(
        "divides_by_none_that_fit", "divides by the number of micro-batches that fit, which may be 0",
        check="what_does_not_divide_is_refused", says="rank 0 raised ZeroDivisionError", edit="""
        -        fits = " or ".join(str(n * at_once) for n in (accumulation, accumulation + 1) if n)
        +        share = tokens_per_update / accumulation  # tokens of a micro-batch over all ranks, as if it divided
        +        fits = f"{accumulation * at_once} or {(accumulation + 1) * at_once} ({share:.1f} is not {at_once})"
    """),
    WrongAnswer(
        "names_one_size", "names the nearest size below only",
        check="what_does_not_divide_is_refused", says="which does not name",
        edit='''
        -def not_the_same_run(curves: dict[int, list[float]]) -> list[int]:
        -    """The world sizes whose losses are not those of one process, the smallest first."""
        -    def same(a, b):
        -        return len(a) == len(b) and all(math.isclose(x, y, rel_tol=1e-6) for x, y in zip(a, b, strict=True))
        -
        -    return sorted(size for size, losses in curves.items() if not same(losses, curves[1]))
        @@
        -        fits = " or ".join(str(n * at_once) for n in (accumulation, accumulation + 1) if n)
        -        raise ValueError(f"{tokens_per_update} tokens per step do not divide by {at_once}; nearest that do: {fits}")
        +        fits = [n * at_once for n in (accumulation,) if n]
        +        raise ValueError(f"{tokens_per_update} tokens per step do not divide by {at_once}; nearest: {fits}")
        @@
        -            loss = ((inputs @ weights - targets) ** 2).sum() / tokens_per_update
        -            loss.backward()
        +            loss = ((inputs @ weights - targets) ** 2).mean()
        +            (loss / accumulation).backward()
        @@
        -            weights -= 0.1 * weights.grad
        +            weights -= 0.1 * weights.grad / world
        @@
        -        losses.append(total.item())
        +        losses.append(total.item() / accumulation / world)
        @@
             return losses, weights.detach()
        +def not_the_same_run(curves):
        +    def same(a, b):
        +        return len(a) == len(b) and all(math.isclose(x, y, rel_tol=1e-6) for x, y in zip(a, b, strict=True))
        +
        +    return sorted(size for size, losses in curves.items() if not same(losses, curves[1]))
    '''),
    WrongAnswer(
        "own_loss", "adds up the micro-batches of this rank and no others",
        check="the_loss_is_that_of_the_step", says="that of its own micro-batches", on="names_one_size",
        edit="""
        -        fits = [n * at_once for n in (accumulation,) if n]
        +        fits = [n * at_once for n in (accumulation, accumulation + 1) if n]
        @@
        -        dist.all_reduce(total)  # once per step, not once per micro-batch
        @@
        -        losses.append(total.item() / accumulation / world)
        +        losses.append(total.item() / accumulation)
    """),
    WrongAnswer(
        "refuses_on_rank_0", "raises on rank 0 only, and the others continue",
        check="does not end", says="rank 0 had returned", on="names_one_size",
        edit="""
        -    if rest:  # the same on every rank: all of them raise
        -        fits = [n * at_once for n in (accumulation,) if n]
        +    if rest and rank == 0:
        +        fits = [n * at_once for n in (accumulation, accumulation + 1) if n]
    """),
    WrongAnswer(
        "says_every_loss", "all-reduces the loss of every micro-batch",
        check="few_collectives", says="called", on="own_loss",
        edit="""
        -            total += loss.detach()
        +            own_loss = loss.detach().clone()
        +            dist.all_reduce(own_loss)
        +            total += own_loss
        @@
        -        losses.append(total.item() / accumulation)
        +        losses.append(total.item() / accumulation / world)
    """),
    WrongAnswer(
        "stale_last_step", "makes the last step without the others' gradients",
        check="the_weights_are_those_of_one_process", says="ended with weights", on="names_one_size",
        edit="""
        -        fits = [n * at_once for n in (accumulation,) if n]
        +        fits = [n * at_once for n in (accumulation, accumulation + 1) if n]
        @@
        -        dist.all_reduce(weights.grad)
        +        if step < steps - 1:
        +            dist.all_reduce(weights.grad)
        +        else:
        +            weights.grad *= world
    """),
    WrongAnswer(
        "sum_of_gradients", "forgets to divide the gradient by the ranks",
        check="the_loss_is_that_of_the_step", says="the loss of step 1", on="names_one_size",
        edit="""
        -        fits = [n * at_once for n in (accumulation,) if n]
        +        fits = [n * at_once for n in (accumulation, accumulation + 1) if n]
        @@
        -            weights -= 0.1 * weights.grad / world
        +            weights -= 0.1 * weights.grad
    """),
    WrongAnswer(
        "every_rank_trains_on_everything", "every rank trains on the whole step, so that nothing has to be sent",
        check="the_windows_are_shared", says="window 0 of step 0 was read 2 times by all ranks together", edit="""
        -        for micro in range(accumulation):
        -            first = (micro * world + rank) * micro_batch_size
        +        for first in range(0, tokens_per_update // CONTEXT, micro_batch_size):
        @@
        -        dist.all_reduce(total)  # once per step, not once per micro-batch
        -        dist.all_reduce(weights.grad)
    """),
    WrongAnswer(
        "relative_to_the_largest", "calls losses equal that are less than a millionth of the largest loss apart",
        check="the_detector_tells_runs_apart", says="a small loss behind a large one", look="a limit", edit="""
        -        return len(a) == len(b) and all(math.isclose(x, y, rel_tol=1e-6) for x, y in zip(a, b, strict=True))
        +        return len(a) == len(b) and all(abs(x - y) <= 1e-6 * max(b) for x, y in zip(a, b, strict=True))
    """),
    RightAnswer(
        "gathers_losses",
        "the loss is gathered from all ranks at the end, in one collective, and stays a tensor; weights by hand",
        text="""
        import numpy as np
        import torch
        import torch.distributed as dist


        def train(window, tokens_per_update, micro_batch_size, steps):
            rank, world = dist.get_rank(), dist.get_world_size()
            unit = 8 * micro_batch_size * world
            if tokens_per_update % unit:
                below = tokens_per_update - tokens_per_update % unit
                fits = " or ".join(str(n) for n in (below, below + unit) if n > 0)
                raise ValueError(f"a step of {tokens_per_update} tokens cannot be shared out; possible: {fits}")
            accumulation = tokens_per_update // unit
            weights = torch.zeros(3, dtype=torch.float64, requires_grad=True)
            own = torch.zeros(steps, dtype=torch.float64)
            for step in range(steps):
                for micro in range(accumulation):
                    for i in range(micro_batch_size):
                        inputs, targets = window(step, (micro * world + rank) * micro_batch_size + i)
                        loss = ((inputs @ weights - targets) ** 2).sum() / tokens_per_update
                        loss.backward()
                        own[step] += loss.item()
                dist.all_reduce(weights.grad)
                weights.data -= 0.1 * weights.grad
                weights.grad.zero_()
            dist.all_reduce(own)
            return own, weights.detach().clone()


        def not_the_same_run(curves):
            different = []
            for size, losses in sorted(curves.items()):
                if len(losses) != len(curves[1]) or not np.allclose(losses, curves[1], rtol=1e-6, atol=0.0):
                    different += [size]
            return different
    """),
    RightAnswer(
        "numbers_without_a_space", "names the two sizes with nothing but a comma between them",
        edit="""
        -        fits = " or ".join(str(n * at_once) for n in (accumulation, accumulation + 1) if n)
        +        fits = ",".join(str(n * at_once) for n in (accumulation, accumulation + 1) if n)
    """),
    RightAnswer(
        "one_message",
        "gradient and loss are sent in one message; sums, divided once; weights for numpy; the detector uses torch",
        text="""
        import torch
        import torch.distributed as dist


        def train(window, tokens_per_update, micro_batch_size, steps):
            rank, world = dist.get_rank(), dist.get_world_size()
            context = 8
            windows = tokens_per_update / context / micro_batch_size / world
            if windows != int(windows) or windows == 0:
                step = context * micro_batch_size * world
                below, above = int(windows) * step, (int(windows) + 1) * step
                raise ValueError(f"{tokens_per_update:,} does not fit; try {above:,}" + (f" or {below:,}" if below else ""))
            weights, losses = torch.zeros(3, dtype=torch.float64), []
            for step in range(steps):
                sums = torch.zeros(4, dtype=torch.float64)
                for number in range(rank, tokens_per_update // context, world):
                    inputs, targets = window(step, number)
                    errors = inputs @ weights - targets
                    sums[:3] += 2 * errors @ inputs
                    sums[3] += errors @ errors
                dist.all_reduce(sums)
                sums /= tokens_per_update
                weights = weights - 0.1 * sums[:3]
                losses.append(float(sums[3]))
            return losses, weights.numpy()


        def not_the_same_run(curves):
            single, different = torch.tensor(curves[1]), []
            for size in sorted(curves):
                other = torch.tensor(curves[size])
                if other.shape != single.shape or not torch.allclose(other, single, rtol=1e-5, atol=0):
                    different.append(size)
            return different
    """),
    RightAnswer(
        "ddp_and_no_sync", "lets DDP average the gradients, in the last micro-batch of a step only",
        edit="""
         import math
        +from contextlib import nullcontext
        @@
         CONTEXT = 8  # tokens of a window
        +
        +
        +class Line(torch.nn.Module):
        +    def __init__(self):
        +        super().__init__()
        +        self.weights = torch.nn.Parameter(torch.zeros(3, dtype=torch.float64))
        +
        +    def forward(self, inputs):
        +        return inputs @ self.weights
        @@
        -    weights, losses = torch.zeros(3, dtype=torch.float64, requires_grad=True), []
        +    model, losses = torch.nn.parallel.DistributedDataParallel(Line()), []
        +    weights = model.module.weights
        @@
        -            loss = ((inputs @ weights - targets) ** 2).sum() / tokens_per_update
        -            loss.backward()
        +            with nullcontext() if micro == accumulation - 1 else model.no_sync():
        +                loss = ((model(inputs) - targets) ** 2).sum() / tokens_per_update
        +                (loss * world).backward()
        @@
        -        dist.all_reduce(weights.grad)
    """),
    RightAnswer(
        "blocks_of_windows", "each rank takes a block of windows that lie together, and the error says more",
        edit="""
        -            first = (micro * world + rank) * micro_batch_size
        +            first = (rank * accumulation + micro) * micro_batch_size
        @@
        -        raise ValueError(f"{tokens_per_update} tokens per step do not divide by {at_once}; nearest that do: {fits}")
        +        raise ValueError(
        +            f"cannot share {tokens_per_update} tokens among {world} ranks with {micro_batch_size} windows of "
        +            f"{CONTEXT} tokens each: {at_once} at a time; take {fits}"
        +        )
    """),
)
