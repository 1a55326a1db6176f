"""Wrong and right answers to question 12.3; ddp_course/authoring/answers.py says how to read them."""

from ddp_course.authoring.answers import RightAnswer, WrongAnswer

ANSWERS = (
    WrongAnswer(
        "a_seed_for_each_rank", "no duplicates any more, and other batches at each number of ranks",
        check="the_draws_are_those_of_one_process", says="together the ranks drew", look="one draw for all ranks",
        edit="""
        -    generator = torch.Generator().manual_seed(own)
        +    generator = torch.Generator().manual_seed(own + dist.get_rank())
    """),
    WrongAnswer(
        "blocks", "gives each rank a block of the draws, so that a global batch depends on the number of ranks",
        check="the_draws_are_those_of_one_process", says="in another order", look="draw i belongs to rank i % world",
        edit="""
        -    return drawn[dist.get_rank() :: dist.get_world_size()].tolist()
        +    return drawn.tensor_split(dist.get_world_size())[dist.get_rank()].tolist()
    """),
    WrongAnswer(
        "as_logits", "takes the weights for logits",
        check="the_weights_count", says="of weight 0, was drawn", look="what the weights are used for", edit="""
        -    drawn = torch.multinomial(weights, draws, replacement=True, generator=generator)
        +    drawn = torch.multinomial(weights.softmax(0) + 0.01, draws, replacement=True, generator=generator)
    """),
    WrongAnswer(
        "any_sample_of_weight", "draws every sample that has a weight equally often",
        check="the_weights_count", says="times; about", look="the weights of all samples", edit="""
        -    drawn = torch.multinomial(weights, draws, replacement=True, generator=generator)
        +    drawn = torch.multinomial((weights > 0).double(), draws, replacement=True, generator=generator)
    """),
    WrongAnswer(
        "drops_the_rest", "makes as many draws as divide by the ranks",
        check="each_draw_is_made_once", says="with 2 ranks (41 draws): the ranks drew [20, 20] samples, not [21, 20]",
        look="do not divide", edit="""
        -    return drawn[dist.get_rank() :: dist.get_world_size()].tolist()
        +    draws -= draws % dist.get_world_size()
        +    return drawn[:draws][dist.get_rank() :: dist.get_world_size()].tolist()
    """),
    WrongAnswer(
        "pads", "gives all ranks equally many, as a DistributedSampler does",
        check="each_draw_is_made_once", says="the ranks drew [21, 21] samples, not [21, 20]", look="do not divide",
        edit="""
        -    drawn = torch.multinomial(weights, draws, replacement=True, generator=generator)
        +    draws += -draws % dist.get_world_size()
        +    drawn = torch.multinomial(weights, draws, replacement=True, generator=generator)
    """),
    WrongAnswer(
        "seed_xor_epoch", "seeds with an exclusive or, which for an even seed and epoch 1 is the sum as well",
        check="seed_and_epoch_decide", says="seed 4 in epoch 1 and seed 5 in epoch 0 have the same draws", look="a sum",
        edit="""
        -    generator = torch.Generator().manual_seed(own)
        +    generator = torch.Generator().manual_seed(seed ^ epoch)
    """),
    WrongAnswer(
        "never_seeded_again", "keeps one generator, so that an epoch cannot be drawn again",
        check="seed_and_epoch_decide", says="the second call for epoch 0 drew", look="a run that resumes", edit="""
        +GENERATORS = {}
        +
        +
         def indices(weights: torch.Tensor, draws: int, seed: int, epoch: int) -> list[int]:
        @@
        -    generator = torch.Generator().manual_seed(own)
        +    generator = GENERATORS.setdefault((seed, epoch), torch.Generator().manual_seed(own))
    """),
    WrongAnswer(
        "the_global_generator", "seeds torch's own generator, and makes all dropout masks equal",
        check="the_inputs_stay", says="changed the random state of torch on rank 0", look="of its own", edit="""
        -    generator = torch.Generator().manual_seed(own)
        -    drawn = torch.multinomial(weights, draws, replacement=True, generator=generator)
        +    torch.manual_seed(own)
        +    drawn = torch.multinomial(weights, draws, replacement=True)
    """),
    WrongAnswer(
        "normalises_in_place", "makes probabilities of the caller's weights, in place",
        check="the_inputs_stay", says="changed its weights on rank 0", look="in place", edit="""
        +    weights /= weights.sum()
             generator = torch.Generator().manual_seed(own)
    """),
    RightAnswer(
        "with_the_sampler", "torch's WeightedRandomSampler draws for all, and islice takes the share", text='''
        import zlib
        from itertools import islice

        import torch
        import torch.distributed as dist
        from torch.utils.data import WeightedRandomSampler


        def indices(weights, draws, seed, epoch):
            generator = torch.Generator().manual_seed(zlib.crc32(f"{seed}, {epoch}".encode()))
            sampler = WeightedRandomSampler(weights, draws, generator=generator)
            return list(islice(sampler, dist.get_rank(), None, dist.get_world_size()))
    '''),
    RightAnswer(
        "rank_0_draws", "rank 0 draws with a random.Random, and each rank returns a list of tensors", text='''
        import random

        import torch
        import torch.distributed as dist


        def indices(weights, draws, seed, epoch):
            drawn = torch.zeros(draws, dtype=torch.int64)
            if dist.get_rank() == 0:
                luck = random.Random(f"{seed}, {epoch}")
                drawn = torch.tensor(luck.choices(range(len(weights)), weights.tolist(), k=draws))
            dist.broadcast(drawn, src=0)
            return list(drawn[dist.get_rank() :: dist.get_world_size()])
    '''),
)
