"""Wrong and right answers to question 15.1; ddp_course/authoring/answers.py says how to read them."""

from ddp_course.authoring.answers import RightAnswer, WrongAnswer

COMPUTATION, STEPS = "computation_is_predicted", "steps_are_predicted"

ANSWERS = (
    WrongAnswer(
        "no_optimizer", "forgets the optimizer",
        check=COMPUTATION, says="one machine: predicted 180 ms", look="after the last message", edit="""
        -    return accumulation * forward + backward + optimizer
        +    return accumulation * forward + backward
    """),
    WrongAnswer(
        "latency_without_a_neighbour", "lets one machine pay for messages, although there is no machine to send to",
        check=COMPUTATION, says="one machine: predicted", look="what a ring of one machine sends", edit="""
        -            message = latency + size / ranks / (bits_per_second / 8)
        -            free = max(ready, free) + 2 * (ranks - 1) * message
        +            message = size / ranks / (bits_per_second / 8)
        +            free = max(ready, free) + 2 * (ranks - 1) * message + 2 * max(1, ranks - 1) * latency
    """),
    WrongAnswer(
        "no_overlap", "adds computation and messages, as if backward waited for them",
        check=STEPS, says="all wait for backward", look="backward computes", edit="""
        +    whole = sum(seconds for _, seconds in gradients)
             for number, (amount, seconds) in enumerate(gradients, start=1):
        @@
        -            free = max(ready, free) + 2 * (ranks - 1) * message
        +            free = max(whole, free) + 2 * (ranks - 1) * message
    """),
    WrongAnswer(
        "megabytes", "takes the limit of a bucket as MB of 1,000,000 bytes",
        check=STEPS, says="close too soon", look="the unit of its limit", edit="""
        -    limit, size, ready, free = first * 2**20, 0, 0.0, 0.0  # of this bucket, of the gradients, of the cable
        +    limit, size, ready, free = first * 1e6, 0, 0.0, 0.0  # of this bucket, of the gradients, of the cable
        @@
        -            limit, size = others * 2**20, 0
        +            limit, size = others * 1e6, 0
    """),
    WrongAnswer(
        "a_pair", "returns the exposed seconds as well",
        check="returns_seconds", says="one machine: step_seconds returned", look="one number", edit="""
        -    return accumulation * forward + backward + optimizer
        +    return accumulation * forward + backward + optimizer, max(0.0, free - ready)
    """),
    WrongAnswer(
        "ready_made", "calls the course's simulator",
        check="written_by_hand", says="has loaded ddp_course.plan", look="yours to write", text='''
        def step_seconds(forward, gradients, optimizer, bucket_cap_mb, accumulation, ranks, latency, bits_per_second):
            from ddp_course.plan.schedule import Compute, Gradient, simulate

            def message(size):
                return 2 * (ranks - 1) * (latency + size / ranks / (bits_per_second / 8))

            compute = Compute(forward, sum(seconds for _, seconds in gradients), optimizer)
            made = [Gradient(*entry) for entry in gradients]
            return simulate(compute, made, message, bucket_mib=bucket_cap_mb, accumulation=accumulation).seconds
    '''),
    RightAnswer(
        "the_busiest_rest", "computes the end of the last message as a maximum over all messages", text='''
        from itertools import accumulate


        def step_seconds(forward, gradients, optimizer, bucket_cap_mb, accumulation, ranks, latency, bits_per_second):
            backward = list(accumulate(seconds for _, seconds in gradients))
            limits, messages = (1.0, 25.0) if bucket_cap_mb is None else (bucket_cap_mb,) * 2, []
            waiting_bytes = 0
            for (size, _), ready in zip(gradients, backward, strict=True):
                waiting_bytes += size
                if waiting_bytes >= limits[bool(messages)] * 1024**2 or ready is backward[-1]:
                    messages.append((ready, 2 * (ranks - 1) * (latency + 8 * waiting_bytes / ranks / bits_per_second)))
                    waiting_bytes = 0
            # after the message that was the last to find the cable free, it is busy until the end
            last = max(ready + sum(took for _, took in messages[n:]) for n, (ready, _) in enumerate(messages))
            computed = accumulation * (forward + backward[-1])
            return computed + max(0.0, last - backward[-1]) + optimizer
    '''),
    RightAnswer(
        "in_ticks", "follows the step in ticks of 20 microseconds", text='''
        TICK = 2e-5


        def step_seconds(forward, gradients, optimizer, bucket_cap_mb, accumulation, ranks, latency, bits_per_second):
            waiting, made, waiting_bytes, limit = [], 0.0, 0, bucket_cap_mb or 1
            for number, (size, seconds) in enumerate(gradients):
                waiting_bytes, made = waiting_bytes + size, made + seconds
                if waiting_bytes >= limit * 2**20 or number + 1 == len(gradients):
                    waiting.append((made, 2 * (ranks - 1) * (latency + waiting_bytes / ranks / bits_per_second * 8)))
                    waiting_bytes, limit = 0, bucket_cap_mb or 25
            ticks, busy = 0, 0.0
            while waiting or busy > 0 or ticks * TICK < made:
                if busy <= 0 and waiting and waiting[0][0] <= ticks * TICK:
                    busy += waiting.pop(0)[1]
                ticks, busy = ticks + 1, busy - TICK if busy > 0 else busy
            return accumulation * forward + (accumulation - 1) * made + ticks * TICK + optimizer
    '''),
)
