"""21.1: whether a judge may pay a policy, from pairs and prompts that lie on several ranks."""

from statistics import fmean

from ddp_course.base.intervals import Estimate, cluster_interval
from ddp_course.grader.vocabulary import Mistake, check, driver_job, expect, recognised

from . import driver

JOBS = [driver_job(world, "valid", list(driver.JUDGES)) for world in (2, 3, 1)]


@check("every rank comes to the same verdict with the same numbers, on 1, 2 and 3 ranks")
def the_ranks_agree(case, rank, result):
    ours, rank_0 = ([own[0], *(f"{Estimate(*gain, 1):+.4f}" for gain in own[1:])] for own in (result, case.results[0]))
    look_at = "what each rank makes its numbers of, and in which order"
    expect(result == case.results[0], f"rank {rank} returned {ours}, rank 0 {rank_0}", look_at)


@check("both gains and their intervals are those of one process")
def the_gains_are_global(case, rank, result):
    whole, own = driver.gains(*case.args[0]), [driver.gains(*case.args[0], r, case.world) for r in range(case.world)]
    for index, (kind, gain) in enumerate(zip(("pairs", "texts"), result[1:], strict=True)):
        right = cluster_interval(*whole[index])
        means = fmean(fmean(values) for values, _ in (part[index] for part in own) if values)
        mistakes = [Mistake("the mean of the ranks' means", means, "what a rank with few of them counts")]
        words, look_at = recognised(gain[0], mistakes, "what the judge is compared with")
        if same_mean := abs(gain[0] - right.mean) < 1e-9:
            words, look_at = "", "what is drawn anew: a file's pairs, on whichever ranks they lie; a prompt's texts"
        far = max(abs(value - expected) for value, expected in zip(gain, right, strict=False))
        observed = f"the gain on {kind} is {Estimate(*gain, 1):+.4f} on rank {rank}; one process {right:+.4f}{words}"
        expect(same_mean and far <= 0.1 * (right.high - right.low), observed, look_at)


@check("accepts the good judge and no other", begin="{ranks}: ")
def the_verdict_is_right(case, rank, result):
    right = all(cluster_interval(*items).low > 0 for items in driver.gains(*case.args[0]))
    observed = f"rank {rank} {'accepted' if result[0] else 'refused'} the judge that {case.scenario}"
    expect(result[0] == right, observed, "which ends of which intervals have to lie above 0")
