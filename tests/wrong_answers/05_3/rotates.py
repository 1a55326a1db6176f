# mistake: begins the same order one place further on in every epoch
# state: wrong
# check: epochs are shuffled anew
# message: in epoch 1: the order of epoch 0, begun at another place

import random


def diagnose(ranks: list[dict]) -> list[str]:
    """The faults in what `run` returned on all ranks: "raised", "uneven", "read again", "built in vain"."""
    read = [sample for one in ranks for batch in one["batches"] for sample in batch]
    found = {
        "raised": any(one["raised"] for one in ranks),
        "uneven": len({len(one["batches"]) for one in ranks}) > 1,
        "read again": len(read) > len(set(read)),
        "built in vain": any(one["built"] > len(one["batches"]) for one in ranks),
    }
    return [name for name, is_there in found.items() if is_there]


class Corpus:
    """Samples 0, 1, 2, ... whose batches take long to build. `built` counts them."""

    def __init__(self, samples):
        self.samples, self.built = samples, 0

    def build(self, numbers):
        """The batch of these samples. In real life it is tokenized and packed here."""
        self.built += 1
        return list(numbers)


def batches(corpus, batch_size, epoch, rank, world_size):
    """The batches of an epoch that this rank trains on, made with corpus.build."""
    order = list(range(corpus.samples))
    random.Random(42).shuffle(order)  # the same on all ranks
    order = order[epoch:] + order[:epoch]
    joint = world_size * batch_size
    for start in range(0, len(order) - joint + 1, joint):
        first = start + rank * batch_size
        yield corpus.build(order[first : first + batch_size])


def run(samples, batch_size, epoch, rank, world_size):
    """An epoch of one rank: the batches it trained on, how many were built, and what was raised, if anything."""
    corpus, taken, raised = Corpus(samples), [], None
    try:
        for batch in batches(corpus, batch_size, epoch, rank, world_size):
            taken.append(batch)  # here it would train, and meet the others
    except Exception as error:
        raised = type(error).__name__
    return {"batches": taken, "built": corpus.built, "raised": raised}
