"""Wrong and right answers to question 02.2; ddp_course/authoring/answers.py says how to read them."""

from ddp_course.authoring.answers import RightAnswer, WrongAnswer

ANSWERS = (
    WrongAnswer(
        "barrier_first", "adds a barrier before the block and leaves the all-reduce in it",
        check="does not end", says="rank 0 was in all_reduce (line 30), rank 1 was in barrier (line 33)", edit="""
        -    dist.all_reduce(total)  # every rank takes part ...
        +    dist.barrier()
             if rank == 0:  # ... and one of them speaks
        +        dist.all_reduce(total)
    """),
    WrongAnswer(
        "every_rank_prints", "takes the print out of the block together with the all-reduce",
        check="one_line_is_printed", says="the mean was printed 2 times", edit="""
        -    if rank == 0:  # ... and one of them speaks
        -        print(f"mean loss {total[0] / total[1]:.6f}")
        +    print(f"mean loss {total[0] / total[1]:.6f}")
    """),
    WrongAnswer(
        "mean_of_means", "all-reduces the ranks' means",
        check="the_mean_is_over_all_samples", says="printed 2.425000, the mean of the ranks' means", edit="""
        -    total = torch.stack([own_losses.sum(), torch.tensor(len(own_losses))])
        -    dist.all_reduce(total)  # every rank takes part ...
        +    mean = own_losses.mean()
        +    dist.all_reduce(mean)
             if rank == 0:  # ... and one of them speaks
        -        print(f"mean loss {total[0] / total[1]:.6f}")
        +        print(f"mean loss {mean / dist.get_world_size():.6f}")
    """),
    WrongAnswer(
        "one_mean_each_rank_too", "every rank prints its own mean as well, as `mean loss of rank 1`",
        check="one_line_is_printed", says="the mean was printed 3 times (rank 0: mean loss 2.15", edit="""
             dist.all_reduce(total)  # every rank takes part ...
        +    print(f"mean loss of rank {rank}: {own_losses.mean():.6f}")
    """),
    WrongAnswer(
        "only_with_rank_0", "the detector compares rank 1 with rank 0 and no other rank",
        check="the_logs_are_read_right", says="rank 2 never started: first_difference(", edit="""
        -    for position in range(max(map(len, logs), default=0)):
        +    if len(logs) == 1:
        +        return None
        +    for position in range(max(len(logs[0]), len(logs[1]))):
                 entries = {rank: log[position] if position < len(log) else None for rank, log in enumerate(logs)}
        -        if len(set(entries.values())) > 1:
        +        if entries[0] != entries[1]:
    """),
    WrongAnswer(
        "others_leave", "ends all ranks but rank 0 before the all-reduce",
        check="loses contact", says="rank 1 had finished", on="every_rank_prints", edit="""
             dist.barrier()  # all ranks have measured
        +    if rank > 0:
        +        raise SystemExit(0)
    """),
    WrongAnswer(
        "stops_at_the_shortest", "the detector stops at the end of the shortest log",
        check="the_logs_are_read_right", says="rank 1 stopped one early: first_difference(", edit="""
        -    for position in range(max(map(len, logs), default=0)):
        -        entries = {rank: log[position] if position < len(log) else None for rank, log in enumerate(logs)}
        -        if len(set(entries.values())) > 1:
        -            return position, entries
        +    for position, entries in enumerate(zip(*logs, strict=False)):
        +        if len(set(entries)) > 1:
        +            return position, dict(enumerate(entries))
    """),
    WrongAnswer(
        "unrepaired", "leaves the all-reduce inside `if rank == 0`",
        check="does not end", says="rank 0 was in all_reduce (line 29), rank 1 was in barrier (line 32)", edit="""
        -    total = torch.stack([own_losses.sum(), torch.tensor(len(own_losses))])
        -    dist.all_reduce(total)  # every rank takes part ...
             if rank == 0:  # ... and one of them speaks
        +        total = torch.stack([own_losses.sum(), torch.tensor(len(own_losses))])
        +        dist.all_reduce(total)
    """),
    WrongAnswer(
        "measures_for_all_ranks", "rank 0 measures the samples of all ranks itself, and nothing is sent",
        check="the_mean_is_over_all_samples", says="rank 1 handed nothing to a collective or send", edit="""
        -    total = torch.stack([own_losses.sum(), torch.tensor(len(own_losses))])
        -    dist.all_reduce(total)  # every rank takes part ...
             if rank == 0:  # ... and one of them speaks
        -        print(f"mean loss {total[0] / total[1]:.6f}")
        +        everything = torch.cat([losses(other) for other in range(dist.get_world_size())])
        +        print(f"mean loss {everything.mean():.6f}")
    """),
    WrongAnswer(
        "measures_again", "adds up the counts of all ranks, and rank 0 measures their samples again",
        check="each_rank_measures_its_own", says="rank 0 calls losses for the ranks [0, 0, 1]", edit="""
             dist.all_reduce(total)  # every rank takes part ...
             if rank == 0:  # ... and one of them speaks
        -        print(f"mean loss {total[0] / total[1]:.6f}")
        +        print(f"mean loss {sum(losses(other).sum() for other in range(dist.get_world_size())) / total[1]:.6f}")
    """),
    WrongAnswer(
        "ends_with_exit_code_1", "ends with the rank as its exit code",
        state="crashed", check="leaves early", says="rank 1 left with exit code 1 before it was done", edit="""
             dist.destroy_process_group()
        +    raise SystemExit(rank)
    """),
    RightAnswer(
        "the_others_say_who", "the other ranks print who prints the mean", edit="""
        -    if rank == 0:  # ... and one of them speaks
        -        print(f"mean loss {total[0] / total[1]:.6f}")
        +    print(f"mean loss {total[0] / total[1]:.6f}" if rank == 0 else "mean loss is printed by rank 0")
    """),
    RightAnswer(
        "reduces_to_rank_0", "reduces sum and count to rank 0; the detector pads the shorter logs",
        text="""
        from datetime import timedelta
        from itertools import zip_longest

        import torch
        import torch.distributed as dist


        def first_difference(logs):
            for position, entries in enumerate(zip_longest(*logs)):
                if any(entry != entries[0] for entry in entries):
                    return [position, dict(enumerate(entries))]


        def losses(rank):
            return 2 + 0.5 * rank + 0.1 * torch.arange(4 + rank, dtype=torch.float64)


        def main():
            dist.init_process_group("gloo", timeout=timedelta(seconds=5))
            own_losses = losses(dist.get_rank())
            total, count = own_losses.sum(), torch.tensor(len(own_losses))
            dist.reduce(total, dst=0)
            dist.reduce(count, dst=0)
            if dist.get_rank() == 0:
                print(f"mean loss {total.item() / count.item():.6f}", flush=True)
            dist.destroy_process_group()


        if __name__ == "__main__":
            main()
    """),
    RightAnswer(
        "words_between", "prints the number of samples between `mean loss` and the number",
        edit="""
        -        print(f"mean loss {total[0] / total[1]:.6f}")
        +        print(f"mean loss over {int(total[1])} samples: {total[0] / total[1]:.6f}")
    """),
    RightAnswer(
        "rank_0_is_the_measure", "the last rank prints, with four decimals; the detector compares with rank 0",
        edit="""
        -        if len(set(entries.values())) > 1:
        +        if any(entry != entries[0] for entry in entries.values()):
        @@
        -    if rank == 0:  # ... and one of them speaks
        -        print(f"mean loss {total[0] / total[1]:.6f}")
        +    if rank == dist.get_world_size() - 1:  # ... and one of them speaks
        +        print("mean loss:", total[0] / total[1])
    """),
    RightAnswer(
        "waits_later", "starts the all-reduce and waits for it before it prints",
        edit="""
        -    dist.all_reduce(total)  # every rank takes part ...
        +    work = dist.all_reduce(total, async_op=True)  # every rank takes part ...
        +    work.wait()
    """),
    RightAnswer(
        "logs", "gathers the losses as objects and reports them through logging, in scientific notation",
        edit="""
        -    total = torch.stack([own_losses.sum(), torch.tensor(len(own_losses))])
        -    dist.all_reduce(total)  # every rank takes part ...
        +    gathered = [None] * dist.get_world_size()
        +    dist.all_gather_object(gathered, own_losses.tolist())
             if rank == 0:  # ... and one of them speaks
        -        print(f"mean loss {total[0] / total[1]:.6f}")
        +        logging.basicConfig(stream=sys.stdout, level=logging.INFO)
        +        values = sum(gathered, [])
        +        logging.info("mean loss = %.6e", sum(values) / len(values))
        @@
        -from datetime import timedelta
        +import logging
        +import sys
        +from datetime import timedelta
    """),
)
