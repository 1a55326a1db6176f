"""Wrong and right answers to question 14.3; ddp_course/authoring/answers.py says how to read them."""

from ddp_course.authoring.answers import RightAnswer, WrongAnswer

ANSWERS = (
    WrongAnswer(
        "ends_instead_of_counts", "returns where the buckets begin",
        check="every_gradient_is_in_one_bucket", says="gradients", look="the numbers of gradients", edit="""
        -        counts.append(n - begins[n])
        +        counts.append(begins[n])
    """),
    WrongAnswer(
        "no_bucket_for_one", "cuts before the last gradient also where there is only one",
        check="every_gradient_is_in_one_bucket", says="one gradient: plan returned", look="each at least 1", text='''
        def plan(gradients, backward, latency, bytes_per_second):
            return [len(gradients) - 1, 1]
    '''),
    WrongAnswer(
        "one_each", "sends every gradient as soon as it is there",
        check="no_slower_than_the_default", says="a small model, latency of 5 ms: a step takes",
        look="every message pays the latency", edit="""
        -    return counts[::-1]
        +    return [1] * len(gradients)
    """),
    WrongAnswer(
        "one_bucket", "sends all at the end",
        check="no_slower_than_the_default", says="with 1 buckets", look="hides nothing", edit="""
        -    return counts[::-1]
        +    return [len(gradients)]
    """),
    WrongAnswer(
        "the_default", "returns DDP's own buckets",
        check="as_fast_as_can_be", says="are possible", look="where is the link idle", text='''
        def plan(gradients, backward, latency, bytes_per_second):
            counts, size, number, limit = [], 0, 0, 2**20
            for one, _ in gradients:
                size, number = size + one, number + 1
                if size >= limit:
                    counts.append(number)
                    size, number, limit = 0, 0, 25 * 2**20
            return counts + [number] * (number > 0)
    '''),
    WrongAnswer(
        "equal_costs", "takes every gradient for equally costly",
        check="as_fast_as_can_be", says="are possible", look="where is the link idle", edit="""
        -    whole, computed = sum(cost for _, cost in gradients), 0.0
        +    whole, computed = len(gradients), 0.0
        @@
        -        computed += gradients[n - 1][1]
        +        computed += 1
    """),
    RightAnswer(
        "top_down", "asks for the earliest end of the first n, recursively and remembered", text='''
        import functools
        import itertools


        def plan(gradients, backward, latency, bytes_per_second):
            sizes = [0, *itertools.accumulate(size for size, _ in gradients)]
            costs = [0, *itertools.accumulate(cost for _, cost in gradients)]

            @functools.cache
            def best(n):
                if n == 0:
                    return 0.0, ()
                ready = backward * costs[n] / costs[-1]
                ends = []
                for m in range(n):
                    free, counts = best(m)
                    took = latency + (sizes[n] - sizes[m]) / bytes_per_second
                    ends.append((max(free, ready) + took, (*counts, n - m)))
                return min(ends)

            return list(best(len(gradients))[1])
    '''),
)
