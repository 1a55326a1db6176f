# route: a run of the test set for each rank; lists gathered as objects; the detector tries sizes at random

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
