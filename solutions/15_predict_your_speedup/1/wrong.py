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
        "never_idle_again", "looks at the ends of backward alone, as if the cable were busy from the first bucket on",
        check=STEPS, says="a cable that is busy from the first bucket on", look="in the middle of backward", edit="""
        -            free = max(ready, free) + 2 * (ranks - 1) * message
        +            took = 2 * (ranks - 1) * message
        +            free = (free or ready) + took
        @@
        -    backward = (accumulation - 1) * ready + max(ready, free)  # the last micro-batch sends
        +    backward = (accumulation - 1) * ready + max(ready + took, free)
    """),
    WrongAnswer(
        "an_empty_bucket", "sends what is left after the last gradient, also if that is nothing",
        check=STEPS, says="an empty bucket at its end", look="left after the last gradient", edit="""
        -    for number, (amount, seconds) in enumerate(gradients, start=1):
        +    for number, (amount, seconds) in enumerate([*gradients, (0, 0.0)]):
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
