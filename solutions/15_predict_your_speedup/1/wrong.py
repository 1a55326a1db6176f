"""Wrong and right answers to question 15.1; ddp_course/authoring/answers.py says how to read them."""

from ddp_course.authoring.answers import RightAnswer, WrongAnswer

ALONE, TOGETHER = "computation_is_predicted", "steps_are_predicted"

ANSWERS = (
    WrongAnswer(
        "no_optimizer", "forgets the optimizer",
        check=ALONE, says="one machine: predicted 180 ms", look="after the last message", edit="""
        -    return accumulation * forward + backward + optimizer
        +    return accumulation * forward + backward
    """),
    WrongAnswer(
        "one_micro_batch", "leaves accumulation out",
        check=ALONE, says="a step of one micro-batch", look="accumulation", edit="""
        -    backward = (accumulation - 1) * ready + max(ready, free)  # the last micro-batch sends
        -    return accumulation * forward + backward + optimizer
        +    return forward + max(ready, free) + optimizer
    """),
    WrongAnswer(
        "one_backward", "counts the forward pass of every micro-batch, and the backward pass of the last",
        check=ALONE, says="one machine: predicted 200 ms", look="what is computed, how often", edit="""
        -    backward = (accumulation - 1) * ready + max(ready, free)  # the last micro-batch sends
        +    backward = max(ready, free)
    """),
    WrongAnswer(
        "a_third_more", "adds a third, to be on the safe side",
        check=ALONE, says="one machine: predicted 347 ms", look="what is computed, how often", edit="""
        -    return accumulation * forward + backward + optimizer
        +    return 4 / 3 * (accumulation * forward + backward + optimizer)
    """),
    WrongAnswer(
        "latency_without_a_neighbour", "lets one machine pay for messages, although there is nobody to send to",
        check=ALONE, says="one machine: predicted", look="what a ring of one machine sends", edit="""
        -            message = latency + size / ranks / (bits_per_second / 8)
        -            free = max(ready, free) + 2 * (ranks - 1) * message
        +            message = size / ranks / (bits_per_second / 8)
        +            free = max(ready, free) + 2 * (ranks - 1) * message + 2 * max(1, ranks - 1) * latency
    """),
    WrongAnswer(
        "milliseconds", "returns milliseconds",
        check=ALONE, says="the number of milliseconds", look="seconds", edit="""
        -    return accumulation * forward + backward + optimizer
        +    return 1000 * (accumulation * forward + backward + optimizer)
    """),
    WrongAnswer(
        "no_overlap", "adds computation and messages, as if backward waited for them",
        check=TOGETHER, says="all wait for backward", look="backward goes on", edit="""
        +    whole = sum(seconds for _, seconds in gradients)
             for number, (amount, seconds) in enumerate(gradients, start=1):
        @@
        -            free = max(ready, free) + 2 * (ranks - 1) * message
        +            free = max(whole, free) + 2 * (ranks - 1) * message
    """),
    WrongAnswer(
        "the_longer_one", "takes the longer one of backward and messages, so that nothing is exposed at its ends",
        check=TOGETHER, says="the longer one of computation and messages", look="the last bucket", edit="""
        -            free = max(ready, free) + 2 * (ranks - 1) * message
        +            free += 2 * (ranks - 1) * message
    """),
    WrongAnswer(
        "every_micro_batch_sends", "counts the messages of every micro-batch, although no_sync is on",
        check=TOGETHER, says="every micro-batch sends", look="no_sync", edit="""
        -    backward = (accumulation - 1) * ready + max(ready, free)  # the last micro-batch sends
        +    backward = accumulation * max(ready, free)
    """),
    WrongAnswer(
        "hides_behind_all", "hides the messages behind the backward passes of all micro-batches",
        check=TOGETHER, says="3 micro-batches: predicted", look="behind which of them it can hide", edit="""
        -    backward = (accumulation - 1) * ready + max(ready, free)  # the last micro-batch sends
        +    backward = max(accumulation * ready, free)
    """),
    WrongAnswer(
        "bits_for_bytes", "takes the cable's bits per second for bytes",
        check=TOGETHER, says="a cable eight times as fast", look="8 bits", edit="""
        -            message = latency + size / ranks / (bits_per_second / 8)
        +            message = latency + size / ranks / bits_per_second
    """),
    WrongAnswer(
        "messages_side_by_side", "lets all messages travel at once, each at the full speed",
        check=TOGETHER, says="a slow cable, 8 machines: predicted", look="waits for the one before", edit="""
        -            free = max(ready, free) + 2 * (ranks - 1) * message
        +            free = max(free, ready + 2 * (ranks - 1) * message)
    """),
    WrongAnswer(
        "latency_once_per_step", "pays the latency with the first bucket alone",
        check=TOGETHER, says="a long way, 4 machines: predicted", look="how many messages a ring sends", edit="""
        -            message = latency + size / ranks / (bits_per_second / 8)
        +            message = (0.0 if free else latency) + size / ranks / (bits_per_second / 8)
    """),
    WrongAnswer(
        "latency_once_per_bucket", "pays the latency once per bucket, not for each message of the ring",
        check=TOGETHER, says="once per bucket", look="how many messages a ring sends per bucket", edit="""
        -            message = latency + size / ranks / (bits_per_second / 8)
        -            free = max(ready, free) + 2 * (ranks - 1) * message
        +            message = size / ranks / (bits_per_second / 8)
        +            free = max(ready, free) + (latency if ranks > 1 else 0) + 2 * (ranks - 1) * message
    """),
    WrongAnswer(
        "a_bucket_travels_once", "sends each bucket over the cable once, whole",
        check=TOGETHER, says="cross the cable once, whole", look="how large each of them is", edit="""
        -            message = latency + size / ranks / (bits_per_second / 8)
        -            free = max(ready, free) + 2 * (ranks - 1) * message
        +            free = max(ready, free) + 2 * (ranks - 1) * latency + size / (bits_per_second / 8)
    """),
    WrongAnswer(
        "each_gradient_alone", "sends each gradient by itself",
        check=TOGETHER, says="each gradient is sent by itself", look="what is in a bucket", edit="""
        -        if size >= limit or number == len(gradients):
        +        if size:
    """),
    WrongAnswer(
        "closes_before_the_limit", "closes a bucket before the gradient that would bring it above its limit",
        check=TOGETHER, says="close too soon", look="which gradient closes a bucket", edit="""
        -        if size >= limit or number == len(gradients):
        +        if number == len(gradients) or size + gradients[number][0] > limit:
    """),
    WrongAnswer(
        "megabytes", "takes the limit for one in MB of 1,000,000 bytes",
        check=TOGETHER, says="close too soon", look="the unit of its limit", edit="""
        -    limit, size, ready, free = first * 2**20, 0, 0.0, 0.0  # of this bucket, of the gradients, of the cable
        +    limit, size, ready, free = first * 1e6, 0, 0.0, 0.0  # of this bucket, of the gradients, of the cable
        @@
        -            limit, size = others * 2**20, 0
        +            limit, size = others * 1e6, 0
    """),
    WrongAnswer(
        "never_sends_the_rest", "sends full buckets only",
        check=TOGETHER, says="one bucket: predicted 110 ms", look="never reaches its limit", edit="""
        -        if size >= limit or number == len(gradients):
        +        if size >= limit:
    """),
    WrongAnswer(
        "one_default_limit", "takes 25 MiB for the first bucket too",
        check=TOGETHER, says="25 MiB for every bucket", look="the first bucket", edit="""
        -    first, others = (1, 25) if bucket_cap_mb is None else (bucket_cap_mb, bucket_cap_mb)
        +    first, others = (25, 25) if bucket_cap_mb is None else (bucket_cap_mb, bucket_cap_mb)
    """),
    WrongAnswer(
        "the_first_limit_for_all", "takes 1 MiB for all buckets of the default",
        check=TOGETHER, says="1 MiB for every bucket", look="all buckets but the first", edit="""
        -    first, others = (1, 25) if bucket_cap_mb is None else (bucket_cap_mb, bucket_cap_mb)
        +    first, others = (1, 1) if bucket_cap_mb is None else (bucket_cap_mb, bucket_cap_mb)
    """),
    WrongAnswer(
        "from_the_other_end", "begins with the gradient that backward makes last",
        check=TOGETHER, says="at the other end", look="the list begins with the first", edit="""
        -    for number, (amount, seconds) in enumerate(gradients, start=1):
        +    for number, (amount, seconds) in enumerate(gradients[::-1], start=1):
    """),
    WrongAnswer(
        "a_pair", "returns the exposed seconds as well",
        check="returns_seconds", says="one machine: step_seconds returned", look="one number", edit="""
        -    return accumulation * forward + backward + optimizer
        +    return accumulation * forward + backward + optimizer, max(0.0, free - ready)
    """),
    WrongAnswer(
        "ready_made", "asks the course's simulator",
        check="written_by_hand", says="has loaded ddp_course.predict", look="yours to write", text='''
        def step_seconds(forward, gradients, optimizer, bucket_cap_mb, accumulation, ranks, latency, bits_per_second):
            from ddp_course.predict.schedule import Compute, Gradient, simulate

            def message(size):
                return 2 * (ranks - 1) * (latency + size / ranks / (bits_per_second / 8))

            compute = Compute(forward, sum(seconds for _, seconds in gradients), optimizer)
            made = [Gradient(*one) for one in gradients]
            return simulate(compute, made, message, bucket_mib=bucket_cap_mb, accumulation=accumulation).seconds
    '''),
    WrongAnswer(
        "a_small_first_bucket", "closes the first bucket at 1 MiB, also where a larger limit is given",
        check=TOGETHER, says="one bucket: predicted 170 ms", look="a bucket that never reaches its limit", edit="""
        -    first, others = (1, 25) if bucket_cap_mb is None else (bucket_cap_mb, bucket_cap_mb)
        +    first, others = (1, 25) if bucket_cap_mb is None else (min(1, bucket_cap_mb), bucket_cap_mb)
    """),
    RightAnswer(
        "the_busiest_rest", "no clock for the cable: the last message is over after the worst of all waits", text='''
        from itertools import accumulate


        def step_seconds(forward, gradients, optimizer, bucket_cap_mb, accumulation, ranks, latency, bits_per_second):
            backward = list(accumulate(seconds for _, seconds in gradients))
            limits, messages = (1.0, 25.0) if bucket_cap_mb is None else (bucket_cap_mb,) * 2, []
            held = 0
            for (size, _), ready in zip(gradients, backward, strict=True):
                held += size
                if held >= limits[bool(messages)] * 1024**2 or ready is backward[-1]:
                    messages.append((ready, 2 * (ranks - 1) * (latency + 8 * held / ranks / bits_per_second)))
                    held = 0
            # after the message that was the last to find the cable free, it is busy until the end
            last = max(ready + sum(took for _, took in messages[n:]) for n, (ready, _) in enumerate(messages))
            computed = accumulation * (forward + backward[-1])
            return computed + max(0.0, last - backward[-1]) + optimizer
    '''),
    RightAnswer(
        "in_ticks", "follows the step in ticks of 20 microseconds", text='''
        TICK = 2e-5


        def step_seconds(forward, gradients, optimizer, bucket_cap_mb, accumulation, ranks, latency, bits_per_second):
            waiting, made, held, limit = [], 0.0, 0, bucket_cap_mb or 1
            for number, (size, seconds) in enumerate(gradients):
                held, made = held + size, made + seconds
                if held >= limit * 2**20 or number + 1 == len(gradients):
                    waiting.append((made, 2 * (ranks - 1) * (latency + held / ranks / bits_per_second * 8)))
                    held, limit = 0, bucket_cap_mb or 25
            ticks, busy = 0, 0.0
            while waiting or busy > 0 or ticks * TICK < made:
                if busy <= 0 and waiting and waiting[0][0] <= ticks * TICK:
                    busy += waiting.pop(0)[1]
                ticks, busy = ticks + 1, busy - TICK if busy > 0 else busy
            return accumulation * forward + (accumulation - 1) * made + ticks * TICK + optimizer
    '''),
)  # fmt: skip
