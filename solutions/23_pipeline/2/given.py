"""A small language model in a pipeline. Its first stage embeds with a table, its last one computes logits with it."""

import torch
import torch.distributed as dist
import torch.distributed.nn  # noqa: F401 (before there is a group)
import torch.nn.functional as F
from torch import nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B

VOCABULARY, WIDTH, LENGTH, STEPS = 64, 16, 8, 20


class Pipeline:
    """Trains a model of one stage per rank. stage.table: the copy of the table, on the first and on the last rank."""

    def __init__(self, stage, optimizer, micro_batches):
        self.rank, self.ranks = dist.get_rank(), dist.get_world_size()
        self.stage, self.optimizer = stage, optimizer
        piped = PipelineStage(stage, self.rank, self.ranks, torch.device("cpu"))
        self.schedule = Schedule1F1B(piped, micro_batches, loss_fn=self.loss)

    def loss(self, logits, targets):
        """The mean loss of a micro-batch; a target of -100 is padding."""
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=-100)

    def step(self, inputs, targets):
        """One step with the whole batch, which every rank has."""
        self.optimizer.zero_grad()
        own = {"target": targets} if self.rank == self.ranks - 1 else {}
        self.schedule.step(*[inputs] * (self.rank == 0), return_outputs=False, **own)
        self.optimizer.step()


class Stage(nn.Module):
    def __init__(self, layers, table, first, last):
        super().__init__()
        self.layers, self.first, self.last = layers, first, last
        self.table = table if first or last else None

    def forward(self, x):
        x = F.embedding(x, self.table) if self.first else x
        for layer in self.layers:
            x = x + torch.tanh(layer(x))
        return F.linear(x, self.table) if self.last else x


def batch(step):
    """16 windows that begin with a token and count on; the longer ones are filled with targets, the others padded."""
    generator = torch.Generator().manual_seed(step)
    tokens = (torch.randint(VOCABULARY, (16, 1), generator=generator) + torch.arange(LENGTH + 1)) % VOCABULARY
    inputs, targets = tokens[:, :-1].contiguous(), tokens[:, 1:].clone()
    lengths = torch.randint(1, LENGTH + 1, (16, 1), generator=generator).sort(dim=0).values
    targets[torch.arange(LENGTH) >= lengths] = -100
    return inputs, targets


def train():
    rank, ranks = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(1)
    table = nn.Parameter(torch.randn(VOCABULARY, WIDTH) / WIDTH**0.5)
    layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(ranks))
    stage = Stage(layers[rank : rank + 1], table, rank == 0, rank == ranks - 1)
    pipeline = Pipeline(stage, torch.optim.SGD(stage.parameters(), lr=0.5), micro_batches=4)
    for step in range(STEPS):
        pipeline.step(*batch(step))
    print(f"norm of the table {stage.table.norm():.4f}, its first numbers {stage.table[0, :2].tolist()}", flush=True)


def main():
    dist.init_process_group("gloo")
    train()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
