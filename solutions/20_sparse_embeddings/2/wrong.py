"""Wrong and right answers to question 20.2; ddp_course/authoring/answers.py says how to read them."""

from ddp_course.authoring.answers import RightAnswer, WrongAnswer

ANSWERS = (
    WrongAnswer(
        "detector_forgets_the_total", "the detector lets an empty pair begin behind the last example",
        check="unsound_shares_are_caught", says="begins behind the last example", edit="""
        -                if not all(0 <= start <= end <= total and end - start <= -(-batch // world) for start, end in flat):
        +                if not all(start <= end and end - start <= -(-batch // world) for start, end in flat):
    """),
    WrongAnswer(
        "detector_adds_up_lengths",
        "the detector adds up the lengths: an example that is evaluated twice makes up for one that is left out",
        check="unsound_shares_are_caught", says="all ranks begin as before", edit="""
        -                if sorted(i for start, end in flat for i in range(start, end)) != list(range(total)):
        +                if sum(end - start for start, end in flat) != total:
    """),
    WrongAnswer(
        "detector_wants_full_pairs", "the detector rejects an empty pair",
        check="sound_shares_pass", says="each batch cut evenly", edit="""
        -                if not all(0 <= start <= end <= total and end - start <= -(-batch // world) for start, end in flat):
        +                if not all(0 <= start < end <= total and end - start <= -(-batch // world) for start, end in flat):
    """),
    WrongAnswer(
        "detector_wants_it_in_order",
        "the detector requires that each rank continues where the one before ended",
        check="sound_shares_pass", says="one run of the test set", edit="""
         import torch.distributed as dist
        +
        +
        +def in_order(total, pairs):
        +    steps = [i for step in zip(*pairs, strict=True) for start, end in step for i in range(start, end)]
        +    return steps == list(range(total))
        @@
        -                if sorted(i for start, end in flat for i in range(start, end)) != list(range(total)):
        +                if not in_order(total, pairs):
    """),
    WrongAnswer(
        "every_rank_scores_everything", "every rank evaluates the whole test set and nothing is sent",
        check="every_example_is_scored_once", says="was scored 2 times", edit="""
        -    sums = torch.zeros(3, dtype=torch.float64)
        -    for start, end in shares(total, batch, dist.get_rank(), dist.get_world_size()):
        -        losses, right = score(start, end)
        -        sums += torch.stack([losses.sum(), right.sum(), torch.tensor(end - start)])
        -    dist.all_reduce(sums)
        -    loss, solved, examples = sums.tolist()
        -    return {"loss": loss / examples, "accuracy": solved / examples, "examples": int(examples)}
        +    pairs = [score(first, min(first + batch, total)) for first in range(0, total, batch)]
        +    losses, right = (torch.cat(part) for part in zip(*pairs, strict=True))
        +    return {"loss": losses.mean().item(), "accuracy": right.double().mean().item(), "examples": total}
    """),
    WrongAnswer(
        "half_reduced", "reduces to rank 0, and the others return what the reduction left in their tensor",
        check="metrics_are_exact_on_every_rank", says="over all examples it is", edit="""
        -    dist.all_reduce(sums)
        +    dist.reduce(sums, dst=0)
    """),
    WrongAnswer(
        "mean_of_no_losses", "the mean of an empty share is NaN, and so is the sum",
        check="metrics_are_exact_on_every_rank", says="nan", edit="""
        -        sums += torch.stack([losses.sum(), right.sum(), torch.tensor(end - start)])
        +        sums += torch.stack([losses.mean() * (end - start), right.sum(), torch.tensor(end - start)])
    """),
    WrongAnswer(
        "one_large_step", "each rank takes its whole part of the test set in one step",
        check="the_ranks_keep_step", says="in one step; a rank has room for", edit="""
        -    pairs = []
        -    for first in range(0, total, batch):
        -        count = min(batch, total - first)
        -        pairs.append((first + count * rank // world, first + count * (rank + 1) // world))
        -    return pairs
        +    return [(total * rank // world, total * (rank + 1) // world)]
    """),
    WrongAnswer(
        "shares_as_given", "the metrics are repaired, the shares are as they were",
        check="every_example_is_scored_once", says="asked for -1 examples, from 10 to 9; there are 9", edit="""
        -    pairs = []
        -    for first in range(0, total, batch):
        -        count = min(batch, total - first)
        -        pairs.append((first + count * rank // world, first + count * (rank + 1) // world))
        -    return pairs
        +    local_batch = batch // world
        +    starts = [first + rank * local_batch for first in range(0, total, batch)]
        +    return [(start, min(start + local_batch, total)) for start in starts]
        @@
             loss, solved, examples = sums.tolist()
        +    examples = max(examples, 1)
    """),
    WrongAnswer(
        "skips_empty_shares", "a rank without examples continues with the next batch at once",
        check="the_ranks_keep_step", says="called score", edit="""
             for start, end in shares(total, batch, dist.get_rank(), dist.get_world_size()):
        +        if start == end:
        +            continue
    """),
    RightAnswer(
        "rank_0_tells",
        "rounded-up local batches kept inside; reduced to rank 0, which divides and broadcasts its dictionary",
        text='''
        import torch
        import torch.distributed as dist


        def pairs_of(total, batch, rank, world):
            room = (batch + world - 1) // world
            for first in range(0, total, batch):
                stop = min(first + batch, total)
                start = min(first + rank * room, stop)
                yield start, min(start + room, stop)


        def is_sound(shares):
            """A few sizes are enough, if in most of them nothing divides anything else, and in one all divides."""
            for total, batch, world in ((23, 7, 4), (5, 11, 3), (9, 7, 2), (1, 2, 5), (30, 5, 1), (12, 12, 5), (16, 6, 4), (8, 4, 2), (0, 1, 2)):
                free = torch.ones(total + 1)
                free[total] = 0
                lists = [shares(total, batch, rank, world) for rank in range(world)]
                for pairs in lists:
                    for start, end in pairs:
                        if end < start or start < 0 or end > total or end - start > (batch + world - 1) // world:
                            return False
                        free[start:end] -= 1
                if free.any() or any(len(pairs) != len(lists[0]) for pairs in lists):
                    return False
            return True


        def evaluate(score, total, batch):
            rank, world = dist.get_rank(), dist.get_world_size()
            loss, counts = torch.zeros((), dtype=torch.float64), torch.zeros(2, dtype=torch.int64)
            for start, end in pairs_of(total, batch, rank, world):
                losses, solved = score(start, end)
                loss += losses.sum()
                counts += torch.tensor([int(solved.sum()), len(losses)])
            dist.reduce(loss, dst=0)
            dist.reduce(counts, dst=0)
            message = [None]
            if rank == 0:
                message = [{"loss": loss / counts[1], "accuracy": counts[0] / counts[1], "examples": counts[1]}]
                message = [{name: value.item() for name, value in message[0].items()}]
                message[0]["accuracy"] = counts[0].item() / counts[1].item()
            dist.broadcast_object_list(message, src=0)
            return message[0]
    '''),
    RightAnswer(
        "runs_and_objects",
        "a run of the test set for each rank; lists gathered as objects; the detector tries sizes at random",
        text="""
        import random

        import torch.distributed as dist


        def is_sound(shares) -> bool:
            random.seed(0)
            for _ in range(1500):
                world, batch, total = random.randint(1, 7), random.randint(1, 20), random.randint(0, 50)
                seen, steps = [0] * total, set()
                for rank in range(world):
                    own = list(shares(total, batch, rank, world))
                    steps.add(len(own))
                    for start, end in own:
                        if start < 0 or end < start or end > total or world * (end - start) >= batch + world:
                            return False
                        for example in range(start, end):
                            seen[example] += 1
                if seen != [1] * total or len(steps) != 1:
                    return False
            return True


        def evaluate(score, total, batch):
            rank, world = dist.get_rank(), dist.get_world_size()
            room = -(-batch // world)
            start, end = total * rank // world, total * (rank + 1) // world
            own = []
            for step in range((total + room * world - 1) // (room * world)):
                losses, solved = score(min(start + step * room, end), min(start + (step + 1) * room, end))
                own += list(zip(losses.tolist(), solved.tolist(), strict=True))
            all_gathered = [None] * world
            dist.all_gather_object(all_gathered, own)
            losses, solved = zip(*[pair for share in all_gathered for pair in share], strict=True)
            return {"loss": sum(losses) / total, "accuracy": sum(solved) / total, "examples": total}
    """),
)
