"""Wrong and right answers to question 07.2; ddp_course/authoring/answers.py says how to read them."""

from ddp_course.authoring.answers import RightAnswer, WrongAnswer

ANSWERS = (
    WrongAnswer(
        "agrees_and_leaves_the_scaler_alone", "all ranks agree to skip, and nobody updates the scaler",
        check="a_skipped_step_halves_the_scale",
        says="step 3 was skipped, and the scale on rank 0 went from 1024 to 1024", on="unrepaired", edit="""
        +        finite = torch.isfinite(loss).float()
        +        dist.all_reduce(finite, op=dist.ReduceOp.MIN)
                 scaler.scale(loss).backward()
                 average_gradient(weight)
        -        if torch.isfinite(loss):
        +        if finite.item():
    """),
    WrongAnswer(
        "agrees_about_the_loss", "all ranks agree whether a loss overflowed, and nobody looks at the scaled gradient",
        check="an_overflow_moves_nobody", says="gradient overflows in step 2, its loss does not", edit="""
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
        "clears_the_step_after", "leaves out every step in which the scale differs from the first one",
        check="a_skipped_step_halves_the_scale", says="and the scale on rank 0 went from 512 to 512",
        on="looks_before_averaging", edit="""
        -        scaler.unscale_(optimizer)
                 average_gradient(weight)
        +        if scaler.get_scale() < scale:
        +            weight.grad.zero_()
    """),
    WrongAnswer(
        "detector_close_is_equal", "the detector takes nearly equal for equal",
        check="the_detector_finds_the_step", says="apart by the last bit in step 2",
        on="looks_before_averaging", edit="""
        -        scaler.unscale_(optimizer)
        @@
        -    dist.all_gather_object(histories, [repr(entry) for entry in train(batches, scale)])
        +    dist.all_gather_object(histories, [f"{w[0]:.6f} {w[1]:.6f} {s}" for w, s in train(batches, scale)])
    """),
    WrongAnswer(
        "detector_compares_weights", "the detector compares the weights and not the scale",
        check="the_detector_finds_the_step",
        says="the broken script's train): where_replicas_part returned 3 on rank 0; it should be 2",
        on="looks_before_averaging", edit="""
        -        scaler.unscale_(optimizer)
        @@
        -    dist.all_gather_object(histories, [repr(entry) for entry in train(batches, scale)])
        +    dist.all_gather_object(histories, [repr(entry[0]) for entry in train(batches, scale)])
    """),
    WrongAnswer(
        "detector_counts_from_one", "the detector counts steps from one",
        check="the_detector_finds_the_step", says="returned 3 on rank 0; it should be 2",
        on="looks_before_averaging", edit="""
        -        scaler.unscale_(optimizer)
        @@
        -            return step
        +            return step + 1
    """),
    WrongAnswer(
        "detector_nan_differs", "the detector compares numbers with ==, and NaN is not equal to itself",
        check="the_detector_finds_the_step", says="NaN on all ranks from step 2 on",
        on="looks_before_averaging", edit="""
        -        scaler.unscale_(optimizer)
        @@
        -    dist.all_gather_object(histories, [repr(entry) for entry in train(batches, scale)])
        +    dist.all_gather_object(histories, train(batches, scale))
             for step in range(max(map(len, histories))):
        -        if len({history[step] if step < len(history) else None for history in histories}) > 1:
        +        entries = [history[step] if step < len(history) else [[], None] for history in histories]
        +        flat = [[*weights, scale] for weights, scale in entries]
        +        if any(len(one) != len(flat[0]) or any(x != y for x, y in zip(one, flat[0], strict=True)) for one in flat):
    """),
    WrongAnswer(
        "detector_on_rank_0", "only rank 0 of the detector knows the answer",
        check="the_detector_finds_the_step", says="on rank 1 (other ranks said otherwise)",
        on="looks_before_averaging", edit="""
        -        scaler.unscale_(optimizer)
        @@
        -            return step
        +            return step if dist.get_rank() == 0 else None
    """),
    WrongAnswer(
        "detector_signs_of_zero", "the detector compares numbers with ==, which 0.0 and -0.0 pass",
        check="the_detector_finds_the_step",
        says="0.0 on two ranks and -0.0 on one, in step 2): where_replicas_part returned None",
        on="detector_stops_with_rank_0", edit="""
        -    dist.all_gather_object(histories, [repr(entry) for entry in train(batches, scale)])
        -    for step, entry in enumerate(histories[0]):
        -        if any(history[step : step + 1] != [entry] for history in histories):
        +    dist.all_gather_object(histories, train(batches, scale))
        +
        +    def same(a, b):
        +        numbers = zip([*a[0], a[1]], [*b[0], b[1]], strict=True)
        +        return all(x == y or (x != x and y != y) for x, y in numbers)
        +
        +    for step in range(max(map(len, histories))):
        +        if any(step >= len(history) for history in histories):
        +            return step
        +        if not all(same(history[step], histories[0][step]) for history in histories):
    """),
    WrongAnswer(
        "detector_stops_at_the_shortest", "the detector looks no further than the shortest history",
        check="the_detector_finds_the_step", says="rank 1 left after two steps",
        on="looks_before_averaging", edit="""
        -        scaler.unscale_(optimizer)
        @@
        -    for step in range(max(map(len, histories))):
        +    for step in range(min(map(len, histories))):
    """),
    WrongAnswer(
        "detector_stops_with_rank_0", "the detector goes through rank 0's history and no further",
        check="the_detector_finds_the_step",
        says="rank 0 left after two steps): where_replicas_part returned None", on="looks_before_averaging", edit="""
         from torch.nn.functional import linear
        +
        +
        +def where_replicas_part(train, batches, scale):
        +    histories = [None] * dist.get_world_size()
        +    dist.all_gather_object(histories, [repr(entry) for entry in train(batches, scale)])
        +    for step, entry in enumerate(histories[0]):
        +        if any(history[step : step + 1] != [entry] for history in histories):
        +            return step
        +    return None
        @@
        -        scaler.unscale_(optimizer)
        @@
        -def where_replicas_part(train, batches, scale):
        -    histories = [None] * dist.get_world_size()
        -    dist.all_gather_object(histories, [repr(entry) for entry in train(batches, scale)])
        -    for step in range(max(map(len, histories))):
        -        if len({history[step] if step < len(history) else None for history in histories}) > 1:
        -            return step
        -    return None
    """),
    WrongAnswer(
        "detector_two_ranks", "the detector compares rank 1 with rank 0 and nobody else",
        check="the_detector_finds_the_step", says="rank 2 of three parts in step 1",
        on="looks_before_averaging", edit="""
        -        scaler.unscale_(optimizer)
        @@
        -        if len({history[step] if step < len(history) else None for history in histories}) > 1:
        +        if len({history[step] if step < len(history) else None for history in histories[:2]}) > 1:
    """),
    WrongAnswer(
        "divides_by_the_first_scale", "halves the scale by hand, and goes on dividing by the first one",
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
        "does_not_sum_up", "does not average at all",
        check="an_overflow_moves_nobody", says="in step 3 the weights on rank 0 went from",
        on="looks_before_averaging", edit="""
        -        scaler.unscale_(optimizer)
        -        average_gradient(weight)
    """),
    WrongAnswer(
        "drops_skipped_steps", "writes nothing down for a skipped step",
        check="an_overflow_moves_nobody", says="did not return [weights, scale] for each of",
        on="looks_before_averaging", edit="""
        -        scaler.unscale_(optimizer)
                 average_gradient(weight)
                 scaler.step(optimizer)
        +        before = scaler.get_scale()
                 scaler.update()
        +        if scaler.get_scale() < before:
        +            continue
    """),
    WrongAnswer(
        "looks_at_averaged_gradients_only",
        "looks at the averaged gradient itself, and updates the scaler only after good steps",
        check="a_skipped_step_halves_the_scale", says="was skipped, and the scale on rank 0",
        on="unrepaired", edit="""
        -        if torch.isfinite(loss):
        +        if weight.grad.isfinite().all():
    """),
    WrongAnswer(
        "looks_before_averaging", "looks for inf before the ranks have averaged",
        check="an_overflow_moves_nobody", says="after step 3 the weights on rank 0 are [",
        on="inf_found_by_hand", edit="""
        +        scaler.unscale_(optimizer)
                 average_gradient(weight)
        -        weight.grad /= scaler.get_scale()
        -        if weight.grad.isfinite().all():
        -            optimizer.step()
        -        else:
        -            scaler.update(scaler.get_scale() / 2)
        +        scaler.step(optimizer)
        +        scaler.update()
    """),
    WrongAnswer(
        "no_unscale", "steps without the scaler, so that the gradient stays multiplied",
        check="a_skipped_step_halves_the_scale", says="step 2 had no overflow", on="inf_found_by_hand", edit="""
        -        weight.grad /= scaler.get_scale()
    """),
    WrongAnswer(
        "replaces_inf", "replaces what is not finite by zero before averaging",
        check="an_overflow_moves_nobody", says="a step with an overflow is no step",
        on="looks_before_averaging", edit="""
        -        scaler.unscale_(optimizer)
        +        weight.grad.nan_to_num_(0.0, 0.0, 0.0)
    """),
    WrongAnswer(
        "unrepaired", "each rank looks at its own loss",
        check="the_ranks_stay_equal", says="after step 3 the scale on rank 1: 1024.0, on rank 0: 512.0",
        on="looks_before_averaging", edit="""
        -        scaler.unscale_(optimizer)
                 average_gradient(weight)
        -        scaler.step(optimizer)
        -        scaler.update()
        +        if torch.isfinite(loss):
        +            scaler.step(optimizer)
        +            scaler.update()
    """),
    WrongAnswer(
        "update_outside", "steps by its own loss, but updates the scaler always",
        state="crashed", check="raises", says="No inf checks were recorded prior to update",
        on="looks_before_averaging", edit="""
        -        scaler.unscale_(optimizer)
                 average_gradient(weight)
        -        scaler.step(optimizer)
        +        if torch.isfinite(loss):
        +            scaler.step(optimizer)
    """),
    WrongAnswer(
        "zeroes_the_loss", "a rank with an overflow takes part with a loss of zero",
        check="an_overflow_moves_nobody", says="in step 3 the weights on rank 0 went from",
        on="looks_before_averaging", edit="""
        -        scaler.scale(loss).backward()
        -        scaler.unscale_(optimizer)
        +        own = loss if torch.isfinite(loss) else (weight * 0.0).sum()
        +        scaler.scale(own).backward()
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


        def where_replicas_part(train, batches, scale):
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


        def where_replicas_part(train, batches, scale):
            histories = [None] * dist.get_world_size()
            dist.all_gather_object(histories, [repr(entry) for entry in train(batches, scale)])
            for step in range(max(map(len, histories))):
                if len({history[step] if step < len(history) else None for history in histories}) > 1:
                    return step
            return None
    """),
)
