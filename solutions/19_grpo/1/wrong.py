"""Wrong and right answers to question 19.1; ddp_course/authoring/answers.py says how to read them."""

from ddp_course.authoring.answers import RightAnswer, WrongAnswer

ANSWERS = (
    WrongAnswer(
        "as_it_was", "the detector is right, the loop is as it was",
        check="the_run_is_that_of_one_process", says="the logits of rank 0 are", edit="""
        -        distances = rewards - mean_over_ranks(rewards.mean())
        -        advantages = distances / mean_over_ranks(distances.square().mean()) ** 0.5
        +        advantages = (rewards - rewards.mean()) / rewards.std(correction=0)
        @@
        -        beta = next_beta(beta, mean_over_ranks(kl))
        +        beta = next_beta(beta, kl)
    """),
    WrongAnswer(
        "betas_alone_tested", "the detector compares the betas with those of one process, and not the logits",
        check="broken_versions_are_caught", says="the gradient of the last step", edit="""
        -        results.append(torch.cat([logits.detach(), torch.tensor(betas, dtype=torch.float64)]))
        +        results.append(torch.tensor(betas, dtype=torch.float64))
    """),
    WrongAnswer(
        "equal_samples_tested", "the detector gives all ranks the same samples",
        check="broken_versions_are_caught", says="own mean and spread, own KL", edit="""
        -    local = list(zip(actions[dist.get_rank()], rewards[dist.get_rank()], strict=True))
        -    # If every rank has all samples, each rank is the one process.
        -    joint = list(zip(actions.transpose(0, 1).flatten(1), rewards.transpose(0, 1).flatten(1), strict=True))
        +    local = list(zip(actions[0], rewards[0], strict=True))
        +    # If every rank has all samples, each rank is the one process.
        +    joint = list(zip(actions[0].repeat(1, world), rewards[0].repeat(1, world), strict=True))
    """),
    WrongAnswer(
        "own_first", "adds up what it gathered, its own first: another order on every rank",
        check="replicas_agree_to_the_last_bit", says="by a rounding", edit="""
        -    dist.all_reduce(total)
        -    return (total / dist.get_world_size()).item()
        +    everyones = [torch.empty_like(total) for _ in range(dist.get_world_size())]
        +    dist.all_gather(everyones, total)
        +    rank = dist.get_rank()
        +    return (sum(everyones[rank:] + everyones[:rank]) / len(everyones)).item()
    """),
    WrongAnswer(
        "rank_0_is_asked", "the detector decides on rank 0 and the others say True",
        check="all_ranks_agree", says="returned True on rank 1 and False on rank 0", edit="""
        -    return bool(same)
        +    return dist.get_rank() > 0 or bool(same)
    """),
    WrongAnswer(
        "too_exact", "the detector requires equality to the last bit",
        check="right_versions_pass", says="but for rounding", edit="""
        -    same = torch.tensor(float(torch.allclose(*results, rtol=1e-9, atol=1e-12)))
        +    same = torch.tensor(float(torch.equal(*results)))
    """),
    WrongAnswer(
        "spread_of_a_sample", "divides the squared distances by one less than there are samples, as torch.std does by itself",
        check="the_run_is_that_of_one_process", says="the logits of rank 0 are", look="mean and spread", edit="""
        -        advantages = distances / mean_over_ranks(distances.square().mean()) ** 0.5
        +        count = len(rewards) * dist.get_world_size()
        +        advantages = distances / (mean_over_ranks(distances.square().mean()) * count / (count - 1)) ** 0.5
    """),
    WrongAnswer(
        "each_for_itself", "the detector returns on each rank the verdict of that rank",
        check="all_ranks_agree", says="writes down a beta with its own KL): ranks_act_as_one returned False on rank 1",
        look="how a rank gets the verdicts", edit="""
        -    dist.all_reduce(same, dist.ReduceOp.MIN)
    """),
    RightAnswer(
        "gathers_everything", "every rank gathers all samples; the detector computes the one process itself",
        text='''
        import torch
        import torch.distributed as dist

        RATE, TARGET = 0.5, 0.05


        def update(logits, reference, actions, rewards, beta):
            """One step of one process."""
            advantages = (rewards - rewards.mean()) / rewards.var(correction=0).sqrt()
            logits = logits.detach().requires_grad_()
            gap = reference.log_softmax(0)[actions] - logits.log_softmax(0)[actions]
            kl = (gap.exp() - 1 - gap).mean()
            (beta * kl - (advantages * logits.log_softmax(0)[actions]).mean()).backward()
            return logits.detach() - RATE * logits.grad, beta * (1 + 0.5 * min(kl.item() / TARGET - 1, 1.0))


        def gathered(values):
            parts = [torch.empty_like(values) for _ in range(dist.get_world_size())]
            dist.all_gather(parts, values)
            return torch.cat(parts)


        def train(logits, batches, beta):
            reference, betas = logits.clone(), []
            for actions, rewards in batches:
                logits, beta = update(logits, reference, gathered(actions), gathered(rewards), beta)
                betas.append(beta)
            return logits, betas


        def ranks_act_as_one(train_):
            rank, world = dist.get_rank(), dist.get_world_size()
            torch.manual_seed(0)
            actions = torch.randint(4, (8, world, 9))
            rewards = torch.randn(8, world, 9).double().mul(torch.arange(world)[:, None] + 0.5) + 3.0 * (actions == 1)
            start = torch.tensor([0.1, 0.0, -0.2, 0.3], dtype=torch.float64)
            logits, betas = train_(start.clone(), list(zip(actions[:, rank], rewards[:, rank], strict=True)), 0.3)
            right, beta, worst = start, 0.3, 0.0
            for number in range(8):
                right, beta = update(right, start, actions[number].flatten(), rewards[number].flatten(), beta)
                worst = max(worst, abs(betas[number] / beta - 1))
            worst = max(worst, (logits - right).abs().max().item())
            everyones = [None] * world
            dist.all_gather_object(everyones, worst)
            return max(everyones) < 1e-8
    '''),
    RightAnswer(
        "one_message", "rewards go as sums in one message before the step; the KL goes along with the gradient",
        text="""
        import torch
        import torch.distributed as dist

        RATE, TARGET = 0.5, 0.05


        def train(logits, batches, beta):
            reference, betas, world = logits.log_softmax(0), [], dist.get_world_size()
            for actions, rewards in batches:
                sums = torch.stack([rewards.sum(), rewards.square().sum(), torch.tensor(float(len(rewards))).double()])
                dist.all_reduce(sums)
                mean = sums[0] / sums[2]
                advantages = (rewards - mean) / (sums[1] / sums[2] - mean**2).sqrt()
                policy = logits.detach().requires_grad_()
                chosen = policy.log_softmax(0)[actions]
                gap = reference[actions] - chosen
                kl = (gap.exp() - 1 - gap).sum()
                loss = (beta * kl - (advantages * chosen).sum()) / sums[2]
                message = torch.cat([torch.autograd.grad(loss, policy)[0], kl.detach().view(1)])
                dist.all_reduce(message)
                logits = logits - RATE * message[:-1]
                beta = beta * (1 + 0.5 * min(message[-1].item() / sums[2].item() / TARGET - 1, 1.0))
                betas.append(beta)
            assert world == dist.get_world_size()
            return logits, betas


        def ranks_act_as_one(loop):
            rank, world = dist.get_rank(), dist.get_world_size()
            made = torch.Generator().manual_seed(12)
            batches = [
                [(torch.randint(3, (6,), generator=made), (peer + 1) * torch.randn(6, generator=made).double() + peer)
                 for peer in range(world)] for _ in range(6)
            ]
            own, own_betas = loop(torch.zeros(3).double(), [step[rank] for step in batches], 1.0)
            joint_batches = [tuple(map(torch.cat, zip(*step, strict=True))) for step in batches]
            all_of, all_betas = loop(torch.zeros(3).double(), joint_batches, 1.0)
            off = max((own - all_of).abs().max().item(), max(abs(a - b) for a, b in zip(own_betas, all_betas, strict=True)))
            worst = torch.tensor(off, dtype=torch.float64)
            dist.all_reduce(worst, dist.ReduceOp.MAX)
            return worst.item() < 1e-9
    """),
)
