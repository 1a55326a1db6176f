"""Wrong and right answers to question 20.2; ddp_course/authoring/answers.py says how to read them."""

from ddp_course.authoring.answers import RightAnswer, WrongAnswer

ANSWERS = (
    WrongAnswer(
        "detector_adds_lengths", "the detector adds the lengths of all pairs and compares the sum with the total",
        check="unsound_shares_are_seen", says="makes no step", edit="""
        -                pairs = [shares(total, batch, rank, world) for rank in range(world)]
        -                if len({len(one) for one in pairs}) > 1:
        -                    return False
        -                flat = [pair for one in pairs for pair in one]
        -                if not all(0 <= start <= end <= total and end - start <= -(-batch // world) for start, end in flat):
        -                    return False
        -                if sorted(i for start, end in flat for i in range(start, end)) != list(range(total)):
        +                pairs = [pair for rank in range(world) for pair in shares(total, batch, rank, world)]
        +                if sum(end - start for start, end in pairs) != total:
    """),
    WrongAnswer(
        "detector_allows_behind_the_end", "the detector slices a list, which cuts off what lies behind its end",
        check="unsound_shares_are_seen", says="cut as if it were full", edit="""
        -                if len({len(one) for one in pairs}) > 1:
        -                    return False
        -                flat = [pair for one in pairs for pair in one]
        -                if not all(0 <= start <= end <= total and end - start <= -(-batch // world) for start, end in flat):
        -                    return False
        -                if sorted(i for start, end in flat for i in range(start, end)) != list(range(total)):
        +                examples = [i for one in pairs for start, end in one for i in list(range(total))[start:end]]
        +                if len({len(one) for one in pairs}) > 1 or sorted(examples) != list(range(total)):
    """),
    WrongAnswer(
        "detector_asks_for_the_set",
        "the detector compares sets, in which an example that is there twice is there once",
        check="unsound_shares_are_seen", says="begins earlier", edit="""
        -                if sorted(i for start, end in flat for i in range(start, end)) != list(range(total)):
        +                if {i for start, end in flat for i in range(start, end)} != set(range(total)):
    """),
    WrongAnswer(
        "detector_on_two_ranks", "the detector tries two ranks and no others",
        check="unsound_shares_are_seen", says="takes what is left over", edit="""
        -    for world in range(1, 6):
        +    for world in (2,):
    """),
    WrongAnswer(
        "detector_returns_the_fault", "the detector returns a text in place of False",
        check="sound_shares_pass", says="it should be True or False", edit="""
        -    for world in range(1, 6):
        -        for batch in range(1, 12):
        -            for total in range(25):
        -                pairs = [shares(total, batch, rank, world) for rank in range(world)]
        -                if len({len(one) for one in pairs}) > 1:
        -                    return False
        -                flat = [pair for one in pairs for pair in one]
        -                if not all(0 <= start <= end <= total and end - start <= -(-batch // world) for start, end in flat):
        -                    return False
        -                if sorted(i for start, end in flat for i in range(start, end)) != list(range(total)):
        -                    return False
        -    return True
        +    return "sound" if [shares(9, 7, rank, 2) for rank in range(2)] else "not sound"
    """),
    WrongAnswer(
        "detector_tries_what_divides",
        "the detector tries totals that the batch divides, and batches that the ranks divide",
        check="unsound_shares_are_seen", says="the end kept inside", edit="""
        -        for batch in range(1, 12):
        -            for total in range(25):
        +        for batch in range(world, 12, world):
        +            for total in range(0, 25, batch):
    """),
    WrongAnswer(
        "detector_wants_full_pairs", "the detector rejects an empty pair",
        check="sound_shares_pass", says="each batch cut evenly", edit="""
        -                if not all(0 <= start <= end <= total and end - start <= -(-batch // world) for start, end in flat):
        +                if not all(0 <= start < end <= total and end - start <= -(-batch // world) for start, end in flat):
    """),
    WrongAnswer(
        "detector_wants_it_in_order",
        "the detector wants rank 0 to begin and each rank to go on where the one before ended",
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
        "everybody_scores_everything", "every rank evaluates the whole test set and nothing is sent",
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
        "mean_of_no_losses", "the mean of an empty share is not a number, and spreads",
        check="metrics_are_exact_on_every_rank", says="nan", edit="""
        -        sums += torch.stack([losses.sum(), right.sum(), torch.tensor(end - start)])
        +        sums += torch.stack([losses.mean() * (end - start), right.sum(), torch.tensor(end - start)])
    """),
    WrongAnswer(
        "mean_of_the_means", "each rank divides by its own count, and the means are averaged",
        check="metrics_are_exact_on_every_rank", says="over all examples it is", edit="""
        +    sums[:2] /= sums[2].clamp(min=1)
        +    sums[:2] /= dist.get_world_size()
             dist.all_reduce(sums)
             loss, solved, examples = sums.tolist()
        -    return {"loss": loss / examples, "accuracy": solved / examples, "examples": int(examples)}
        +    return {"loss": loss, "accuracy": solved, "examples": int(examples)}
    """),
    WrongAnswer(
        "metrics_as_given", "the shares are repaired, the reduced tensor is still thrown away",
        check="metrics_are_exact_on_every_rank", says="rank 0 returned the loss", edit="""
        -    sums = torch.zeros(3, dtype=torch.float64)
        -    for start, end in shares(total, batch, dist.get_rank(), dist.get_world_size()):
        +    rank, world = dist.get_rank(), dist.get_world_size()
        +    loss, solved, examples = 0.0, 0, 0
        +    for start, end in shares(total, batch, rank, world):
                 losses, right = score(start, end)
        -        sums += torch.stack([losses.sum(), right.sum(), torch.tensor(end - start)])
        -    dist.all_reduce(sums)
        -    loss, solved, examples = sums.tolist()
        -    return {"loss": loss / examples, "accuracy": solved / examples, "examples": int(examples)}
        +        loss += losses.sum().item()
        +        solved += right.sum().item()
        +        examples += end - start
        +    metrics = {"loss": loss / max(examples, 1), "accuracy": solved / max(examples, 1), "examples": examples}
        +    dist.reduce(torch.tensor(list(metrics.values())), dst=0)
        +    if rank == 0:
        +        return metrics
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
        "rank_0_knows", "rank 0 returns what was reduced, the others None",
        check="metrics_are_exact_on_every_rank", says="rank 1 returned None", edit="""
        -    dist.all_reduce(sums)
        +    dist.reduce(sums, dst=0)
        +    if dist.get_rank() != 0:
        +        return None
    """),
    WrongAnswer(
        "shares_as_given", "the metrics are repaired, the shares are as they were",
        check="every_example_is_scored_once", says="asked for the examples 10 to 9: that is -1", edit="""
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
        "shares_kept_inside", "start and end are kept inside, and the rounded-down local batch still loses examples",
        check="every_example_is_scored_once", says="was scored 0 times", edit="""
        -    pairs = []
        -    for first in range(0, total, batch):
        -        count = min(batch, total - first)
        -        pairs.append((first + count * rank // world, first + count * (rank + 1) // world))
        -    return pairs
        +    local_batch = batch // world
        +    starts = [first + rank * local_batch for first in range(0, total, batch)]
        +    return [(min(start, total), min(start + local_batch, total)) for start in starts]
        @@
             loss, solved, examples = sums.tolist()
        +    examples = max(examples, 1)
    """),
    WrongAnswer(
        "skips_empty_shares", "a rank without examples goes on to the next batch at once",
        check="the_ranks_keep_step", says="called score", edit="""
             for start, end in shares(total, batch, dist.get_rank(), dist.get_world_size()):
        +        if start == end:
        +            continue
    """),
    WrongAnswer(
        "detector_never_tries_none", "the detector tries no test set without examples",
        check="unsound_shares_are_seen", says="rank 0 makes a step where there is no example: is_sound returned True",
        look="which sizes it tries", edit="""
        -            for total in range(25):
        +            for total in range(1, 25):
    """),
    WrongAnswer(
        "detector_counts_no_steps", "the detector does not ask whether all ranks make as many steps",
        check="unsound_shares_are_seen", says="a rank without examples makes no step: is_sound returned True", edit="""
        -                if len({len(one) for one in pairs}) > 1:
        -                    return False
    """),
    WrongAnswer(
        "detector_measures_no_pair", "the detector does not ask how long a pair is",
        check="unsound_shares_are_seen", says="the last rank takes what is left over: is_sound returned True", edit="""
        -                if not all(0 <= start <= end <= total and end - start <= -(-batch // world) for start, end in flat):
        +                if not all(0 <= start <= end <= total for start, end in flat):
    """),
    WrongAnswer(
        "empty_ranges", "counts examples and no pairs: one that begins behind its end holds none",
        check="unsound_shares_are_seen", says="the end kept inside its batch", edit="""
        -                if not all(0 <= start <= end <= total and end - start <= -(-batch // world) for start, end in flat):
        +                if not all(end - start <= -(-batch // world) for start, end in flat):
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
            """Three sizes are enough, if nothing in them divides anything else."""
            for total, batch, world in ((23, 7, 4), (5, 11, 3), (9, 7, 2), (1, 2, 5), (30, 5, 1), (12, 12, 5), (16, 6, 4), (0, 1, 2)):
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
            told = [None]
            if rank == 0:
                told = [{"loss": loss / counts[1], "accuracy": counts[0] / counts[1], "examples": counts[1]}]
                told = [{name: value.item() for name, value in told[0].items()}]
                told[0]["accuracy"] = counts[0].item() / counts[1].item()
            dist.broadcast_object_list(told, src=0)
            return told[0]
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
                    mine = list(shares(total, batch, rank, world))
                    steps.add(len(mine))
                    for start, end in mine:
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
            mine = []
            for step in range((total + room * world - 1) // (room * world)):
                losses, solved = score(min(start + step * room, end), min(start + (step + 1) * room, end))
                mine += list(zip(losses.tolist(), solved.tolist(), strict=True))
            everyones = [None] * world
            dist.all_gather_object(everyones, mine)
            losses, solved = zip(*[pair for one in everyones for pair in one], strict=True)
            return {"loss": sum(losses) / total, "accuracy": sum(solved) / total, "examples": total}
    """),
)
