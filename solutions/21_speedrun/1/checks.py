"""21.1: whether a judge may pay a policy, from pairs and prompts that lie on several ranks."""

from statistics import fmean

from ddp_course.base.intervals import Estimate, cluster_interval
from ddp_course.grader.vocabulary import Mistake, check, driver_job, expect, recognised

from . import driver

JOBS = [driver_job(world, "valid", list(driver.JUDGES)) for world in (2, 3, 1)]
RESAMPLED = "what is resampled: a file's pairs, whichever ranks have them; whole prompts, of which none is on two ranks"


@check("every rank comes to the same verdict with the same numbers, on 1, 2 and 3 ranks")
def the_ranks_agree(case, rank, result):
    shown, shown_of_0 = (
        [accepted, *(f"{Estimate(*gain, 1):+.4f}" for gain in gains)] for accepted, *gains in (result, case.results[0])
    )
    look_at = "what each rank computes its numbers from, and in which order"
    expect(result == case.results[0], f"rank {rank} returned {shown}, rank 0 {shown_of_0}", look_at)


@check("both gains and their intervals are those of one process")
def the_gains_are_global(case, rank, result):
    global_gains = driver.gains(case.scenario)
    gains_by_rank = [driver.gains(case.scenario, peer, case.world) for peer in range(case.world)]
    for index, (kind, gain) in enumerate(zip(("pairs", "texts"), result[1:], strict=True)):
        right = cluster_interval(*global_gains[index])
        mean_of_means = fmean(fmean(values) for values, _ in (gains[index] for gains in gains_by_rank) if values)
        mistakes = [Mistake("the mean of the ranks' means", mean_of_means, "how much a rank with few of them counts")]
        if kind == "pairs":
            mistakes += mistakes_on_pairs(case.scenario, *global_gains[0])
        else:
            mistakes += mistakes_on_texts(case.scenario)
        words, look_at = recognised(gain[0], mistakes, "what the judge is compared with")
        gap = abs(gain[0] - right.mean)
        if gap < 1e-6:
            words, look_at = "", RESAMPLED if gap < 1e-9 else "the dtype of the sums: torch's default is float32"
        largest_gap = max(abs(value - expected) for value, expected in zip(gain, right, strict=False))
        observed = f"the gain on {kind} is {Estimate(*gain, 1):+.4f} on rank {rank}{words}; one process {right:+.4f}"
        expect(gap < 1e-9 and largest_gap <= 0.1 * (right.high - right.low), observed, look_at)


def mistakes_on_pairs(scenario, gains, files):
    """Gains on the pairs of all ranks that a tie raises, and in which a file counts once."""
    judge, pairs, _ = driver.share_of_rank(scenario)
    with_ties = fmean((judge(a) >= judge(b)) - (driver.likelihood(a) >= driver.likelihood(b)) for _, a, b in pairs)
    of_files = fmean(fmean(gain for gain, own in zip(gains, files, strict=True) if own == file) for file in set(files))
    yield Mistake("a tie counted as correct", with_ties, "what is counted where both texts have one score")
    yield Mistake("the mean of the files' means", of_files, "what is averaged: a file with many pairs counts more")


def mistakes_on_texts(scenario):
    """Gains on the texts of all ranks where, of several with the highest score, not the first is chosen."""
    judge, _, texts = driver.share_of_rank(scenario)
    for words, choose in {
        "that of the last of several texts with the highest score": lambda six: max(reversed(six), key=judge),
        "that of a text that passes, of several with the highest score": lambda six: max(
            six, key=lambda text: (judge(text), driver.check(text))
        ),
    }.items():
        gain = fmean(driver.gains_on_texts(texts, choose))
        yield Mistake(words, gain, "which of several texts with the highest score is chosen")


@check("accepts the good judge and no other", begin="{ranks}: ")
def the_verdict_is_right(case, rank, result):
    right = all(cluster_interval(*items).low > 0 for items in driver.gains(case.scenario))
    observed = f"rank {rank} {'accepted' if result[0] else 'refused'} the judge that {case.scenario}"
    expect(result[0] == right, observed, "which ends of which intervals have to lie above 0")
