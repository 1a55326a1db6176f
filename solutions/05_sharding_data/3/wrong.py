"""Wrong and right answers to question 05.3; ddp_course/authoring/answers.py says how to read them."""

from ddp_course.authoring.answers import RightAnswer, WrongAnswer

ANSWERS = (
    WrongAnswer(
        "empty_batches", "fills the ranks up with empty batches",
        check="every_batch_is_one", says="trained on the batch []", edit="""
        -    for start in range(0, len(order) - joint + 1, joint):
        +    for start in range(0, len(order), joint):
    """),
    WrongAnswer(
        "backwards_in_odd_epochs", "reads the same order backwards in every other epoch",
        check="epochs_are_shuffled_anew", says="or read backwards", edit="""
        -    random.Random(42 + 1000 * epoch).shuffle(order)  # the same on all ranks
        +    random.Random(42 + 1000 * (epoch // 2)).shuffle(order)
        +    order = order[:: -1 if epoch % 2 else 1]
    """),
    WrongAnswer(
        "batches_of_four", "takes the batch size of the script for that of every call",
        check="every_batch_is_one", says="batches hold 1 to 3 samples", edit="""
        -    joint = world_size * batch_size
        +    batch_size = 4
        +    joint = world_size * batch_size
    """),
    WrongAnswer(
        "finds_three", "the diagnosis does not look at what was built",
        check="the_diagnosis_is_right", says="rank 1 built two and used one: diagnose returned []", edit="""
        -        "built in vain": any(one["built"] > len(one["batches"]) for one in ranks),
    """),
    WrongAnswer(
        "forgets_the_epoch", "the same order in every epoch",
        check="epochs_are_shuffled_anew", says="in epoch 0 and in epoch 1", edit="""
        -    random.Random(42 + 1000 * epoch).shuffle(order)  # the same on all ranks
        +    random.Random(42).shuffle(order)  # the same on all ranks
    """),
    WrongAnswer(
        "not_shuffled", "deals the samples out in order",
        check="epochs_are_shuffled_anew", says="not shuffled", edit="""
        -    random.Random(42 + 1000 * epoch).shuffle(order)  # the same on all ranks
    """),
    WrongAnswer(
        "one_global_batch_too_few", "its last full global batch is lost",
        check="each_sample_is_read_once", says="samples are read by nobody", edit="""
        -    for start in range(0, len(order) - joint + 1, joint):
        +    for start in range(0, len(order) - joint, joint):
    """),
    WrongAnswer(
        "only_the_cost", "does what the review asked for: builds its own batches only",
        check="all_ranks_have_as_many", says="the ranks have [3, 3, 2, 2] batches", edit="""
        -    joint = world_size * batch_size
        -    for start in range(0, len(order) - joint + 1, joint):
        -        first = start + rank * batch_size
        +    for first in range(rank * batch_size, len(order), world_size * batch_size):
    """),
    WrongAnswer(
        "only_the_exception", "catches the end of the data, and keeps the rest",
        check="all_ranks_have_as_many", says="the ranks have [3, 3, 2, 2] batches", edit="""
         import random
        +from itertools import islice
        @@
        -    order = list(range(corpus.samples))
        -    random.Random(42 + 1000 * epoch).shuffle(order)  # the same on all ranks
        -    joint = world_size * batch_size
        -    for start in range(0, len(order) - joint + 1, joint):
        -        first = start + rank * batch_size
        -        yield corpus.build(order[first : first + batch_size])
        +    def loader():
        +        order = list(range(corpus.samples))
        +        random.Random(42 + 1000 * epoch).shuffle(order)
        +        for first in range(0, len(order), batch_size):
        +            yield corpus.build(order[first : first + batch_size])
        +
        +    yield from islice(loader(), rank, None, world_size)
    """),
    WrongAnswer(
        "pads", "begins again at the front to fill the last global batch, as a sampler does",
        check="each_sample_is_read_once",
        says="readings are of samples that were read before", edit="""
             joint = world_size * batch_size
        +    order += order[: -len(order) % joint]
    """),
    WrongAnswer(
        "rotates", "begins the same order one place further on in every epoch",
        check="epochs_are_shuffled_anew", says="in epoch 1: the order of epoch 0, begun at another place", edit="""
        -    random.Random(42 + 1000 * epoch).shuffle(order)  # the same on all ranks
        +    random.Random(42).shuffle(order)  # the same on all ranks
        +    order = order[epoch:] + order[:epoch]
    """),
    WrongAnswer(
        "seed_of_the_rank", "shards at the source, out of an order of its own",
        check="each_sample_is_read_once",
        says="readings are of samples that were read before", edit="""
        -    random.Random(42 + 1000 * epoch).shuffle(order)  # the same on all ranks
        +    random.Random(42 + 1000 * epoch + rank).shuffle(order)  # the same on all ranks
    """),
    WrongAnswer(
        "set_of_each_batch", "does not see a sample that stands twice in one batch",
        check="the_diagnosis_is_right",
        says="rank 1 reads sample 5 twice in one batch: diagnose returned []", edit="""
        -    read = [sample for one in ranks for batch in one["batches"] for sample in batch]
        +    seen, again = set(), False
        +    for one in ranks:
        +        for batch in one["batches"]:
        +            again = again or bool(seen & set(batch))
        +            seen |= set(batch)
        @@
        -        "read again": len(read) > len(set(read)),
        +        "read again": again,
    """),
    WrongAnswer(
        "short_is_uneven", "takes batches of unequal size for an unequal number",
        check="the_diagnosis_is_right", says="the last batches are short", edit="""
        -        "uneven": len({len(one["batches"]) for one in ranks}) > 1,
        +        "uneven": len({len(b) for one in ranks for b in one["batches"]}) > 1,
    """),
    WrongAnswer(
        "counts_samples", "takes unequal numbers of samples for unequal numbers of batches",
        check="the_diagnosis_is_right", says="the last batches are short: diagnose returned ['uneven'], not []", edit="""
        -        "uneven": len({len(one["batches"]) for one in ranks}) > 1,
        +        "uneven": len({sum(map(len, one["batches"])) for one in ranks}) > 1,
    """),
    WrongAnswer(
        "compares_first_and_last", "compares the number of batches of the first and the last rank",
        check="the_diagnosis_is_right", says="rank 2 of four has a batch more: diagnose returned []", edit="""
        -        "uneven": len({len(one["batches"]) for one in ranks}) > 1,
        +        "uneven": len(ranks[0]["batches"]) != len(ranks[-1]["batches"]),
    """),
    WrongAnswer(
        "shuffles_whole_batches", "draws the order of the global batches, and not that of the samples",
        check="epochs_are_shuffled_anew", says="not shuffled", edit="""
        -    order = list(range(corpus.samples))
        -    random.Random(42 + 1000 * epoch).shuffle(order)  # the same on all ranks
             joint = world_size * batch_size
        -    for start in range(0, len(order) - joint + 1, joint):
        +    order = list(range(corpus.samples))
        +    starts = list(range(0, len(order) - joint + 1, joint))
        +    random.Random(42 + 1000 * epoch).shuffle(starts)
        +    for start in starts:
    """),
    WrongAnswer(
        "still_skips", "even and equal on all ranks, and still builds every batch",
        check="only_own_batches_are_built", says="rank 0 built", on="only_the_exception", edit="""
        -    yield from islice(loader(), rank, None, world_size)
        +    joint = []
        +    for batch in loader():
        +        joint.append(batch)
        +        if len(joint) == world_size:
        +            yield joint[rank]
        +            joint = []
    """),
    WrongAnswer(
        "strided_short_batches", "takes every N-th sample, in batches of which the last may be short",
        check="all_ranks_have_as_many", says="51 samples, batches of 4, epoch 0): the ranks have [4, 4, 4, 3] batches",
        edit="""
        -    joint = world_size * batch_size
        -    for start in range(0, len(order) - joint + 1, joint):
        -        first = start + rank * batch_size
        -        yield corpus.build(order[first : first + batch_size])
        +    mine = order[rank::world_size]
        +    for first in range(0, len(mine), batch_size):
        +        yield corpus.build(mine[first : first + batch_size])
    """),
    WrongAnswer(
        "strided_whole_batches", "takes every N-th sample, in as many whole batches as that gives",
        check="all_ranks_have_as_many", says="47 samples, batches of 4, epoch 0): the ranks have [3, 3, 3, 2] batches",
        edit="""
        -    joint = world_size * batch_size
        -    for start in range(0, len(order) - joint + 1, joint):
        -        first = start + rank * batch_size
        -        yield corpus.build(order[first : first + batch_size])
        +    mine = order[rank::world_size]
        +    for first in range(0, len(mine) - batch_size + 1, batch_size):
        +        yield corpus.build(mine[first : first + batch_size])
    """),
    WrongAnswer(
        "sums_over_ranks", "compares samples of different ranks only",
        check="the_diagnosis_is_right", says="rank 1 reads sample 5 twice: diagnose returned []", edit="""
        -    read = [sample for one in ranks for batch in one["batches"] for sample in batch]
        +    read = [sample for one in ranks for sample in {sample for batch in one["batches"] for sample in batch}]
    """),
    WrongAnswer(
        "two_orders_in_turn", "has one order for even epochs and one for odd ones",
        check="epochs_are_shuffled_anew", says="in epoch 0 and in epoch 2", edit="""
        -    random.Random(42 + 1000 * epoch).shuffle(order)  # the same on all ranks
        +    random.Random(42 + 1000 * (epoch % 2)).shuffle(order)
    """),
    WrongAnswer(
        "unrepaired", "leaves the wrapper as it is",
        check="nothing_is_raised", says="raised RuntimeError", on="only_the_exception", edit="""
        -        random.Random(42 + 1000 * epoch).shuffle(order)
        +        random.Random(42 + 1000 * epoch + rank).shuffle(order)
        @@
        -    yield from islice(loader(), rank, None, world_size)
        +    everything = loader()
        +    for _ in range(rank):
        +        next(everything)
        +    while True:
        +        yield next(everything)
        +        for _ in range(world_size - 1):
        +            next(everything)
    """),
    WrongAnswer(
        "unseeded", "shuffles without a seed, differently on each rank",
        check="each_sample_is_read_once",
        says="readings are of samples that were read before", edit="""
        -    random.Random(42 + 1000 * epoch).shuffle(order)  # the same on all ranks
        +    random.shuffle(order)  # the same on all ranks
    """),
    WrongAnswer(
        "builds_ahead", "builds all batches of the epoch before it hands out the first",
        check="only_own_batches_are_built", says="when the first was handed out", look="a generator builds a batch", edit="""
        +    built = []
             for start in range(0, len(order) - joint + 1, joint):
        @@
        -        yield corpus.build(order[first : first + batch_size])
        +        built.append(corpus.build(order[first : first + batch_size]))
        +    yield from built
    """),
    RightAnswer(
        "numpy_permutation", "sample numbers are NumPy's, straight from a seeded permutation",
        edit="""
        -    order = list(range(corpus.samples))
        -    random.Random(42 + 1000 * epoch).shuffle(order)  # the same on all ranks
        +    import numpy as np
        +
        +    order = np.random.default_rng([42, epoch]).permutation(corpus.samples)  # the same on all ranks
    """),
    RightAnswer(
        "shares_the_rest", "shares the last samples out in short batches; builds from slices of one order",
        edit="""
        -    for start in range(0, len(order) - joint + 1, joint):
        -        first = start + rank * batch_size
        -        yield corpus.build(order[first : first + batch_size])
        +    for start in range(0, len(order), joint):
        +        together = order[start : start + joint]
        +        if len(together) < world_size:
        +            return
        +        yield corpus.build(together[rank::world_size])
    """),
    RightAnswer(
        "sorts_by_hash", "orders by hash, finds the faults rank by rank, cuts with a step",
        text="""
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
    """),
    RightAnswer(
        "deals_with_a_step", "takes every N-th sample of each whole global batch; the faults are a generator's, made a list",
        edit="""
        -        first = start + rank * batch_size
        -        yield corpus.build(order[first : first + batch_size])
        +        yield corpus.build(tuple(order[start + rank : start + joint : world_size]))
    """),
)
