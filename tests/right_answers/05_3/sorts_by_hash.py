# route: orders by hash, finds the faults rank by rank, cuts with a step
# state: passed

import hashlib


def diagnose(ranks: list[dict]) -> list[str]:
    faults, seen = set(), []
    for one in ranks:
        if one["raised"] is not None:
            faults.add("raised")
        if one["built"] != len(one["batches"]):
            faults.add("built in vain")
        if len(one["batches"]) != len(ranks[0]["batches"]):
            faults.add("uneven")
        for batch in one["batches"]:
            for sample in batch:
                if sample in seen:
                    faults.add("read again")
                seen.append(sample)
    return sorted(faults)


class Corpus:
    def __init__(self, samples):
        self.samples, self.built = samples, 0

    def build(self, numbers):
        self.built += 1
        return list(numbers)


def batches(corpus, batch_size, epoch, rank, world_size):
    order = sorted(range(corpus.samples), key=lambda n: hashlib.md5(f"{epoch} {n}".encode()).digest())
    steps = len(order) // (world_size * batch_size)
    mine = order[rank : steps * world_size * batch_size : world_size]
    for first in range(0, len(mine), batch_size):
        yield corpus.build(mine[first : first + batch_size])


def run(samples, batch_size, epoch, rank, world_size):
    corpus, taken, raised = Corpus(samples), [], None
    try:
        for batch in batches(corpus, batch_size, epoch, rank, world_size):
            taken.append(batch)  # here it would train, and meet the others
    except Exception as error:
        raised = type(error).__name__
    return {"batches": taken, "built": corpus.built, "raised": raised}
