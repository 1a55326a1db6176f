"""Wrong and right answers to question 11.2; ddp_course/authoring/answers.py says how to read them."""

from ddp_course.authoring.answers import RightAnswer, WrongAnswer

ANSWERS = (
    WrongAnswer(
        "a_barrier_before", "adds a barrier, after which each rank decides by its own loss",
        check="does not end", says="no end, and nothing moves", on="given", edit="""
                 dist.all_reduce(torch.ones(4))  # stands for an epoch of training
        +        dist.barrier()
    """),
    WrongAnswer(
        "rank_0_decides", "broadcasts the loss of rank 0, which covers a part of the samples",
        check="the_best_mean_counts", says="as the losses of rank 0 alone say", look="the number that is compared",
        edit="""
        -        dist.all_reduce(mean)
        -        mean = mean.item() / dist.get_world_size()
        +        dist.broadcast(mean, src=0)
        +        mean = mean.item()
    """),
    WrongAnswer(
        "saves_a_nan", "asks whether the mean is not worse, which is true of a NaN",
        check="the_best_mean_counts", says="rank 1 has a nan", look="what a nan on one rank makes of the mean", edit="""
        -        if mean < best:
        +        if not mean >= best:
    """),
    WrongAnswer(
        "rank_0_saves", "only rank 0 collects",
        check="does not end", says="no end, and nothing moves", edit="""
        -            saved[epoch] = collect(epoch)
        +            saved[epoch] = collect(epoch) if dist.get_rank() == 0 else []
    """),
    WrongAnswer(
        "only_rank_0_keeps_it", "all collect, and only rank 0 remembers that it saved",
        check="all_ranks_save_together", says="the ranks do not save after the same epochs: rank 0 after [0",
        look="what each rank keeps and returns", edit="""
        -            saved[epoch] = collect(epoch)
        +            parts = collect(epoch)
        +            if dist.get_rank() == 0:
        +                saved[epoch] = parts
    """),
    WrongAnswer(
        "own_part_only", "needs no collective any more, as each rank keeps its own part",
        check="each_part_is_there", says="on rank 0 the checkpoint of epoch 0 holds", edit="""
        -            saved[epoch] = collect(epoch)
        +            saved[epoch] = [f"rank {dist.get_rank()} after epoch {epoch}"]
    """),
    WrongAnswer(
        "makes_up_the_other_parts", "makes up the other ranks' parts instead of gathering them",
        check="each_part_is_there", says="and took part in 0 all-gathers", edit="""
        -            saved[epoch] = collect(epoch)
        +            saved[epoch] = [f"rank {rank} after epoch {epoch}" for rank in range(dist.get_world_size())]
    """),
    RightAnswer(
        "gathers_all_losses_at_once", "gathers all losses before the first epoch; each rank computes the means", edit="""
             best, saved = math.inf, {}
        +    losses_of_all = [None] * dist.get_world_size()
        +    dist.all_gather_object(losses_of_all, losses)
             for epoch, loss in enumerate(losses):
        @@
        -        mean = torch.tensor(loss, dtype=torch.float64)
        -        dist.all_reduce(mean)
        -        mean = mean.item() / dist.get_world_size()
        +        mean = math.fsum(rank_losses[epoch] for rank_losses in losses_of_all) / dist.get_world_size()
    """),
    RightAnswer(
        "gathers_and_decides_on_rank_0", "rank 0 gathers the losses and broadcasts its decision", edit="""
        -        mean = torch.tensor(loss, dtype=torch.float64)
        -        dist.all_reduce(mean)
        -        mean = mean.item() / dist.get_world_size()
        -        if mean < best:
        -            best = mean
        +        losses_of_all = [None] * dist.get_world_size() if dist.get_rank() == 0 else None
        +        dist.gather_object(loss, losses_of_all)
        +        decision = [None]
        +        if dist.get_rank() == 0:
        +            mean = sum(losses_of_all) / len(losses_of_all)
        +            decision = [mean < best]
        +            best = mean if mean < best else best
        +        dist.broadcast_object_list(decision, src=0)
        +        if decision[0]:
    """),
    RightAnswer(
        "sums_are_enough", "compares sums, whose order is that of the means", edit="""
        -        mean = mean.item() / dist.get_world_size()
        +        mean = mean.item()
    """),
)
