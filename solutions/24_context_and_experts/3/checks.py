"""24.3: tokens are sent to the experts that they have chosen, on any rank, and the results come back."""

import math

from ddp_course.grader.vocabulary import (
    Mistake,
    Wrong,
    cases,
    check,
    driver_job,
    expect,
    expect_few_bytes,
    expect_small_gap,
    recognised,
)

from .driver import CASES, WIDTH, settings

FUNCTION = "mixture"
CLOSE = 1e-10
ROW = WIDTH + 2  # numbers that a row may have: an answer may send its weight and its expert too
COUNTS = 512  # bytes per call that the counts of rows may take

JOBS = [driver_job(world, FUNCTION, list(CASES)) for world in (2, 1)]


@check("each expert computes once, what has chosen it")
def each_expert_computes_what_chose_it(case, rank, result):
    for number, calls in result["calls"].items():
        right, nonempty_calls = result["chosen by"][number], [call for call in calls if call]
        tokens = sorted(token for call in nonempty_calls for token in call)
        wrong, missing = sum(token not in right for token in tokens), sum(token not in tokens for token in right)
        look_at = "rows of one rank follow those of the other: which row is for which expert?"
        if not missing:
            look_at = "the call: an expert gets its own rows, each once"
        elif not wrong:
            look_at = "no token may be left out, however many have chosen an expert"
        expect(
            tokens == right,
            f"expert {number} got {len(tokens)} tokens, {wrong} of which have not chosen it; of the "
            f"{len(right)} that have, {missing} were missing",
            look_at,
        )
        expect(
            len(nonempty_calls) <= 1,
            f"expert {number} was called {len(nonempty_calls)} times",
            "the rows for one expert have to be brought together from all ranks before it is called",
        )


@check("the output is that of one process, also with no tokens on a rank")
def the_output_is_that_of_one_process(case, rank, result):
    if not result["output"] < CLOSE:
        weights = "the weights: as the router gave them"
        mistakes = [Mistake(words, gives, weights) for words, gives in result["mistakes"].items()]
        way_back = "the way back: rows return in the order in which they were sent; each is one choice of a token"
        words, look_at = recognised(result["y"], mistakes, way_back)
        how = f"{result['output']:.1e} away from one process{words}"
        if result["output"] == math.inf:
            how = "missing, NaN or not shaped like x"
        raise Wrong(f"the output on rank {rank} is {how}", look_at)


@check("x and weights get their gradients")
def gradients_reach_tokens_and_weights(records):
    """First all outputs are checked for a gradient: if any rank's has none, the driver runs no backward."""
    for case in cases(records):
        for rank, result in enumerate(case.results):
            expect(
                result["has_graph"],
                f"{case.where}the output on rank {rank} has no gradient, so its backward sends nothing",
                "a rank without tokens returns what came back, which is empty, and takes part in backward too",
            )
    for case in cases(records):
        for rank, result in enumerate(case.results):
            for name, look_at in (
                ("x", "backward of an exchange: the same exchange of gradients, with the split sizes swapped"),
                ("weights", "the product with weights: it is part of the graph, and the router learns from it"),
            ):
                gap = result[name]
                how = "missing or NaN" if gap == math.inf else f"{gap:.1e} away from one process"
                expect(gap < CLOSE, f"{case.where}the gradient of {name} on rank {rank} is {how}", look_at)


@check("each expert has its whole gradient")
def each_expert_has_its_whole_gradient(case, rank, result):
    look_at = "each expert is on one rank: backward brings its whole gradient, neither to be divided nor added up"
    for number, gap in result["experts"].items():
        expect_small_gap(gap, CLOSE, f"the gradient of expert {number} on rank {rank}", look_at)


@check("only chosen rows travel")
def only_chosen_rows_are_sent(case, rank, result):
    token_counts, _, choices, _ = settings(case.scenario, case.world)
    rows = 2 * (token_counts[rank] * choices + sum(map(len, result["chosen by"].values())))
    to_all = [operation for operation in case.operations[rank] if operation.op not in ("all_to_all", "send", "recv")]
    to_some = [operation for operation in case.operations[rank] if operation.op in ("all_to_all", "send")]
    expect_few_bytes(rank, to_all, COUNTS, "", "a token goes to the ranks of its experts only")
    purpose = f"; its rows, there and back, in forward and in backward, have {rows * WIDTH * 8:,}"
    look_at = "split sizes are the counts themselves: nothing is filled up"
    expect_few_bytes(rank, to_some, rows * ROW * 8 + COUNTS, purpose, look_at)
