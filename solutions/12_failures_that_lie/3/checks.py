"""12.3: every rank draws the same samples by weight. The repair: one draw for all ranks, and a share for each."""

import itertools
import math

from ddp_course.grader.vocabulary import Wrong, cases, check, driver_job, expect, where

FUNCTION = "indices"
WEIGHTS = [1.0, 0.0, 3.0, 6.0, 0.0, 10.0]  # their sum is 20
MANY, AGAIN, FIRST, FEW = "4,000 draws", "epoch 0 again", "40 draws", "equal weights"
STRIDES = 1, 10, 100, 1000, 10_000, 65_536  # an answer may multiply the seed or the epoch by one of these
CALLS = {  # weights, draws, seed, epoch
    FIRST: (WEIGHTS, 40, 4, 0),
    AGAIN: (WEIGHTS, 40, 4, 0),
    "41 draws": (WEIGHTS, 41, 3, 0),
    "3 draws": (WEIGHTS, 3, 3, 5),
    FEW: ([0.5] * 50, 47, 8, 2),
    MANY: (WEIGHTS, 4000, 9, 1),
}
EPOCHS = {epoch: f"epoch {epoch}" for epoch in STRIDES}  # of seed 4
# In epoch 0. One number made of seed and epoch may be that of seed 4 in a later epoch: a sum, with one of them times a
# stride, for 4 + stride; seed * (epoch + 1) for 8, (seed + 1) * (epoch + 1) for 9, their digits for 41.
SEEDS = {seed: f"seed {seed}" for seed in (*(4 + stride for stride in STRIDES), 8, 9, 41, 1012)}
CALLS |= {scenario: (WEIGHTS, 40, 4, epoch) for epoch, scenario in EPOCHS.items()}
CALLS |= {scenario: (WEIGHTS, 40, seed, 0) for seed, scenario in SEEDS.items()}
JOBS = [driver_job(world, FUNCTION, CALLS) for world in (1, 2, 3, 4)]


@check("no draw is added or left out, also where they do not divide by the ranks")
def each_draw_is_made_once(case):
    _, draws, *_ = case.args[0]
    right = [len(range(rank, draws, case.world)) for rank in range(case.world)]
    counts = [len(result["drawn"]) for result in case.results]
    expect(
        counts == right,
        f"the ranks drew {counts} samples, not {right}",
        "how many draws does this rank get if they do not divide by the ranks?",
    )


@check("all ranks together draw by weight")
def the_weights_count(case):
    weights, draws, *_ = case.args[0]
    drawn = drawn_by_all(case)
    if unknown := set(drawn) - set(range(len(weights))):
        raise Wrong(
            f"{unknown.pop()!r} was drawn; there are {len(weights)} samples", "the return value: a list of indices"
        )
    if never := [sample for sample in drawn if weights[sample] == 0]:
        raise Wrong(f"sample {never[0]}, of weight 0, was drawn", "what the weights are used for")
    if case.scenario == FEW:
        expect(
            len(set(drawn)) < draws,
            f"no sample of {len(weights)} was drawn twice in {draws} draws",
            "with replacement, also where there are more samples than draws",
        )
    for sample, weight in enumerate(weights) if case.scenario == MANY else ():
        share = weight / sum(weights)
        expected, spread = draws * share, math.sqrt(draws * share * (1 - share))
        expect(
            abs(drawn.count(sample) - expected) <= 5 * spread,
            f"sample {sample}, of weight {weight:g} of {sum(weights):g}, was drawn {drawn.count(sample)} times; about "
            f"{expected:g} are right",
            "the weights of all samples, with replacement, on every rank",
        )


@check("1, 2, 3 and 4 ranks see the same global batches")
def the_draws_are_those_of_one_process(records):
    one_process = {case.scenario: case.results[0]["drawn"] for case in cases(records[:1])}
    for case in cases(records[1:]):
        right, drawn = one_process[case.scenario], drawn_by_all(case)
        if drawn == right:
            continue
        shares = [result["drawn"] for result in case.results]
        if shares[0] and shares[1] == shares[0]:
            raise Wrong(
                f"{case.where}rank 1 drew what rank 0 drew, {shares[0][:6]} ...: the global batch holds each sample "
                f"{case.world} times",
                "what is the same on all ranks, and what has to depend on the rank?",
            )
        if sorted(drawn) == sorted(right):
            raise Wrong(
                f"{case.where}the draws are those of one process, in another order",
                "draw i belongs to rank i % world; then a global batch is the same at any number of ranks",
            )
        raise Wrong(
            f"{case.where}together the ranks drew {drawn[:6]} ...; one process draws {right[:6]} ...",
            "one draw for all ranks, of which each takes its share",
        )


@check("other draws in each epoch and for each seed, and the same ones again after a resume")
def seed_and_epoch_decide(cases):
    drawn = {case.scenario: drawn_by_all(case) for case in cases}
    begin, first = where(cases[0].world), drawn[FIRST]
    for epoch, scenario in EPOCHS.items():
        expect(
            drawn[scenario] != first,
            f"{begin}epochs 0 and {epoch} have the same draws, {first[:6]} ...",
            "what of your draw depends on the epoch",
        )
    for seed, scenario in SEEDS.items():
        expect(
            drawn[scenario] != first,
            f"{begin}seeds 4 and {seed} have the same draws, {first[:6]} ...",
            "what of your draw depends on the seed: torch uses the lower 32 bits of the number that manual_seed gets",
        )
    for (epoch, in_epoch), (seed, of_seed) in itertools.product(EPOCHS.items(), SEEDS.items()):
        expect(
            drawn[in_epoch] != drawn[of_seed],
            f"{begin}seed 4 in epoch {epoch} and seed {seed} in epoch 0 have the same draws, {drawn[of_seed][:6]} ...",
            "one number made of both by a sum, a product or digits does not tell them apart, nor does an exclusive or: "
            "numpy.random.SeedSequence([seed, epoch]) does",
        )
    expect(
        drawn[AGAIN] == first,
        f"{begin}the second call for epoch 0 drew {drawn[AGAIN][:6]}, not {first[:6]} ...",
        "a run that resumes has to draw an epoch again: the draws must not depend on earlier ones",
    )


@check("it leaves its weights and the random states alone")
def the_inputs_stay(case, rank, result):
    own_generator = "a torch.Generator of its own; torch.manual_seed would make all dropout masks equal"
    looks = {
        "its weights": "what is done in place: the next epoch is drawn from the same tensor",
        "the random state of torch": own_generator,
        "the random state of Python": own_generator,
    }
    for untouched, (part, look_at) in zip(result["untouched"], looks.items(), strict=True):
        expect(untouched, f"{FUNCTION} changed {part} on rank {rank}", look_at)


def drawn_by_all(case):
    """The draws of all ranks in the order of the epoch: draw i from rank i % world."""
    shares = [result["drawn"] for result in case.results]
    return [share[index] for index in range(max(map(len, shares))) for share in shares if index < len(share)]
