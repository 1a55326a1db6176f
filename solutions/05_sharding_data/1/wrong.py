"""Wrong and right answers to question 05.1; ddp_course/authoring/answers.py says how to read them."""

from ddp_course.authoring.answers import RightAnswer, WrongAnswer

ANSWERS = (
    WrongAnswer(
        "first_tokens", "compares the first 1,000 tokens only",
        check="the_detector_is_right", says="one token of rank 2 is different): differing_ranks returned []", edit="""
        -    own_hash = hashlib.sha256(data.numpy().tobytes()).digest()
        +    own_hash = hashlib.sha256(data[:1000].numpy().tobytes()).digest()
    """),
    WrongAnswer(
        "weighted_sum", "compares the length, the sum of the tokens, and their sum weighted by position",
        check="the_detector_is_right", says="change by 1, -2 and 1): differing_ranks returned []", edit="""
        -    own_hash = hashlib.sha256(data.numpy().tobytes()).digest()
        +    position = torch.arange(1, len(data) + 1)
        +    own_hash = [len(data), data.sum().item(), (data * position).sum().item()]
    """),
    WrongAnswer(
        "no_randomness", "makes data without random numbers",
        check="the_data_is_of_the_same_kind", says="1 different steps from one to the next", edit="""
        -    generator = torch.Generator().manual_seed(1)
        -    steps = torch.randint(-2, 4, (TOKENS,), generator=generator)
        -    return (torch.randint(VOCABULARY, (), generator=generator) + steps.cumsum(0)) % VOCABULARY
        +    return torch.arange(TOKENS) % VOCABULARY
    """),
    WrongAnswer(
        "rank_0_prints", "lets only rank 0 print, which hides whether the ranks agree",
        check="the_losses_agree", says="printed as validation losses: rank 0:", edit="""
        -    print(f"rank {rank}: validation loss {loss:.6f}")
        +    if rank == 0:
        +        print(f"rank {rank}: validation loss {loss:.6f}")
    """),
    WrongAnswer(
        "seeds_the_common_generator", "seeds the generator that dropout uses too",
        check="other_randomness_is_left_alone", says="3 ranks drew 1 different dropout mask", edit="""
        -    generator = torch.Generator().manual_seed(1)
        -    steps = torch.randint(-2, 4, (TOKENS,), generator=generator)
        -    return (torch.randint(VOCABULARY, (), generator=generator) + steps.cumsum(0)) % VOCABULARY
        +    torch.manual_seed(1)
        +    steps = torch.randint(-2, 4, (TOKENS,))
        +    return (torch.randint(VOCABULARY, ()) + steps.cumsum(0)) % VOCABULARY
    """),
    WrongAnswer(
        "sends_the_data", "compares the data sets themselves, on every rank",
        check="few_bytes_are_sent", says="to compare 40,000 bytes of data", edit="""
        -    own_hash = hashlib.sha256(data.numpy().tobytes()).digest()
        +    own_hash = data.tolist()
    """),
    WrongAnswer(
        "unrepaired", "leaves make_data as it was",
        check="all_ranks_hold_the_same_data", says="ranks [1, 2] hold other data than rank 0", edit="""
        -    generator = torch.Generator().manual_seed(1)
        -    steps = torch.randint(-2, 4, (TOKENS,), generator=generator)
        -    return (torch.randint(VOCABULARY, (), generator=generator) + steps.cumsum(0)) % VOCABULARY
        +    steps = torch.randint(-2, 4, (TOKENS,))
        +    return (torch.randint(VOCABULARY, ()) + steps.cumsum(0)) % VOCABULARY
    """),
    WrongAnswer(
        "seeds_python", "seeds the generator of Python's random, which augmentations draw from",
        check="other_randomness_is_left_alone", says="after make_data the common generator of Python's random",
        look="which lines of make_data draw from it, or seed it", edit="""
        -    generator = torch.Generator().manual_seed(1)
        +    random.seed(1)
        +    generator = torch.Generator().manual_seed(random.randrange(1000))
        @@
        -import hashlib
        +import hashlib
        +import random
    """),
    WrongAnswer(
        "hash_of_a_name", "seeds with the hash of a text, which Python salts in each process",
        check="all_ranks_hold_the_same_data", says="other tokens on rank 0 of another run", look="from run to run", edit="""
        -    generator = torch.Generator().manual_seed(1)
        +    seed = torch.tensor(hash("tokens"))
        +    dist.broadcast(seed, src=0)
        +    generator = torch.Generator().manual_seed(seed.item())
    """),
    RightAnswer(
        "broadcast_of_a_seeded_draw", "rank 0 draws with a seed and broadcasts; hashes are sent as tensors",
        edit="""
        -    own_hash = hashlib.sha256(data.numpy().tobytes()).digest()
        -    hashes = [None] * dist.get_world_size()
        -    dist.all_gather_object(hashes, own_hash)
        -    return [rank for rank, digest in enumerate(hashes) if digest != hashes[0]]
        +    digest = hashlib.md5(data.numpy().tobytes()).digest() + len(data).to_bytes(8, "little")
        +    own_hash = torch.frombuffer(bytearray(digest), dtype=torch.uint8)
        +    hashes = [torch.empty_like(own_hash) for _ in range(dist.get_world_size())]
        +    dist.all_gather(hashes, own_hash)
        +    return [rank for rank in range(len(hashes)) if not torch.equal(hashes[rank], hashes[0])]
        @@
        -    generator = torch.Generator().manual_seed(1)
        -    steps = torch.randint(-2, 4, (TOKENS,), generator=generator)
        -    return (torch.randint(VOCABULARY, (), generator=generator) + steps.cumsum(0)) % VOCABULARY
        +    data = torch.empty(TOKENS, dtype=torch.int64)
        +    if dist.get_rank() == 0:
        +        generator = torch.Generator().manual_seed(2024)
        +        steps = torch.randint(-2, 4, (TOKENS,), generator=generator)
        +        data = (torch.randint(VOCABULARY, (), generator=generator) + steps.cumsum(0)) % VOCABULARY
        +    dist.broadcast(data, 0)
        +    return data
    """),
    RightAnswer(
        "forked_generator",
        "seeds the common generator and puts its state back; compares numbers with rank 0's by an all-reduce",
        edit="""
        -    own_hash = hashlib.sha256(data.numpy().tobytes()).digest()
        -    hashes = [None] * dist.get_world_size()
        -    dist.all_gather_object(hashes, own_hash)
        -    return [rank for rank, digest in enumerate(hashes) if digest != hashes[0]]
        +    digest = int.from_bytes(hashlib.blake2b(data.numpy().tobytes(), digest_size=7).digest(), "little")
        +    hashes = torch.zeros(dist.get_world_size(), dtype=torch.int64)
        +    hashes[dist.get_rank()] = digest
        +    dist.all_reduce(hashes)
        +    return (hashes != hashes[0]).nonzero().flatten().tolist()
        @@
        -    generator = torch.Generator().manual_seed(1)
        -    steps = torch.randint(-2, 4, (TOKENS,), generator=generator)
        -    return (torch.randint(VOCABULARY, (), generator=generator) + steps.cumsum(0)) % VOCABULARY
        +    with torch.random.fork_rng(devices=[]):
        +        torch.manual_seed(7)
        +        steps = torch.randint(-2, 4, (TOKENS,))
        +        return (torch.randint(VOCABULARY, ()) + steps.cumsum(0)) % VOCABULARY
    """),
    RightAnswer(
        "numpys_generator", "draws with a generator of NumPy's; each rank compares its hash with that of rank 0",
        edit="""
        -    hashes = [None] * dist.get_world_size()
        -    dist.all_gather_object(hashes, own_hash)
        -    return [rank for rank, digest in enumerate(hashes) if digest != hashes[0]]
        +    box = [own_hash]
        +    dist.broadcast_object_list(box, src=0)
        +    differs = torch.zeros(dist.get_world_size(), dtype=torch.bool)
        +    differs[dist.get_rank()] = box[0] != own_hash
        +    dist.all_reduce(differs, dist.ReduceOp.MAX)
        +    return [int(rank) for rank in differs.nonzero()]
        @@
        -    generator = torch.Generator().manual_seed(1)
        -    steps = torch.randint(-2, 4, (TOKENS,), generator=generator)
        -    return (torch.randint(VOCABULARY, (), generator=generator) + steps.cumsum(0)) % VOCABULARY
        +    generator = np.random.default_rng(1)
        +    steps = torch.from_numpy(generator.integers(-2, 4, TOKENS))
        +    return (int(generator.integers(VOCABULARY)) + steps.cumsum(0)) % VOCABULARY
        @@
        +import numpy as np
         import torch
         import torch.distributed as dist
    """),
)
