"""The mistakes that rungs can inject, by name, and why each trains another model than one process does."""

FAULTS = {
    "none": "",
    # in data parallel training
    "no_all_reduce": "each rank takes a step by the gradient of its own share",
    "sum_for_mean": "gradients are summed over N ranks where their mean is needed, so they are N times as large",
    "same_share": "every rank computes the share of rank 0",
    "global_rank": (
        "the ranks of one replica need the same windows; by the global rank each of them takes different ones"
    ),
    "cut_matrices": (
        "Muon orthogonalises the step of a whole matrix; a rank with some of its rows orthogonalises only these"
    ),
    # in tensor parallel layers
    "fused_as_one": (
        "the fused layer is all queries, all keys, all values: sharded as one tensor, a rank gets rows of other heads"
    ),
    "no_backward_sum": (
        "the gradient of a column-parallel layer's input is a sum over the ranks; each rank uses only its own part"
    ),
    "bias_in_each_part": "a bias that is added before the sum over N ranks is added N times",
    "own_norm": "the norm of a rank's shards is not that of the model, so every rank scales by a different factor",
    "not_tied": "parallelize_module makes two parameters of the tied one, and each gets only a part of the gradient",
    # in a pipeline
    "scale_grads": (
        "the schedule divides gradients by the number of micro-batches, but the loss is already divided by the "
        "number of targets"
    ),
    "table_not_summed": (
        "the first and the last stage each have a copy of the tied matrix, and only a part of its gradient"
    ),
    # in context parallel attention
    "positions_from_0": "each rank embeds its tokens as if its part were the beginning of the window",
    "own_tokens_only": "without the ring a token does not attend to earlier tokens of other ranks",
    "heads_in_turn": "query heads 0 and 1 share key head 0; with `repeat`, query head 1 gets key head 1",
    # in mixtures of experts
    "experts_divided": (
        "an expert's gradient is complete: its tokens came from all ranks, and the loss was divided by all tokens"
    ),
    "balance_per_rank": (
        "the balance loss is a product of means over the batch, and a mean of products is another number"
    ),
    "experts_mixed": "adds gradients over all ranks, as DDP would, but different ranks have different experts",
    "experts_apart": "each replica of an expert has the tokens of its own ranks only, so the replicas drift apart",
    "experts_undivided": (
        "FSDP2 averages over the ranks that shard an expert; the sum over the tokens of ep's ranks is not divided"
    ),
    # in dropout on a mesh
    "masks_repeated": "every rank draws the same mask, so different windows and heads lose the same units",
    "masks_by_rank": (
        "ranks with copies of an activation drop different units of it, so their copies of the weights differ, too"
    ),
    # in losses over all ranks
    "own_slice": (
        "each rank has the complete gradient of its own rows and none of other rows, and DDP's mean divides it by N"
    ),
    "columns_without_gradient": (
        "dist.all_gather has no backward: a row gets its gradient as a row, but none as a column"
    ),
    "own_columns": "each row is compared with the rows of its own rank only, which is an easier task",
    "labels_from_0": "on rank 1 the column of rank 0's row 0 counts as correct for rank 1's row 0",
    # in rollouts
    "own_divisor": (
        "ranks have different numbers of windows, so the mean of their means is not the mean over all windows"
    ),
    "own_stop": "each rank keeps its own first useful windows, not its part of the first ones of all ranks",
}
