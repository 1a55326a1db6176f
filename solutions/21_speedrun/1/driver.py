"""Inside a rank, for 21.1: judges that nobody has seen, and each rank's uneven share of the pairs and prompts."""

import torch.distributed as dist

from .given import check, likelihood, noise, sample


def good(text):
    return noise(text, "good", 0.4) - text.errors


JUDGES = {  # with the numbers of files and prompts
    "is good": (good, 40, 60),
    "remembers the pairs": (lambda t: noise(t, "memory", 0.1) + (t.number >= 0) * (1 - t.number % 2), 40, 60),
    "likes length": (lambda t: noise(t, "length", 0.1) + t.length, 40, 60),
    "is upside down on the policy's texts": (lambda t: good(t) * (1 if t.number >= 0 else -1), 40, 60),
    "is the likelihood": (likelihood, 40, 60),
    "is good in most of few files": (lambda t: good(t) * (-1 if t.number // 1000 == 3 else 1), 8, 60),
    "guesses on few prompts": (lambda t: good(t) if t.number >= 0 else noise(t, "luck", 1), 40, 5),
}


def parts(scenario, rank=0, world=1):
    """The judge and a rank's pairs and prompts: the last rank has twice as many as another; what is few is rank 0's."""
    judge, *sizes = JUDGES[scenario]
    both = [list(enumerate(items)) if len(items) > 5 else [(0, item) for item in items] for items in sample(*sizes, 7)]
    return judge, *([item for index, item in items if min(index % (world + 1), world - 1) == rank] for items in both)


def gains(*part):
    """(gains over the likelihood, their files), (gains over a random choice, their numbers)"""
    judge, pairs, texts = parts(*part)
    on_pairs = [(judge(a) > judge(b)) - (likelihood(a) > likelihood(b)) for _, a, b in pairs]
    on_texts = [check(max(own, key=judge)) - sum(map(check, own)) / len(own) for own in texts]
    return (on_pairs, [file for file, *_ in pairs]), (on_texts, range(len(on_texts)))


def drive(function, scenario):
    judge, *own = parts(scenario, dist.get_rank(), dist.get_world_size())
    accepted, *estimates = function(judge, likelihood, *own, check)
    return [bool(accepted), *([float(number) for number in estimate[:3]] for estimate in estimates)]
