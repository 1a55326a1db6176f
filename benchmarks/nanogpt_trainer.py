"""A loop written as nanoGPT's: separate layers, one cross-entropy over all logits, AdamW, gradient clipping, and DDP
for several ranks; with --compile a compiled model. On a CPU it computes in float32 with torch's defaults; on a GPU, as
nanoGPT there, with bfloat16 autocast, TF32 and the fused AdamW.

On a CPU it then computes the matrix products of its layers alone: a bound for trainers whose float32 products are not
faster.
"""

import json
import time

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from workload import AS_NANOGPT, read_arguments, run_timed

from ddp_course.distributed import process_group

PRODUCT_ROUNDS = 6  # times that all products of a step are computed


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
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width), nn.Dropout(0.0))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm_1(x))
        return x + self.mlp(self.norm_2(x))


class GPT(nn.Module):
    def __init__(self, vocab_size: int, context: int, layers: int, heads: int, width: int) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(vocab_size, width), nn.Embedding(context, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocab_size, bias=False)
        self.tokens.weight = self.head.weight
        for parameter in self.parameters():
            if parameter.dim() > 1:
                nn.init.normal_(parameter, std=0.02)

    def forward(self, inputs: Tensor, targets: Tensor) -> Tensor:
        x = self.tokens(inputs) + self.positions(torch.arange(inputs.size(1), device=inputs.device))
        for block in self.blocks:
            x = block(x)
        logits = self.head(self.norm(x))
        return F.cross_entropy(logits.view(-1, logits.size(-1)), targets.view(-1), ignore_index=-1)


def main() -> None:
    world, work = process_group.start(), AS_NANOGPT
    on_gpu = world.device.type == "cuda"
    torch.backends.cuda.matmul.allow_tf32 = on_gpu
    model = GPT(work.vocab_size, work.context, work.layers, work.heads, work.width).to(world.device)
    ready = torch.compile(model) if read_arguments().compile else model
    replica = DistributedDataParallel(ready) if world.size > 1 else ready
    decayed = [p for p in model.parameters() if p.dim() >= 2]
    others = [p for p in model.parameters() if p.dim() < 2]
    groups = [{"params": decayed, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
    adamw = torch.optim.AdamW(groups, lr=work.learning_rate, betas=(0.9, 0.95), fused=on_gpu or None)

    def train_step(step: int) -> float:
        [(inputs, targets)] = work.batches(step, world.rank, world.size, world.device)
        with torch.autocast(world.device.type, torch.bfloat16, enabled=on_gpu):
            loss = replica(inputs, targets)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        adamw.step()
        adamw.zero_grad(set_to_none=True)
        return loss.item()

    run_timed(train_step)
    if not on_gpu:
        print(json.dumps({"products": seconds_of_products(model)}), flush=True)


@torch.no_grad()
def seconds_of_products(model: nn.Module) -> list[float]:
    """Time one forward and two backward matrix products of each layer."""
    rows = AS_NANOGPT.micro_batch_size * AS_NANOGPT.context
    layers = [module for module in model.modules() if isinstance(module, nn.Linear)]
    factors = [(torch.randn(rows, layer.in_features), torch.randn_like(layer.weight)) for layer in layers]
    seconds = []
    for _ in range(PRODUCT_ROUNDS):
        start = time.perf_counter()
        for inputs, weight in factors:
            outputs = torch.mm(inputs, weight.T)
            torch.mm(outputs, weight)
            torch.mm(outputs.T, inputs)
        seconds.append(time.perf_counter() - start)
    return seconds


if __name__ == "__main__":
    main()
    process_group.stop()
