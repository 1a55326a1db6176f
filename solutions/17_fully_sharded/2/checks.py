"""17.2: a script with FSDP2 that raises nothing, and trains nothing, not all, or many different models."""

from ddp_course.grader.answer_record import Call, Job, cases
from ddp_course.grader.verdict import Wrong

FUNCTION = "prepare"
APART, ALIKE = "each rank has drawn other weights", "all ranks have drawn the same"
CLOSE = 1e-9


def job(world):
    calls = (Call([(list(range(world)),)] * world, APART), Call([([5] * world,)] * world, ALIKE))
    return Job(
        world,
        FUNCTION,
        calls,
        seconds=12.0,
        driver=True,
        loads=("torch._dynamo", "torch.distributed.fsdp", "torch.distributed.tensor"),
    )


JOBS = [job(world) for world in (2, 3)]


def all_begin_with_rank_0s_model(records):
    """After prepare, every parameter and buffer is rank 0's."""
    for case, rank, result in results(records):
        for name, gap in result["beginning"].items():
            if not gap < CLOSE:
                look = "fully_shard sends nothing: rank 0's tensors have to reach all ranks before it cuts them"
                if name == "scale":
                    look = "buffers: they are neither parameters nor sharded, and differ between the ranks too"
                raise Wrong(f"{case.where}{name} on rank {rank} begins {gap:.1e} away from rank 0's", look)
    return "all ranks begin with rank 0's parameters and buffers"


def every_parameter_is_sharded(records):
    """A rank holds its share of every parameter, also of those outside the blocks."""
    for case, rank, result in results(records):
        if result["sharded"] < result["parameters"] or result["held"] > result["share"]:
            raise Wrong(
                f"{case.where}{result['sharded']} of {result['parameters']} parameters are sharded; rank {rank} holds "
                f"{result['held']} elements, and its share is at most {result['share']}",
                "the parameters outside the blocks: nobody reduces their gradients",
            )
    return "every parameter is sharded"


def the_weights_move(records):
    """The optimizer holds the parameters that the model has."""
    for case, _, result in results(records):
        if not result["moved"]:
            raise Wrong(
                f"{case.where}after {len(result['after'])} steps no weight has moved",
                "which tensors the optimizer got, and when: fully_shard puts others in their place",
            )
    return "the optimizer moves the weights of the model"


def the_weights_are_those_of_one_process(records):
    """After every step the weights are those of one process with rank 0's model and the whole batch."""
    for case, rank, result in results(records):
        for step, found in enumerate(result["after"]):
            name = max(found, key=found.get)
            if not found[name] < CLOSE:
                raise Wrong(
                    f"{case.where}after step {step} {name} on rank {rank} is {found[name]:.1e} away from one process",
                    "whose optimizer steps over which parameters, with which learning rate and settings?",
                )
    return "after every step the weights are those of one process"


def one_block_is_whole_at_a_time(records):
    """While a block computes in the forward pass, the weights of no other block are whole."""
    for case, rank, result in results(records):
        if result["others"]:
            raise Wrong(
                f"{case.where}while a block computed on rank {rank}, {result['others']} other blocks were whole",
                "a group of its own for each block, which lets its weights go after forward",
            )
    return "one block is whole at a time"


CHECKS = [
    all_begin_with_rank_0s_model,
    every_parameter_is_sharded,
    the_weights_move,
    the_weights_are_those_of_one_process,
    one_block_is_whole_at_a_time,
]


def results(records):
    for case in cases(records):
        for rank, result in enumerate(case.results):
            yield case, rank, result
