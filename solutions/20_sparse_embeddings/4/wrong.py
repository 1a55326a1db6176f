"""Wrong and right answers to question 20.4; ddp_course/authoring/answers.py says how to read them."""

from ddp_course.authoring.answers import RightAnswer, WrongAnswer

ANSWERS = (
    WrongAnswer("even_cut", "cuts evenly", state="crashed", check="raises", says="index", edit="""
    -        self.sent = torch.searchsorted(ids, torch.tensor(self.bounds)).diff().tolist()
    +        size = -(-self.bounds[-1] // dist.get_world_size())
    +        self.sent = (ids // size).bincount(minlength=dist.get_world_size()).tolist()
    """),
    WrongAnswer("unsorted", "returns the rows by owner", check="lookup_returns_the_rows", says="[1, 5, 3]", edit="""
    -        return exchange(self.shard[self.asked], self.received, self.sent)[self.position]
    +        return exchange(self.shard[self.asked], self.received, self.sent)
    """),
    WrongAnswer("forgets", "lets accumulators decay", check="only_used_rows_move", says="rows [1, 3, 5]", edit="""
    +        self.accumulator *= 0.9
             self.accumulator[rows] += total.square().mean(dim=1)
    """),
    WrongAnswer("squares_first", "squares, then sums", check="equals_one_process", says="accumulator of row 1", edit="""
    -        self.accumulator[rows] += total.square().mean(dim=1)
    +        self.accumulator.index_add_(0, self.asked, arrived.square().mean(dim=1))
    """),
    WrongAnswer("last_rank_wins", "keeps one rank's moves", check="equals_one_process", says="step 0 row", edit="""
    -        self.shard[rows] -= self.lr * total / (self.accumulator[rows].sqrt() + 1e-8)[:, None]
    +        self.shard[self.asked] -= self.lr * arrived / (self.accumulator[self.asked].sqrt() + 1e-8)[:, None]
    """),
    WrongAnswer("each_id", "sends repeated ids", check="little_is_sent", says="to all_to_all for 200", edit="""
    -        ids, self.position = ids.unique(return_inverse=True)  # sorted, so those of one owner stand together
    +        ids, order = ids.sort()
    +        self.position = order.argsort()
    """),
    WrongAnswer("gathers_ids", "sends all ranks its ids", check="little_is_sent", says="to all_gather for 200", edit="""
    -        each = [1] * len(self.sent)
    -        self.received = exchange(torch.tensor(self.sent), each, each).tolist()
    -        self.asked = exchange(ids, self.sent, self.received) - self.bounds[dist.get_rank()]
    +        dist.all_gather_object(by_rank := [None] * len(self.sent), ids.tolist())
    +        start, end = self.bounds[dist.get_rank() :][:2]
    +        asked = [[row - start for row in ids if start <= row < end] for ids in by_rank]
    +        self.received = [len(rows) for rows in asked]
    +        self.asked = torch.tensor(sum(asked, []), dtype=torch.int64)
    """),
    WrongAnswer("absent", "an empty batch returns at once", state="crashed", check="dies", says="all_to_all", edit="""
    +        if len(gradients) == 0:
    +            return
             own = gradients.new_zeros(sum(self.sent), gradients.shape[1]).index_add_(0, self.position, gradients)
    """),
    RightAnswer("point_to_point", "sends and receives in place of all-to-all", edit="""
    -    dist.all_to_all_single(arrived, values, received, sent)
    +    works, parts = [], arrived.split(received)
    +    for other, part in enumerate(values.split(sent)):
    +        if other == dist.get_rank():
    +            parts[other].copy_(part)
    +        else:
    +            works += [dist.isend(part, other), dist.irecv(parts[other], other)]
    +    for work in works:
    +        work.wait()
    """),
)
