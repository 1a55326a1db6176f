"""05.2: four consumers of random numbers, each with the right seed; and a function that counts what is wrong."""

import torch

from ddp_course.grader.vocabulary import Call, Job, Wrong, cases, check, expect, like_neighbours

from . import given as given_script

SAMPLES = given_script.SAMPLES
NAMES = ("weights", "samples", "dropout", "noise")
FUNCTION = "count_faults"
MEANING = {
    "read again": "readings in all, less the different samples among them",
    "never read": "samples from 0 on that occur in no rank's list",
    "weights": "the ranks whose weights are not those of rank 0: how many?",
    "dropout": "the ranks whose mask a rank before them has already: how many?",
    "noise": "the ranks whose noise a rank before them has already: how many?",
}


def count_faults(draws, samples):
    """The right return value of the learner's function of this name."""
    read = [sample for draw in draws for sample in draw["samples"]]
    faults = {"read again": len(read) - len(set(read)), "never read": samples - len(set(read))}
    faults["weights"] = sum(not torch.equal(draw["weights"], draws[0]["weights"]) for draw in draws)
    for name in ("dropout", "noise"):
        faults[name] = len(draws) - len({tuple(draw[name].tolist()) for draw in draws})
    return faults


def draws(world, *, alike=(), reader=None):
    """Made-up draws of all ranks; ranks in `alike` share all that should be their own."""
    made = []
    for rank in range(world):
        own = torch.Generator().manual_seed(min(alike) if rank in alike else 1000 + rank)
        samples = list(range(rank, SAMPLES, world)) if reader is None else reader(rank)
        made.append(
            {
                "weights": torch.arange(6.0),
                "samples": samples,
                "dropout": torch.rand(32, generator=own) < 0.5,
                "noise": torch.randn(6, generator=own),
            }
        )
    return made


def with_weights(made, rank, value):
    made[rank] = made[rank] | {"weights": made[rank]["weights"].clone()}
    made[rank]["weights"][3] = value
    return made


def one_mask(made, first, second):
    """The same mask on both; their noise differs in the last bit of each number."""
    noise = made[first]["noise"].nextafter(torch.tensor(torch.inf))
    made[second] = made[second] | {"dropout": made[first]["dropout"], "noise": noise}
    return made


def of_the_broken_script(seed, world):
    with torch.random.fork_rng(devices=[]):
        return [given_script.draw(seed, 0, rank, world) for rank in range(world)]


MADE_UP = [
    ("nothing is wrong", draws(3)),
    ("one rank, nothing is wrong", draws(1)),
    ("rank 2 starts with one other weight", with_weights(draws(3), 2, -1.0)),
    ("ranks 1 and 3 draw alike", draws(4, alike=(1, 3))),
    ("all ranks draw alike", draws(4, alike=(0, 1, 2, 3))),
    ("every rank reads everything", draws(3, reader=lambda rank: list(range(SAMPLES)))),
    ("sample 0 is read by all, some by nobody", draws(3, reader=lambda rank: [0, 10 + rank, 20 + rank])),
    ("rank 1 reads a sample twice itself", draws(2, reader=lambda rank: [0, 1] if rank == 0 else [2, 2])),
    ("rank 0 alone starts with other weights", with_weights(draws(4), 0, -1.0)),
    ("ranks 1 and 2 draw one mask, and noise off in its last bits", one_mask(draws(3), 1, 2)),
    ("a weight of rank 1 is off in its last bit", with_weights(draws(3), 1, 3.0000002)),
    ("the broken script, 2 ranks", of_the_broken_script(0, 2)),
    ("the broken script, 4 ranks", of_the_broken_script(5, 4)),
]
FEWER = 40  # samples, for a count that is not that of the script
COUNTED = [Call([(made, SAMPLES)], scenario) for scenario, made in MADE_UP]
COUNTED.append(Call([(draws(3, reader=lambda rank: [rank, rank + 3]), FEWER)], f"{FEWER} samples, 6 are read"))
COUNT = Job(1, function=FUNCTION, calls=tuple(COUNTED))
SETTINGS = [(1, 0), (1, 1), (2, 0), (1, 0)]  # (seed, epoch); the last asks for the first again


# (seed, epoch, rank) of 12 ranks, all played by one: written side by side or with a digit each, they meet; and where a
# seed is worth 100 epochs, or fewer, seed 1 comes to the first epoch of seed 2.
FAR = [
    (1, 0, 0),
    (1, 0, 10),
    (1, 1, 0),
    (1, 1, 1),
    (1, 1, 11),
    (1, 10, 0),
    (1, 11, 0),
    (1, 11, 1),
    (2, 0, 0),
    (11, 1, 0),
    (11, 1, 1),
    *((1, epoch, 0) for epoch in range(2, 101)),
    *((1, 0, rank) for rank in range(12)),
]


def draw_job(world):
    calls = [Call([(s, e, rank, world) for rank in range(world)], f"seed {s}, epoch {e}") for s, e in SETTINGS]
    return Job(world, function="draw", calls=tuple(calls))


DRAWS = [draw_job(world) for world in (4, 3, 2, 1)]
PLAYED = Job(1, "draw", tuple(Call([(*far, 12)], "seed {}, epoch {}, rank {} of 12".format(*far)) for far in FAR))
JOBS = [COUNT, *DRAWS, PLAYED]


@check(
    f"{FUNCTION} counts right; of the broken script on 4 ranks: {count_faults(MADE_UP[-1][1], SAMPLES)}",
    [COUNT],
    begin="{scenario}: ",
)
def the_counts_are_right(case):
    [result], right = case.results, count_faults(*case.args[0])
    if result != right:
        wrong = [name for name in right if not isinstance(result, dict) or result.get(name) != right[name]]
        name = (wrong or sorted(set(result) - set(right)))[0]
        count = result.get(name) if isinstance(result, dict) else result
        raise Wrong(
            f"{FUNCTION} said {name!r}: {count!r}, not {right.get(name)!r}",
            MEANING.get(name, "the keys of the result are those in the question"),
        )


@check("all four are drawn, as before", [*DRAWS, PLAYED])
def every_draw_is_complete(case, rank, result):
    rank, shapes = case.args[rank][2], {"weights": (6,), "dropout": (32,), "noise": (6,)}
    whole = isinstance(result, dict) and set(result) == set(NAMES) and isinstance(result["samples"], list)
    whole = whole and all(isinstance(sample, int) for sample in result["samples"])
    whole = whole and all(torch.is_tensor(result[name]) and result[name].shape == shapes[name] for name in shapes)
    drawn = {name: kind(value) for name, value in result.items()} if isinstance(result, dict) else result
    expect(whole, f"rank {rank} drew {str(drawn)[:250]}", "what draw returned before, key by key")
    weights, dropout, samples = (result[name] for name in ("weights", "dropout", "samples"))
    expect(
        len(weights.unique()) == 6 and 4 <= dropout.sum() <= 28,
        f"rank {rank} drew weights {weights.tolist()} and a dropout mask with {int(dropout.sum())} of 32",
        "only the seeds have to change: all four are still drawn at random",
    )
    expect(
        len(samples) < SAMPLES or not like_neighbours(samples, sorted(samples)),
        f"rank {rank} reads the samples {samples[:6]} ... : not in a random order",
        "only the seeds have to change: the order is still drawn at random",
    )


@check("with one seed all ranks start with the same weights, and every sample is read once", [*DRAWS, PLAYED])
def what_is_shared_is_equal(records):
    weights = {}
    for case, (seed, _, rank), result in draws_of(records):
        first = weights.setdefault(seed, result["weights"])
        expect(
            torch.equal(first, result["weights"]),
            f"{case.where}rank {rank} starts with weights {shown(result['weights'])}, where another rank, epoch or "
            f"world size with this seed has {shown(first)}",
            "what may the seed of the weights depend on, and what not?",
        )
    *records, _ = records  # of PLAYED nothing is known but rank by rank
    for case in cases(records):
        counts = count_faults(case.results, SAMPLES)
        expect(
            not counts["read again"] and not counts["never read"],
            f"{case.where}{counts['read again']} readings are of samples that were read before, and "
            f"{counts['never read']} of {SAMPLES} samples are read by nobody",
            "ranks take slices: of one order or of several?",
        )
        sizes = {len(result["samples"]) for result in case.results}
        expect(
            max(sizes) - min(sizes) <= 1,
            f"{case.where}the ranks read {sorted(sizes)} samples",
            "how the order is sliced",
        )


@check("each rank draws its own dropout mask and its own noise", DRAWS)
def what_is_a_ranks_own_differs(case):
    counts = count_faults(case.results, SAMPLES)
    for name in ("dropout", "noise"):
        expect(
            not counts[name],
            f"{counts[name]} rank(s) drew the same {name} as a rank before",
            f"what the seed of the {name} has to know",
        )


@check("another epoch draws anew, and a repeated one draws the same", DRAWS)
def epochs_differ_and_runs_repeat(cases):
    begin = f"with {cases[0].world} ranks: "
    for rank, (first, next_epoch, _, again) in enumerate(zip(*(case.results for case in cases), strict=True)):
        for name in ("samples", "dropout", "noise"):
            expect(
                not equal(first[name], next_epoch[name]),
                f"{begin}rank {rank} drew the same {name} in epoch 0 and in epoch 1",
                "what changes from epoch to epoch in your seeds?",
            )
        for name in NAMES:
            expect(
                equal(first[name], again[name]),
                f"{begin}seed 1, epoch 0 was drawn twice, and rank {rank} got other {name}",
                "a generator that goes on from where it was makes a draw depend on the draws before",
            )


@check("neighbouring seeds, epochs and ranks have nothing in common", [*DRAWS, PLAYED])
def seeds_do_not_meet(records):
    """Weights go by the seed, orders by seed and epoch, masks and noise by the rank as well."""
    drawn_for = {}
    for case, who, result in draws_of(records):
        order = tuple(tuple(other["samples"]) for other in case.results)
        for name, key, value in (
            ("weights", who[:1], tuple(result["weights"].tolist())),
            ("dropout mask", who, tuple(result["dropout"].tolist())),
            ("noise", who, tuple(result["noise"].tolist())),
            ("order", who[:2], (case.world, order)),
        ):
            first = drawn_for.setdefault((name, value), key)
            expect(
                first == key,
                f"{in_words(first)} and {in_words(key)} drew the same {name}",
                "does all that differs there reach the seed, and can each part still be told from the others?",
            )


def in_words(key):
    """ "seed 1, epoch 0" """
    return ", ".join(f"{word} {number}" for word, number in zip(("seed", "epoch", "rank"), key, strict=False))


def draws_of(records):
    """(case, (seed, epoch, rank), what the rank drew) for every draw."""
    for case in cases(records):
        for (seed, epoch, rank, _), result in zip(case.args, case.results, strict=True):
            yield case, (seed, epoch, rank), result


def equal(first, second):
    return torch.equal(first, second) if torch.is_tensor(first) else first == second


def kind(value):
    """A value described in few words."""
    if torch.is_tensor(value):
        return f"a tensor of shape {tuple(value.shape)}"
    if isinstance(value, list):
        return f"a list of {len(value)}" + (f", the first a {type(value[0]).__name__}" if value else "")
    return repr(value)[:20]


def shown(tensor):
    return "[" + ", ".join(f"{value:.2f}" for value in tensor.tolist()[:3]) + ", ...]"
