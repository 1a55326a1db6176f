"""Wrong and right answers to question 05.2; ddp_course/authoring/answers.py says how to read them."""

from ddp_course.authoring.answers import RightAnswer, WrongAnswer

ANSWERS = (
    WrongAnswer(
        "blocks_lose_the_rest", "cuts the order into equal blocks and loses what is left",
        check="weights_are_equal_and_samples_disjoint", says="with 13 ranks (seed 1, epoch 0): 0 readings", look="where the last slice ends", edit="""
        -    samples = order[rank::world_size].tolist()
        +    share = SAMPLES // world_size
        +    samples = order[rank * share : (rank + 1) * share].tolist()
    """),
    WrongAnswer(
        "counts_any_number", "takes any number that is read for a sample, also one that is none",
        check="the_counts_are_right",
        says="the samples are numbered from 1: count_faults said 'never read': 0, not 1", edit="""
        -    faults = {"read again": len(read) - len(set(read)), "never read": len(set(range(samples)) - set(read))}
        +    faults = {"read again": len(read) - len(set(read)), "never read": samples - len(set(read))}
    """),
    WrongAnswer(
        "counts_between_ranks_only", "does not see a sample that one rank reads twice",
        check="the_counts_are_right", says="rank 1 reads a sample twice itself", edit="""
        -    read = [sample for drawn in draws for sample in drawn["samples"]]
        +    read = [sample for drawn in draws for sample in set(drawn["samples"])]
    """),
    WrongAnswer(
        "a_hundred_epochs_a_seed", "seeds with 100 * seed + epoch: epoch 100 of seed 1 is epoch 0 of seed 2",
        check="seeds_do_not_collide", says="seed 2, epoch 0, rank 0", edit="""
        -        digest = hashlib.sha256(repr(depends_on).encode()).digest()
        +        what, seed, *others = depends_on
        +        epoch, rank = (others + [0, 0])[:2]
        +        numbered = (what, 100 * seed + epoch, rank) if others else depends_on
        +        digest = hashlib.sha256(repr(numbered).encode()).digest()
    """),
    WrongAnswer(
        "fixed_weights", "starts every run with the same weights, whatever the seed",
        check="seeds_do_not_collide", says="seed 1 and seed 2 drew the same weights", edit="""
        -    weights = torch.randn(6, generator=generator("weights", seed))
        +    weights = torch.randn(6, generator=generator("weights"))
    """),
    WrongAnswer(
        "never_seeded_again", "draws the noise from the common generator, which is not seeded",
        check="epochs_differ_and_runs_repeat", says="seed 1, epoch 0 was drawn twice", edit="""
        -    noise = torch.randn(6, generator=generator("noise", seed, epoch, rank))
        +    noise = torch.randn(6)
    """),
    WrongAnswer(
        "mask_in_the_wrong_box", "seeds the dropout mask without the rank",
        check="masks_and_noise_differ", says="rank(s) drew the same dropout as a rank before", edit="""
        -    dropout = torch.rand(32, generator=generator("dropout", seed, epoch, rank)) < 0.5
        +    dropout = torch.rand(32, generator=generator("dropout", seed, epoch)) < 0.5
    """),
    WrongAnswer(
        "no_dropout", "keeps every unit, so that nothing can differ",
        check="every_draw_is_complete", says="a dropout mask with", edit="""
        -    dropout = torch.rand(32, generator=generator("dropout", seed, epoch, rank)) < 0.5
        +    dropout = torch.rand(32, generator=generator("dropout", seed, epoch, rank)) < 0
    """),
    WrongAnswer(
        "one_seed_for_all", "seeds everything alike, on all ranks",
        check="masks_and_noise_differ", says="drew the same dropout as a rank before", edit="""
        -    def generator(*depends_on):
        -        digest = hashlib.sha256(repr(depends_on).encode()).digest()
        -        return torch.Generator().manual_seed(int.from_bytes(digest[:8], "little"))
        -
        -    weights = torch.randn(6, generator=generator("weights", seed))
        -    order = torch.randperm(SAMPLES, generator=generator("order", seed, epoch))
        +    torch.manual_seed(1_000_003 * seed + epoch)
        +    weights = torch.randn(6, generator=torch.Generator().manual_seed(seed))
        +    order = torch.randperm(SAMPLES)
             samples = order[rank::world_size].tolist()
        -    dropout = torch.rand(32, generator=generator("dropout", seed, epoch, rank)) < 0.5
        -    noise = torch.randn(6, generator=generator("noise", seed, epoch, rank))
        +    dropout = torch.rand(32) < 0.5
        +    noise = torch.randn(6)
    """),
    WrongAnswer(
        "same_mask_every_epoch", "forgets the epoch in the dropout mask",
        check="epochs_differ_and_runs_repeat", says="drew the same dropout in epoch 0 and in epoch 1", edit="""
        -    dropout = torch.rand(32, generator=generator("dropout", seed, epoch, rank)) < 0.5
        +    dropout = torch.rand(32, generator=generator("dropout", seed, rank)) < 0.5
    """),
    WrongAnswer(
        "unrepaired", "seeds everything with seed + rank",
        check="weights_are_equal_and_samples_disjoint", says="rank 1 starts with weights", on="given", edit="""
         SAMPLES = 48
        +
        +
        +def count_faults(draws: list[dict], samples: int) -> dict[str, int]:
        +    read = [sample for drawn in draws for sample in drawn["samples"]]
        +    faults = {"read again": len(read) - len(set(read)), "never read": len(set(range(samples)) - set(read))}
        +    faults["weights"] = sum(not torch.equal(drawn["weights"], draws[0]["weights"]) for drawn in draws)
        +    for name in ("dropout", "noise"):
        +        faults[name] = len(draws) - len({tuple(drawn[name].tolist()) for drawn in draws})
        +    return faults
    """),
    WrongAnswer(
        "turns_the_numbers", "starts at another sample in each epoch instead of shuffling",
        check="every_draw_is_complete", says="not in a random order", edit="""
        -    order = torch.randperm(SAMPLES, generator=generator("order", seed, epoch))
        +    order = torch.arange(SAMPLES).roll(7 * seed + epoch)
    """),
    RightAnswer(
        "big_strides", "keeps numbers apart by large factors; counts with loops",
        text="""
        import torch

        SAMPLES = 48


        def count_faults(draws: list[dict], samples: int) -> dict[str, int]:
            seen, faults = set(), {"read again": 0, "weights": 0, "dropout": 0, "noise": 0}
            for rank, drawn in enumerate(draws):
                for sample in drawn["samples"]:
                    faults["read again"] += sample in seen
                    seen.add(sample)
                faults["weights"] += int((drawn["weights"] != draws[0]["weights"]).any())
                for name in ("dropout", "noise"):
                    faults[name] += int(any(torch.equal(drawn[name], earlier[name]) for earlier in draws[:rank]))
            return faults | {"never read": len(set(range(samples)) - seen)}


        def draw(seed: int, epoch: int, rank: int, world_size: int) -> dict:
            shared, own = torch.Generator(), torch.Generator()
            weights = torch.randn(6, generator=shared.manual_seed(seed * 10**9))
            order = torch.randperm(SAMPLES, generator=shared.manual_seed(seed * 10**9 + (epoch + 1) * 10**5))
            samples = order[rank::world_size].tolist()
            own.manual_seed(seed * 10**9 + (epoch + 1) * 10**5 + rank + 1)
            dropout = torch.rand(32, generator=own) < 0.5
            noise = torch.randn(6, generator=own)
            return {"weights": weights, "samples": samples, "dropout": dropout, "noise": noise}
    """),
    RightAnswer(
        "forked_and_reseeded", "re-seeds the common generator with numbers from NumPy's SeedSequence, within fork_rng",
        text="""
        import numpy as np
        import torch

        SAMPLES = 48


        def count_faults(draws: list[dict], samples: int) -> dict[str, int]:
            read = [sample for drawn in draws for sample in drawn["samples"]]
            faults = {"read again": len(read) - len(set(read)), "never read": len(set(range(samples)) - set(read))}
            faults["weights"] = sum(not torch.equal(drawn["weights"], draws[0]["weights"]) for drawn in draws)
            for name in ("dropout", "noise"):
                faults[name] = len(draws) - len({tuple(drawn[name].tolist()) for drawn in draws})
            return faults


        def draw(seed: int, epoch: int, rank: int, world_size: int) -> dict:
            def seeded(*numbers):
                torch.manual_seed(int(np.random.SeedSequence(numbers).generate_state(1, np.uint64)[0] >> 1))

            with torch.random.fork_rng(devices=[]):
                seeded(seed, 0)
                weights = torch.randn(6)
                seeded(seed, 1, epoch)
                samples = torch.randperm(SAMPLES).tensor_split(world_size)[rank].tolist()
                seeded(seed, 2, epoch, rank)
                dropout = torch.rand(32) < 0.5
                noise = torch.randn(6)
            return {"weights": weights, "samples": samples, "dropout": dropout, "noise": noise}
    """),
    RightAnswer(
        "numpy_samples", "the samples are NumPy integers",
        edit="""
        -    samples = order[rank::world_size].tolist()
        +    samples = list(order.numpy()[rank::world_size])
    """),
)
