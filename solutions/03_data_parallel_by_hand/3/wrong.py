"""Wrong and right answers to question 03.3; ddp_course/authoring/answers.py says how to read them."""

from ddp_course.authoring.answers import RightAnswer, WrongAnswer

ANSWERS = (
    WrongAnswer(
        "after_backward", "packs buckets in the hooks, and starts the all-reduces when backward has ended",
        check="sends_during_backward", says="started its first message after backward had ended", edit="""
        -        for handle, flat, bucket in self.in_flight:
        +        started = [(dist.all_reduce(flat, async_op=True), flat, bucket) for flat, bucket in self.in_flight]
        +        for handle, flat, bucket in started:
        @@
        -            self.in_flight.append((dist.all_reduce(flat, async_op=True), flat, bucket))
        +            self.in_flight.append((flat, bucket))
    """),
    WrongAnswer(
        "always_talks", "no_sync does nothing: right gradients, three times the messages",
        check="silent_under_no_sync", says="under no_sync()", edit="""
        -        self.require_sync = False
        @@
                     bucket = self.buckets[number]
        +            for message in [message for message in self.in_flight if message[2] is bucket]:  # of the micro-batch before
        +                self.in_flight.remove(message)
        +            self.missing[number] = len(bucket)
    """),
    WrongAnswer(
        "empty_first_bucket", "keeps an empty bucket before a parameter that is larger than a bucket",
        state="crashed", check="raises", says="smaller than any gradient): rank", edit="""
        -        self.buckets, size = [], float("inf")
        +        self.buckets, size = [[]], 0
        @@
        -        self.in_flight = []
        +        self.in_flight = [None] * len(self.buckets)
        @@
        -            self.in_flight.append((dist.all_reduce(flat, async_op=True), flat, bucket))
        +            self.in_flight[number] = (dist.all_reduce(flat, async_op=True), flat, bucket)
    """),
    WrongAnswer(
        "floats_only", "broadcasts floating-point tensors only",
        check="starts_as_rank_0", says="after construction count on rank 1 is", edit="""
        -            dist.broadcast(tensor.detach(), src=0)
        +            if tensor.is_floating_point():
        +                dist.broadcast(tensor.detach(), src=0)
    """),
    WrongAnswer(
        "gathers_and_adds_its_own_first", "gathers all gradients, and each rank adds them in an order of its own",
        check="replicas_agree", says="are not bit for bit rank 0's",
        edit="""
        -        for handle, flat, bucket in self.in_flight:
        +        for handle, parts, bucket in self.in_flight:
        @@
        -            flat /= dist.get_world_size()
        +            rank, world = dist.get_rank(), dist.get_world_size()
        +            flat = sum(parts[(rank + k) % world] for k in range(world)) / world
        @@
        -            self.in_flight.append((dist.all_reduce(flat, async_op=True), flat, bucket))
        +            parts = [torch.empty_like(flat) for _ in range(dist.get_world_size())]
        +            self.in_flight.append((dist.all_gather(parts, flat, async_op=True), parts, bucket))
    """),
    WrongAnswer(
        "gathers_every_gradient", "all-gathers the gradients of all ranks where their sum is enough",
        check="bytes_of_an_all_reduce", says="with all_gather rank 0 sends 393 kB for 131 kB of gradients",
        edit="""
        -        for handle, flat, bucket in self.in_flight:
        +        for handle, parts, bucket in self.in_flight:
        @@
        -            flat /= dist.get_world_size()
        +            flat = torch.stack(parts).mean(0)
        @@
        -            self.in_flight.append((dist.all_reduce(flat, async_op=True), flat, bucket))
        +            parts = [torch.empty_like(flat) for _ in range(dist.get_world_size())]
        +            self.in_flight.append((dist.all_gather(parts, flat, async_op=True), parts, bucket))
    """),
    WrongAnswer(
        "hook_on_the_incoming_gradient",
        "averages only what the last backward adds: what no_sync has left in .grad stays different on every rank",
        check="equals_one_process", says="step 2 (3 micro-batches): the gradient of", text="""
        from contextlib import contextmanager

        import torch
        import torch.distributed as dist
        from torch import nn


        class BucketedDataParallel(nn.Module):
            def __init__(self, module, bucket_megabytes=25.0):
                super().__init__()
                self.module, self.require_sync, self.in_flight = module, True, []
                for tensor in [*module.parameters(), *module.buffers()]:
                    dist.broadcast(tensor.detach(), src=0)
                self.buckets, size = [], float("inf")
                for parameter in reversed([p for p in module.parameters() if p.requires_grad]):
                    size += parameter.nbytes
                    if size > bucket_megabytes * 2**20:
                        self.buckets.append([])
                        size = parameter.nbytes
                    self.buckets[-1].append(parameter)
                    bucket = self.buckets[-1]
                    parameter.register_hook(lambda gradient, p=parameter, b=bucket: self.gradient_comes(p, b, gradient))
                self.new = {}

            def forward(self, *args, **kwargs):
                return self.module(*args, **kwargs)

            @contextmanager
            def no_sync(self):
                self.require_sync = False
                try:
                    yield
                finally:
                    self.require_sync = True

            def gradient_comes(self, parameter, bucket, gradient):
                if not self.require_sync:
                    return None
                self.new[parameter] = gradient
                if all(p in self.new for p in bucket):
                    flat = torch.cat([self.new[p].flatten() for p in bucket]) / dist.get_world_size()
                    self.in_flight.append((dist.all_reduce(flat, async_op=True), flat, bucket))
                return None

            def finish_gradient_synchronization(self):
                for handle, flat, bucket in self.in_flight:
                    handle.wait()
                    for p, piece in zip(bucket, flat.split([p.numel() for p in bucket]), strict=True):
                        p.grad += piece.view_as(p) - self.new[p]  # the own share goes, the mean comes
                self.in_flight, self.new = [], {}
    """),
    WrongAnswer(
        "hooks_frozen_parameters", "registers its hook on frozen parameters too",
        state="crashed", check="raises",
        says="cannot register a hook on a tensor that doesn't require gradient", edit="""
        -        for parameter in reversed([p for p in module.parameters() if p.requires_grad]):  # backward starts at the end
        +        for parameter in reversed(list(module.parameters())):
    """),
    WrongAnswer(
        "imports_the_class", "hands over the class of the course's package",
        check="built_by_hand", says="called by no line of your file", text="""
        from ddp_course.distributed.by_hand import BucketedDataParallel  # noqa: F401
    """),
    WrongAnswer(
        "no_broadcast", "trusts that every rank has built the same model",
        check="starts_as_rank_0", says="after construction embedding.weight on rank 1 is", edit="""
        -        for tensor in [*module.parameters(), *module.buffers()]:
        -            dist.broadcast(tensor.detach(), src=0)
    """),
    WrongAnswer(
        "one_bucket", "packs all gradients into one message, whatever their size",
        check="messages_fit_a_bucket", says="a bucket holds 40,960", edit="""
        -            if size > bucket_megabytes * 2**20:
        +            if not self.buckets:
    """),
    WrongAnswer(
        "one_message_for_each_parameter", "overlaps, but sends every gradient in a message of its own",
        check="few_messages", says="started 8 messages in a step; 5 are allowed", on="one_bucket", edit="""
        -            if not self.buckets:
        -                self.buckets.append([])
        -                size = parameter.nbytes
        +            self.buckets.append([])
    """),
    WrongAnswer(
        "plain_ddp", "wraps the model in torch's DistributedDataParallel",
        check="built_by_hand", says="built torch's DistributedDataParallel", text="""
        from torch import nn
        from torch.nn.parallel import DistributedDataParallel


        class BucketedDataParallel(nn.Module):
            def __init__(self, module, bucket_megabytes=25.0):
                super().__init__()
                self.ddp = DistributedDataParallel(module, bucket_cap_mb=bucket_megabytes)
                self.module = module

            def forward(self, *args, **kwargs):
                return self.ddp(*args, **kwargs)

            def no_sync(self):
                return self.ddp.no_sync()

            def finish_gradient_synchronization(self):
                pass
    """),
    WrongAnswer(
        "stays_silent_after_an_exception", "turns sending on again only where no exception leaves no_sync",
        check="equals_one_process_after_an_exception", says="step 4 (1 micro-batch): the gradient of",
        look="is it reached", edit="""
        -        try:
        -            yield
        -        finally:
        -            self.require_sync = True
        +        yield
        +        self.require_sync = True
    """),
    WrongAnswer(  # notebook 03 says that this answer is tried
        "does_not_wait", "copies the buckets out without waiting for them",
        check="equals_one_process", says="the gradient", edit="""
        -        for handle, flat, bucket in self.in_flight:
        -            handle.wait()
        +        for _, flat, bucket in self.in_flight:
    """),
    WrongAnswer(
        "waits_in_the_hook", "calls the all-reduce in the hook without async_op: backward waits until it is done",
        check="sends_during_backward", says="waited in backward until rank 1",
        edit="""
        -        for handle, flat, bucket in self.in_flight:
        -            handle.wait()
        +        for flat, bucket in self.in_flight:
        @@
        -            self.in_flight.append((dist.all_reduce(flat, async_op=True), flat, bucket))
        +            dist.all_reduce(flat)
        +            self.in_flight.append((flat, bucket))
    """),
    WrongAnswer(
        "a_tenth_too_large", "reads a megabyte as 1.1 million bytes, so that a bucket holds more than it may",
        check="messages_fit_a_bucket", says="bytes to one all_reduce", edit="""
        -            if size > bucket_megabytes * 2**20:
        +            if size > bucket_megabytes * 1.1e6:
    """),
    RightAnswer(
        "a_communication_thread", "a thread calls blocking all-reduces; the class is no nn.Module",
        text='''
        import queue
        import threading
        from contextlib import contextmanager

        import torch
        import torch.distributed as dist


        class BucketedDataParallel:
            """No nn.Module; a thread of ours does the talking, with blocking calls, so backward need not wait."""

            def __init__(self, module, bucket_megabytes=25.0):
                self.module, self.quiet = module, False
                with torch.no_grad():
                    for tensor in [*module.parameters(), *module.buffers()]:
                        dist.broadcast(tensor, src=0)
                self.group = dist.new_group()
                groups, room = [], 0
                for parameter in list(module.parameters())[::-1]:
                    if not parameter.requires_grad:
                        continue
                    if parameter.nbytes > room:
                        groups.append([])
                        room = bucket_megabytes * 1024 * 1024
                    groups[-1].append(parameter)
                    room -= parameter.nbytes
                    parameter.register_post_accumulate_grad_hook(self.on_gradient)
                self.groups, self.counts = groups, [0] * len(groups)
                self.group_of = {p: index for index, group in enumerate(groups) for p in group}
                self.to_send = queue.Queue()
                threading.Thread(target=self.talk, daemon=True).start()

            def __call__(self, *args):
                return self.module(*args)

            @contextmanager
            def no_sync(self):
                self.quiet = True
                try:
                    yield
                finally:
                    self.quiet = False

            def on_gradient(self, parameter):
                if self.quiet:
                    return
                index = self.group_of[parameter]
                self.counts[index] += 1
                if self.counts[index] == len(self.groups[index]):
                    self.counts[index] = 0
                    flat = torch.nn.utils.parameters_to_vector([p.grad for p in self.groups[index]])
                    self.to_send.put((flat, self.groups[index]))

            def talk(self):
                world = dist.get_world_size()
                while True:
                    flat, group = self.to_send.get()
                    if world > 1:
                        dist.all_reduce(flat, group=self.group)
                    mean = flat / world
                    for parameter in group:
                        parameter.grad.copy_(mean[: parameter.numel()].view_as(parameter))
                        mean = mean[parameter.numel() :]
                    self.to_send.task_done()

            def finish_gradient_synchronization(self):
                self.to_send.join()
    '''),
    RightAnswer(
        "an_order_learned_in_the_first_step",
        "the first step is sent after backward and teaches the order; gradients then live in the flat tensors",
        text='''
        import contextlib

        import torch
        import torch.distributed as dist
        from torch import nn


        class BucketedDataParallel(nn.Module):
            """The first synchronized backward tells in which order gradients come; buckets are filled in that order."""

            def __init__(self, module, bucket_megabytes=25.0):
                super().__init__()
                self.module, self.room = module, int(bucket_megabytes * 2**20)
                for tensor in list(module.parameters()) + list(module.buffers()):
                    dist.broadcast(tensor.data, 0)
                self.came, self.plan, self.sync = [], None, True
                self.handles = []
                for parameter in module.parameters():
                    if parameter.requires_grad:
                        parameter.register_post_accumulate_grad_hook(self.hook)

            def forward(self, x):
                self.came = []
                return self.module(x)

            @contextlib.contextmanager
            def no_sync(self):
                self.sync = False
                try:
                    yield
                finally:
                    self.sync = True

            def hook(self, parameter):
                if self.sync:
                    self.came.append(parameter)
                    if self.plan and len(self.came) == self.plan[len(self.handles)]:
                        self.send(self.came[sum(map(len, (b for _, _, b in self.handles))) :])

            def send(self, bucket):
                flat = torch.cat([p.grad.reshape(-1) for p in bucket]).div_(dist.get_world_size())
                self.handles.append((dist.all_reduce(flat, async_op=True), flat, bucket))

            def finish_gradient_synchronization(self):
                if self.plan is None:
                    self.plan, used, buckets = [], 0, [[]]
                    for number, parameter in enumerate(self.came):
                        if used + parameter.nbytes > self.room and buckets[-1]:
                            self.plan.append(number)
                            buckets.append([])
                            used = 0
                        buckets[-1].append(parameter)
                        used += parameter.nbytes
                    self.plan.append(len(self.came))
                    for bucket in buckets:
                        self.send(bucket)
                for handle, flat, bucket in self.handles:
                    handle.wait()
                    start = 0
                    for parameter in bucket:
                        parameter.grad = flat[start : start + parameter.numel()].view(parameter.shape)
                        start += parameter.numel()
                self.handles = []
    '''),
    RightAnswer(
        "futures", "chains the copying back to the future of each message",
        edit="""
        -        for handle, flat, bucket in self.in_flight:
        -            handle.wait()
        -            flat /= dist.get_world_size()
        -            for parameter, piece in zip(bucket, flat.split([p.numel() for p in bucket]), strict=True):
        -                parameter.grad.copy_(piece.view_as(parameter))
        +        torch.futures.wait_all(self.in_flight)
        @@
        -            self.in_flight.append((dist.all_reduce(flat, async_op=True), flat, bucket))
        +
        +            def copy_back(done):
        +                mean = done.value()[0] / dist.get_world_size()
        +                for parameter, chunk in zip(bucket, mean.split([p.numel() for p in bucket]), strict=True):
        +                    parameter.grad.copy_(chunk.view_as(parameter))
        +
        +            self.in_flight.append(dist.all_reduce(flat, async_op=True).get_future().then(copy_back))
    """),
)
