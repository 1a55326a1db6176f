"""Give every rank its own batches of a loader that knows nothing of ranks: skip those of the others."""

import random


class Corpus:
    """Samples 0, 1, 2, ... whose batches take long to build. `built` counts them."""

    def __init__(self, samples):
        self.samples, self.built = samples, 0

    def build(self, numbers):
        """The batch of these samples. In real life it is tokenized and packed here."""
        self.built += 1
        return list(numbers)


def loader(corpus, batch_size, seed):
    """All batches of an epoch, shuffled."""
    order = list(range(corpus.samples))
    random.Random(seed).shuffle(order)
    for first in range(0, len(order), batch_size):
        yield corpus.build(order[first : first + batch_size])


def batches(corpus, batch_size, epoch, rank, world_size):
    """The batches of an epoch that this rank trains on."""
    everything = loader(corpus, batch_size, seed=42 + 1000 * epoch + rank)
    for _ in range(rank):
        next(everything)
    while True:
        yield next(everything)
        for _ in range(world_size - 1):
            next(everything)


def run(samples, batch_size, epoch, rank, world_size):
    """An epoch of one rank: the batches it trained on, how many were built, and what was raised, if anything."""
    corpus, taken, raised = Corpus(samples), [], None
    try:
        for batch in batches(corpus, batch_size, epoch, rank, world_size):
            taken.append(batch)  # here it would train, and meet the others
    except Exception as error:
        raised = type(error).__name__
    return {"batches": taken, "built": corpus.built, "raised": raised}
