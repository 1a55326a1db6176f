"""05.2: four kinds of random numbers, each with the right seed; and a function that counts what is wrong."""

import torch

from ddp_course.grader.vocabulary import Call, Wrong, cases, check, expect, function_job, jobs_of, like_neighbours, show

from . import given as given_script

SAMPLES = given_script.SAMPLES
NAMES = ("weights", "samples", "dropout", "noise")
FUNCTION = "count_faults"
BROKEN = "the broken script, 4 ranks"
MEANING = {
    "read again": "the number of samples in the lists of all ranks, minus the number of different ones",
    "never read": "how many of the samples from 0 to samples - 1 are in no rank's list?",
    "weights": "how many ranks have other weights than rank 0?",
    "dropout": "how many ranks have the mask of a rank before them?",
    "noise": "how many ranks have the noise of a rank before them?",
}


def count_faults(draws, samples):
    """The right return value of the learner's function of this name."""
    read = [sample for draw in draws for sample in draw["samples"]]
    faults = {"read again": len(read) - len(set(read)), "never read": len(set(range(samples)) - set(read))}
    faults["weights"] = sum(not torch.equal(draw["weights"], draws[0]["weights"]) for draw in draws)
    for name in ("dropout", "noise"):
        faults[name] = len(draws) - len({tuple(draw[name].tolist()) for draw in draws})
    return faults


def make_draws(world, *, alike=(), samples_of=None):
    """Made-up draws of all ranks.

    alike       ranks that draw the same dropout mask and the same noise
    samples_of  the samples of a rank; default: every `world`-th
    """
    draws = []
    for rank in range(world):
        generator = torch.Generator().manual_seed(min(alike) if rank in alike else 1000 + rank)
        samples = list(range(rank, SAMPLES, world)) if samples_of is None else samples_of(rank)
        draws.append(
            {
                "weights": torch.arange(6.0),
                "samples": samples,
                "dropout": torch.rand(32, generator=generator) < 0.5,
                "noise": torch.randn(6, generator=generator),
            }
        )
    return draws


def with_weight(draws, rank, value):
    """`draws`, with `value` as one of the weights of `rank`."""
    draws[rank]["weights"][3] = value
    return draws


def with_same_mask(draws, first, second):
    """`draws`, with the mask of rank `first` on rank `second`; their noise differs in the last bit of each number."""
    noise = draws[first]["noise"].nextafter(torch.tensor(torch.inf))
    draws[second] |= {"dropout": draws[first]["dropout"], "noise": noise}
    return draws


def draws_of_the_broken_script(seed, world):
    """The draws of the broken script in epoch 0, by rank."""
    with torch.random.fork_rng(devices=[]):
        return [given_script.draw(seed, 0, rank, world) for rank in range(world)]


MADE_UP = {
    "nothing is wrong": make_draws(3),
    "one rank, nothing is wrong": make_draws(1),
    "rank 2 starts with one other weight": with_weight(make_draws(3), 2, -1.0),
    "ranks 1 and 3 draw alike": make_draws(4, alike=(1, 3)),
    "all ranks draw alike": make_draws(4, alike=(0, 1, 2, 3)),
    "every rank reads everything": make_draws(3, samples_of=lambda rank: list(range(SAMPLES))),
    "sample 0 is read by all, some by no rank": make_draws(3, samples_of=lambda rank: [0, 10 + rank, 20 + rank]),
    "rank 1 reads a sample twice itself": make_draws(2, samples_of=lambda rank: [0, 1] if rank == 0 else [2, 2]),
    "the samples are numbered from 1": make_draws(3, samples_of=lambda rank: list(range(rank + 1, SAMPLES + 1, 3))),
    "only rank 0 starts with other weights": with_weight(make_draws(4), 0, -1.0),
    "ranks 1 and 2 draw one mask, and noise off in its last bits": with_same_mask(make_draws(3), 1, 2),
    "a weight of rank 1 is off in its last bit": with_weight(make_draws(3), 1, 3.0000002),
    "the broken script, 2 ranks": draws_of_the_broken_script(0, 2),
    BROKEN: draws_of_the_broken_script(5, 4),
}
FEWER_SAMPLES = 40  # than the SAMPLES of the script
SIX_READ = make_draws(3, samples_of=lambda rank: [rank, rank + 3])
COUNT_CALLS = {scenario: (draws, SAMPLES) for scenario, draws in MADE_UP.items()}
COUNT_CALLS[f"{FEWER_SAMPLES} samples, 6 are read"] = (SIX_READ, FEWER_SAMPLES)
COUNT = function_job(1, FUNCTION, COUNT_CALLS)
SETTINGS = [(1, 0), (1, 1), (2, 0), (1, 0)]  # (seed, epoch); the last repeats the first


MANY_RANKS = 13  # 48 samples are no equal shares of theirs, as they are for up to 4 ranks
# (seed, epoch, rank) of runs with so many ranks. An answer that joins the digits of the three numbers, or gives each
# number one digit, has equal seeds for some of these. So has 100 * seed + epoch: epoch 100 of seed 1 is epoch 0
# of seed 2. And of so many keys some have equal seeds in an answer that keeps four digits of a hash.
KEYS = [(1, epoch, rank) for epoch in range(101) for rank in (0, MANY_RANKS - 1)]
KEYS += [(1, 0, rank) for rank in range(1, MANY_RANKS - 1)]
KEYS += [(1, 1, 1), (1, 1, 11), (1, 11, 1), (2, 0, 0), (11, 1, 0), (11, 1, 1)]


DRAW_CALLS = [
    Call([(seed, epoch, rank, world) for rank in range(world)], f"seed {seed}, epoch {epoch}")
    for world in (4, 3, 2, 1)
    for seed, epoch in SETTINGS
]
DRAWS = jobs_of("draw", DRAW_CALLS)
# One process draws for one of the ranks in each call.
DRAW_KEYS = function_job(
    1, "draw", {"seed {}, epoch {}, rank {} of {}".format(*key, MANY_RANKS): (*key, MANY_RANKS) for key in KEYS}
)
JOBS = [COUNT, *DRAWS, DRAW_KEYS]


@check(
    f"{FUNCTION} counts right; of the broken script on 4 ranks: {count_faults(MADE_UP[BROKEN], SAMPLES)}",
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


@check("all four are drawn, as before", [*DRAWS, DRAW_KEYS])
def every_draw_is_complete(case, rank, result):
    rank, shapes = case.args[rank][2], {"weights": (6,), "dropout": (32,), "noise": (6,)}
    complete = isinstance(result, dict) and set(result) == set(NAMES) and isinstance(result["samples"], list)
    complete = complete and all(isinstance(sample, int) for sample in result["samples"])
    complete = complete and all(torch.is_tensor(result[name]) and result[name].shape == shapes[name] for name in shapes)
    described = {name: kind(value) for name, value in result.items()} if isinstance(result, dict) else result
    expect(complete, f"rank {rank} drew {str(described)[:250]}", "what draw returned before, key by key")
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


@check("with one seed all ranks start with the same weights, and every sample is read once", [*DRAWS, DRAW_KEYS])
def weights_are_equal_and_samples_disjoint(records):
    weights = {}
    for case, (seed, _, rank), result in draws_of(records):
        first = weights.setdefault(seed, result["weights"])
        expect(
            torch.equal(first, result["weights"]),
            f"{case.where}rank {rank} starts with weights {show(result['weights'])}, where another rank, epoch or "
            f"world size with this seed has {show(first)}",
            "what may the seed of the weights depend on, and what not?",
        )
    epochs = [(case.where, case.results) for case in cases(records[:-1])]
    # Of DRAW_KEYS, the last one, all ranks of this epoch.
    many = [case.results[0] for case in cases(records[-1:]) if case.args[0][:2] == (1, 0)]
    for begin, results in [*epochs, (f"with {MANY_RANKS} ranks (seed 1, epoch 0): ", many)]:
        counts = count_faults(results, SAMPLES)
        expect(
            not counts["read again"] and not counts["never read"],
            f"{begin}{counts['read again']} readings are of samples that were read before, and "
            f"{counts['never read']} of {SAMPLES} samples are read by no rank",
            "ranks take slices: of one order or of several?"
            if counts["read again"]
            else "the numbers of the samples, from 0; and where the last slice ends, if slices cannot be equal",
        )
        sizes = {len(result["samples"]) for result in results}
        expect(
            max(sizes) - min(sizes) <= 1, f"{begin}the ranks read {sorted(sizes)} samples", "how the order is sliced"
        )


@check("each rank draws its own dropout mask and its own noise", DRAWS)
def masks_and_noise_differ(case):
    counts = count_faults(case.results, SAMPLES)
    for name in ("dropout", "noise"):
        expect(
            not counts[name],
            f"{counts[name]} rank(s) drew the same {name} as a rank before",
            f"which numbers the seed of the {name} has to depend on",
        )


@check("another epoch draws different numbers, and a repeated one draws the same", DRAWS)
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
                "a generator that is not seeded again makes a draw depend on the draws before",
            )


@check("neighbouring seeds, epochs and ranks have nothing in common", [*DRAWS, DRAW_KEYS])
def seeds_do_not_collide(records):
    """Weights depend on the seed, orders on seed and epoch, masks and noise on seed, epoch and rank."""
    key_of = {}
    for case, key, result in draws_of(records):
        order = tuple(tuple(rank_result["samples"]) for rank_result in case.results)
        for name, depends_on, value in (
            ("weights", key[:1], tuple(result["weights"].tolist())),
            ("dropout mask", key, tuple(result["dropout"].tolist())),
            ("noise", key, tuple(result["noise"].tolist())),
            ("order", key[:2], (case.world, order)),
        ):
            first = key_of.setdefault((name, value), depends_on)
            expect(
                first == depends_on,
                f"{in_words(first)} and {in_words(depends_on)} drew the same {name}",
                "which numbers enter the seed, and can two sets of them give one seed? Torch uses its lower 32 bits",
            )


def in_words(key):
    """A text such as "seed 1, epoch 0", for the key (1, 0)."""
    return ", ".join(f"{word} {number}" for word, number in zip(("seed", "epoch", "rank"), key, strict=False))


def draws_of(records):
    """Yield (case, (seed, epoch, rank), what the rank drew) for every draw."""
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
