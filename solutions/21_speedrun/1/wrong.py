"""Wrong and right answers to question 21.1; ddp_course/authoring/answers.py says how to read them."""

from ddp_course.authoring.answers import RightAnswer, WrongAnswer

ANSWERS = (
    WrongAnswer(
        "own_verdict", "each rank comes to a verdict of its own",
        check="the_ranks_agree", says="rank 1 returned [True", look="in which order", edit="""
        -    dist.all_gather_object(every, (on_pairs, on_texts))
        +    every = [(on_pairs, on_texts or [0])]
    """),
    WrongAnswer(
        "over_pairs", "resamples pairs, not files",
        check="the_gains_are_global", says="few files): the gain on pairs", look="a file's pairs", edit="""
        -    gain, better = cluster_interval(gains, files), cluster_interval(prompts, range(len(prompts)))
        +    gain, better = (cluster_interval(values, range(len(values))) for values in (gains, prompts))
    """),
    WrongAnswer(
        "last_of_several", "chooses the last of several texts with the highest score",
        check="the_gains_are_global", says="that of the last of several", look="which of several texts", edit="""
        -    on_texts = [check(max(own, key=judge)) - sum(map(check, own)) / len(own) for own in texts]
        +    on_texts = [check(sorted(own, key=judge)[-1]) - sum(map(check, own)) / len(own) for own in texts]
    """),
    WrongAnswer(
        "pairs_alone", "ignores the policy's texts",
        check="the_verdict_is_right", says="accepted the judge that remembers the pairs", look="which ends", edit="""
        -    return gain.low > 0 and better.low > 0, gain, better
        +    return gain.low > 0, gain, better
    """),
    WrongAnswer(
        "means_alone", "accepts by the means, without their intervals",
        check="the_verdict_is_right", says="accepted the judge that is good in most", look="which ends", edit="""
        -    return gain.low > 0 and better.low > 0, gain, better
        +    return gain.mean > 0 and better.mean > 0, gain, better
    """),
    RightAnswer(
        "sums", "exchanges a sum and a count of each file, in one table", text='''
        import torch
        import torch.distributed as dist
        from ddp_course.base.intervals import resampled

        def valid(judge, likelihood, pairs, texts, check):
            table = torch.zeros(2, 1000).double()  # more files than there are
            for file, *pair in pairs:
                right, free = (score(pair[0]) > score(pair[1]) for score in (judge, likelihood))
                table[:, file] += torch.tensor([right - free, 1])
            dist.all_reduce(table)
            own = [check(sorted(six, key=judge, reverse=True)[0]) - sum(map(check, six)) / len(six) for six in texts]
            every = [None] * dist.get_world_size()
            dist.all_gather_object(every, own)
            gain, better = resampled(*table[:, table[1] > 0]), resampled(sum(every, []), [1] * len(sum(every, [])))
            return min(gain.low, better.low) > 0, gain, better
    '''),
)
