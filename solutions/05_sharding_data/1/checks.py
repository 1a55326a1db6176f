"""05.1: a detector for ranks that hold other data than rank 0, and data that all ranks share."""

import re

import torch

from ddp_course.grader.answer_record import Call, Job, cases
from ddp_course.grader.messages import assert_little_is_sent
from ddp_course.grader.verdict import Wrong

from . import given as given_script

FUNCTION = "odd_ranks"
SMALL_MESSAGE = 1024  # bytes
PRINTED = re.compile(r"rank (\d+): validation loss (-?[\d.]+|nan)")

BASE = (torch.arange(5000) * 7919) % 50


def changed(*edits):
    data = BASE.clone()
    for place, value in edits:
        data[place] = value
    return data


def data_of_the_broken_script(world):
    """What make_data of the broken script returns on ranks that draw different numbers; the caller's are kept."""
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
DETECT = Job(4, function=FUNCTION, calls=tuple(Call([(one,) for one in data], given) for given, data in MADE_UP))
MAKE = Job(3, function="data_and_mask", calls=(Call([()] * 3, "first call"), Call([()] * 3, "second call")))
RUN = Job(2, seconds=5.0)
AGAIN = Job(2, "make_data", (Call([()] * 2, "another run"),), driver=True)
JOBS = [DETECT, Job(1, function=FUNCTION, calls=(Call([(BASE,)], "one rank"),)), MAKE, RUN, AGAIN]


def the_detector_is_right(records):
    """odd_ranks names the ranks whose data is not rank 0's, on every rank."""
    for case in cases(records[:2]):
        right = odd_ranks([data for (data,) in case.args])
        for rank, result in enumerate(case.results):
            if result != right:
                raise Wrong(
                    f"{case.where}{FUNCTION} returned {result!r} on rank {rank}, not {right}",
                    advice(case, result, right),
                )
    return f"{FUNCTION} is right about {len(MADE_UP)} sets of data, on every rank; of the broken script: [1, 2, 3]"


def little_travels(records):
    """The detector does not send the data around."""
    most = assert_little_is_sent(
        cases(records[:2]),
        SMALL_MESSAGE,
        lambda case, rank: f"to compare {case.args[rank][0].numel() * 8:,} bytes of data",
        "what is short and differs whenever the data does?",
    )
    return f"a rank hands over {most} bytes at most, to compare {BASE.numel() * 8:,}"


def the_data_is_of_the_same_kind(records):
    """make_data returns the tokens that the script was written for."""
    tokens, vocabulary = given_script.TOKENS, given_script.VOCABULARY
    for case in cases(records[2:3]):
        for rank, result in enumerate(case.results):
            data = result[0] if isinstance(result, list) and len(result) == 2 else None
            if not torch.is_tensor(data) or data.shape != (tokens,) or data.dtype != torch.int64:
                found = f"{tuple(data.shape)}, {data.dtype}" if torch.is_tensor(data) else repr(data)[:60]
                raise Wrong(
                    f"on rank {rank} make_data returned {found}, not {tokens:,} tokens, int64",
                    "what make_data returned before",
                )
            moved = (data.diff() + 2) % vocabulary
            if len(data.unique()) != vocabulary or len(moved.unique()) != 6 or moved.max() != 5:
                raise Wrong(
                    f"on rank {rank} make_data returned {len(data.unique())} different tokens and "
                    f"{len(moved.unique())} different steps from one to the next; the script makes {vocabulary} and 6",
                    "only where the random numbers come from has to change",
                )
    return f"the data is {tokens:,} tokens of the kind that the script makes"


def all_ranks_hold_the_same_data(records):
    """make_data returns the same on every rank, and again in the next run."""
    first, second = [[result[0] for result in case.results] for case in cases(records[2:3])]
    odd = odd_ranks(first)
    if odd:
        same = (first[0] == first[odd[0]]).float().mean().item()
        raise Wrong(
            f"with 3 ranks: ranks {odd} hold other data than rank 0; "
            f"rank {odd[0]} agrees with it in {same:.0%} of the tokens",
            "which generator do the random numbers of make_data come from, and who seeded it?",
        )
    if not torch.equal(first[0], second[0]):
        raise Wrong(
            "make_data returned other tokens when it was called again: every run would have a data set of its own",
            "all ranks agree within a run; what fixes the data from run to run?",
        )
    [again] = cases(records[4:])
    for rank, result in enumerate(again.results):
        if not torch.is_tensor(result["made"]) or not torch.equal(first[0], result["made"]):
            raise Wrong(
                f"make_data returned other tokens on rank {rank} of another run, {first[0][:4].tolist()} ... in the "
                f"first one and {shown(result['made'])} in the second",
                "what fixes the data from run to run?",
            )
    return "all ranks hold the same data, the same in every run"


def other_randomness_is_left_alone(records):
    """Dropout masks still differ from rank to rank, and are those that were drawn without make_data."""
    for case in cases(records[2:3]):
        masks = [tuple(result[1].tolist()) for result in case.results]
        if len(set(masks)) < len(masks):
            raise Wrong(
                f"after make_data ({case.given}) {len(masks)} ranks drew {len(set(masks))} different dropout mask(s)",
                "the generator that everybody uses was seeded alike on all ranks: a generator of its own leaves it be",
            )
    [again] = cases(records[4:])
    for rank, result in enumerate(again.results):
        if result["touched"]:
            raise Wrong(
                f"after make_data the common generator of {result['touched'][0]} was in another state than before on "
                f"rank {rank}",
                "which lines of make_data draw from it, or seed it?",
            )
    return "the ranks' other random numbers differ as before"


def the_losses_agree(records):
    """The script ends, and every rank prints the same validation loss."""
    printed = [match for one in records[3].ranks for match in PRINTED.findall(one.stdout)]
    losses = {int(rank): loss for rank, loss in printed}
    if sorted(losses) != [0, 1] or len(set(losses.values())) != 1 or not float(losses[0]) < 3.9:
        shown = ", ".join(f"rank {rank}: {loss}" for rank, loss in printed) or "nothing"
        raise Wrong(
            f"the script printed as validation losses: {shown}; both ranks should print one and the same, "
            f"below that of an untrained table",
            "main() stays as it was given",
        )
    return f"both ranks of the script print the validation loss {losses[0]}"


CHECKS = [
    the_detector_is_right,
    little_travels,
    the_data_is_of_the_same_kind,
    all_ranks_hold_the_same_data,
    other_randomness_is_left_alone,
    the_losses_agree,
]


def odd_ranks(data):
    """What the learner's function of this name has to return."""
    return [rank for rank, one in enumerate(data) if one.shape != data[0].shape or not torch.equal(one, data[0])]


def shown(data):
    return f"{data[:4].tolist()} ..." if torch.is_tensor(data) else repr(data)[:60]


def advice(case, result, right):
    if not isinstance(result, list):
        return "every rank returns a list of ranks, empty if all data is equal"
    if not right:
        return "this data is equal: does what you compare depend on the rank?"
    if "token" in case.given or "order" in case.given or "zero" in case.given:
        return "what do these two data sets have in common that you compare, and in what do they differ?"
    return "ranks are compared with rank 0, not with their neighbour; what does each rank know of the others?"
