"""05.1: a detector for ranks that hold other data than rank 0, and data that all ranks share."""

import re

import torch

from ddp_course.grader.vocabulary import Call, Job, Wrong, cases, check, expect, expect_few_bytes_sent

from . import given as given_script

FUNCTION = "odd_ranks"
SMALL_MESSAGE = 1024  # bytes
PRINTED = re.compile(r"rank (\d+): validation loss (-?[\d.]+|nan)")

BASE = (torch.arange(5000) * 7919) % 50


def changed(*edits):
    data = BASE.clone()
    for index, value in edits:
        data[index] = value
    return data


def data_of_the_broken_script(world):
    """The results of the broken script's make_data on ranks that draw different numbers; the caller's are kept."""
    made = []
    with torch.random.fork_rng(devices=[]):
        for rank in range(world):
            torch.manual_seed(100 + rank)
            made.append(given_script.make_data())
    return made


SWAPPED = changed((10, BASE[11]), (11, BASE[10]))
MADE_UP = [
    ("all equal", [BASE, BASE, BASE, BASE]),
    ("one token of rank 2 is another", [BASE, BASE, changed((4321, BASE[4321] + 1)), BASE]),
    ("rank 1 has two tokens in another order", [BASE, SWAPPED, BASE, BASE]),
    ("rank 3 has one token fewer", [BASE, BASE, BASE, BASE[:-1]]),
    ("rank 3 has a zero more at the end", [BASE, BASE, BASE, torch.cat([BASE, torch.zeros(1, dtype=torch.int64)])]),
    ("only ranks 0 and 2 agree", [BASE, BASE.flip(0), BASE, BASE.roll(1)]),
    ("ranks 1, 2 and 3 agree, rank 0 is another", [SWAPPED, BASE, BASE, BASE]),
    ("the data of the broken script", data_of_the_broken_script(4)),
    ("a token of rank 1 is larger by 256", [BASE, changed((77, BASE[77] + 256)), BASE, BASE]),
    ("a token of rank 2 is larger by 65,536", [BASE, BASE, changed((77, BASE[77] + 2**16)), BASE]),
]
DETECT = [
    Job(
        4, function=FUNCTION, calls=tuple(Call([(tokens,) for tokens in data], scenario) for scenario, data in MADE_UP)
    ),
    Job(1, function=FUNCTION, calls=(Call([(BASE,)], "one rank"),)),
]
MAKE = Job(3, function="data_and_mask", calls=(Call([()] * 3, "first call"), Call([()] * 3, "second call")))
RUN = Job(2, seconds=5.0)
AGAIN = Job(2, "make_data", (Call([()] * 2, "another run"),), driver=True)
JOBS = [*DETECT, MAKE, RUN, AGAIN]


@check(f"{FUNCTION} is right about {len(MADE_UP)} sets of data, on every rank; of the broken script: [1, 2, 3]", DETECT)
def the_detector_is_right(case, rank, result):
    right = odd_ranks([data for (data,) in case.args])
    expect(
        result == right,
        f"{FUNCTION} returned {result!r} on rank {rank}, not {right}",
        lambda: advice(case, result, right),
    )


@check(lambda sent: f"a rank hands over {max(sent)} bytes at most, to compare {BASE.numel() * 8:,}", DETECT)
def little_travels(case):
    return expect_few_bytes_sent(
        case,
        SMALL_MESSAGE,
        lambda rank: f"to compare {case.args[rank][0].numel() * 8:,} bytes of data",
        "what is short and differs whenever the data does?",
    )


@check(f"the data is {given_script.TOKENS:,} tokens of the kind that the script makes", [MAKE], begin="")
def the_data_is_of_the_same_kind(case, rank, result):
    tokens, vocabulary = given_script.TOKENS, given_script.VOCABULARY
    data = result[0] if isinstance(result, list) and len(result) == 2 else None
    if not torch.is_tensor(data) or data.shape != (tokens,) or data.dtype != torch.int64:
        shape = f"{tuple(data.shape)}, {data.dtype}" if torch.is_tensor(data) else repr(data)[:60]
        raise Wrong(
            f"on rank {rank} make_data returned {shape}, not {tokens:,} tokens, int64", "what make_data returned before"
        )
    moved = (data.diff() + 2) % vocabulary
    expect(
        len(data.unique()) == vocabulary and len(moved.unique()) == 6 and moved.max() == 5,
        f"on rank {rank} make_data returned {len(data.unique())} different tokens and {len(moved.unique())} different "
        f"steps from one to the next; the script makes {vocabulary} and 6",
        "only where the random numbers come from has to change",
    )


@check("all ranks hold the same data, the same in every run", [MAKE, AGAIN])
def all_ranks_hold_the_same_data(records):
    *calls, again = cases(records)
    first, second = [[result[0] for result in case.results] for case in calls]
    if odd := odd_ranks(first):
        same = (first[0] == first[odd[0]]).float().mean().item()
        raise Wrong(
            f"with 3 ranks: ranks {odd} hold other data than rank 0; rank {odd[0]} agrees with it in {same:.0%} of the "
            "tokens",
            "which generator do the random numbers of make_data come from, and who seeded it?",
        )
    expect(
        torch.equal(first[0], second[0]),
        "make_data returned other tokens when it was called again: every run would have a data set of its own",
        "all ranks agree within a run; what fixes the data from run to run?",
    )
    for rank, result in enumerate(again.results):
        expect(
            torch.is_tensor(result["made"]) and torch.equal(first[0], result["made"]),
            f"make_data returned other tokens on rank {rank} of another run, {shown(first[0])} in the first one and "
            f"{shown(result['made'])} in the second",
            "what fixes the data from run to run?",
        )


@check("the ranks' other random numbers differ as before", [MAKE, AGAIN], begin="")
def other_randomness_is_left_alone(case):
    if case.scenario != "another run":
        masks = [tuple(result[1].tolist()) for result in case.results]
        expect(
            len(set(masks)) == len(masks),
            f"after make_data ({case.scenario}) {len(masks)} ranks drew {len(set(masks))} different dropout mask(s)",
            "the generator that everybody uses was seeded alike on all ranks: a generator of its own leaves it be",
        )
        return
    for rank, result in enumerate(case.results):
        for generator in result["touched"]:
            raise Wrong(
                f"after make_data the common generator of {generator} was in another state than before on rank {rank}",
                "which lines of make_data draw from it, or seed it?",
            )


@check(lambda losses: f"both ranks of the script print the validation loss {losses[0]}", [RUN])
def the_losses_agree(records):
    printed = [match for rank in records[0].ranks for match in PRINTED.findall(rank.stdout)]
    losses = {int(rank): loss for rank, loss in printed}
    if sorted(losses) != [0, 1] or len(set(losses.values())) != 1 or not float(losses[0]) < 3.9:
        lines = ", ".join(f"rank {rank}: {loss}" for rank, loss in printed) or "nothing"
        raise Wrong(
            f"the script printed as validation losses: {lines}; both ranks should print one and the same, below that "
            "of an untrained table",
            "main() stays as it was given",
        )
    return losses[0]


def odd_ranks(data):
    """The right return value of the learner's function of this name."""
    return [rank for rank, tokens in enumerate(data) if not torch.equal(tokens, data[0])]


def shown(data):
    return f"{data[:4].tolist()} ..." if torch.is_tensor(data) else repr(data)[:60]


def advice(case, result, right):
    if not isinstance(result, list):
        return "every rank returns a list of ranks, empty if all data is equal"
    if not right:
        return "this data is equal: does what you compare depend on the rank?"
    if "token" in case.scenario or "order" in case.scenario or "zero" in case.scenario:
        return "what do these two data sets have in common that you compare, and in what do they differ?"
    return "ranks are compared with rank 0, not with their neighbour; what does each rank know of the others?"
