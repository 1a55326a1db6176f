"""05.1: a detector for ranks that hold other data than rank 0, and data that all ranks share."""

import re

import torch

from ddp_course.grader.vocabulary import (
    Call,
    Job,
    Wrong,
    cases,
    check,
    driver_job,
    expect,
    expect_few_bytes,
    function_job,
    show,
)

from . import given as given_script

FUNCTION = "differing_ranks"
SMALL_MESSAGE = 1024  # bytes
VALIDATION_LOSS = re.compile(r"rank (\d+): validation loss (-?[\d.]+|nan)")
UNTRAINED_LOSS = 3.9  # a table of zeros has log(VOCABULARY), 3.912

BASE = (torch.arange(5000) * 7919) % 50


def changed(*edits):
    """A copy of BASE with the tokens of `edits`: pairs (index, token)."""
    data = BASE.clone()
    for index, value in edits:
        data[index] = value
    return data


def data_of_the_broken_script(world):
    """The broken script's data on `world` ranks that are seeded differently, by rank."""
    data_by_rank = []
    with torch.random.fork_rng(devices=[]):
        for rank in range(world):
            torch.manual_seed(100 + rank)
            data_by_rank.append(given_script.make_data())
    return data_by_rank


SWAPPED = changed((10, BASE[11]), (11, BASE[10]))
# The sum of the tokens and their sum weighted by position are those of BASE.
SAME_SUMS = changed((100, BASE[100] + 1), (101, BASE[101] - 2), (102, BASE[102] + 1))
MADE_UP = {  # the data of each rank
    "all equal": [BASE, BASE, BASE, BASE],
    "one token of rank 2 is different": [BASE, BASE, changed((4321, BASE[4321] + 1)), BASE],
    "rank 1 has two tokens in another order": [BASE, SWAPPED, BASE, BASE],
    "rank 3 has one token fewer": [BASE, BASE, BASE, BASE[:-1]],
    "rank 3 has a zero more at the end": [BASE, BASE, BASE, torch.cat([BASE, torch.zeros(1, dtype=torch.int64)])],
    "only ranks 0 and 2 agree": [BASE, BASE.flip(0), BASE, BASE.roll(1)],
    "ranks 1, 2 and 3 agree, rank 0 differs": [SWAPPED, BASE, BASE, BASE],
    "the data of the broken script": data_of_the_broken_script(4),
    "three neighbouring tokens of rank 1 change by 1, -2 and 1": [BASE, SAME_SUMS, BASE, BASE],
    "a token of rank 2 is larger by 65,536": [BASE, BASE, changed((77, BASE[77] + 2**16)), BASE],
}
MADE_UP_CALLS = tuple(Call([(tokens,) for tokens in data], scenario) for scenario, data in MADE_UP.items())
DETECT = [Job(4, FUNCTION, MADE_UP_CALLS), function_job(1, FUNCTION, {"one rank": (BASE,)})]
MAKE = function_job(3, "data_and_mask", {"first call": (), "second call": ()})
RUN = Job(2, seconds=5.0)
ANOTHER_RUN = driver_job(2, "make_data", {"another run": ()})
JOBS = [*DETECT, MAKE, RUN, ANOTHER_RUN]


@check(f"{FUNCTION} is right about {len(MADE_UP)} sets of data, on every rank; of the broken script: [1, 2, 3]", DETECT)
def the_detector_is_right(case, rank, result):
    right = differing_ranks([data for (data,) in case.args])
    expect(
        result == right,
        f"{FUNCTION} returned {result!r} on rank {rank}, not {right}",
        lambda: where_to_look(case, result, right),
    )


@check(lambda sent: f"a rank hands over {max(sent)} bytes at most, to compare {BASE.numel() * 8:,}", DETECT)
def few_bytes_are_sent(case, rank, result):
    purpose = f" to compare {case.args[rank][0].numel() * 8:,} bytes of data"
    look_at = "which short value differs whenever the data differs?"
    return expect_few_bytes(rank, case.operations[rank], SMALL_MESSAGE, purpose, look_at, without=("recv",))


@check(f"the data is {given_script.TOKENS:,} tokens of the kind that the script makes", [MAKE], begin="")
def the_data_is_of_the_same_kind(case, rank, result):
    tokens, vocabulary = given_script.TOKENS, given_script.VOCABULARY
    data = result[0] if isinstance(result, list) and len(result) == 2 else None
    if not torch.is_tensor(data) or data.shape != (tokens,) or data.dtype != torch.int64:
        shape = f"{tuple(data.shape)}, {data.dtype}" if torch.is_tensor(data) else repr(data)[:60]
        raise Wrong(
            f"on rank {rank} make_data returned {shape}, not {tokens:,} tokens, int64", "what make_data returned before"
        )
    steps = (data.diff() + 2) % vocabulary
    expect(
        len(data.unique()) == vocabulary and len(steps.unique()) == 6 and steps.max() == 5,
        f"on rank {rank} make_data returned {len(data.unique())} different tokens and {len(steps.unique())} different "
        f"steps from one to the next; the script makes {vocabulary} and 6",
        "change only the generator that the random numbers come from",
    )


@check("all ranks hold the same data, the same in every run", [MAKE, ANOTHER_RUN])
def all_ranks_hold_the_same_data(records):
    *calls, another_run = cases(records)
    first, second = [[result[0] for result in case.results] for case in calls]
    if unequal := differing_ranks(first):
        equal_share = (first[0] == first[unequal[0]]).float().mean().item()
        raise Wrong(
            f"with 3 ranks: ranks {unequal} hold other data than rank 0; rank {unequal[0]} agrees with it in "
            f"{equal_share:.0%} of the tokens",
            "which generator do the random numbers of make_data come from, and who seeded it?",
        )
    expect(
        torch.equal(first[0], second[0]),
        "make_data returned other tokens when it was called again: every run would have a data set of its own",
        "all ranks agree within a run; what fixes the data from run to run?",
    )
    for rank, result in enumerate(another_run.results):
        expect(
            torch.is_tensor(result["data"]) and torch.equal(first[0], result["data"]),
            f"make_data returned other tokens on rank {rank} of another run, {show(first[0])} in the first one and "
            f"{show(result['data'])} in the second",
            "what fixes the data from run to run?",
        )


@check("the ranks' other random numbers differ as before", [MAKE, ANOTHER_RUN], begin="")
def other_randomness_is_left_alone(case):
    if case.scenario != "another run":
        masks = [tuple(result[1].tolist()) for result in case.results]
        expect(
            len(set(masks)) == len(masks),
            f"after make_data ({case.scenario}) {len(masks)} ranks drew {len(set(masks))} different dropout mask(s)",
            "make_data gave the common generator the same seed on all ranks; with a generator of its own it would not "
            "change that one",
        )
        return
    for rank, result in enumerate(case.results):
        expect(
            not result["changed generators"],
            f"after make_data the common generator of {', '.join(result['changed generators'])} was in another state "
            f"than before on rank {rank}",
            "which lines of make_data draw from it, or seed it?",
        )


@check(lambda losses: f"both ranks of the script print the validation loss {losses[0]}", [RUN])
def the_losses_agree(records):
    printed = [match for rank in records[0].ranks for match in VALIDATION_LOSS.findall(rank.stdout)]
    losses = {int(rank): loss for rank, loss in printed}
    if sorted(losses) != [0, 1] or len(set(losses.values())) != 1 or not float(losses[0]) < UNTRAINED_LOSS:
        lines = ", ".join(f"rank {rank}: {loss}" for rank, loss in printed) or "nothing"
        raise Wrong(
            f"the script printed as validation losses: {lines}; both ranks should print one and the same, below that "
            "of an untrained table",
            "main() stays as it was given",
        )
    return losses[0]


def differing_ranks(data):
    """The right return value of the learner's function of this name."""
    return [rank for rank, tokens in enumerate(data) if not torch.equal(tokens, data[0])]


def where_to_look(case, result, right):
    """Where to look if the learner's function returned `result` instead of `right`."""
    if not isinstance(result, list):
        return "every rank returns a list of ranks, empty if all data is equal"
    if not right:
        return "this data is equal: does what you compare depend on the rank?"
    if "token" in case.scenario or "order" in case.scenario or "zero" in case.scenario:
        return "what you compare is equal for these different data sets: in what do they differ?"
    return "ranks are compared with rank 0, not with their neighbour; what does each rank receive from the others?"
