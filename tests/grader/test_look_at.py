"""Two mistakes that one check catches are told apart: the place to look at follows from what was observed."""

import pytest

from ddp_course.authoring.answers import SOLUTION, edited, graded, text_of
from ddp_course.grader.vocabulary import Mistake, recognised

pytestmark = pytest.mark.smoke

MISTAKES = {  # question: {mistake: (edit of the solution, part of `observed`, part of `look`)}
    "02.2": {
        "the operations give up before the grader does": (
            """
            -    dist.init_process_group("gloo", timeout=timedelta(seconds=5))
            +    dist.init_process_group("gloo", timeout=timedelta(seconds=1))
            @@
            -    dist.all_reduce(total)  # every rank takes part ...
            +    dist.barrier()
                 if rank == 0:  # ... and one of them speaks
            +        dist.all_reduce(total)
            """,
            "no end, until rank",
            "which rank never comes to it",
        )
    },
    "02.3": {
        "divides the sum by the number of ranks": (
            """
            +    tensor.copy_(tensor / world)
                 for k in range(world - 1):  # what arrives is complete: it replaces
            """,
            "the sum divided by 4",
            "divide",
        )
    },
    "04.2": {
        "the detector's other rank waits in a barrier": (
            """
            -        dist.all_reduce(torch.ones(1))  # as in a training step: the others wait for the rank that crashed
            +        dist.barrier()
            """,
            "given a barrier in `finally`, hides_a_crash returned False on both ranks",
            "or waits in a barrier",
        )
    },
    "05.2": {
        "shifts the seed out of the generator's 32 bits": (
            """
            -        digest = hashlib.sha256(repr(depends_on).encode()).digest()
            -        return torch.Generator().manual_seed(int.from_bytes(digest[:8], "little"))
            +        what, seed, epoch, rank = (*depends_on, 0, 0)[:4]
            +        return torch.Generator().manual_seed(seed << 32 | epoch << 16 | rank)
            """,
            "seed 1 and seed 2 drew the same weights",
            "lower 32 bits",
        )
    },
    "06.3": {
        "counts the ignored targets": (
            """
            -    count = torch.tensor(sum(int((targets != IGNORED).sum()) for _, targets in micro_batches))
            +    count = torch.tensor(sum(targets.numel() for _, targets in micro_batches))
            """,
            "that sum divided by 56, not by 32 targets",
            "-100",
        ),
        "counts every target twice": (
            """
            -    count = torch.tensor(sum(int((targets != IGNORED).sum()) for _, targets in micro_batches))
            +    count = torch.tensor(sum(2 * int((targets != IGNORED).sum()) for _, targets in micro_batches))
            """,
            "that sum divided by 64, not by 32 targets",
            "is a target counted twice",
        ),
        "counts one target where a rank has none": (
            """
            -    count = torch.tensor(sum(int((targets != IGNORED).sum()) for _, targets in micro_batches))
            +    count = torch.tensor(max(1, sum(int((targets != IGNORED).sum()) for _, targets in micro_batches)))
            """,
            "that sum divided by 12, not by 11 targets",
            "without targets adds",
        ),
        "counts its own targets only": (
            """
            -    dist.all_reduce(count)
            """,
            "that sum divided by 16, not by 32 targets",
            "the targets of all ranks",
        ),
    },
    "10.2": {
        "raises another error": (
            """
            -        raise ValueError(f"{tokens_per_update} tokens per step do not divide by {at_once}; nearest that do: {fits}")
            +        raise RuntimeError(f"{tokens_per_update} do not divide by {at_once}; nearest that do: {fits}")
            """,  # noqa: E501
            "raised RuntimeError",
            "ValueError",
        ),
        "says nothing": (
            """
            -    if rest:  # the same on every rank: all of them raise
            +    if False:
            """,
            "raised no ValueError",
            "ValueError",
        ),
    },
    "20.2": {
        "sums in float32": (
            """
            -    sums = torch.zeros(3, dtype=torch.float64)
            +    sums = torch.zeros(3)
            """,
            "returned the loss",
            "the dtype of what is sent",
        ),
        "tries even numbers of ranks": (
            """
            -    for world in range(1, 6):
            +    for world in (2, 4):
            """,
            "an odd number of ranks",
            "which sizes it tries",
        ),
        "tries batches with an example for each rank": (
            """
            -        for batch in range(1, 12):
            +        for batch in range(world, 12):
            """,
            "a batch smaller than the number of ranks is left out",
            "which sizes it tries",
        ),
        "tries four batches at most": (
            """
            -            for total in range(25):
            +            for total in range(4 * batch + 1):
            """,
            "all batches after the fourth",
            "which sizes it tries",
        ),
    },
    "21.1": {
        "counts a tie": (
            """
            -        (file, (judge(chosen) > judge(rejected)) - (likelihood(chosen) > likelihood(rejected)))
            +        (file, (judge(chosen) >= judge(rejected)) - (likelihood(chosen) > likelihood(rejected)))
            """,
            "a tie counted as correct",
            "both texts have one score",
        ),
        "counts each file once": (
            """
            +    each = {file: [gain for own, gain in zip(files, gains, strict=True) if own == file] for file in files}
            +    files, gains = zip(*((file, sum(own) / len(own)) for file, own in each.items()), strict=True)
                 prompts = [gain for _, part in every for gain in part]
            """,
            "the mean of the files' means",
            "counts more",
        ),
        "averages the means of the ranks": (
            """
            -    return gain.low > 0 and better.low > 0, gain, better
            +    means = [sum(own for _, own in part) / len(part) for part, _ in every]
            +    return gain.low > 0 and better.low > 0, gain._replace(mean=sum(means) / len(means)), better
            """,
            "the mean of the ranks' means",
            "a rank with few",
        ),
        "takes prompts in equal places of the ranks for one": (
            """
            -    gain, better = cluster_interval(gains, files), cluster_interval(prompts, range(len(prompts)))
            +    places = [place for _, part in every for place in range(len(part))]
            +    gain, better = cluster_interval(gains, files), cluster_interval(prompts, places)
            """,
            "(remembers the pairs): the gain on texts is",
            "whole prompts",
        ),
        "prefers a text that passes": (
            """
            -    on_texts = [check(max(own, key=judge)) - sum(map(check, own)) / len(own) for own in texts]
            +    passed = [max((judge(text), check(text)) for text in own)[1] for own in texts]
            +    on_texts = [best - sum(map(check, own)) / len(own) for best, own in zip(passed, texts, strict=True)]
            """,
            "that of a text that passes",
            "which of several texts",
        ),
    },
    "24.2": {
        "a chunk's last token has no target": (
            """
            -    targets = F.pad(windows[:, 1:], (0, 1), value=PAD)
            +    chunks = windows.chunk(2 * world, -1)
            +    targets = torch.cat([F.pad(chunk[:, 1:], (0, 1), value=PAD) for chunk in chunks], -1)
            """,
            "without a target for the last token of a chunk",
            "shift first, then cut",
        )
    },
    "26.1": {
        "builds each group twice, and the first rank returns the other one": (
            """
            -            group = dist.new_group(line)
            +            group, second = dist.new_group(line), dist.new_group(line)
            +            group = group if rank == line[0] else second
            """,
            "in the group of rank 0 over tp the ranks [0] answered, not [0, 1]",
            "which group each rank returns",
        )
    },
    "26.2": {
        "adds up the gradients of all steps": (
            """
            -        self.optimizer.zero_grad()
            """,
            "in step 2 ",
            "gradients that are not set to zero",
        )
    },
    "27.2": {
        "the mean over this rank's pairs, and 0 if there are none": (
            """
            -    return losses.sum() * dist.get_world_size() / pairs
            +    return losses.sum() / max(len(losses), 1)
            """,
            "the mean over this rank's pairs",
            "the other ranks",
        ),
        "counts answers": (
            """
            -    pairs = torch.tensor(len(losses))
            +    pairs = torch.tensor(len(policy))
            """,
            "the mean over answers",
            "a pair has two answers",
        ),
        "the logarithm of a sigmoid": (
            """
            -    losses = -F.logsigmoid(beta * (chosen - rejected))
            +    losses = -torch.sigmoid(beta * (chosen - rejected)).log()
            """,
            "returned inf",
            "log(sigmoid(x)) is -inf",
        ),
        "the same value on every rank": (
            """
            -    dist.all_reduce(pairs)
            -    return losses.sum() * dist.get_world_size() / pairs
            +    sums = torch.stack([losses.detach().sum(), pairs])
            +    dist.all_reduce(sums)
            +    own = losses.sum() * dist.get_world_size() / sums[1]
            +    return own - own.detach() + sums[0] / sums[1]
            """,
            "the mean over all ranks' pairs",
            "this rank's pairs alone",
        ),
    },
}


@pytest.fixture(scope="module")
def verdicts():
    """{question: {mistake: verdict}}, with one start of the harness."""
    texts = {
        question: {mistake: edited(text_of(question, SOLUTION), edit) for mistake, (edit, _, _) in edits.items()}
        for question, edits in MISTAKES.items()
    }
    return graded(texts)


@pytest.mark.parametrize("question", MISTAKES)
def test_the_place_to_look_at_follows_from_what_was_observed(question, verdicts):
    for mistake, (_, observed, look) in MISTAKES[question].items():
        verdict = verdicts[question][mistake]
        assert observed in verdict.observed and look in verdict.look, (mistake, verdict)


def test_the_first_mistake_that_gives_the_result_is_named():
    mistakes = [Mistake("the sum", 6.0, "the divisor"), Mistake("the other sum", 6.0, "elsewhere")]
    assert recognised(6.0, mistakes, "anywhere") == (", the sum", "the divisor")
    assert recognised(5.0, mistakes, "anywhere") == ("", "anywhere")
