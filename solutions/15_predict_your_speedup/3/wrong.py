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
        "the_middle_half", "takes the mean of the middle half, in which there are bad times if four of ten are bad",
        check=BANDWIDTH, says="fit found", look="their typical times", edit="""
        -    typical = {size: median(times) for size, times in seconds.items()}
        +    middle = {size: sorted(times)[len(times) // 4 : -(len(times) // 4)] for size, times in seconds.items()}
        +    typical = {size: sum(times) / len(times) for size, times in middle.items()}
    """),
    WrongAnswer(
        "the_shortest", "takes the shortest time, which is one that was noted too short",
        check=BANDWIDTH, says="from the shortest times", look="which of the times of one size", edit="""
        -    typical = {size: median(times) for size, times in seconds.items()}
        +    typical = {size: min(times) for size, times in seconds.items()}
    """),
    WrongAnswer(
        "latency_as_bytes", "reads the bandwidth off the largest message, latency and all",
        check=BANDWIDTH, says="as if the latency were bytes", look="besides its bytes", edit="""
        -    grown, longer = large[-1] - large[0], typical[large[-1]] - typical[large[0]]
        +    grown, longer = large[-1], typical[large[-1]]
    """),
    WrongAnswer(
        "with_the_burst", "takes the bandwidth from sizes that the cable's buffer swallows, too",
        check=BANDWIDTH, says="fit found", look="from 256 KiB up", edit="""
        -    grown, longer = large[-1] - large[0], typical[large[-1]] - typical[large[0]]
        +    middle = [size for size in typical if 4096 < size <= large[0]]
        +    grown, longer = large[0] - min(middle), typical[large[0]] - typical[min(middle)]
    """),
    WrongAnswer(
        "bytes_once", "counts the bytes of the tensor, and not what a rank sends of it in a ring",
        check=BANDWIDTH, says="as if each rank sent all bytes once", look="how many bytes a rank sends", edit="""
        -    bytes_per_second = 2 * (ranks - 1) / ranks * grown / longer
        +    bytes_per_second = grown / longer
    """),
    WrongAnswer(
        "in_bits", "returns bits per second",
        check=BANDWIDTH, says="in bits", look="bytes per second", edit="""
        -    return latency, bytes_per_second
        +    return latency, 8 * bytes_per_second
    """),
    WrongAnswer(
        "one_fit_over_all", "fits one line through all sizes, which the large ones decide",
        check=LATENCY, says="fit found", look="the smallest size", text='''
        from statistics import linear_regression, median


        def fit(seconds, ranks):
            typical = {size: median(times) for size, times in seconds.items()}
            slope, start = linear_regression(list(typical), list(typical.values()))
            return max(start, 1e-9) / (2 * (ranks - 1)), 2 * (ranks - 1) / ranks / slope
    '''),
    WrongAnswer(
        "one_message", "takes the time of a small all-reduce for that of one message",
        check=LATENCY, says="the time of a whole all-reduce", look="how many messages", edit="""
        -    latency = typical[small] / (2 * (ranks - 1)) - small / ranks / bytes_per_second
        +    latency = typical[small]
    """),
    WrongAnswer(
        "the_mean_of_the_small", "believes every time of the smallest message",
        check=LATENCY, says="from the mean of the times", look="which of the times of one size", edit="""
        -    latency = typical[small] / (2 * (ranks - 1)) - small / ranks / bytes_per_second
        +    latency = sum(seconds[small]) / len(seconds[small]) / (2 * (ranks - 1))
    """),
    WrongAnswer(
        "up_to_4_kib", "takes all messages of at most 4 KiB for nothing but latency, also on a slow cable",
        check=LATENCY, says="a clean measurement: fit found", look="the smallest size", edit="""
        -    latency = typical[small] / (2 * (ranks - 1)) - small / ranks / bytes_per_second
        +    latency = median(time for size, time in typical.items() if size <= 4096) / (2 * (ranks - 1))
    """),
    WrongAnswer(
        "the_intercept", "extends the line through the large messages down to no bytes: their noise decides",
        check=LATENCY, says="fit found", look="the smallest size", edit="""
        -    latency = typical[small] / (2 * (ranks - 1)) - small / ranks / bytes_per_second
        +    latency = abs(typical[large[0]] - large[0] * longer / grown) / (2 * (ranks - 1)) + 1e-9
    """),
    WrongAnswer(
        "the_first_is_the_smallest", "takes the first size of the dict for the smallest",
        check=LATENCY, says="fit found", look="the smallest size", edit="""
        -    small, large = min(typical), sorted(size for size in typical if size >= 256 * 2**10)
        +    usable = [size for size in typical if not 4096 < size < 256 * 2**10]
        +    small, large = usable[0], sorted(size for size in typical if size >= 256 * 2**10)
    """),
    WrongAnswer(
        "sizes_by_heart", "asks for sizes that not every cable was measured with",
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
        "ready_made", "asks the course's own fit",
        check="fitted_by_hand", says="has loaded ddp_course.plan", look="yours to write", text='''
        def fit(seconds, ranks):
            from ddp_course.plan import link

            found = link.fit(seconds, ranks)
            return found.alpha, found.beta
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
)  # fmt: skip
