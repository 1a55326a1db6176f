"""Wrong and right answers to question 17.3; ddp_course/authoring/answers.py says how to read them."""

from ddp_course.authoring.answers import RightAnswer, WrongAnswer

ANSWERS = (
    WrongAnswer(
        "numbers_on_every_rank", "hands the numbered state to torch's function on all ranks, which raises then",
        check="raises", state="crashed", says="KeyError: 'state.0.step'", on="given", edit="""
        -    checkpoint = checkpoint or {"model": {}, "optimizer": {}}
        +    everyones = [checkpoint]
        +    dist.broadcast_object_list(everyones, src=0)
        +    checkpoint = everyones[0]
        @@
        -    set_optimizer_state_dict(model, optimizer, checkpoint["optimizer"], options=options)
        +    set_optimizer_state_dict(model, optimizer, checkpoint["optimizer"], options=StateDictOptions(full_state_dict=True))
    """),
    WrongAnswer(
        "a_new_optimizer", "loads the weights and no state of the optimizer",
        check="the_optimizer_state_is_loaded", says="entries of the optimizer's state are missing on some rank",
        look="the keys of the state", edit="""
        -    set_optimizer_state_dict(model, optimizer, by_name(model, optimizer, checkpoint["optimizer"]), options=options)
    """),
    WrongAnswer(
        "in_the_models_order", "renames in the order of the model, which is not that of the groups",
        check="raises", state="crashed",
        says="(vectors in the first group, matrices in the second): rank 0 raised RuntimeError: The size", edit="""
        -    order = [names[parameter] for group in optimizer.param_groups for parameter in group["params"]]
        +    order = [name for name, parameter in model.named_parameters() if parameter.requires_grad]
    """),
    WrongAnswer(
        "the_optimizer_alone", "forgets the weights",
        check="the_weights_are_those_saved", says="away from the checkpoint", look="every parameter", edit="""
        -    set_model_state_dict(model, checkpoint["model"], options=options)
    """),
    WrongAnswer(
        "matrices_only", "loads what has two dimensions, and leaves the biases as they were drawn",
        check="the_weights_are_those_saved", says="enter.bias on rank 0", look="every parameter", edit="""
        -    set_model_state_dict(model, checkpoint["model"], options=options)
        +    options.strict = False
        +    matrices = {name: tensor for name, tensor in checkpoint["model"].items() if tensor.ndim > 1}
        +    set_model_state_dict(model, matrices, options=options)
    """),
    WrongAnswer(
        "settings_of_the_new_one", "takes the state, and the learning rate with which the optimizer was built",
        check="the_settings_are_those_saved", says="group 0 on rank 0 has the lr 0.02, not 0.0118098",
        look="param_groups are part of the state", edit="""
        -    set_optimizer_state_dict(model, optimizer, by_name(model, optimizer, checkpoint["optimizer"]), options=options)
        +    rates = [group["lr"] for group in optimizer.param_groups]
        +    set_optimizer_state_dict(model, optimizer, by_name(model, optimizer, checkpoint["optimizer"]), options=options)
        +    for group, rate in zip(optimizer.param_groups, rates):
        +        group["lr"] = rate
    """),
    WrongAnswer(
        "leaves_the_messages_off", "turns gradient synchronization off before it loads, and never on again",
        check="it_continues_as_if_never_stopped", says="three steps later", look="flags", edit="""
        -    set_model_state_dict(model, checkpoint["model"], options=options)
        +    model.set_requires_gradient_sync(False)
        +    set_model_state_dict(model, checkpoint["model"], options=options)
    """),
    WrongAnswer(
        "other_betas", "loads the state, and then sets other betas in each group",
        check="the_settings_are_those_saved", says="group 0 on rank 0 has the betas", edit="""
        -    set_optimizer_state_dict(model, optimizer, by_name(model, optimizer, checkpoint["optimizer"]), options=options)
        +    set_optimizer_state_dict(model, optimizer, by_name(model, optimizer, checkpoint["optimizer"]), options=options)
        +    for group in optimizer.param_groups:
        +        group["betas"] = (0.5, 0.5)
    """),
    WrongAnswer(
        "frozen_ones_skipped", "counts the parameters without the frozen ones, which the saved numbers count",
        check="the_optimizer_state_is_loaded", says="of the optimizer's state are missing", on="cut_by_hand", edit="""
        -    ordered = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        +    trained = [p for group in optimizer.param_groups for p in group["params"] if p.requires_grad]
        @@
        -    for number, entries in saved["optimizer"]["state"].items():
        -        mesh, placements = ordered[number].device_mesh, ordered[number].placements
        +    for number, parameter in enumerate(trained):
        +        entries = saved["optimizer"]["state"].get(number, {})
        +        mesh, placements = parameter.device_mesh, parameter.placements
    """),
    RightAnswer(
        "cut_by_hand", "cuts each average as its parameter is, and keeps the numbers for optimizer.load_state_dict", text='''
        import torch
        import torch.distributed as dist
        from torch.distributed.tensor import distribute_tensor


        def load(model, optimizer, checkpoint):
            box = [checkpoint]
            dist.broadcast_object_list(box, src=0)
            saved = box[0]
            with torch.no_grad():
                for name, parameter in model.named_parameters():
                    parameter.copy_(distribute_tensor(saved["model"][name], parameter.device_mesh, parameter.placements))
                for name, buffer in model.named_buffers():
                    buffer.copy_(saved["model"][name])
            ordered = [parameter for group in optimizer.param_groups for parameter in group["params"]]
            state = {}
            for number, entries in saved["optimizer"]["state"].items():
                mesh, placements = ordered[number].device_mesh, ordered[number].placements
                state[number] = {key: distribute_tensor(value, mesh, placements) if value.ndim else value
                                 for key, value in entries.items()}
            optimizer.load_state_dict({"state": state, "param_groups": saved["optimizer"]["param_groups"]})
    '''),
    RightAnswer(
        "names_on_every_rank", "broadcasts the whole checkpoint itself, so that torch's functions broadcast nothing", edit="""
        -    checkpoint = checkpoint or {"model": {}, "optimizer": {}}
        -    options = StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)
        +    box = [checkpoint]
        +    dist.broadcast_object_list(box, src=0)
        +    checkpoint, options = box[0], StateDictOptions(full_state_dict=True)
        @@
        -from torch.distributed.checkpoint.state_dict import StateDictOptions, set_model_state_dict, set_optimizer_state_dict
        +import torch.distributed as dist
        +from torch.distributed.checkpoint.state_dict import StateDictOptions, set_model_state_dict, set_optimizer_state_dict
    """),
)
