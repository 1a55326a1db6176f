"""Wrong and right answers to question 05.3; ddp_course/authoring/answers.py says how to read them."""

from ddp_course.authoring.answers import RightAnswer, WrongAnswer

ANSWERS = (
    WrongAnswer(
        "empty_batches", "fills the ranks up with empty batches",
        check="batches_hold_existing_samples", says="trained on the batch []", edit="""
        -    for start in range(0, len(order) - global_batch + 1, global_batch):
        +    for start in range(0, len(order), global_batch):
    """),
    WrongAnswer(
        "batches_of_four", "takes the batch size of the script for that of every call",
        check="batches_hold_existing_samples", says="batches hold 1 to 3 samples", edit="""
        -    global_batch = world_size * batch_size
        +    batch_size = 4
        +    global_batch = world_size * batch_size
    """),
    WrongAnswer(
        "finds_three", "the diagnosis does not look at what was built",
        check="the_diagnosis_is_right", says="rank 1 built two and used one: diagnose returned []", edit="""
        -        "built but unused": any(result["built"] > len(result["batches"]) for result in ranks),
    """),
    WrongAnswer(
        "not_shuffled", "deals the samples out in order",
        check="each_epoch_has_its_own_order", says="not shuffled", edit="""
        -    random.Random(42 + 1000 * epoch).shuffle(order)  # the same on all ranks
    """),
    WrongAnswer(
        "one_global_batch_too_few", "its last full global batch is lost",
        check="each_sample_is_read_once", says="samples are read by no rank", edit="""
        -    for start in range(0, len(order) - global_batch + 1, global_batch):
        +    for start in range(0, len(order) - global_batch, global_batch):
    """),
    WrongAnswer(
        "only_the_cost", "does what the review asked for: builds its own batches only",
        check="all_ranks_have_as_many_batches", says="the ranks have [3, 3, 2, 2] batches", edit="""
        -    global_batch = world_size * batch_size
        -    for start in range(0, len(order) - global_batch + 1, global_batch):
        -        first = start + rank * batch_size
        +    for first in range(rank * batch_size, len(order), world_size * batch_size):
    """),
    WrongAnswer(
        "rotates", "begins the same order one place further on in every epoch",
        check="each_epoch_has_its_own_order", says="in epoch 1: the order of epoch 0, started elsewhere", edit="""
        -    random.Random(42 + 1000 * epoch).shuffle(order)  # the same on all ranks
        +    random.Random(42).shuffle(order)  # the same on all ranks
        +    order = order[epoch:] + order[:epoch]
    """),
    WrongAnswer(
        "counts_samples", "the diagnosis compares the ranks' numbers of samples, not of batches",
        check="the_diagnosis_is_right", says="the last batches are short: diagnose returned ['uneven'], not []", edit="""
        -        "uneven": len({len(result["batches"]) for result in ranks}) > 1,
        +        "uneven": len({sum(map(len, result["batches"])) for result in ranks}) > 1,
    """),
    WrongAnswer(
        "still_skips", "the same order and equally many batches on all ranks, but each rank builds every batch",
        check="only_own_batches_are_built", says="rank 0 built",
        edit="""
        -    order = list(range(corpus.samples))
        -    random.Random(42 + 1000 * epoch).shuffle(order)  # the same on all ranks
        -    global_batch = world_size * batch_size
        -    for start in range(0, len(order) - global_batch + 1, global_batch):
        -        first = start + rank * batch_size
        -        yield corpus.build(order[first : first + batch_size])
        +    def loader():
        +        order = list(range(corpus.samples))
        +        random.Random(42 + 1000 * epoch).shuffle(order)
        +        for first in range(0, len(order), batch_size):
        +            yield corpus.build(order[first : first + batch_size])
        +
        +    batches_of_step = []
        +    for batch in loader():
        +        batches_of_step.append(batch)
        +        if len(batches_of_step) == world_size:
        +            yield batches_of_step[rank]
        +            batches_of_step = []
    """),
    WrongAnswer(
        "strided_whole_batches", "takes every N-th sample, in as many whole batches as that gives",
        check="all_ranks_have_as_many_batches", says="47 samples, batches of 4, epoch 0): the ranks have [3, 3, 3, 2] batches",
        edit="""
        -    global_batch = world_size * batch_size
        -    for start in range(0, len(order) - global_batch + 1, global_batch):
        -        first = start + rank * batch_size
        -        yield corpus.build(order[first : first + batch_size])
        +    shard = order[rank::world_size]
        +    for first in range(0, len(shard) - batch_size + 1, batch_size):
        +        yield corpus.build(shard[first : first + batch_size])
    """),
    WrongAnswer(
        "unrepaired", "leaves the wrapper as it is",
        check="nothing_is_raised", says="raised RuntimeError",
        edit="""
        -    order = list(range(corpus.samples))
        -    random.Random(42 + 1000 * epoch).shuffle(order)  # the same on all ranks
        -    global_batch = world_size * batch_size
        -    for start in range(0, len(order) - global_batch + 1, global_batch):
        -        first = start + rank * batch_size
        -        yield corpus.build(order[first : first + batch_size])
        +    def loader():
        +        order = list(range(corpus.samples))
        +        random.Random(42 + 1000 * epoch + rank).shuffle(order)
        +        for first in range(0, len(order), batch_size):
        +            yield corpus.build(order[first : first + batch_size])
        +
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
        says="different ones", look="out of the same order", edit="""
        -    random.Random(42 + 1000 * epoch).shuffle(order)  # the same on all ranks
        +    random.shuffle(order)  # the same on all ranks
    """),
    WrongAnswer(
        "builds_ahead", "builds all batches of the epoch before it hands out the first",
        check="only_own_batches_are_built", says="when the first was handed out", look="a generator builds a batch", edit="""
        +    built = []
             for start in range(0, len(order) - global_batch + 1, global_batch):
        @@
        -        yield corpus.build(order[first : first + batch_size])
        +        built.append(corpus.build(order[first : first + batch_size]))
        +    yield from built
    """),
    WrongAnswer(
        "shuffles_on", "one generator for all epochs: the order depends on how often it was called",
        check="an_epoch_can_be_run_again", says="when it ran the same epoch again", edit="""
        -def batches(corpus, batch_size, epoch, rank, world_size):
        +SHUFFLER = random.Random(42)
        +
        +
        +def batches(corpus, batch_size, epoch, rank, world_size):
        @@
        -    random.Random(42 + 1000 * epoch).shuffle(order)  # the same on all ranks
        +    SHUFFLER.shuffle(order)
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
        -    for start in range(0, len(order) - global_batch + 1, global_batch):
        -        first = start + rank * batch_size
        -        yield corpus.build(order[first : first + batch_size])
        +    for start in range(0, len(order), global_batch):
        +        together = order[start : start + global_batch]
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
            for result in ranks:
                if result["raised"] is not None:
                    faults.add("raised")
                if result["built"] != len(result["batches"]):
                    faults.add("built but unused")
                if len(result["batches"]) != len(ranks[0]["batches"]):
                    faults.add("uneven")
                for batch in result["batches"]:
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
            shard = order[rank : steps * world_size * batch_size : world_size]
            for first in range(0, len(shard), batch_size):
                yield corpus.build(shard[first : first + batch_size])


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
        "deals_with_a_step", "takes every N-th sample of each whole global batch; hands corpus.build a tuple",
        edit="""
        -        first = start + rank * batch_size
        -        yield corpus.build(order[first : first + batch_size])
        +        yield corpus.build(tuple(order[start + rank : start + global_batch : world_size]))
    """),
)
