"""Train a language model on one process or on many: the script to copy.

    python skeleton_ddp.py                                                       # one process
    torchrun --standalone --nproc-per-node=2 skeleton_ddp.py                     # two, with the same losses
    torchrun --standalone --nproc-per-node=2 skeleton_ddp.py --run-dir runs/a    # again after a stop: it goes on

Replace the two imports of ours by your own tokens and your own model, which returns the loss summed over its targets.
Notebooks 01 to 09 write this file step by step.
"""

import argparse
import contextlib
import math
import os
import signal
from datetime import timedelta
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
import torch.distributed.nn  # before there is a process group: imported later, it would keep the group's threads alive
from torch.nn.parallel import DistributedDataParallel

from ddp_course.data.token_file import open_tokens, prepare
from ddp_course.models.minigpt import MiniGPT, MiniGPTConfig

DATA = "stdlib", "bytes"  # Python's own source code, one token per byte

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--steps", type=int, default=60, help="optimizer steps of the whole run")
parser.add_argument("--tokens-per-update", type=int, default=2048, help="tokens per optimizer step, over all ranks")
parser.add_argument("--micro-batch-size", type=int, default=8, help="windows per rank and forward pass")
parser.add_argument("--context", type=int, default=64, help="tokens per window")
parser.add_argument("--learning-rate", type=float, default=3e-3, help="its peak, after a tenth of the steps")
parser.add_argument("--gradient-clip", type=float, default=1.0, help="largest norm of the gradient of an update")
parser.add_argument("--precision", default="float32", choices=["float32", "bfloat16"], help="of matrix products")
parser.add_argument("--validation-windows", type=int, default=64, help="windows per validation")
parser.add_argument("--log-every", type=int, default=10, help="steps between losses, and looks for SIGTERM")
parser.add_argument("--checkpoint-every", type=int, default=20, help="steps between checkpoints and validations")
parser.add_argument("--run-dir", type=Path, help="where checkpoints are kept; without it there are none")
parser.add_argument("--exit-code-when-stopped", type=int, default=75, help="of a run that SIGTERM ended too early")
parser.add_argument("--seed", type=int, default=1, help="of the first weights and of the order of the data")


def main():
    options = parser.parse_args()
    for name, value in vars(options).items():  # no steps, a rate that is no number: no run can mean them
        least = 0 if name in ("learning_rate", "gradient_clip", "exit_code_when_stopped", "seed") else 1
        if isinstance(value, int | float) and not least <= value < math.inf:
            parser.error(f"argument --{name.replace('_', '-')}: must be a number from {least} up, not {value}")
    # Without torchrun: a group of one process, so that one code path serves both.
    defaults = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "localhost", "MASTER_PORT": "0"}
    os.environ |= {name: os.environ.get(name, value) for name, value in defaults.items()}
    rank, world_size, local_rank = (int(os.environ[name]) for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"))
    device = torch.device("cuda", local_rank) if torch.cuda.is_available() else torch.device("cpu")
    if device.type == "cuda":
        torch.cuda.set_device(device)  # before anything allocates: by default every rank would take GPU 0
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo", timeout=timedelta(seconds=120))
    stopped = train(options, rank, world_size, local_rank, device)
    dist.destroy_process_group()
    if stopped:
        raise SystemExit(options.exit_code_when_stopped)  # not 0: a scheduler would take the run for finished


def train(options, rank, world_size, local_rank, device):
    per_pass = options.micro_batch_size * options.context * world_size
    accumulation_steps, rest = divmod(options.tokens_per_update, per_pass)
    if rest or not accumulation_steps:
        wrong = f"--tokens-per-update {options.tokens_per_update:,} is not a multiple of the {per_pass:,} of all ranks"
        raise SystemExit(wrong if rank == 0 else 1)

    if local_rank == 0:  # one process per machine writes the token file; the others read it when it is whole
        prepare(*DATA)
    dist.barrier()
    tokens = open_tokens(prepare(*DATA))

    torch.manual_seed(options.seed)
    model = MiniGPT(MiniGPTConfig(vocab_size=256, context=options.context, layers=2, heads=4, width=128)).to(device)
    matrices = [p for p in model.parameters() if p.dim() >= 2]
    others = [p for p in model.parameters() if p.dim() < 2]  # biases and norms are not pulled towards zero
    optimizer = torch.optim.AdamW(
        [{"params": matrices, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}],
        betas=(0.9, 0.95),
        fused=True,
    )
    first_step = load(options.run_dir, model, optimizer, device)
    replica = DistributedDataParallel(model, gradient_as_bucket_view=True)

    stop_requests, stopping = [], False
    signal.signal(signal.SIGTERM, lambda *_: stop_requests.append(True))  # what schedulers send before they kill
    for step in range(first_step, options.steps):
        for group in optimizer.param_groups:
            group["lr"] = options.learning_rate * schedule(step, options.steps)
        own = np.random.SeedSequence([options.seed, step, rank]).generate_state(1, np.uint64)
        torch.manual_seed(int(own[0]))  # dropout: other masks per rank, the same after a resume
        loss_sum = torch.zeros((), device=device)
        batches = micro_batches(tokens.train, step, accumulation_steps, options, rank, world_size)
        for number, (inputs, targets) in enumerate(batches, start=1):
            # Only the last backward sends gradients. DDP decides in the forward pass, so it is inside, too.
            with replica.no_sync() if number < accumulation_steps else contextlib.nullcontext():
                with autocast(options, device):
                    loss = replica(inputs.to(device), targets.to(device))
                # DDP divides by the number of ranks; the mean is wanted over the tokens of the whole update.
                (loss * world_size / options.tokens_per_update).backward()
            loss_sum += loss.detach()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), options.gradient_clip)  # of the averaged gradient
        optimizer.step()
        optimizer.zero_grad()

        done, last = step + 1, step + 1 == options.steps
        if done % options.log_every == 0 or last:  # seldom: to read a number from a GPU is to wait for it
            report = torch.stack([loss_sum, torch.tensor(float(len(stop_requests)), device=device)])
            dist.all_reduce(report)  # the loss of the global batch, and whether any rank was asked to stop
            stopping = bool(report[1] > 0) and not last
            if rank == 0:
                loss = report[0] / options.tokens_per_update
                print(f"step {done}  loss {loss:.6f}  gradient norm {norm:.4f}", flush=True)
        if done % options.checkpoint_every == 0 or last or stopping:
            save(options.run_dir, done, model, optimizer, rank)
        if stopping:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)  # torchrun sends it to the others when one rank has left
            break
        if done % options.checkpoint_every == 0 or last:
            validation_loss = validate(model, tokens.val, options, rank, world_size, device)
            if rank == 0:
                print(f"step {done}  validation loss {validation_loss:.6f}", flush=True)
    if rank == 0 and stopping:
        print(f"stopped after step {done}; with the same --run-dir it goes on", flush=True)
    return stopping


def schedule(step, steps):
    """The share of the peak learning rate: a line up over the first tenth of the steps, then half a cosine to 0.1."""
    warmup = max(1, steps // 10)
    if step < warmup:
        return (step + 1) / warmup
    return 0.1 + 0.45 * (1 + math.cos(math.pi * (step - warmup) / (steps - warmup)))


def micro_batches(tokens, step, accumulation_steps, options, rank, world_size):
    """This rank's share of the global batch of a step, which depends on (seed, step) and not on the world size."""
    shape = (accumulation_steps, world_size, options.micro_batch_size)
    draw = np.random.Philox(key=np.array([options.seed, step], dtype=np.uint64)).random_raw(math.prod(shape))
    starts = (draw % np.uint64(len(tokens) - options.context)).astype(np.int64).reshape(shape)
    for rank_starts in starts[:, rank]:
        windows = torch.from_numpy(tokens[rank_starts[:, None] + np.arange(options.context + 1)].astype(np.int64))
        yield windows[:, :-1], windows[:, 1:]  # the target of a token is the token after it


def autocast(options, device):
    return torch.autocast(device.type, torch.bfloat16, enabled=options.precision == "bfloat16")


@torch.no_grad()
def validate(model, tokens, options, rank, world_size, device):
    """Mean loss of a held-out token. Sums and counts are added over the ranks, which may differ in their number.

    It runs the bare model: the wrapper could wait for a rank that has one batch less.
    """
    model.eval()
    total = torch.zeros(2, device=device, dtype=torch.float64)  # loss, tokens
    windows = math.ceil((len(tokens) - 1) / options.context)
    chosen = min(windows, options.validation_windows)  # spread evenly over the text
    for number in range(rank, chosen, world_size):
        start = number * windows // chosen * options.context
        window = torch.from_numpy(tokens[start : start + options.context + 1].astype(np.int64)).to(device)
        with autocast(options, device):
            loss = model(window[None, :-1], window[None, 1:])
        total += torch.tensor([loss, len(window) - 1], device=device, dtype=torch.float64)
    dist.all_reduce(total)
    model.train()
    return (total[0] / total[1]).item()


def save(run_dir, step, model, optimizer, rank):
    """Rank 0 writes a file beside the old one, then swaps them: whenever the run is killed, one of them is whole."""
    if run_dir and rank == 0:
        run_dir.mkdir(parents=True, exist_ok=True)
        with open(run_dir / "checkpoint.pt.new", "wb") as file:
            torch.save({"step": step, "model": model.state_dict(), "optimizer": optimizer.state_dict()}, file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(run_dir / "checkpoint.pt.new", run_dir / "checkpoint.pt")


def load(run_dir, model, optimizer, device):
    """Every rank reads the checkpoint, if there is one; returns the number of steps it has done."""
    if not run_dir or not (run_dir / "checkpoint.pt").exists():
        return 0
    state = torch.load(run_dir / "checkpoint.pt", map_location=device, weights_only=True)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    return state["step"]


if __name__ == "__main__":
    main()
