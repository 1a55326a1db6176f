"""Wrong and right answers to question 08.2; ddp_course/authoring/answers.py says how to read them."""

from ddp_course.authoring.answers import RightAnswer, WrongAnswer

ANSWERS = (
    WrongAnswer(
        "all_reduce_in_the_loop", "all-reduces after every batch",
        check="does not end", says="rank 1 had returned", edit="""
        -    total = torch.zeros(2, dtype=torch.float64)
        +    total, count = 0.0, 0.0
             for first in range(0, len(own_samples), batch_size):
                 losses = loss_of(list(own_samples[first : first + batch_size]))
        -        total[0] += losses.double().sum()
        -        total[1] += len(losses)
        -    dist.all_reduce(total)
        -    return (total[0] / total[1]).item()
        +        pair = torch.stack([losses.sum(), torch.tensor(float(len(losses)))])
        +        dist.all_reduce(pair)
        +        total += pair[0].item()
        +        count += pair[1].item()
        +    return total / max(count, 1)
    """),
    WrongAnswer(
        "drop_last", "drops samples so that all ranks have as many",
        check="every_rank_returns_a_number", says="returned nan", edit="""
         import torch.distributed as dist
        +from torch.utils.data import DistributedSampler
        @@
        -    own_samples = range(dist.get_rank(), samples, dist.get_world_size())
        +    own_samples = list(DistributedSampler(range(samples), shuffle=False, drop_last=True))
    """),
    WrongAnswer(
        "sums_in_float32", "adds up the losses of a batch in their dtype",
        check="the_mean_is_exact", says="losses in torch.float32): rank 0 returned", look="the dtype", edit="""
        -        total[0] += losses.double().sum()
        +        total[0] += losses.sum()
    """),
    WrongAnswer(
        "reduces_to_rank_0", "reduces to rank 0 and reads the result everywhere",
        check="every_rank_returns_a_number", says="rank 1 returned nan", edit="""
        -    dist.all_reduce(total)
        +    dist.reduce(total, dst=0)
    """),
    WrongAnswer(
        "rounds_of_messages", "all-reduces after every batch, in equally many rounds on every rank",
        check="few_collectives", says="collectives, the last in line", edit="""
        -    own_samples = range(dist.get_rank(), samples, dist.get_world_size())
        +    rank, world = dist.get_rank(), dist.get_world_size()
        +    own_samples = list(range(rank, samples, world))
        +    rounds = -(-samples // (world * batch_size))
             total = torch.zeros(2, dtype=torch.float64)
        -    for first in range(0, len(own_samples), batch_size):
        -        losses = loss_of(list(own_samples[first : first + batch_size]))
        -        total[0] += losses.double().sum()
        -        total[1] += len(losses)
        -    dist.all_reduce(total)
        +    for k in range(rounds):
        +        batch = own_samples[k * batch_size : (k + 1) * batch_size]
        +        losses = loss_of(batch) if batch else torch.zeros(0, dtype=torch.float64)
        +        pair = torch.stack([losses.double().sum(), torch.tensor(float(len(batch)))])
        +        dist.all_reduce(pair)
        +        total += pair
    """),
    WrongAnswer(
        "still_padded", "counts samples instead of batches, but keeps the sampler",
        check="the_mean_is_exact", says="a mean in which repeated samples count again", on="drop_last", edit="""
        -    own_samples = list(DistributedSampler(range(samples), shuffle=False, drop_last=True))
        +    own_samples = list(DistributedSampler(range(samples), shuffle=False))
    """),
    WrongAnswer(
        "weights_as_shares", "divides by the sum of the weights, which hides an evaluate that divides by too much",
        check="the_weights_are_found", says="divides by all samples, 10 samples in batches of 3", edit="""
        -    return [evaluate(only(sample), samples, batch_size) for sample in range(samples)]
        +    shares = [evaluate(only(sample), samples, batch_size) for sample in range(samples)]
        +    return [share / sum(shares) for share in shares]
    """),
    WrongAnswer(
        "weights_assumed", "counts how often the sampler deals a sample, without asking evaluate",
        check="the_weights_are_found", says="the broken evaluate", edit="""
         import torch.distributed as dist
        +from torch.utils.data import DistributedSampler
        @@
        -    def only(sample):
        -        return lambda indices: torch.tensor([float(index == sample) for index in indices], dtype=torch.float64)
        -
        -    return [evaluate(only(sample), samples, batch_size) for sample in range(samples)]
        +    world = dist.get_world_size()
        +    dealt = [list(DistributedSampler(range(samples), world, rank, shuffle=False)) for rank in range(world)]
        +    everything = sum(dealt, [])
        +    return [everything.count(sample) / len(everything) for sample in range(samples)]
    """),
    WrongAnswer(
        "weights_by_rank", "lets each rank ask for its own samples only",
        check="does not end", says="rank 1 was in", edit="""
        -    def only(sample):
        -        return lambda indices: torch.tensor([float(index == sample) for index in indices], dtype=torch.float64)
        -
        -    return [evaluate(only(sample), samples, batch_size) for sample in range(samples)]
        +    shares = []
        +    for sample in range(dist.get_rank(), samples, dist.get_world_size()):
        +        losses = torch.zeros(samples, dtype=torch.float64)
        +        losses[sample] = 1
        +        shares.append(evaluate(lambda indices, losses=losses: losses[indices], samples, batch_size))
        +    return shares
    """),
    WrongAnswer(
        "every_rank_evaluates_everything", "every rank evaluates all samples, so that nothing has to be sent",
        check="each_sample_is_evaluated_once", says="sample 0 was evaluated 2 times in all", edit="""
        -    own_samples = range(dist.get_rank(), samples, dist.get_world_size())
        +    own_samples = range(samples)
        @@
        -    dist.all_reduce(total)
    """),
    WrongAnswer(
        "one_large_batch", "asks for all losses of its samples at once",
        check="each_sample_is_evaluated_once", says="losses at once", look="into batches", edit="""
        -    for first in range(0, len(own_samples), batch_size):
        -        losses = loss_of(list(own_samples[first : first + batch_size]))
        +    if own_samples:
        +        losses = loss_of(list(own_samples))
    """),
    RightAnswer(
        "chunks_and_two_reduces", "deals contiguous chunks; returns a tensor",
        edit="""
        -    own_samples = range(dist.get_rank(), samples, dist.get_world_size())
        -    total = torch.zeros(2, dtype=torch.float64)
        +    rank, world = dist.get_rank(), dist.get_world_size()
        +    own_samples = torch.arange(samples).tensor_split(world)[rank].tolist()
        +    total, count = torch.zeros((), dtype=torch.float64), torch.tensor(len(own_samples))
             for first in range(0, len(own_samples), batch_size):
        -        losses = loss_of(list(own_samples[first : first + batch_size]))
        -        total[0] += losses.double().sum()
        -        total[1] += len(losses)
        +        total += loss_of(own_samples[first : first + batch_size]).sum(dtype=torch.float64)
             dist.all_reduce(total)
        -    return (total[0] / total[1]).item()
        +    dist.all_reduce(count)
        +    return total / count
    """),
    RightAnswer(
        "gathers_every_loss", "gathers all losses in their order; weights by differences",
        text="""
        import torch
        import torch.distributed as dist


        def weights(evaluate, samples, batch_size):
            def result(values):
                return float(evaluate(lambda indices: values[list(indices)], samples, batch_size))

            ones = torch.ones(samples, dtype=torch.float64)
            base = result(ones)
            found = torch.zeros(samples)
            for sample in range(samples):
                more = ones.clone()
                more[sample] += 1
                found[sample] = result(more) - base
            return found


        def evaluate(loss_of, samples, batch_size):
            own_samples = list(range(dist.get_rank(), samples, dist.get_world_size()))
            losses = []
            for first in range(0, len(own_samples), batch_size):
                losses += loss_of(own_samples[first : first + batch_size]).tolist()
            gathered = [None] * dist.get_world_size()
            dist.all_gather_object(gathered, losses)
            return sum(sum(losses) for losses in gathered) / sum(len(losses) for losses in gathered)
    """),
)
