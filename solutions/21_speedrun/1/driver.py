"""Inside a rank, for 21.1: judges that the learner has not seen, and unequal shares of the pairs and prompts."""

import torch.distributed as dist

from .given import check, likelihood, noise, sample


def good(text):
    return noise(text, "good", 0.4) - text.errors


def memory(text):
    """Right on 15 of 16 pairs, with a tie on the 16th; good on every third of the policy's prompts, bad on the others.

    On 2 ranks it is good on those of rank 0 and bad on those of rank 1: gains of prompts in equal places cancel.
    """
    if text.number < 0:
        return text.errors * (1 if (-text.number - 1) // 6 % 3 else -1) + noise(text, "memory", 0.1)
    return int(text.number % 2 == 0 and text.number % 32 > 0)


def length(text):
    """Rounded to tens for the policy's texts: several may have the highest score, of which some pass the check."""
    return text.length + noise(text, "length", 0.1) if text.number >= 0 else text.length // 10


JUDGES = {  # with the numbers of files and prompts
    "is good": (good, 40, 60),
    "is good in most of few files": (lambda t: good(t) * (-1 if t.number // 1000 == 3 else 1), 8, 60),
    "remembers the pairs": (memory, 40, 60),
    "likes length": (length, 40, 60),
    "is upside down on the policy's texts": (lambda t: good(t) * (1 if t.number >= 0 else -1), 40, 60),
    "is the likelihood": (likelihood, 40, 60),
    "guesses on few prompts": (lambda t: good(t) if t.number >= 0 else noise(t, "luck", 1), 40, 5),
}


def share_of_rank(scenario, rank=0, world=1):
    """The judge, and a rank's pairs and texts of prompts.

    The last rank has twice as many as each other rank; rank 0 has all if there are 5 or fewer.
    """
    judge, *sizes = JUDGES[scenario]
    shares = []
    for items in sample(*sizes, 7):
        owners = [min(index % (world + 1), world - 1) if len(items) > 5 else 0 for index in range(len(items))]
        shares.append([item for item, owner in zip(items, owners, strict=True) if owner == rank])
    return judge, *shares


def gains(*share):
    """(gains over the likelihood on the pairs, their files), (gains over a random choice on the texts, their prompts).

    share: the arguments of share_of_rank
    """
    judge, pairs, texts = share_of_rank(*share)
    on_pairs = [(judge(a) > judge(b)) - (likelihood(a) > likelihood(b)) for _, a, b in pairs]
    on_texts = gains_on_texts(texts, lambda six: max(six, key=judge))
    return (on_pairs, [file for file, *_ in pairs]), (on_texts, range(len(on_texts)))


def gains_on_texts(texts, choose):
    """The gain on each prompt over a random choice, where choose(a prompt's six texts) is one of them."""
    return [check(choose(six)) - sum(map(check, six)) / len(six) for six in texts]


def drive(valid, scenario):
    """[verdict, gain on pairs, gain on texts] of the learner's function; a gain is [mean, low, high]."""
    judge, *shares = share_of_rank(scenario, dist.get_rank(), dist.get_world_size())
    accepted, *estimates = valid(judge, likelihood, *shares, check)
    return [bool(accepted), *([float(number) for number in estimate[:3]] for estimate in estimates)]
