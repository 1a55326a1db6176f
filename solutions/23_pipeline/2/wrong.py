"""Wrong and right answers to question 23.2; ddp_course/authoring/answers.py says how to read them."""

from ddp_course.authoring.answers import RightAnswer, WrongAnswer

ANSWERS = (
    WrongAnswer(
        "one_micro_batch", "sends the batch as one micro-batch, for which torch's own mean is right",
        check="the_batch_is_cut", says="rank 0 called its stage with [8] windows in the last step",
        look="how many micro-batches the schedule gets", edit="""
        -from torch.distributed.pipelining import PipelineStage, Schedule1F1B
        +from torch.distributed.pipelining import PipelineStage, ScheduleGPipe
        @@
        -        self.schedule = Schedule1F1B(piped, micro_batches, loss_fn=self.loss, scale_grads=False)
        +        self.schedule = ScheduleGPipe(piped, 1, loss_fn=self.loss, scale_grads=False)
    """),
    WrongAnswer(
        "divided_twice", "divides the sum by all targets, and lets the schedule divide by the micro-batches as well",
        check="every_target_counts_the_same", says="(no padding): after the first step a layer of rank 0",
        look="how often a gradient is divided", edit="""
        -        self.schedule = Schedule1F1B(piped, micro_batches, loss_fn=self.loss, scale_grads=False)
        +        self.schedule = Schedule1F1B(piped, micro_batches, loss_fn=self.loss)
    """),
    WrongAnswer(
        "a_plain_zero", "returns a zero where a micro-batch has no target, and backward finds no graph behind it",
        state="crashed", check="raises", says="with 2 ranks (padded): rank 1 raised RuntimeError", edit="""
        -        return F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="sum") / self.count
        +        if (targets == -100).all():
        +            return torch.zeros(())
        +        return F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="sum") / self.count
    """),
    WrongAnswer(
        "padding_counts_too", "divides by the number of all tokens, padding included",
        check="every_target_counts_the_same", says="(padded): after the first step", look="a mean of means", edit="""
        -        self.count = (targets != -100).sum()
        +        self.count = targets.numel()
    """),
    WrongAnswer(
        "two_tables", "repairs the loss only",
        check="both_copies_get_the_whole_gradient", says="(no padding): after the first step the table of rank 0",
        look="in one process the table gets", edit="""
        -        if self.rank in (0, self.ranks - 1):
        -            dist.all_reduce(self.stage.table.grad, group=self.ends)
    """),
    WrongAnswer(
        "the_average_of_both_tables", "averages two tables that took twice their own gradient: right for SGD, not for Adam",
        check="both_copies_get_the_whole_gradient", says="(padded, Adam): after the first step the table", edit="""
        -        if self.rank in (0, self.ranks - 1):
        -            dist.all_reduce(self.stage.table.grad, group=self.ends)
        -        self.optimizer.step()
        +        if self.stage.table is None:
        +            return self.optimizer.step()
        +        self.stage.table.grad *= 2
        +        self.optimizer.step()
        +        dist.all_reduce(self.stage.table.data, op=dist.ReduceOp.AVG, group=self.ends)
    """),
    WrongAnswer(
        "the_first_batchs_count", "counts the targets once, in the first batch",
        check="it_learns_as_one_process_does", says="(padded): after step 1", look="how many targets it has", edit="""
        -        self.count = (targets != -100).sum()
        +        self.count = getattr(self, "count", None) or (targets != -100).sum()
    """),
    WrongAnswer(
        "gradients_of_all_batches", "never zeroes the gradients",
        check="it_learns_as_one_process_does", says="(no padding): after step 1", look="and its gradients", edit="""
        -        self.optimizer.zero_grad()
    """),
    WrongAnswer(
        "gradient_and_table", "adds up the gradients, and broadcasts the table as well",
        check="only_the_ends_send_the_table", says="rank 0 handed", look="its gradient, once", edit="""
        -        self.optimizer.step()
        +        self.optimizer.step()
        +        if self.rank in (0, self.ranks - 1):
        +            dist.broadcast(self.stage.table.data, src=0, group=self.ends)
    """),
    WrongAnswer(
        "counts_by_message", "all-reduces the number of targets, which each rank can count",
        check="only_the_ends_send_the_table", says="rank 1, between the ends, took part in all_reduce",
        look="can count its targets", edit="""
        -        self.count = (targets != -100).sum()
        +        self.count = (targets != -100).sum()
        +        dist.all_reduce(self.count, op=dist.ReduceOp.MAX)
    """),
    RightAnswer(
        "sent_by_hand",
        "another schedule, a loss multiplied by what the schedule divides by, and the two gradients sent from end to end",
        text='''
        import torch
        import torch.distributed as dist
        import torch.nn.functional as F
        from torch.distributed.pipelining import PipelineStage, ScheduleGPipe


        class Pipeline:
            def __init__(self, stage, optimizer, micro_batches):
                self.rank, self.ranks = dist.get_rank(), dist.get_world_size()
                self.stage, self.optimizer, self.micro_batches = stage, optimizer, micro_batches
                self.schedule = ScheduleGPipe(
                    PipelineStage(stage, self.rank, self.ranks, torch.device("cpu")), micro_batches, loss_fn=self.loss
                )

            def loss(self, logits, targets):
                per_token = F.cross_entropy(logits.transpose(1, 2), targets, reduction="none", ignore_index=-100)
                return per_token.sum() * (self.micro_batches / self.count)

            def step(self, inputs, targets):
                self.count = max(1, int((targets >= 0).sum()))
                first, last = self.rank == 0, self.rank == self.ranks - 1
                if first:
                    self.schedule.step(inputs)
                elif last:
                    self.schedule.step(target=targets)
                else:
                    self.schedule.step()
                if first or last:
                    own = self.stage.table.grad
                    other = torch.empty_like(own)
                    peer = self.ranks - 1 if first else 0
                    send = dist.isend(own.clone(), peer)
                    dist.recv(other, peer)
                    send.wait()
                    own += other
                self.optimizer.step()
                self.optimizer.zero_grad(set_to_none=True)
    '''),
)
