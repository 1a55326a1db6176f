"""24.1: two blocks of attention made one by their log-sum-exp, as ring attention does at each step."""

from ddp_course.grader.answer_record import Call, Job, cases
from ddp_course.grader.verdict import Wrong

from .driver import HEADS, QUERIES, SIZE

FUNCTION = "merge"
MODERATE = {"blocks of 5 and 5 keys": (5, 10), "blocks of 1 and 9 keys": (1, 10)}
LARGE = dict.fromkeys(("scores around 3000", "scores around -3000", "the second block 3000 above the first"), (4, 8))
MASKED = {"masked: query 0 sees block a alone, queries 1 and 3 block b, query 2 neither": (4, 8)}
RINGS = ("a ring, in blocks", "a ring, in zigzag")
CLOSE = 1e-9
SHAPES = [[HEADS, QUERIES, SIZE], [HEADS, QUERIES]]

ALONE = Job(
    1, FUNCTION, tuple(Call([(name, *keys)], name) for name, keys in (MODERATE | LARGE | MASKED).items()), driver=True
)
JOBS = [ALONE, Job(2, FUNCTION, tuple(Call([(name, 0, 0)] * 2, name) for name in RINGS), driver=True)]


def the_output_is_that_of_both_blocks(records):
    """out is attention over the keys of both blocks."""
    for case, result in alone(records, MODERATE):
        if result["shapes"] != SHAPES:
            raise Wrong(
                f"{case.where}merge returned tensors of shapes {result['shapes']}, not {SHAPES}",
                "what is returned: (out, lse), each shaped as it came in",
            )
        if not result["out"] < CLOSE:
            raise Wrong(
                f"{case.where}out is {result['out']:.1e} away from attention over both blocks",
                "a block's share is exp(lse of the block) over the sum of both",
            )
    return "out is attention over both blocks"


def the_lse_is_that_of_both_blocks(records):
    """lse is the log of the sum of exp(score) over the keys of both blocks."""
    for case, result in alone(records, MODERATE):
        if not result["lse"] < CLOSE:
            raise Wrong(
                f"{case.where}lse is {result['lse']:.1e} away from that of both blocks",
                "the sums of exp(score) add up; lse is the log of a sum",
            )
    return "lse is that of both blocks"


def large_scores_do_no_harm(records):
    """out and lse are right also where exp(score) overflows, or is 0."""
    for case, result in alone(records, LARGE):
        if result["nan"] or not max(result["out"], result["lse"]) < CLOSE:
            raise Wrong(f"{case.where}{said(result)}", "what goes into exp: at most 0, and 0 for one of the two blocks")
    return "scores of thousands do no harm"


def what_is_masked_counts_nothing(records):
    """A block with lse = -inf counts nothing; where both have it, the result is (0, -inf)."""
    for case, result in alone(records, MASKED):
        if result["nan"] or not max(result["out"], result["lse"]) < CLOSE:
            look = "a masked block counts nothing, and where both are masked lse is -inf again, and no other number"
            if result["nan"]:
                look = "-inf minus -inf is NaN: which difference can be that?"
            raise Wrong(f"{case.where}{said(result)}", look)
    return "masked blocks count nothing"


def the_gradients_are_right(records):
    """Gradients of all four arguments are those of attention over both blocks, and finite where a block is masked."""
    for case, result in alone(records, MODERATE | LARGE | MASKED):
        name, gap = max(result["gradients"].items(), key=lambda item: item[1])
        if not gap < CLOSE:
            look = "every path from the four arguments to out and to lse, which goes into the next merge"
            if case.given in MASKED and max(result["gradients"].values()) == float("inf"):
                look = "backward goes through both sides of a torch.where: the gradient of log(0), of -inf minus -inf"
            what = "is missing or not finite" if gap == float("inf") else f"is {gap:.1e} away from the right one"
            raise Wrong(f"{case.where}the gradient of {name} {what}", look)
    return "gradients are right, and finite where nothing is seen"


def a_ring_equals_one_process(records):
    """In a ring of two ranks, output and gradients are those of causal attention in one process."""
    for case in cases(records):
        for rank, result in enumerate(case.results if case.given in RINGS else ()):
            for name, gap in result.items():
                if not gap < CLOSE:
                    raise Wrong(
                        f"{case.where}{name} on rank {rank} is {gap:.1e} away from one process",
                        "merge works on this rank's queries alone; the ring around it sends keys and values",
                    )
    return "a ring of two ranks equals one process, forward and backward"


CHECKS = [
    the_output_is_that_of_both_blocks,
    the_lse_is_that_of_both_blocks,
    large_scores_do_no_harm,
    what_is_masked_counts_nothing,
    the_gradients_are_right,
    a_ring_equals_one_process,
]


def alone(records, kinds):
    """The cases in one process among `kinds`, and what merge did in them."""
    for case in cases(records):
        if case.given in kinds:
            yield case, case.results[0]


def said(result):
    if result["nan"]:
        return f"{result['nan']} numbers of out and lse are NaN"
    name = max(("out", "lse"), key=result.get)
    return f"{name} is {result[name]:.1e} away from that of both blocks"
