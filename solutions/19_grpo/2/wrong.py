"""Wrong and right answers to question 19.2; ddp_course/authoring/answers.py says how to read them."""

from ddp_course.authoring.answers import RightAnswer, WrongAnswer

ANSWERS = (
    WrongAnswer(
        "everything_everywhere", "sends all completions to all ranks, and each computes everything",
        check="completions_stay_where_they_are", says="scored", edit='''
             """
        +    everyones = [None] * dist.get_world_size()
        +    dist.all_gather_object(everyones, (tokens, mask, old, rewards, prompts))
        +    tokens, mask, old, rewards, prompts = (torch.cat(part) for part in zip(*everyones, strict=True))
        @@
        -    dist.all_reduce(message)
    '''),
    WrongAnswer(
        "gradients_and_loss_twice", "all-reduces the gradients once for the loss and once for the check",
        check="completions_stay_where_they_are", says="handed", edit="""
        +    again = message.clone()
        +    dist.all_reduce(again)
             dist.all_reduce(message)
        +    assert torch.equal(again, message)
    """),
    WrongAnswer(
        "infinity_in_the_gradient",
        "removes what stands behind the end after the ratio: the loss is right, its gradient is 0 times inf",
        check="the_gradient_is_exact", says="has the norm nan", edit="""
        -    ratio = torch.exp(torch.where(mask, policy(tokens) - old, 0.0))
        +    ratio = torch.exp(policy(tokens) - old)
    """),
    WrongAnswer(
        "minimum_of_the_ratio", "the minimum of the two ratios, then times the advantage: wrong where it is negative",
        check="the_loss_is_exact", says="one process has", edit="""
        -    terms = torch.minimum(ratio * advantages, ratio.clamp(1 - CLIP, 1 + CLIP) * advantages)
        +    terms = torch.minimum(ratio, ratio.clamp(1 - CLIP, 1 + CLIP)) * advantages
    """),
    WrongAnswer(
        "no_completions_no_part", "a rank without completions returns before the all-reduce",
        check="does not end", says="rank 1 had returned, rank 2 was in all_reduce", edit='''
             """
        +    if not len(tokens):
        +        return 0.0, [torch.zeros_like(parameter) for parameter in policy.parameters()]
    '''),
    WrongAnswer(
        "own_first", "gathers the messages and adds its own first: another order on every rank",
        check="the_ranks_agree_to_the_last_bit", says="by a rounding", edit="""
        -    dist.all_reduce(message)
        +    gathered = [torch.empty_like(message) for _ in range(dist.get_world_size())]
        +    dist.all_gather(gathered, message)
        +    rank = dist.get_rank()
        +    message = sum(gathered[rank:] + gathered[:rank])
    """),
    WrongAnswer(
        "spread_of_rounding", "does not ask whether rewards are equal: a rounding error is divided by 1e-4",
        check="equal_rewards_move_nothing", says="it should be 0", edit="""
        -        if group.min() < group.max():  # else exactly 0
        +        if len(group) > 1:
    """),
    WrongAnswer(
        "nearly_equal_rewards", "treats rewards that are a millionth apart as equal",
        check="the_loss_is_exact", says="(groups whose rewards differ in scale)", edit="""
        -        if group.min() < group.max():  # else exactly 0
        +        if group.std() > 1e-6:
    """),
    RightAnswer(
        "selected_tokens",
        "only the tokens that count are kept, before anything is computed; cases in place of clamp; counts come first",
        text="""
        import torch
        import torch.distributed as dist


        def joint_loss_and_gradients(policy, tokens, mask, old, rewards, prompts):
            same = prompts[:, None] == prompts
            count = same.sum(1)
            mean = (same * rewards).sum(1) / count
            spread = ((same * (rewards - mean[:, None]).square()).sum(1) / (count - 1).clamp(min=1)).sqrt()
            lowest = torch.where(same, rewards, torch.inf).amin(1) if len(rewards) else rewards
            highest = torch.where(same, rewards, -torch.inf).amax(1) if len(rewards) else rewards
            advantages = torch.where(lowest == highest, 0.0, (rewards - mean) / (spread + 1e-4))

            total = mask.sum()
            dist.all_reduce(total)
            gain = advantages[:, None].expand(mask.shape)[mask]
            ratio = (policy(tokens)[mask] - old[mask]).exp()
            stuck = ((gain > 0) & (ratio > 1.2)) | ((gain < 0) & (ratio < 0.8))
            limit = 1 + 0.2 * gain.sign()
            loss = -(torch.where(stuck, limit, ratio) * gain).sum() / total
            policy.zero_grad()
            loss.backward()

            flat = torch.nn.utils.parameters_to_vector([parameter.grad for parameter in policy.parameters()])
            dist.all_reduce(flat)
            torch.nn.utils.vector_to_parameters(flat, [parameter.grad for parameter in policy.parameters()])
            value = loss.detach()
            dist.all_reduce(value)
            return value, [parameter.grad for parameter in policy.parameters()]
    """),
    WrongAnswer(
        "adds_to_grad", "calls backward and returns .grad, which holds the gradient of another loss as well",
        check="the_gradient_is_exact", says="has the norm", look="of another loss", edit="""
        -    gradients = torch.autograd.grad(loss, list(policy.parameters()))
        +    count = mask.sum()
        +    dist.all_reduce(count)
        +    (loss / count).backward()
        +    gradients = [parameter.grad * count for parameter in policy.parameters()]
    """),
    RightAnswer(
        "groups_as_a_matrix", "mean and spread of all groups by one matrix product; tokens and sums are sent at once",
        edit="""
        -    advantages = torch.zeros_like(rewards)
        -    for prompt in prompts.unique():
        -        group = rewards[prompts == prompt]
        -        if group.min() < group.max():  # else exactly 0
        -            advantages[prompts == prompt] = (group - group.mean()) / (group.std() + 1e-4)
        -    return advantages
        +    same = (prompts[:, None] == prompts).double()
        +    sizes = same.sum(dim=1)
        +    distances = rewards - same @ rewards / sizes
        +    spread = (same @ distances.square() / (sizes - 1).clamp(min=1)).sqrt()
        +    differs = ((rewards[:, None] != rewards) & (same > 0)).any(dim=1)
        +    return torch.where(differs, distances / (spread + 1e-4), 0.0)
    """),
)
