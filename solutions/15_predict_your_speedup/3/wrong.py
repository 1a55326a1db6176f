"""Wrong and right answers to question 15.3; ddp_course/authoring/answers.py says how to read them."""

from ddp_course.authoring.answers import RightAnswer, WrongAnswer

BANDWIDTH, LATENCY = "the_bandwidth_is_right", "the_latency_is_right"

ANSWERS = (
    WrongAnswer(
        "the_mean", "takes the mean of the times, and with it those that were disturbed",
        check=BANDWIDTH, says="a cable of 100 Mbit/s: fit found", look="which of the times of one size", edit="""
        -    typical = {size: median(times) for size, times in seconds.items()}
        +    typical = {size: sum(times) / len(times) for size, times in seconds.items()}
    """),
    WrongAnswer(
        "in_bits", "returns bits per second",
        check=BANDWIDTH, says="in bits", look="bytes per second", edit="""
        -    return latency, bytes_per_second
        +    return latency, 8 * bytes_per_second
    """),
    WrongAnswer(
        "one_message", "takes the time of a small all-reduce for that of one message",
        check=LATENCY, says="the time of a whole all-reduce", look="how many messages", edit="""
        -    latency = typical[small] / (2 * (ranks - 1)) - small / ranks / bytes_per_second
        +    latency = typical[small]
    """),
    WrongAnswer(
        "the_intercept", "extends the line through the large messages down to no bytes: their noise decides",
        check=LATENCY, says="fit found", look="the smallest size", edit="""
        -    latency = typical[small] / (2 * (ranks - 1)) - small / ranks / bytes_per_second
        +    latency = abs(typical[large[0]] - large[0] * longer / grown) / (2 * (ranks - 1)) + 1e-9
    """),
    WrongAnswer(
        "sizes_by_heart", "uses two fixed sizes, with which not every cable was measured",
        state="crashed", check="raises", says="three machines, few sizes", look="typical[large[-1]]", edit="""
        -    small, large = min(typical), sorted(size for size in typical if size >= 256 * 2**10)
        -    grown, longer = large[-1] - large[0], typical[large[-1]] - typical[large[0]]
        +    small, large = 64, [2**18, 2**24]
        +    grown, longer = large[-1] - large[0], typical[large[-1]] - typical[large[0]]
    """),
    WrongAnswer(
        "a_dict", "returns the numbers with their names",
        check="returns_two_numbers", says="fit returned {", look="the return value", edit="""
        -    return latency, bytes_per_second
        +    return {"latency": latency, "bytes_per_second": bytes_per_second}
    """),
    WrongAnswer(
        "ready_made", "calls the course's own fit",
        check="fitted_by_hand", says="has loaded ddp_course.plan", look="yours to write", text='''
        def fit(seconds, ranks):
            from ddp_course.plan import link

            link_model = link.fit(seconds, ranks)
            return link_model.alpha, link_model.beta
    '''),
    RightAnswer(
        "the_median_of_slopes", "takes the median of the slopes between all pairs of large messages", text='''
        from itertools import combinations
        from statistics import median


        def fit(seconds, ranks):
            typical = {size: sorted(times)[len(times) // 2] for size, times in seconds.items()}
            large = [size for size in sorted(typical) if size >= 2**18]
            slopes = [(typical[b] - typical[a]) / (b - a) for a, b in combinations(large, 2) if b >= 8 * a]
            slope = median(slopes)
            small = min(typical)
            return (typical[small] - slope * small) / (ranks - 1) / 2, 2 * (1 - 1 / ranks) / slope
    '''),
    RightAnswer(
        "minus_the_latency", "takes the latency first, and the bandwidth from what the largest message takes beyond it",
        text='''
        import torch


        def fit(seconds, ranks):
            messages = 2 * (ranks - 1)
            times = {size: torch.tensor(seconds[size], dtype=torch.float64).median() for size in seconds}
            small, large = min(times), max(times)
            latency = times[small] / messages
            speed = messages * large / ranks / (times[large] - messages * latency)
            return [latency - small / ranks / speed, speed]
    '''),
)
