"""Wrong and right answers to question 27.2; ddp_course/authoring/answers.py says how to read them."""

from ddp_course.authoring.answers import RightAnswer, WrongAnswer

ANSWERS = (
    WrongAnswer(
        "mean_of_the_own", "takes the mean of the rank's own pairs, which may be none",
        check="a_number_on_every_rank", says="which has 0 pairs", look="no pairs of its own", edit="""
        -    return losses.sum() * dist.get_world_size() / pairs
        +    return losses.mean()
    """),
    WrongAnswer(
        "of_each_pair", "returns the loss of each pair",
        check="a_number_on_every_rank", says="dpo_loss returned [", look="divided by", edit="""
        -    return losses.sum() * dist.get_world_size() / pairs
        +    return losses * dist.get_world_size() / pairs
    """),
    WrongAnswer(
        "count_in_float32", "divides by a mean number of pairs that is rounded to float32",
        check="a_pair_weighs_the_same_everywhere", says="rounded to float32", look="not float64", edit="""
        -    return losses.sum() * dist.get_world_size() / pairs
        +    return losses.sum() / (pairs / dist.get_world_size())
    """),
    WrongAnswer(
        "a_new_zero", "returns a 0 that is computed from nothing on a rank without pairs",
        check="the_gradient_flows", says="(rank 0 has none): backward of the loss on rank 0, which has 0 pairs",
        look="computed from policy", edit="""
        -    return losses.sum() * dist.get_world_size() / pairs
        +    if len(losses) == 0:
        +        return torch.zeros((), requires_grad=True)
        +    return losses.sum() * dist.get_world_size() / pairs
    """),
    WrongAnswer(
        "no_reference", "leaves the reference out",
        check="a_pair_weighs_the_same_everywhere", says="without the reference", look="relative to which model", edit="""
        -    chosen, rejected = (policy - reference).chunk(2)
        +    chosen, rejected = policy.chunk(2)
    """),
    WrongAnswer(
        "sends_losses", "all-reduces the sum of the losses as well",
        check="one_collective", says="started 2 operations", look="one sum", edit="""
             dist.all_reduce(pairs)
        +    dist.all_reduce(losses.detach().sum())
    """),
    RightAnswer(
        "softplus", "softplus of the negative margin", edit="""
        -    losses = -F.logsigmoid(beta * (chosen - rejected))
        +    losses = F.softplus(beta * (rejected - chosen))
    """),
)
