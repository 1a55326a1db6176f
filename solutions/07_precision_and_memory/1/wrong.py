"""Wrong and right answers to question 07.1; ddp_course/authoring/answers.py says how to read them."""

from ddp_course.authoring.answers import RightAnswer, WrongAnswer

ANSWERS = (
    WrongAnswer(
        "detector_one_step", "the detector makes a single step, in which a gradient that is not zeroed does no harm",
        check="broken_versions_are_caught",
        says="adds the gradient of the step before): is_right returned True", look="one step or more", edit="""
        -        for steps in (1, 2):  # a gradient that was not zeroed shows in the second step
        +        for steps in (1,):
    """),
    WrongAnswer(
        "norm_by_the_next_scale", "divides the norm by the scale after the update, which may have doubled it",
        check="the_norm_is_that_of_the_mean_gradient", says="momentum): in step 2 train_step returned",
        on="limit_times_scale",
        edit="""
        -    scale = scaler.get_scale()
        -    norm = clip_grad_norm_(weights, limit * scale)
        +    norm = clip_grad_norm_(weights, limit * scaler.get_scale())
        @@
        -    return norm.item() / scale
        +    return norm.item() / scaler.get_scale()
    """),
    WrongAnswer(
        "replaces_inf", "replaces what is not finite by zero",
        check="an_overflow_moves_no_rank", says="they should stay", on="limit_times_scale",
        edit="""
             scaler.scale(loss).backward()
        +    for weight in weights:
        +        weight.grad = weight.grad.nan_to_num(0.0, 0.0, 0.0)
        @@
        -    scale = scaler.get_scale()
        -    norm = clip_grad_norm_(weights, limit * scale)
        +    scaler.unscale_(optimizer)
        +    norm = clip_grad_norm_(weights, limit)
        @@
        -    return norm.item() / scale
        +    return norm.item()
    """),
    WrongAnswer(
        "steps_by_hand", "subtracts learning rate times gradient and never calls the optimizer",
        check="every_step_is_that_of_one_process", says="momentum): in step 2 the weights on rank 0 moved by",
        edit="""
        -import torch.distributed.nn  # imported later, by an optimizer, it would keep the group alive past its end
        @@
        -    scaler.unscale_(optimizer)  # after averaging: all ranks look for inf in the same gradient
        +    for weight in weights:
        +        weight.grad /= scaler.get_scale()
        @@
        -    scaler.step(optimizer)
        -    scaler.update()
        +    if norm.isfinite():
        +        with torch.no_grad():
        +            for weight in weights:
        +                weight -= optimizer.param_groups[0]["lr"] * weight.grad
        @@
        -def main():
        -    dist.init_process_group("gloo", timeout=timedelta(seconds=20))
        -    rank = dist.get_rank()
        -    torch.manual_seed(rank)
        -    inputs = torch.randn(20, 8, 2, dtype=torch.float64)
        -    targets = inputs @ torch.tensor([2.0, -1.0], dtype=torch.float64) + 0.5
        -    path = train(inputs, targets, limit=1.0)
        -    if rank == 0:
        -        for step in (0, 9, 19):
        -            weights, norm = path[step]
        -            print(f"step {step + 1:2}  weights {[round(value, 4) for value in weights]}  norm {norm:,.1f}")
        -        print("the weights should reach [2, -1, 0.5]")
        -    dist.destroy_process_group()
        -
        -
        -if __name__ == "__main__":
        -    main()
    """),
    WrongAnswer(
        "unrepaired", "clips scaled gradients, each rank its own",
        check="every_step_is_that_of_one_process", says="in step 1 the weights on rank 0 moved by", on="limit_times_scale",
        edit="""
             scaler.scale(loss).backward()
        +    norm = clip_grad_norm_(weights, limit)
        @@
        -    scale = scaler.get_scale()
        -    norm = clip_grad_norm_(weights, limit * scale)
        @@
        -    return norm.item() / scale
        +    return norm.item()
    """),
    WrongAnswer(
        "norm_on_rank_0_only", "returns the norm on rank 0 only, which prints it",
        check="the_norm_is_that_of_the_mean_gradient", says="train_step returned None on rank 1", edit="""
        -    return norm.item()
        +    return norm.item() if dist.get_rank() == 0 else None
    """),
    WrongAnswer(
        "steps_along_zero", "zeroes a gradient that is not finite, and steps: momentum moves the weights all the same",
        check="an_overflow_moves_no_rank", says="rank 0 overflows in step 2, SGD with momentum): in step 2 the weights",
        look="once it has a momentum", edit="""
        -    scaler.unscale_(optimizer)  # after averaging: all ranks look for inf in the same gradient
        -    norm = clip_grad_norm_(weights, limit)
        -    scaler.step(optimizer)
        -    scaler.update()
        +    for weight in weights:
        +        weight.grad /= scaler.get_scale()
        +    norm = clip_grad_norm_(weights, limit)
        +    if not norm.isfinite():
        +        optimizer.zero_grad(set_to_none=False)
        +    optimizer.step()
    """),
    WrongAnswer(
        "detector_too_exact", "the detector wants twelve digits, and takes rounding for a mistake",
        check="right_versions_pass", says="clips by clip_grad_norm_): is_right returned False", look="rounding", edit="""
        -            good *= torch.allclose(torch.cat(weights).detach(), steps * right_step, rtol=1e-4, atol=0.0)
        +            good *= torch.allclose(torch.cat(weights).detach(), steps * right_step, rtol=1e-12, atol=0.0)
    """),
    WrongAnswer(
        "detector_too_lax", "the detector takes a step for right that is up to 1 % away",
        check="broken_versions_are_caught", says="makes steps 0.5 % too long): is_right returned True", look="how far", edit="""
        -            good *= torch.allclose(torch.cat(weights).detach(), steps * right_step, rtol=1e-4, atol=0.0)
        +            good *= torch.allclose(torch.cat(weights).detach(), steps * right_step, rtol=1e-2, atol=0.0)
    """),
    WrongAnswer(
        "detector_by_rank", "each rank returns what it found for its own weights",
        check="all_ranks_agree", says="clips on rank 0 only): is_right returned", look="what the others found", edit="""
        -    dist.all_reduce(good, op=dist.ReduceOp.MIN)  # right only if right everywhere
    """),
    RightAnswer(
        "flat_and_by_hand",
        "one message for all gradients, scale and clip by hand; the norm is a tensor; a detector with a training step of its own",
        text="""
        import torch
        import torch.distributed as dist


        def train_step(weights, optimizer, scaler, loss, limit):
            optimizer.zero_grad()
            (loss * 1024.0).backward()
            flat = torch.cat([weight.grad.flatten() for weight in weights])
            dist.all_reduce(flat)
            flat = flat / dist.get_world_size() / 1024.0
            norm = flat.norm()
            if not norm.isfinite():
                return norm
            pieces = (flat * min(1.0, limit / (norm + 1e-12))).split([weight.numel() for weight in weights])
            for weight, piece in zip(weights, pieces, strict=True):
                weight.grad = piece.view_as(weight)
            optimizer.step()
            return norm


        def train(inputs, targets, limit):
            weights = [torch.zeros(2, dtype=torch.float64), torch.zeros(1, dtype=torch.float64)]
            for weight in weights:
                weight.requires_grad_()
            optimizer = torch.optim.SGD(weights, lr=0.5)
            scaler = torch.amp.GradScaler("cpu")
            path = []
            for batch, target in zip(inputs, targets, strict=True):
                loss = (batch @ weights[0] + weights[1] - target).square().mean()
                norm = train_step(weights, optimizer, scaler, loss, limit)
                path.append([torch.cat(weights).tolist(), norm])
            return path


        def is_right(step_to_test):
            differences = 0
            for size in (1e-3, 1e3):
                ends = []
                for step in (step_to_test, train_step):
                    generator = torch.Generator().manual_seed(dist.get_rank())
                    weights = [torch.zeros(2, 2, requires_grad=True), torch.zeros(3, requires_grad=True)]
                    optimizer, scaler = torch.optim.SGD(weights, lr=1.0), torch.amp.GradScaler("cpu")
                    for _ in range(3):
                        loss = sum((weight * size * torch.randn(weight.shape, generator=generator)).sum() for weight in weights)
                        step(weights, optimizer, scaler, loss, 1.0)
                    ends.append(torch.cat([weight.detach().flatten() for weight in weights]))
                differences += int(not (ends[0] - ends[1]).norm() <= 1e-3 * ends[1].norm())
            by_rank = [None] * dist.get_world_size()
            dist.all_gather_object(by_rank, differences)
            return not any(by_rank)
    """),
    RightAnswer(
        "limit_times_scale", "clips scaled gradients at limit x scale",
        text="""
        import torch
        import torch.distributed as dist
        from torch.nn.utils import clip_grad_norm_


        def average_gradients(weights):
            for weight in weights:
                dist.all_reduce(weight.grad)
                weight.grad /= dist.get_world_size()


        def train_step(weights, optimizer, scaler, loss, limit):
            optimizer.zero_grad()
            scaler.scale(loss).backward()
            average_gradients(weights)
            scale = scaler.get_scale()
            norm = clip_grad_norm_(weights, limit * scale)
            scaler.step(optimizer)
            scaler.update()
            return norm.item() / scale


        def train(inputs, targets, limit):
            weights = [torch.zeros(2, dtype=torch.float64), torch.zeros(1, dtype=torch.float64)]
            for weight in weights:
                weight.requires_grad_()
            optimizer = torch.optim.SGD(weights, lr=0.5)
            scaler = torch.amp.GradScaler("cpu")
            path = []
            for batch, target in zip(inputs, targets, strict=True):
                loss = (batch @ weights[0] + weights[1] - target).square().mean()
                norm = train_step(weights, optimizer, scaler, loss, limit)
                path.append([torch.cat(weights).tolist(), norm])
            return path


        def is_right(train_step):
            good = torch.ones(())
            for size in (0.001, 1000.0):
                rows = size * torch.tensor([[3.0, -1.0, 2.0], [-1.0, 5.0, 0.5], [0.0, 2.0, -4.0]], dtype=torch.float64)
                chosen = rows[dist.get_rank() % 3]
                weights = [torch.zeros(2, dtype=torch.float64), torch.zeros(1, dtype=torch.float64)]
                for weight in weights:
                    weight.requires_grad_()
                optimizer, scaler = torch.optim.SGD(weights, lr=1.0), torch.amp.GradScaler("cpu")
                for _ in range(2):
                    train_step(weights, optimizer, scaler, (torch.cat(weights) * chosen).sum(), 1.0)
                mean = torch.stack([rows[rank % 3] for rank in range(dist.get_world_size())]).mean(0)
                expected = -2 * mean * min(1.0, 1.0 / mean.norm().item())
                good *= torch.allclose(torch.cat(weights).detach(), expected, rtol=1e-4, atol=0.0)
            dist.all_reduce(good, op=dist.ReduceOp.MIN)
            return bool(good)
    """),
)
