"""Wrong and right answers to question 15.2; ddp_course/authoring/answers.py says how to read them."""

from ddp_course.authoring.answers import RightAnswer, WrongAnswer

ONCE, ORDER = "each_gradient_is_in_one_bucket", "buckets_follow_backward"
AGREE, FASTER = "all_ranks_agree", "a_tenth_faster_than_the_default"

ANSWERS = (
    WrongAnswer(
        "loses_the_rest", "leaves out a last bucket that is not full",
        check=ONCE, says="0 times on rank 0", look="what is in the last one", edit="""
        -    return buckets
        +    return buckets if size >= limit or len(buckets) == 1 else buckets[:-1]
    """),
    WrongAnswer(
        "an_empty_bucket", "begins with an empty bucket",
        check=ONCE, says="returned [[]", look="a list of buckets", edit="""
        -    return min(plans, key=lambda buckets: end(buckets, sizes, last, latency, bytes_per_second))
        +    return [[], *min(plans, key=lambda buckets: end(buckets, sizes, last, latency, bytes_per_second))]
    """),
    WrongAnswer(
        "the_order_of_forward", "fills the buckets in the order of the parameters",
        check=ORDER, says="gradient 0 of rank 0's plan is", look="backward goes the other way", edit="""
        -    names = sorted(ready, key=ready.get)
        +    names = list(sizes)
        @@
        -        begin = max(free, last[bucket[-1]])
        +        begin = max(free, *(last[name] for name in bucket))
    """),
    WrongAnswer(
        "its_own_times", "plans from the times of this rank",
        check=AGREE, says="on rank 0 and", look="what each rank plans from", edit="""
        -    dist.all_reduce(times, op=dist.ReduceOp.MAX)  # a message waits for the last rank
    """),
    WrongAnswer(
        "times_of_rank_0", "plans on every rank from the times of rank 0, as DDP takes its order from there",
        check=FASTER, says="rank 1 begins late: the last bucket", look="is the last rank ready", edit="""
        -    dist.all_reduce(times, op=dist.ReduceOp.MAX)  # a message waits for the last rank
        +    dist.broadcast(times, src=0)
    """),
    WrongAnswer(
        "one_bucket", "sends everything at once, when backward is over",
        check=FASTER, says="than their use: the last bucket", look="idle until the first bucket is full", edit="""
        -    return min(plans, key=lambda buckets: end(buckets, sizes, last, latency, bytes_per_second))
        +    return plans[-1]
    """),
    WrongAnswer(
        "order_of_the_sizes", "takes the reverse of sizes for backward's order",
        check="buckets_follow_backward", says="parameters in another order than their use",
        look="in another order than it holds them", edit="""
        -    names = sorted(ready, key=ready.get)
        +    names = list(reversed(sizes))
    """),
    RightAnswer(
        "the_best_of_all", "gathers the times, and finds the best of all plans, on rank 0, which sends it", text='''
        import torch.distributed as dist


        def plan(sizes, ready, latency, bytes_per_second):
            gathered, message = [None] * dist.get_world_size(), [None]
            dist.all_gather_object(gathered, ready)
            if dist.get_rank() == 0:
                last = {name: max(times[name] for times in gathered) for name in ready}
                names = sorted(last, key=last.get)
                best = [(0.0, [])]
                for n, name in enumerate(names):
                    choices = []
                    for m in range(n + 1):
                        took = latency + sum(sizes[member] for member in names[m : n + 1]) / bytes_per_second
                        choices.append((max(best[m][0], last[name]) + took, [*best[m][1], names[m : n + 1]]))
                    best.append(min(choices))
                message = [best[-1][1]]
            dist.broadcast_object_list(message, src=0)
            return message[0]
    '''),
)
