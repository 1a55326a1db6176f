"""Wrong and right answers to question 15.2; ddp_course/authoring/answers.py says how to read them."""

from ddp_course.authoring.answers import RightAnswer, WrongAnswer

ONCE, ORDER = "each_gradient_is_in_one_bucket", "buckets_follow_backward"
AGREE, FASTER = "all_ranks_agree", "a_tenth_faster_than_the_default"

ANSWERS = (
    WrongAnswer(
        "times_of_one_rank", "plans with the times of the rank that ends last, though the other begins later",
        check="a_tenth_faster_than_the_default", says="rank 0 begins late, and rank 1 ends last: the last message",
        look="", edit="""
        -    dist.all_reduce(times, op=dist.ReduceOp.MAX)  # a message waits for the last rank
        +    everyone = [torch.empty_like(times) for _ in range(dist.get_world_size())]
        +    dist.all_gather(everyone, times)
        +    times = max(everyone, key=lambda one: one[-1].item())
    """),
    WrongAnswer(
        "numbers_not_names", "returns the number of gradients in each bucket",
        check=ONCE, says="returned [", look="each a list of names", edit="""
        -    return min(plans, key=lambda buckets: end(buckets, sizes, last, latency, bytes_per_second))
        +    best = min(plans, key=lambda buckets: end(buckets, sizes, last, latency, bytes_per_second))
        +    return [len(bucket) for bucket in best]
    """),
    WrongAnswer(
        "loses_the_rest", "leaves out a last bucket that is not full",
        check=ONCE, says="0 times on rank 0", look="what is in the last one", edit="""
        -    return buckets
        +    return buckets if size >= limit or len(buckets) == 1 else buckets[:-1]
    """),
    WrongAnswer(
        "twice", "puts the gradient that fills a bucket into the next one as well",
        check=ONCE, says="2 times on rank 0", look="where a bucket is closed", edit="""
        -            buckets, size = [*buckets, []], 0
        +            buckets, size = [*buckets, [buckets[-1][-1]]], 0
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
        "the_order_of_the_dict", "takes the names as the hooks have left them",
        check=ORDER, says="backward makes", look="the order by time", edit="""
        -    names = sorted(ready, key=ready.get)
        +    names = list(ready)
    """),
    WrongAnswer(
        "its_own_times", "plans from the times of this rank",
        check=AGREE, says="on rank 0 and", look="what each rank plans from", edit="""
        -    dist.all_reduce(times, op=dist.ReduceOp.MAX)  # a message waits for the last rank
    """),
    WrongAnswer(
        "times_of_rank_0", "plans on every rank from the times of rank 0, as DDP takes its order from there",
        check=FASTER, says="rank 1 begins late: the last message", look="is the last rank ready", edit="""
        -    dist.all_reduce(times, op=dist.ReduceOp.MAX)  # a message waits for the last rank
        +    dist.broadcast(times, src=0)
    """),
    WrongAnswer(
        "the_mean_of_the_times", "plans for a rank between the two",
        check=FASTER, says="begins late: the last message", look="is the last rank ready", edit="""
        -    dist.all_reduce(times, op=dist.ReduceOp.MAX)  # a message waits for the last rank
        +    dist.all_reduce(times)
        +    times /= dist.get_world_size()
    """),
    WrongAnswer(
        "the_first_rank", "plans for the rank that is ready first",
        check=FASTER, says="begins late: the last message", look="is the last rank ready", edit="""
        -    dist.all_reduce(times, op=dist.ReduceOp.MAX)  # a message waits for the last rank
        +    dist.all_reduce(times, op=dist.ReduceOp.MIN)  # a message waits for the last rank
    """),
    WrongAnswer(
        "no_latency", "takes messages for free that have few bytes",
        check=FASTER, says="a long way: the last message", look="every bucket pays the latency", edit="""
        -        free = begin + latency + sum(sizes[name] for name in bucket) / bytes_per_second
        +        free = begin + sum(sizes[name] for name in bucket) / bytes_per_second
    """),
    WrongAnswer(
        "one_bucket", "sends everything at once, when backward is over",
        check=FASTER, says="than their use: the last message", look="idle until the first bucket is full", edit="""
        -    return min(plans, key=lambda buckets: end(buckets, sizes, last, latency, bytes_per_second))
        +    return plans[-1]
    """),
    WrongAnswer(
        "the_default", "plans what DDP does anyway",
        check=FASTER, says="than their use: the last message", look="the default's own buckets", text='''
        def plan(sizes, ready, latency, bytes_per_second):
            buckets, limit = [[]], 2**20
            for name in sorted(ready, key=ready.get):
                if sum(sizes[one] for one in buckets[-1]) >= limit:
                    buckets.append([])
                    limit = 25 * 2**20
                buckets[-1].append(name)
            return buckets
    '''),
    WrongAnswer(
        "four_mebibytes", "closes every bucket at 4 MiB, whatever the cable",
        check=FASTER, says="a long way: the last message", look="every bucket pays the latency", text='''
        def plan(sizes, ready, latency, bytes_per_second):
            buckets = [[]]
            for name in sorted(ready, key=ready.get):
                if sum(sizes[one] for one in buckets[-1]) >= 4 * 2**20:
                    buckets.append([])
                buckets[-1].append(name)
            return buckets
    '''),
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
            gathered, found = [None] * dist.get_world_size(), [None]
            dist.all_gather_object(gathered, ready)
            if dist.get_rank() == 0:
                last = {name: max(one[name] for one in gathered) for name in ready}
                names = sorted(last, key=last.get)
                best = [(0.0, [])]
                for n, name in enumerate(names):
                    choices = []
                    for m in range(n + 1):
                        took = latency + sum(sizes[one] for one in names[m : n + 1]) / bytes_per_second
                        choices.append((max(best[m][0], last[name]) + took, [*best[m][1], names[m : n + 1]]))
                    best.append(min(choices))
                found = [best[-1][1]]
            dist.broadcast_object_list(found, src=0)
            return found[0]
    '''),
)  # fmt: skip
