"""27.1: factors for a model's own mean losses, so that DDP's gradient is one mean over the step's answer tokens."""

from ddp_course.grader.vocabulary import (
    Call,
    Mistake,
    Wrong,
    check,
    expect,
    expect_few_operations,
    jobs_of,
    numbers,
    recognised,
    show,
)

FUNCTION = "loss_factors"
STEPS = {  # the answer tokens of each rank's micro-batches; first a step in which no two mistakes give one number
    "three ranks": ([1, 2], [10, 4], [6, 6]),
    "as many everywhere": ([5, 5], [5, 5]),
    "short and long answers": ([2, 3], [3000, 701]),
    "a micro-batch without an answer": ([4, 0], [6, 9]),
    "rank 1 has no answer at all": ([3, 8], [0, 0]),
    "rank 0 has one micro-batch more": ([4, 2, 9], [7, 1]),
}
JOBS = jobs_of(FUNCTION, [Call([(counts,) for counts in step], name) for name, step in STEPS.items()])


@check("every rank returns one finite number per micro-batch")
def one_factor_per_micro_batch(case, rank, result):
    counts = case.args[rank][0]
    expect(
        (factors := numbers(result)) is not None and len(factors) == len(counts),
        f"{FUNCTION} returned {show(result)} on rank {rank} for {len(counts)} micro-batches",
        "the return value: a list of numbers, one for each micro-batch of this rank",
    )
    expect(
        all(abs(factor) < 1e9 for factor in factors),
        f"rank {rank} has the factors {show(factors)}",
        "what is divided by, where a micro-batch or a rank has no answer",
    )


@check("the average over ranks is one mean over all answer tokens of the step")
def a_token_weighs_the_same_everywhere(case, rank, result):
    counts, factors = case.args[rank][0], numbers(result)
    total, world = sum(sum(step[0]) for step in case.args), case.world
    for index, (count, factor) in enumerate(zip(counts, factors, strict=True)):
        right = count * world / total
        if abs(factor - right) > 1e-6 * max(right, 1):
            equal_weight = world / sum(len(step[0]) for step in case.args)
            mean_over_rank = count / sum(counts) if sum(counts) else 0.0
            mistakes = [
                Mistake("the mean over micro-batches", equal_weight, "a short micro-batch's tokens then weigh more"),
                Mistake("without the world size", count / total, "DDP divides the sum by the number of ranks"),
                Mistake("the mean over this rank's tokens", mean_over_rank, "what the other ranks have"),
                Mistake("the mean over this rank's tokens", 1 / len(counts), "what the other ranks have"),
            ]
            words, look_at = recognised(factor, mistakes, "a mean loss times its tokens is the sum of their losses")
            raise Wrong(
                f"micro-batch {index} of rank {rank} has the factor {show(factor)}, not {show(right)}{words}", look_at
            )


@check("one number per rank is sent, once")
def one_collective(case):
    return expect_few_operations(case, 1, 64, "what all ranks have to know: one sum")
