"""Wrong and right answers to question 17.2; ddp_course/authoring/answers.py says how to read them."""

from ddp_course.authoring.answers import RightAnswer, WrongAnswer

ANSWERS = (
    WrongAnswer(
        "floating_point_only", "sends parameters and buffers, and leaves each rank its own integers",
        check="all_begin_with_rank_0s_model", says="at the start column_order on rank 1 is", look="buffers", edit="""
        -    for tensor in [*model.parameters(), *model.buffers()]:
        +    for tensor in filter(torch.is_floating_point, [*model.parameters(), *model.buffers()]):
    """),
    WrongAnswer(
        "trained_ones_only", "sends the parameters that are trained, and leaves each rank its own frozen ones",
        check="all_begin_with_rank_0s_model", says="at the start position on rank 0 is", look="rank 0's tensors", edit="""
        -    for tensor in [*model.parameters(), *model.buffers()]:
        +    for tensor in [*(p for p in model.parameters() if p.requires_grad), *model.buffers()]:
    """),
    WrongAnswer(
        "blocks_only", "leaves out the root, whose gradients are then never reduced",
        check="every_parameter_is_sharded", says="12 of 17 parameters are sharded", look="outside the blocks", edit="""
        -    for part in [*model.blocks, model]:
        +    for part in model.blocks:
    """),
    WrongAnswer(
        "layer_by_layer", "shards the blocks and the layers beside them, and not the root, which has a parameter, too",
        check="every_parameter_is_sharded", says="16 of 17 parameters are sharded", look="outside the blocks", edit="""
        -    for part in [*model.blocks, model]:
        +    for part in [model.enter, *model.blocks, model.leave]:
    """),
    WrongAnswer(
        "optimizer_first", "builds the optimizer before the model is sharded",
        check="the_weights_move", says="after 3 steps no weight has moved", look="which tensors the optimizer got",
        edit="""
        +    optimizer = torch.optim.AdamW(model.parameters(), lr=learning_rate)
             for tensor in [*model.parameters(), *model.buffers()]:
        @@
        -    return model, torch.optim.AdamW(model.parameters(), lr=learning_rate)
        +    return model, optimizer
    """),
    WrongAnswer(
        "optimizer_between", "builds the optimizer after the blocks are sharded and before the root is",
        check="the_weights_are_those_of_one_process", says="after step 0", look="which parameters", edit="""
        -    for part in [*model.blocks, model]:
        -        fully_shard(part, mesh=mesh)
        -    return model, torch.optim.AdamW(model.parameters(), lr=learning_rate)
        +    for part in model.blocks:
        +        fully_shard(part, mesh=mesh)
        +    optimizer = torch.optim.AdamW(model.parameters(), lr=learning_rate)
        +    return fully_shard(model, mesh=mesh), optimizer
    """),
    WrongAnswer(
        "a_rate_per_rank", "multiplies the learning rate by the number of ranks",
        check="the_weights_are_those_of_one_process", says="after step 0", look="with which learning rate", edit="""
        -    return model, torch.optim.AdamW(model.parameters(), lr=learning_rate)
        +    return model, torch.optim.AdamW(model.parameters(), lr=learning_rate * dist.get_world_size())
    """),
    WrongAnswer(
        "the_root_alone", "shards the model as one group",
        check="one_block_is_whole_at_a_time", says="2 other blocks were whole", look="a group of its own", edit="""
        -    for part in [*model.blocks, model]:
        -        fully_shard(part, mesh=mesh)
        +    fully_shard(model, mesh=mesh)
    """),
    WrongAnswer(
        "kept_whole", "keeps every block whole until its backward",
        check="one_block_is_whole_at_a_time", says="other blocks were whole", look="lets its weights go", edit="""
        -        fully_shard(part, mesh=mesh)
        +        fully_shard(part, mesh=mesh, reshard_after_forward=False)
    """),
    RightAnswer(
        "a_state_dict_from_rank_0", "shards first, and loads rank 0's state dict into the parts", text='''
        import torch
        import torch.distributed as dist
        from torch.distributed.checkpoint.state_dict import StateDictOptions, set_model_state_dict
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard


        def prepare(model, learning_rate):
            mesh = init_device_mesh("cpu", (dist.get_world_size(),))
            whole = {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}
            for block in model.blocks:
                fully_shard(block, mesh=mesh)
            fully_shard(model, mesh=mesh)
            options = StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)
            set_model_state_dict(model, whole if dist.get_rank() == 0 else {}, options=options)
            return model, torch.optim.AdamW([*model.parameters()], lr=learning_rate)
    '''),
    RightAnswer(
        "objects", "sends rank 0's state dict as an object; input and output layer are groups of their own", edit="""
        -    for tensor in [*model.parameters(), *model.buffers()]:
        -        dist.broadcast(tensor.data, src=0)
        +    of_rank_0 = [model.state_dict()]
        +    dist.broadcast_object_list(of_rank_0, src=0)
        +    model.load_state_dict(of_rank_0[0])
        @@
        -    for part in [*model.blocks, model]:
        +    for part in [model.enter, *reversed(model.blocks), model.leave, model]:
    """),
)
