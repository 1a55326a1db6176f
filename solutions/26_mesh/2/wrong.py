"""Wrong and right answers to question 26.2; ddp_course/authoring/answers.py says how to read them."""

from ddp_course.authoring.answers import RightAnswer, WrongAnswer

ANSWERS = (
    WrongAnswer(
        "by_global_rank", "chooses windows by the global rank, as the script does",
        check="peers_on_tp_read_the_same", says="rank 1 read the windows [4, 5, 6, 7], and rank 0, its peer on tp, [0, 1, 2, 3]",
        look="which of its numbers", edit="""
        -        first = self.read + self.mesh.dp.rank * own
        +        first = self.read + dist.get_rank() * own
    """),
    WrongAnswer(
        "by_the_rank_on_tp", "chooses windows by the rank on tp",
        check="peers_on_tp_read_the_same", says="its peer on tp", look="that on an axis", edit="""
        -        first = self.read + self.mesh.dp.rank * own
        +        first = self.read + self.mesh.tp.rank * own
    """),
    WrongAnswer(
        "all_read_the_same", "lets every replica read the first part",
        check="replicas_share_the_windows", says="the replicas read [0, 0, 1, 1]", look="where each replica's part", edit="""
        -        first = self.read + self.mesh.dp.rank * own
        +        first = self.read
    """),
    WrongAnswer(
        "the_next_part_is_not_next", "continues behind its own part, where the next replica has read already",
        check="replicas_share_the_windows", says="in step 2 the replicas read", look="where a step begins", edit="""
        -        self.read += self.per_update
        +        self.read += own
    """),
    WrongAnswer(
        "mean_of_means", "averages the replicas' means, as the script does",
        check="the_gradient_is_that_of_one_process", says="(dp 2 x tp 1): in step 1", look="fewer targets", edit="""
        -        loss = F.cross_entropy(logits, targets.flatten(), ignore_index=-100, reduction="sum") / count
        +        loss = F.cross_entropy(logits, targets.flatten(), ignore_index=-100) / self.mesh.dp.size
    """),
    WrongAnswer(
        "counts_once", "counts the targets of the first step and divides every step by them",
        check="the_gradient_is_that_of_one_process", says="with 1 rank (dp 1 x tp 1): in step 2",
        look="step 1 was right", edit="""
        -        count = (targets != -100).sum()
        -        dist.all_reduce(count, group=self.mesh.dp.group)
        +        if not hasattr(self, "count"):
        +            self.count = (targets != -100).sum()
        +            dist.all_reduce(self.count, group=self.mesh.dp.group)
        +        count = self.count
    """),
    WrongAnswer(
        "its_own_loss", "returns the part of the loss that its own targets give",
        check="the_loss_is_that_of_one_process", says="the loss on rank 0 is", look="one sum and one count", edit="""
        -        dist.all_reduce(total, group=self.mesh.dp.group)
    """),
    WrongAnswer(
        "loss_over_all_ranks", "adds up the loss over all ranks, peers on tp included",
        check="the_loss_is_that_of_one_process", says="(dp 1 x tp 2): in step 1 the loss on rank 0", edit="""
        -        dist.all_reduce(total, group=self.mesh.dp.group)
        +        dist.all_reduce(total)
    """),
    WrongAnswer(
        "windows_of_one_rank", "saves how many windows one rank has read, as the script does",
        check="it_resumes_where_it_stopped", says="in step 4, after a stop and on dp 2 x tp 1, the replicas read",
        look="neither windows of one rank", edit="""
        -        first = self.read + self.mesh.dp.rank * own
        -        self.read += self.per_update
        +        first = self.read * self.mesh.dp.size + self.mesh.dp.rank * own
        +        self.read += own
    """),
    WrongAnswer(
        "another_rate", "saves the size of dp, and scales the learning rate when it changes",
        check="it_resumes_where_it_stopped", says="away from its part of one process", look="what load_state_dict changes",
        edit="""
        -        return {"read": self.read}
        +        return {"read": self.read, "dp": self.mesh.dp.size}
        @@
        -        self.read = state["read"]
        +        self.read = state["read"]
        +        for group in self.optimizer.param_groups:
        +            group["lr"] *= state["dp"] / self.mesh.dp.size
    """),
    WrongAnswer(
        "averaged_over_tp_as_well", "averages gradients of whole weights over tp, where they are equal already",
        check="each_gradient_is_sent_once", says="in 6 steps", look="no sum is needed", edit="""
                 for parameter in self.model.parameters():
                     dist.all_reduce(parameter.grad, group=self.mesh.dp.group)
        +            if parameter.shape[0] == self.model.out.out_features:
        +                dist.all_reduce(parameter.grad, group=self.mesh.tp.group)
        +                parameter.grad /= self.mesh.tp.size
    """),
    WrongAnswer(
        "agreed_once_more", "adds up the gradients over dp, and sends the first replica's sum to the others",
        check="each_gradient_is_sent_once", says="in 6 steps", look="how often a gradient goes over dp", edit="""
                 for parameter in self.model.parameters():
                     dist.all_reduce(parameter.grad, group=self.mesh.dp.group)
        +            dist.broadcast(parameter.grad, dist.get_global_rank(self.mesh.dp.group, 0), group=self.mesh.dp.group)
    """),
    RightAnswer(
        "counts_steps", "saves the number of steps, sums the gradients in one message and divides them afterwards", text='''
        import torch
        import torch.distributed as dist
        import torch.nn.functional as F


        class Training:
            def __init__(self, model, optimizer, data, mesh, per_update):
                self.model, self.optimizer, self.data, self.dp = model, optimizer, data, mesh.dp
                self.per_update, self.done = per_update, 0

            def step(self):
                windows = range(self.done * self.per_update, (self.done + 1) * self.per_update)
                inputs, targets = self.data(list(windows)[self.dp.rank :: self.dp.size])
                self.done += 1
                self.optimizer.zero_grad()
                loss = F.cross_entropy(self.model(inputs).transpose(1, 2), targets, reduction="sum")
                loss.backward()
                parameters = [parameter for parameter in self.model.parameters() if parameter.grad is not None]
                flat = torch.cat([parameter.grad.flatten() for parameter in parameters]
                                 + [loss.detach()[None], (targets >= 0).sum()[None].to(loss.dtype)])
                dist.all_reduce(flat, group=self.dp.group)
                flat[:-1] /= flat[-1].clone()
                for parameter, gradient in zip(parameters, flat.split([p.numel() for p in parameters] + [2])):
                    parameter.grad = gradient.view_as(parameter)
                self.optimizer.step()
                return flat[-2]

            def state_dict(self):
                return {"steps": self.done}

            def load_state_dict(self, state):
                self.done = state["steps"]
    '''),
)
