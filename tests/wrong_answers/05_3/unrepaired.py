# mistake: leaves the wrapper as it is
# state: wrong
# check: nothing is raised
# message: raised RuntimeError

import random


def diagnose(ranks: list[dict]) -> list[str]:
    read = [sample for one in ranks for batch in one["batches"] for sample in batch]
    found = {
        "raised": any(one["raised"] for one in ranks),
        "uneven": len({len(one["batches"]) for one in ranks}) > 1,
        "read again": len(read) > len(set(read)),
        "built in vain": any(one["built"] > len(one["batches"]) for one in ranks),
    }
    return [name for name, is_there in found.items() if is_there]


class Corpus:
    def __init__(self, samples):
        self.samples, self.built = samples, 0

    def build(self, numbers):
        self.built += 1
        return list(numbers)


def batches(corpus, batch_size, epoch, rank, world_size):
    def loader():
        order = list(range(corpus.samples))
        random.Random(42 + 1000 * epoch + rank).shuffle(order)
        for first in range(0, len(order), batch_size):
            yield corpus.build(order[first : first + batch_size])

    everything = loader()
    for _ in range(rank):
        next(everything)
    while True:
        yield next(everything)
        for _ in range(world_size - 1):
            next(everything)


def run(samples, batch_size, epoch, rank, world_size):
    corpus, taken, raised = Corpus(samples), [], None
    try:
        for batch in batches(corpus, batch_size, epoch, rank, world_size):
            taken.append(batch)  # here it would train, and meet the others
    except Exception as error:
        raised = type(error).__name__
    return {"batches": taken, "built": corpus.built, "raised": raised}
