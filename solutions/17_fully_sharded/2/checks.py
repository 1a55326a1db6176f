"""17.2: a script with FSDP2: ranks begin with different weights, not all are sharded, and no step moves them."""

from ddp_course.grader.vocabulary import check, driver_job, expect, expect_small_gap

FUNCTION = "prepare"
CLOSE = 1e-9


def job(world):
    calls = {
        "each rank has drawn other weights": (list(range(world)),),
        "all ranks have drawn the same": ([5] * world,),
    }
    loads = ("torch._dynamo", "torch.distributed.fsdp", "torch.distributed.tensor")
    return driver_job(world, FUNCTION, calls, seconds=12.0, loads=loads)


JOBS = [job(world) for world in (2, 3)]


@check("all ranks begin with rank 0's parameters and buffers")
def all_begin_with_rank_0s_model(case, rank, result):
    for name, gap in result["beginning"].items():
        expect_small_gap(
            gap,
            CLOSE,
            f"at the start {name} on rank {rank}",
            "buffers: they are not sharded, but they differ between the ranks too"
            if name in ("scale", "column_order")
            else "fully_shard sends nothing: rank 0's tensors have to reach all ranks",
            "rank 0's",
        )


@check("every parameter is sharded")
def every_parameter_is_sharded(case, rank, result):
    expect(
        result["sharded"] >= result["parameters"] and result["elements"] <= result["share"],
        f"{result['sharded']} of {result['parameters']} parameters are sharded; rank {rank} holds {result['elements']} "
        f"elements, and its share is at most {result['share']}",
        "the parameters outside the blocks: FSDP does not reduce their gradients",
    )


@check("the optimizer moves the weights of the model")
def the_weights_move(case, rank, result):
    expect(
        result["moved"],
        f"after {len(result['after'])} steps no weight has moved",
        "which tensors the optimizer got, and when: fully_shard replaces them by sharded ones",
    )


@check("after every step the weights are those of one process")
def the_weights_are_those_of_one_process(case, rank, result):
    for step, gaps in enumerate(result["after"]):
        name, gap = max(gaps.items(), key=lambda named: named[1])
        look_at = "the optimizer: over which parameters does it step, with which learning rate and settings?"
        expect_small_gap(gap, CLOSE, f"after step {step} {name} on rank {rank}", look_at)


@check("one block is whole at a time")
def one_block_is_whole_at_a_time(case, rank, result):
    expect(
        not result["other_whole_blocks"],
        f"while a block computed on rank {rank}, {result['other_whole_blocks']} other blocks were whole",
        "a group of its own for each block, which lets its weights go after forward",
    )
