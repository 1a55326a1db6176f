"""Wrong and right answers to question 05.4; ddp_course/authoring/answers.py says how to read them."""

from ddp_course.authoring.answers import RightAnswer, WrongAnswer

ANSWERS = (
    WrongAnswer(
        "a_hundred_epochs_a_seed", "seeds with 100 * seed + epoch: epoch 100 of a seed is epoch 0 of the next one",
        check="the_order_is_random", says="has the order of seed", look="do other pairs make the same number", edit="""
        -        random.Random(f"{self.seed}, {self.epoch}").shuffle(order)  # a sum could repeat: (1, 2), (2, 1)
        +        random.Random(100 * self.seed + self.epoch).shuffle(order)
    """),
    WrongAnswer(
        "ends_late", "begins the next epoch one part late where the last global batch is full",
        check="every_sample_is_read_once", says="batches of 4, two epochs: an epoch left out 64 of 64 samples",
        look="the end of the epoch", edit="""
        -        if samples >= sum(self.sizes):
        +        if samples > sum(self.sizes):
    """),
    WrongAnswer(
        "loads_and_skips", "loads all samples before the one that it continues with",
        check="nothing_is_loaded_in_vain", says="loaded", edit="""
                 starts = range(self.start, len(order), global_batch)
        +        for file, line in order[: self.start]:
        +            load(file, line)
    """),
    WrongAnswer(
        "names_the_rank", "puts the rank into the state",
        check="the_state_is_small", says="rank 0 has the state", edit="""
        -        return {"epoch": self.epoch, "samples": samples}
        +        return {"epoch": self.epoch, "samples": samples, "rank": self.rank}
    """),
    WrongAnswer(
        "one_by_one", "yields samples where batches are asked for",
        check="every_sample_is_read_once", says="from its stream", edit="""
        -            yield [load(file, line) for file, line in shard]
        +            yield from [load(file, line) for file, line in shard]
    """),
    WrongAnswer(
        "saves_the_order", "saves all that is left to read",
        check="the_state_is_small", says="200 are enough", edit="""
        -        return {"epoch": self.epoch, "samples": samples}
        +        return {"epoch": self.epoch, "samples": samples, "left": list(range(samples, sum(self.sizes)))}
    """),
    WrongAnswer(
        "shuffles_in_workers", "shuffles each global batch again, with a seed of the worker",
        check="workers_and_stops_change_nothing",
        says="in a run that was neither stopped nor had workers it is", edit="""
        -            shard = order[start : start + global_batch][self.rank :: self.world_size]
        +            samples = order[start : start + global_batch]
        +            random.Random(step).shuffle(samples)
        +            shard = samples[self.rank :: self.world_size]
    """),
    WrongAnswer(
        "uneven_end", "fills the last batches rank by rank until nothing is left",
        check="all_ranks_have_as_many_batches", says="the ranks had", edit="""
        -            shard = order[start : start + global_batch][self.rank :: self.world_size]
        -            yield [load(file, line) for file, line in shard]
        +            shard = order[start + self.rank * self.batch_size : start + global_batch][: self.batch_size]
        +            if shard:
        +                yield [load(file, line) for file, line in shard]
    """),
    WrongAnswer(
        "rotates", "begins the order of the seed 20 samples further on in every epoch",
        check="the_order_is_random", says="started elsewhere", edit="""
        -        random.Random(f"{self.seed}, {self.epoch}").shuffle(order)  # a sum could repeat: (1, 2), (2, 1)
        +        random.Random(f"{self.seed}").shuffle(order)
        +        order = order[20 * self.epoch % len(order) :] + order[: 20 * self.epoch % len(order)]
    """),
    WrongAnswer(
        "meets_the_others", "waits for all ranks when a stream is made, but in some parts not all of them make one",
        check="does not end", says="barrier", edit="""
        +        dist.barrier()
                 self.sizes, self.batch_size, self.seed, self.rank, self.world_size = sizes, batch_size, seed, rank, world_size
    """),
    WrongAnswer(
        "workers_by_their_place", "counts the batches of the epoch, not those after the stop, to deal them to workers",
        check="workers_and_stops_change_nothing", says="2 ranks stop after 3 batches, and continue with 2 workers each",
        edit="""
        -        for start in starts[first::step]:
        +        for start in starts[(first - self.start // global_batch) % step :: step]:
    """),
    WrongAnswer(
        "rounds_shares_up", "shares the last samples in blocks, rounded up: 4 on 3 ranks are 2, 2 and none",
        check="all_ranks_have_as_many_batches", says="the ranks had", edit="""
        -            shard = order[start : start + global_batch][self.rank :: self.world_size]
        -            yield [load(file, line) for file, line in shard]
        +            samples = order[start : start + global_batch]
        +            share = -(-len(samples) // self.world_size)
        +            if shard := samples[self.rank * share :][:share]:
        +                yield [load(file, line) for file, line in shard]
    """),
    WrongAnswer(
        "one_batch_ahead", "builds the next batch before it hands out one",
        check="nothing_is_loaded_in_vain", says="loaded 12 samples for the 9 it read", look="as it is asked for", edit="""
        +        ready = None
                 for start in starts[first::step]:
        @@
        -            yield [load(file, line) for file, line in shard]
        +            built, ready = ready, [load(file, line) for file, line in shard]
        +            if built:
        +                yield built
        +        if ready:
        +            yield ready
    """),
    RightAnswer(
        "one_number", "the state is one number over all epochs, order drawn by torch from a seeded generator",
        edit="""
        -import random
        +import torch
        @@
        -        self.epoch, self.start = (state["epoch"], state["samples"]) if state else (0, 0)
        +        self.epoch, self.start = divmod(state or 0, sum(sizes))

             def __iter__(self):
        -        order = [(file, line) for file, size in enumerate(self.sizes) for line in range(size)]
        -        random.Random(f"{self.seed}, {self.epoch}").shuffle(order)  # a sum could repeat: (1, 2), (2, 1)
        +        generator = torch.Generator().manual_seed(self.seed * 1_000_003 + self.epoch)
        +        samples = [(file, line) for file, size in enumerate(self.sizes) for line in range(size)]
        +        order = [samples[number] for number in torch.randperm(len(samples), generator=generator).tolist()]
        @@
        -        samples = self.start + batches * self.batch_size * self.world_size
        -        if samples >= sum(self.sizes):
        -            return {"epoch": self.epoch + 1, "samples": 0}
        -        return {"epoch": self.epoch, "samples": samples}
        +        whole = sum(self.sizes)
        +        return self.epoch * whole + min(self.start + batches * self.batch_size * self.world_size, whole)
    """),
    RightAnswer(
        "strided_shares",
        "each rank keeps a stride of what is left, cut into batches that are numbered; a hash sorts the samples",
        edit="""
        +import hashlib
         import json
        @@
        -        order = [(file, line) for file, size in enumerate(self.sizes) for line in range(size)]
        -        random.Random(f"{self.seed}, {self.epoch}").shuffle(order)  # a sum could repeat: (1, 2), (2, 1)
        +        def key(sample):
        +            return hashlib.sha256(repr((self.seed, self.epoch, sample)).encode()).digest()
        +
        +        everything = ((file, line) for file, size in enumerate(self.sizes) for line in range(size))
        +        shard = sorted(everything, key=key)[self.start + self.rank :: self.world_size]
                 worker = get_worker_info()
        -        first, step = (worker.id, worker.num_workers) if worker else (0, 1)
        -        global_batch = self.batch_size * self.world_size
        -        starts = range(self.start, len(order), global_batch)
        -        for start in starts[first::step]:
        -            shard = order[start : start + global_batch][self.rank :: self.world_size]
        -            yield [load(file, line) for file, line in shard]
        +        for number, start in enumerate(range(0, len(shard), self.batch_size)):
        +            if worker is None or number % worker.num_workers == worker.id:
        +                yield [load(*sample) for sample in shard[start : start + self.batch_size]]
    """),
)
