"""Our trainer and a loop written as nanoGPT's is, two updates each in turns in one process, or on two ranks.

    [torchrun --nproc-per-node=2] tests/benchmarks/beside_nanogpt.py --precision float32 --updates 12

Ours is `minigpt_ddp.train`, whole: after every two of its updates the other loop makes two of its own, in float32, on
the same number of windows. The other loop does what nanoGPT's does: a model of separate layers, one cross-entropy over
all logits, AdamW with torch's defaults on a CPU, a clipped gradient, and DDP where there are several ranks. Ours keeps
freed memory, as when it is launched (`training/memory.py`); the other loop gives it back, as glibc does by itself. So
of two updates only the second counts: the first finds the memory as the other side has left it. Then the matrix
products of its layers are computed alone: a bound for trainers whose float32 products are not faster.
Prints one JSON object: wall clock, CPU time and page faults of each, the first two left out, and how ours computed.
"""

import argparse
import ctypes
import json
import resource
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from workload import AS_NANOGPT

from ddp_course import minigpt_ddp
from ddp_course.data.token_file import open_tokens, prepare
from ddp_course.data.windows import micro_batches
from ddp_course.distributed import process_group
from ddp_course.training.command_line import parse
from ddp_course.training.memory import MMAP_MAX, TRIM_THRESHOLD, keep_freed_memory
from ddp_course.training.precision import Arithmetic
from ddp_course.training.progress import Progress

WARM_UP = 2
MMAP_THRESHOLD = -3  # as the two names of memory.py


class Attention(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads, self.width = heads, width
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.dropout = nn.Dropout(0.0)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.size()
        q, k, v = (
            part.view(batch, length, self.heads, width // self.heads).transpose(1, 2)
            for part in self.qkv(x).split(self.width, dim=2)
        )
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=None, dropout_p=0.0, is_causal=True)
        return self.dropout(self.out(y.transpose(1, 2).contiguous().view(batch, length, width)))


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm_1, self.attention, self.norm_2 = nn.LayerNorm(width), Attention(width, heads), nn.LayerNorm(width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width), nn.Dropout(0.0)
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm_1(x))
        return x + self.mlp(self.norm_2(x))


class GPT(nn.Module):
    def __init__(self, vocab_size: int, context: int, layers: int, heads: int, width: int) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(vocab_size, width), nn.Embedding(context, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocab_size, bias=False)
        self.tokens.weight = self.head.weight
        for parameter in self.parameters():
            if parameter.dim() > 1:
                nn.init.normal_(parameter, std=0.02)

    def forward(self, inputs: Tensor, targets: Tensor) -> Tensor:
        x = self.tokens(inputs) + self.places(torch.arange(inputs.size(1)))
        for block in self.blocks:
            x = block(x)
        logits = self.head(self.norm(x))
        return F.cross_entropy(logits.view(-1, logits.size(-1)), targets.view(-1), ignore_index=-1)


def give_back_freed_memory() -> None:
    """Undo `keep_freed_memory`: back to glibc's limits, grown to where they end by themselves in such a program."""
    if hasattr(libc := ctypes.CDLL(None), "mallopt"):
        libc.mallopt(MMAP_MAX, 65536)
        libc.mallopt(MMAP_THRESHOLD, 32 << 20)
        libc.mallopt(TRIM_THRESHOLD, 64 << 20)
        libc.malloc_trim(0)


class InTurns(Progress):
    """After every two updates of ours, two of the other loop. Each is measured from the end of the one before it."""

    other = None  # the other loop, which needs the process group: made after the first updates of ours
    clocks = {
        "wall": time.perf_counter,
        "cpu": time.process_time,
        "faults": lambda: resource.getrusage(resource.RUSAGE_SELF).ru_minflt,
    }

    def step(self, step: int, *own_loss: object, **numbers: float) -> None:
        super().step(step, *own_loss, **numbers)
        if step % 2:
            return self._read()
        self._read("ours")
        with self.paused():
            self.other = self.other or Other(self._run.world)
            give_back_freed_memory()
            self._twice(self.other.update, "theirs")
            keep_freed_memory()
            self._twice(self.other.products, "products")

    def _twice(self, work: Callable[[], None], whose: str) -> None:
        work()
        self._read()
        work()
        self._read(whose)

    def _read(self, whose: str | None = None) -> None:
        now = {name: clock() for name, clock in self.clocks.items()}
        if whose:
            for name in self.clocks:
                FOUND[name][whose].append(now[name] - self._last[name])
        self._last = now


FOUND = {name: {"ours": [], "theirs": [], "products": []} for name in InTurns.clocks}


class Other:
    def __init__(self, world: process_group.World) -> None:
        self.world, work, self.updates = world, AS_NANOGPT, 0
        self.tokens = open_tokens(prepare("stdlib", "bpe", work.vocab_size)).train
        self.model = GPT(work.vocab_size, work.context, work.layers, work.heads, work.width)
        self.replica = DistributedDataParallel(self.model) if world.size > 1 else self.model
        decayed = [p for p in self.model.parameters() if p.dim() >= 2]
        others = [p for p in self.model.parameters() if p.dim() < 2]
        groups = [{"params": decayed, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
        self.adamw = torch.optim.AdamW(groups, lr=work.learning_rate, betas=(0.9, 0.95))
        rows = work.micro_batch_size * work.context
        layers = [module for module in self.model.modules() if isinstance(module, nn.Linear)]
        self.factors = [(torch.randn(rows, one.in_features), torch.randn_like(one.weight)) for one in layers]

    def update(self) -> None:
        switch = torch.backends.cuda.flash_sdp_enabled()
        Arithmetic("float32", "fused").use()
        [(inputs, targets)] = micro_batches(
            self.tokens, seed=2, update=self.updates, context=AS_NANOGPT.context, rank=self.world.rank,
            world_size=self.world.size, micro_batch_size=AS_NANOGPT.micro_batch_size, accumulation_steps=1,
        )  # fmt: skip
        loss = self.replica(inputs, targets)
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.adamw.step()
        self.adamw.zero_grad(set_to_none=True)
        self.updates += 1
        torch.backends.cuda.enable_flash_sdp(switch)

    @torch.no_grad()
    def products(self) -> None:
        """One matrix product of each layer forward, two backward."""
        for inputs, weight in self.factors:
            outputs = torch.mm(inputs, weight.T)
            torch.mm(outputs, weight)
            torch.mm(outputs.T, inputs)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--precision", default="float32")
    parser.add_argument("--updates", type=int, default=12, help="of each side that count, the first two not")
    how = parser.parse_args()
    minigpt_ddp.Progress = InTurns
    with tempfile.TemporaryDirectory() as folder:
        world = process_group.start(120, "cpu")
        run_dir = Path(folder) / "run"
        flags = [*AS_NANOGPT.flags(world.size, 2 * how.updates), "--run-dir", run_dir, "--precision", how.precision]
        keep_freed_memory()
        minigpt_ddp.train(parse(minigpt_ddp.PRESETS, [str(flag) for flag in flags]))
        if world.is_main:
            settings = json.loads((run_dir / "config.json").read_text())
            found = {name: {who: all_of[WARM_UP:] for who, all_of in sides.items()} for name, sides in FOUND.items()}
            print(json.dumps(found | {name: settings[name] for name in ("precision", "attention")}), flush=True)


if __name__ == "__main__":
    main()
    process_group.stop()
