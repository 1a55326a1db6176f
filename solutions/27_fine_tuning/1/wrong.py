"""Wrong and right answers to question 27.1; ddp_course/authoring/answers.py says how to read them."""

from ddp_course.authoring.answers import RightAnswer, WrongAnswer

ANSWERS = (
    WrongAnswer(
        "of_the_rank", "divides by the tokens of the rank, without those of the others",
        check="one_factor_per_micro_batch", says="has the factors [nan, nan]", look="has no answer", edit="""
        -    total = torch.tensor(sum(tokens))
        -    dist.all_reduce(total)
        -    return [count * dist.get_world_size() / total.item() for count in tokens]
        +    return (torch.tensor(tokens) / sum(tokens)).tolist()
    """),
    WrongAnswer(
        "one_number", "returns one factor for all micro-batches",
        check="one_factor_per_micro_batch", says="loss_factors returned", look="one for each micro-batch", edit="""
        -    return [count * dist.get_world_size() / total.item() for count in tokens]
        +    return dist.get_world_size() / total.item()
    """),
    WrongAnswer(
        "mean_of_means", "gives each micro-batch the same factor",
        check="a_token_weighs_the_same_everywhere", says="the mean over micro-batches", look="short micro-batch's tokens",
        edit="""
        -    total = torch.tensor(sum(tokens))
        +    total = torch.tensor(len(tokens))
        @@
        -    return [count * dist.get_world_size() / total.item() for count in tokens]
        +    return [dist.get_world_size() / total.item() for count in tokens]
    """),
    WrongAnswer(
        "without_the_world_size", "forgets that DDP averages",
        check="a_token_weighs_the_same_everywhere", says="without the world size", look="by the number of ranks", edit="""
        -    return [count * dist.get_world_size() / total.item() for count in tokens]
        +    return [count / total.item() for count in tokens]
    """),
    WrongAnswer(
        "starts_a_barrier", "starts a barrier after the sum",
        check="one_collective", says="started 2 operations", look="one sum", edit="""
             dist.all_reduce(total)
        +    dist.barrier()
    """),
    RightAnswer(
        "gathered", "gathers the ranks' sums instead of all-reducing them", edit="""
        -    total = torch.tensor(sum(tokens))
        -    dist.all_reduce(total)
        -    return [count * dist.get_world_size() / total.item() for count in tokens]
        +    sums = [torch.tensor(0) for _ in range(dist.get_world_size())]
        +    dist.all_gather(sums, torch.tensor(sum(tokens)))
        +    return [count * len(sums) / sum(each.item() for each in sums) for count in tokens]
    """),
)
