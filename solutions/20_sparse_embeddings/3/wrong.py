"""Wrong and right answers to question 20.3; ddp_course/authoring/answers.py says how to read them."""

from ddp_course.authoring.answers import RightAnswer, WrongAnswer

ANSWERS = (
    WrongAnswer(
        "all_reduces_a_dense_gradient", "sums in a tensor as large as the table and all-reduces it",
        check="traffic_is_that_of_the_batch", says="to one all_reduce", edit="""
        -        ids, gradients = all_gathered_rows(torch.cat(ids)), all_gathered_rows(torch.cat(gradients))
        -        rows, positions = ids.unique(return_inverse=True)
        -        total = gradients.new_zeros(len(rows), gradients.shape[1]).index_add_(0, positions, gradients)
        +        ids, gradients = torch.cat(ids), torch.cat(gradients)
        +        dense = torch.zeros_like(self.table).index_add_(0, ids, gradients)
        +        dist.all_reduce(dense)
        +        rows = all_gathered_rows(ids).unique()
        +        total = dense[rows]
    """),
    WrongAnswer(
        "gathers_unlike_shapes", "gathers ids and gradients as if all ranks had equally many",
        state="crashed", check="dies", says="all_gather", edit="""
        -    count = torch.tensor([len(rows)])
        -    counts = [torch.empty_like(count) for _ in range(dist.get_world_size())]
        -    dist.all_gather(counts, count)
        -    padded = rows.new_zeros(int(max(counts)), *rows.shape[1:])
        -    padded[: len(rows)] = rows
        -    received = [torch.empty_like(padded) for _ in counts]
        -    dist.all_gather(received, padded)
        -    return torch.cat([part[: int(count)] for part, count in zip(received, counts, strict=True)])
        +    received = [torch.empty_like(rows) for _ in range(dist.get_world_size())]
        +    dist.all_gather(received, rows)
        +    return torch.cat(received)
    """),
    WrongAnswer(
        "its_own_first", "each rank puts its own gradients before those of the others",
        check="replicas_agree", says="learning rates apart", edit="""
             dist.all_gather(received, padded)
        +    rank = dist.get_rank()
        +    received.insert(0, received.pop(rank))
        +    counts.insert(0, counts.pop(rank))
    """),
    WrongAnswer(
        "marks_rows_in_a_mask", "sends little, and finds the used rows by a mask over all rows of the table",
        check="work_is_that_of_the_batch", says="made a tensor of", edit="""
        -        rows, positions = ids.unique(return_inverse=True)
        +        mask = torch.zeros(len(self.table), dtype=torch.bool)
        +        mask[ids] = True
        +        rows = mask.nonzero().flatten()
        +        positions = torch.searchsorted(rows, ids)
    """),
    WrongAnswer(
        "no_decay", "forgets the weight decay",
        check="equals_one_process", says="after step 1 row", edit="""
        -        self.table[rows] = self.table[rows] * (1 - self.lr * self.weight_decay) - self.lr * total.sign()
        +        self.table[rows] = self.table[rows] - self.lr * total.sign()
    """),
    WrongAnswer(
        "nothing_to_do", "a rank without gradients returns from step at once",
        state="crashed", check="dies", says="all_gather", edit="""
        +        if len(ids) == 1:
        +            return
                 ids, gradients = all_gathered_rows(torch.cat(ids)), all_gathered_rows(torch.cat(gradients))
    """),
    WrongAnswer(
        "padding_decays_row_0", "does not cut off the padding, which decays row 0",
        check="only_used_rows_move", says="moved row 0", edit="""
        -    return torch.cat([part[: int(count)] for part, count in zip(received, counts, strict=True)])
        +    return torch.cat(received)
    """),
    WrongAnswer(
        "remembers_all_steps", "never forgets the rows of older steps",
        check="only_used_rows_move", says="step 2 moved row", edit="""
                         gradients.append(vectors.grad)
        -        self.used = []
    """),
    WrongAnswer(
        "returns_each_row_once", "returns one vector for each different id",
        check="it_returns_the_rows", says="got vectors of shape (2, 3)", edit='''
                 """The rows of `ids` (n,): (n, width), through which autograd can go back."""
        +        ids = ids.unique()
    '''),
    WrongAnswer(
        "sums_in_a_dense_tensor", "sends little, and sums duplicates in a tensor as large as the table",
        check="work_is_that_of_the_batch", says="made a tensor of 1,920,000 bytes", edit="""
        -        rows, positions = ids.unique(return_inverse=True)
        -        total = gradients.new_zeros(len(rows), gradients.shape[1]).index_add_(0, positions, gradients)
        +        rows = ids.unique()
        +        total = torch.zeros_like(self.table).index_add_(0, ids, gradients)[rows]
    """),
    WrongAnswer(
        "the_last_duplicate_wins", "assigns gradients of the same row instead of adding them",
        check="equals_one_process", says="rows that occur more than once", edit="""
        -        total = gradients.new_zeros(len(rows), gradients.shape[1]).index_add_(0, positions, gradients)
        +        total = torch.zeros(len(rows), gradients.shape[1], dtype=gradients.dtype)
        +        total[positions] = gradients
    """),
    RightAnswer(
        "a_sparse_gradient",
        "torch's own embedding with sparse gradients, gathered as coalesced pairs, rank by rank with broadcast",
        text="""
        import torch
        import torch.distributed as dist
        from torch import nn


        class SparseTable:
            def __init__(self, table, lr, weight_decay):
                self.weight = nn.Parameter(table.clone())
                self.lr, self.weight_decay = lr, weight_decay

            @property
            def table(self):
                return self.weight.data

            def __call__(self, ids):
                return nn.functional.embedding(ids, self.weight, sparse=True)

            def step(self):
                width, gradient = self.weight.shape[1], self.weight.grad
                self.weight.grad = None
                ids, values = torch.empty(0, dtype=torch.int64), self.table.new_empty(0, width)
                if gradient is not None:
                    ids, values = gradient._indices()[0], gradient._values()
                sums = {}
                for source in range(dist.get_world_size()):
                    count = torch.tensor(len(ids))
                    dist.broadcast(count, source)
                    own = source == dist.get_rank()
                    their_ids = ids.clone() if own else torch.empty(int(count), dtype=torch.int64)
                    their_values = values.contiguous() if own else torch.empty(int(count), width, dtype=self.table.dtype)
                    if count:
                        dist.broadcast(their_ids, source)
                        dist.broadcast(their_values, source)
                    for row, value in zip(their_ids.tolist(), their_values, strict=True):
                        sums[row] = sums[row] + value if row in sums else value.clone()
                for row, total in sums.items():
                    self.table[row] = self.table[row] * (1 - self.lr * self.weight_decay) - self.lr * total.sign()
    """),
    RightAnswer(
        "gathers_objects",
        "hooks collect the gradients by row in a dictionary; one gather_object; rank 0 adds up and broadcasts the signs",
        text="""
        import torch
        import torch.distributed as dist


        class SparseTable(torch.nn.Module):
            def __init__(self, table, lr, weight_decay):
                super().__init__()
                self.table = table
                self.keep, self.lr = 1 - lr * weight_decay, lr
                self.gradients = {}

            def forward(self, ids):
                vectors = self.table[ids].clone()
                if torch.is_grad_enabled():
                    vectors.requires_grad_().register_hook(lambda gradient: self.collect(ids, gradient))
                return vectors

            def collect(self, ids, gradient):
                for row, part in zip(ids.tolist(), gradient, strict=True):
                    self.gradients[row] = self.gradients.get(row, 0) + part

            def step(self):
                own = {row: gradient.tolist() for row, gradient in self.gradients.items()}
                all_gathered = [None] * dist.get_world_size()
                dist.gather_object(own, all_gathered if dist.get_rank() == 0 else None)
                signs = [{}]
                if dist.get_rank() == 0:
                    for row in {row for part in all_gathered for row in part}:
                        gradients = [torch.tensor(part[row], dtype=self.table.dtype) for part in all_gathered if row in part]
                        signs[0][row] = sum(gradients).sign().tolist()
                dist.broadcast_object_list(signs)
                with torch.no_grad():
                    for row, sign in signs[0].items():
                        self.table[row] = self.table[row] * self.keep - self.lr * self.table.new_tensor(sign)
                self.gradients = {}
    """),
)
