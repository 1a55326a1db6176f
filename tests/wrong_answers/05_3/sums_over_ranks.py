# mistake: compares samples of different ranks only
# state: wrong
# check: the diagnosis is right
# message: rank 1 reads sample 5 twice: diagnose returned []

import random


def diagnose(ranks: list[dict]) -> list[str]:
    read = [sample for one in ranks for sample in {sample for batch in one["batches"] for sample in batch}]
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
    order = list(range(corpus.samples))
    random.Random(42 + 1000 * epoch).shuffle(order)  # the same on all ranks
    joint = world_size * batch_size
    for start in range(0, len(order) - joint + 1, joint):
        first = start + rank * batch_size
        yield corpus.build(order[first : first + batch_size])


def run(samples, batch_size, epoch, rank, world_size):
    corpus, taken, raised = Corpus(samples), [], None
    try:
        for batch in batches(corpus, batch_size, epoch, rank, world_size):
            taken.append(batch)  # here it would train, and meet the others
    except Exception as error:
        raised = type(error).__name__
    return {"batches": taken, "built": corpus.built, "raised": raised}
