"""24.3: tokens travel to the experts that they have chosen, wherever those are, and come back."""

from ddp_course.grader.answer_record import Call, Job, cases
from ddp_course.grader.verdict import Wrong
from ddp_course.grader.vocabulary import Mistake, recognised

from .driver import CASES, WIDTH, of_case

FUNCTION = "mixture"
CLOSE = 1e-10
NUMBERS = WIDTH + 2  # of a row: with its weight and its expert, if an answer sends those too
BOOKKEEPING = 512  # bytes of counts per call


def job(world):
    return Job(world, FUNCTION, tuple(Call([(name,)] * world, name) for name in CASES), driver=True)


JOBS = [job(2), job(1)]


def each_expert_computes_what_chose_it(records):
    """Each expert is called once, with the tokens of all ranks that have chosen it, and no others."""
    for case, _, result in results(records):
        for number, calls in result["handed"].items():
            right = result["chosen by"][number]
            full = [call for call in calls if call]
            handed = sorted(value for call in full for value in call)
            if handed != right:
                others, missing = (sum(one not in there for one in these) for these, there in pairs(handed, right))
                look = "rows of one rank follow those of the other: which row is for which expert?"
                if not missing:
                    look = "the call: an expert gets its own rows, each once"
                elif not others:
                    look = "no token may be left out, however many have chosen an expert"
                raise Wrong(
                    f"{case.where}expert {number} was handed {len(handed)} tokens, {others} of which have not chosen "
                    f"it; of the {len(right)} that have, {missing} were missing",
                    look,
                )
            if len(full) > 1:
                raise Wrong(
                    f"{case.where}expert {number} was called {len(full)} times",
                    "the rows for one expert have to be brought together from all ranks before it is called",
                )
    return "each expert computes once, what has chosen it"


def the_output_is_that_of_one_process(records):
    """Each token gets its experts' outputs, weighted and added up."""
    for case, rank, result in results(records):
        if not result["output"] < CLOSE:
            look = "the weights: as the router gave them"
            known = [Mistake(words, gives, look) for words, gives in result["likely"].items()]
            look = "the way back: rows return in the order in which they were sent; each is one choice of a token"
            words, look = recognised(result["y"], known, look)
            found = f"is {result['output']:.1e} away from one process{words}"
            if result["output"] == float("inf"):
                found = "is missing, NaN or not shaped like x"
            raise Wrong(f"{case.where}the output on rank {rank} {found}", look)
    return "the output is that of one process, also with no tokens on a rank"


def gradients_reach_tokens_and_weights(records):
    """Backward gives x and weights the gradients of one process, on every rank."""
    for case, rank, result in results(records):
        if not result["tracked"]:
            raise Wrong(
                f"{case.where}the output on rank {rank} has no gradient, so its backward sends nothing",
                "a rank without tokens returns what came back, which is empty, and takes part in backward too",
            )
    for case, rank, result in results(records):
        for name in ("x", "weights"):
            if not result[name] < CLOSE:
                how = "missing or NaN" if result[name] == float("inf") else f"{result[name]:.1e} away from one process"
                look = "backward of an exchange: the same exchange of gradients, with the split sizes swapped"
                if name == "weights":
                    look = "the product with weights: it is part of the graph, and the router learns from it"
                raise Wrong(f"{case.where}the gradient of {name} on rank {rank} is {how}", look)
    return "x and weights get their gradients"


def each_expert_has_its_whole_gradient(records):
    """Backward leaves each expert the gradient of all tokens of all ranks that have chosen it."""
    for case, rank, result in results(records):
        for number, found in result["experts"].items():
            if not found < CLOSE:
                raise Wrong(
                    f"{case.where}the gradient of expert {number} on rank {rank} is {found:.1e} away from one process",
                    "an expert lives once: what backward brings it is complete, neither to be divided nor added up",
                )
    return "each expert has its whole gradient"


def only_what_is_needed_travels(records):
    """Rows travel by all_to_all or send, to the rank of their expert and back, and nothing else does but counts."""
    for case, rank, result in results(records):
        tokens, _, choices, _ = of_case(case.given, case.world)
        rows = 2 * (tokens[rank] * choices + sum(map(len, result["chosen by"].values())))
        sent = {True: 0, False: 0}
        for one in case.operations[rank]:
            sent[one.op in ("all_to_all", "send")] += one.bytes if one.op != "recv" else 0
        if sent[False] > BOOKKEEPING:
            names = sorted({one.op for one in case.operations[rank]} - {"all_to_all", "send", "recv"})
            raise Wrong(
                f"{case.where}rank {rank} handed {sent[False]} bytes to {' and '.join(names)}",
                "a token goes to the ranks of its experts only",
            )
        if sent[True] > rows * NUMBERS * 8 + BOOKKEEPING:
            raise Wrong(
                f"{case.where}rank {rank} sent {sent[True]} bytes; its rows, there and back, in forward and in "
                f"backward, have {rows * WIDTH * 8}",
                "split sizes are the counts themselves: nothing is filled up",
            )
    return "only chosen rows travel"


CHECKS = [
    each_expert_computes_what_chose_it,
    the_output_is_that_of_one_process,
    gradients_reach_tokens_and_weights,
    each_expert_has_its_whole_gradient,
    only_what_is_needed_travels,
]


def pairs(one, other):
    return (one, other), (other, one)


def results(records):
    for case in cases(records):
        for rank, result in enumerate(case.results):
            yield case, rank, result
