"""Wrong and right answers to question 07.2; ddp_course/authoring/answers.py says how to read them."""

from ddp_course.authoring.answers import RightAnswer, WrongAnswer

ANSWERS = (
    WrongAnswer(
        "agrees_about_the_loss", "all ranks agree whether a loss overflowed, and the scaled gradient is not looked at",
        check="an_overflow_moves_no_rank", says="gradient overflows in step 1, its loss does not", edit="""
        -        scaler.scale(loss).backward()
        -        average_gradient(weight)
        -        scaler.step(optimizer)  # skips on every rank if the averaged gradient is not finite
        -        scaler.update()
        +        finite, scaled = torch.isfinite(loss).float(), scaler.scale(loss)
        +        dist.all_reduce(finite, op=dist.ReduceOp.MIN)
        +        if finite.item():
        +            scaled.backward()
        +            weight.grad /= scaler.get_scale()
        +            average_gradient(weight)
        +            optimizer.step()
        +        else:
        +            scaler.update(scaler.get_scale() / 2)
    """),
    WrongAnswer(
        "detector_close_is_equal", "the detector takes nearly equal for equal",
        check="the_detector_finds_the_step", says="unequal by the last bit in step 1", on="inf_found_by_hand",
        edit="""
        -        weight.grad /= scaler.get_scale()
        -        if weight.grad.isfinite().all():
        -            optimizer.step()
        -        else:
        -            scaler.update(scaler.get_scale() / 2)
        +        scaler.step(optimizer)
        +        scaler.update()
        @@
        -    dist.all_gather_object(histories, [repr(entry) for entry in train(batches, scale)])
        +    dist.all_gather_object(histories, [f"{w[0]:.6f} {w[1]:.6f} {s}" for w, s in train(batches, scale)])
    """),
    WrongAnswer(
        "detector_counts_to_the_longest", "takes the end of the longest history for the step where another one ends",
        check="the_detector_finds_the_step", says="rank 0 left after two steps): where_replicas_diverge returned 3",
        on="detector_close_is_equal",
        edit="""
        -    dist.all_gather_object(histories, [f"{w[0]:.6f} {w[1]:.6f} {s}" for w, s in train(batches, scale)])
        -    for step in range(max(map(len, histories))):
        -        if len({history[step] if step < len(history) else None for history in histories}) > 1:
        +    dist.all_gather_object(histories, [repr(entry) for entry in train(batches, scale)])
        +    for step, entries in enumerate(zip(*histories, strict=False)):
        +        if len(set(entries)) > 1:
                     return step
        -    return None
        +    lengths = set(map(len, histories))
        +    return max(lengths) - 1 if len(lengths) > 1 else None
    """),
    WrongAnswer(
        "divides_by_the_first_scale", "halves the scale by hand, and still divides by the first one",
        check="the_other_steps_are_right", says="one process with the global batch has",
        on="inf_found_by_hand", edit="""
        -        weight.grad /= scaler.get_scale()
        +        weight.grad /= scale
    """),
    WrongAnswer(
        "does_not_come", "a rank with an overflow leaves out backward and the average",
        check="does not end", says="rank 0 had returned, rank 1 was in all_reduce", on="unrepaired", edit="""
        -        scaler.scale(loss).backward()
        -        average_gradient(weight)
                 if torch.isfinite(loss):
        +            scaler.scale(loss).backward()
        +            average_gradient(weight)
    """),
    WrongAnswer(
        "no_unscale", "steps without the scaler, so that the gradient stays multiplied",
        check="a_skipped_step_halves_the_scale", says="step 1 had no overflow", on="inf_found_by_hand", edit="""
        -        weight.grad /= scaler.get_scale()
    """),
    WrongAnswer(
        "replaces_inf", "replaces what is not finite by zero before averaging",
        check="an_overflow_moves_no_rank", says="a step with an overflow is no step", on="detector_close_is_equal",
        edit="""
                 scaler.scale(loss).backward()
        +        weight.grad.nan_to_num_(0.0, 0.0, 0.0)
        @@
        -    dist.all_gather_object(histories, [f"{w[0]:.6f} {w[1]:.6f} {s}" for w, s in train(batches, scale)])
        +    dist.all_gather_object(histories, [repr(entry) for entry in train(batches, scale)])
    """),
    WrongAnswer(
        "unrepaired", "each rank looks at its own loss",
        check="the_ranks_stay_equal", says="after step 2 the scale on rank 1: 1024.0, on rank 0: 512.0",
        on="replaces_inf",
        edit="""
        -        weight.grad.nan_to_num_(0.0, 0.0, 0.0)
        @@
        -        scaler.step(optimizer)
        -        scaler.update()
        +        if torch.isfinite(loss):
        +            scaler.step(optimizer)
        +            scaler.update()
    """),
    WrongAnswer(
        "step_outside", "steps by its own loss, but updates the scaler always",
        state="crashed", check="raises", says="No inf checks were recorded prior to update", on="unrepaired",
        edit="""
        -            scaler.update()
        +        scaler.update()
    """),
    WrongAnswer(
        "scale_of_one_at_least", "does not let the scale fall below 1",
        check="a_skipped_step_halves_the_scale", says="the scale on rank 0 went from 1 to 1; it should be 0.5", edit="""
                 scaler.update()
        +        if scaler.get_scale() < 1:
        +            scaler.update(1.0)
    """),
    RightAnswer(
        "flag_by_all_reduce",
        "the ranks tell each other whether anything overflowed, and set the scale by hand; the detector compares bytes",
        text="""
        import struct

        import torch
        import torch.distributed as dist
        from torch.nn.functional import linear


        def train(batches, scale):
            weight, history = torch.zeros(1, 2, requires_grad=True), []
            for inputs, targets in batches:
                with torch.autocast("cpu", torch.float16):
                    loss = (linear(inputs, weight) - targets).square().mean()
                [gradient] = torch.autograd.grad(loss * scale, weight)
                overflowed = torch.tensor(0.0 if gradient.isfinite().all() else 1.0)
                dist.all_reduce(overflowed, op=dist.ReduceOp.MAX)
                if overflowed:
                    scale = scale / 2
                else:
                    dist.all_reduce(gradient)
                    with torch.no_grad():
                        weight -= 0.05 * gradient / dist.get_world_size() / scale
                history.append((weight[0].tolist(), scale))
            return history


        def where_replicas_diverge(train, batches, scale):
            mine = [struct.pack("3d", *weights, scale) for weights, scale in train(batches, scale)]
            everyone = [None] * dist.get_world_size()
            dist.all_gather_object(everyone, mine)
            longest = max(len(history) for history in everyone)
            for step in range(longest):
                if any(history[step : step + 1] != mine[step : step + 1] for history in everyone) or any(
                    history[step : step + 1] != everyone[0][step : step + 1] for history in everyone
                ):
                    return step
    """),
    RightAnswer(
        "inf_found_by_hand", "unscales by hand after the average and looks for inf there",
        text="""
        import torch
        import torch.distributed as dist
        from torch.nn.functional import linear


        def average_gradient(weight):
            dist.all_reduce(weight.grad)
            weight.grad /= dist.get_world_size()


        def train(batches, scale):
            weight = torch.zeros(1, 2, requires_grad=True)
            optimizer = torch.optim.SGD([weight], lr=0.05)
            scaler = torch.amp.GradScaler("cpu", init_scale=scale)
            history = []
            for inputs, targets in batches:
                with torch.autocast("cpu", torch.float16):
                    loss = (linear(inputs, weight) - targets).square().mean()
                optimizer.zero_grad()
                scaler.scale(loss).backward()
                average_gradient(weight)
                weight.grad /= scaler.get_scale()
                if weight.grad.isfinite().all():
                    optimizer.step()
                else:
                    scaler.update(scaler.get_scale() / 2)
                history.append([weight[0].tolist(), scaler.get_scale()])
            return history


        def where_replicas_diverge(train, batches, scale):
            histories = [None] * dist.get_world_size()
            dist.all_gather_object(histories, [repr(entry) for entry in train(batches, scale)])
            for step in range(max(map(len, histories))):
                if len({history[step] if step < len(history) else None for history in histories}) > 1:
                    return step
            return None
    """),
)
