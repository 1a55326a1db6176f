"""Train a language model on one process or on many: the script to copy.

    python skeleton_ddp.py                                                       # one process
    torchrun --standalone --nproc-per-node=2 skeleton_ddp.py                     # two, with the same losses
    torchrun --standalone --nproc-per-node=2 skeleton_ddp.py --run-dir runs/a    # again after a stop: it goes on

Replace the two imports of ours by your own tokens and your own model, which returns the loss summed over its targets.
SIGTERM ends a run with a checkpoint and exit code 75. Notebooks 01 to 09 write this file. Run on CPUs so far.
"""

import argparse
import contextlib
import fcntl
import math
import os
import signal
import time
from datetime import timedelta
from pathlib import Path

if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C ends the process at once, also while torch is imported

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
parser.add_argument("--gradient-clip", type=float, default=1.0, help="largest norm of the gradient of a step")
parser.add_argument("--precision", choices=["float32", "tf32", "bfloat16"], default="float32", help="of matmuls")
parser.add_argument("--validation-windows", type=int, default=64, help="windows per validation")
parser.add_argument("--log-every", type=int, default=10, help="steps between printed losses")
parser.add_argument("--checkpoint-every", type=int, default=20, help="steps between checkpoints and validations")
parser.add_argument("--run-dir", type=Path, help="where checkpoints are kept; without it there are none")
parser.add_argument("--seed", type=int, default=1, help="of the first weights and of the order of the data")


def main():
    options = parser.parse_args()
    for name, value in vars(options).items():
        if isinstance(value, int | float) and not (0 < value < 2**63 or name == "seed" and value == 0):
            parser.error(f"argument --{name.replace('_', '-')}: must be a number above 0, not {value}")
    # Without torchrun: a group of one process, so that one code path serves both.
    defaults = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "localhost", "MASTER_PORT": "0"}
    os.environ |= {name: os.environ.get(name, value) for name, value in defaults.items()}
    rank, world_size, local_rank = (int(os.environ[name]) for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"))
    gpus = torch.cuda.device_count()
    if 0 < gpus <= local_rank:  # the first process without a GPU speaks for all that have none
        raise SystemExit(f"process {local_rank} has no GPU, here are {gpus}; start {gpus}" if local_rank == gpus else 1)
    gpu = torch.device("cuda", local_rank) if gpus else None
    if gpu:
        torch.cuda.set_device(gpu)  # before anything allocates: by default every rank would take GPU 0
    dist.init_process_group("nccl" if gpu else "gloo", timeout=timedelta(seconds=120), device_id=gpu)
    stopped = train(options, rank, world_size, local_rank, gpu or torch.device("cpu"))
    dist.destroy_process_group()
    return 75 if stopped else 0  # 75 is "try again": a scheduler would take 0 for the end of the run


def train(options, rank, world_size, local_rank, device):
    per_pass = options.micro_batch_size * options.context * world_size
    gradient_accumulation_steps, rest = divmod(options.tokens_per_update, per_pass)
    if rest or not gradient_accumulation_steps:
        wrong = f"--tokens-per-update {options.tokens_per_update:,} is not a multiple of the {per_pass:,} of all ranks"
        raise SystemExit(wrong if rank == 0 else 1)
    if local_rank == 0:  # one process per machine writes the token file; the others read it when it is whole
        prepare(*DATA)
    dist.barrier(dist.new_group(timeout=timedelta(hours=2)))  # writing it may take longer than the group's timeout
    tokens = open_tokens(prepare(*DATA))
    torch.manual_seed(options.seed)
    model = MiniGPT(MiniGPTConfig(vocab_size=256, context=options.context, layers=2, heads=4, width=128)).to(device)
    groups = [{"params": [p for p in model.parameters() if p.dim() >= 2], "weight_decay": 0.1}]
    groups += [{"params": [p for p in model.parameters() if p.dim() < 2], "weight_decay": 0.0}]  # biases and norms
    optimizer = torch.optim.AdamW(groups, betas=(0.9, 0.95), fused=True)
    done = load(options.run_dir, model, optimizer, rank, world_size) if options.run_dir else 0
    replica = DistributedDataParallel(model, gradient_as_bucket_view=True)
    torch.backends.cuda.matmul.allow_tf32 = options.precision == "tf32"
    autocast = torch.autocast(device.type, torch.bfloat16, enabled=options.precision == "bfloat16")

    stop_requests = []
    signal.signal(signal.SIGTERM, lambda *_: stop_requests.append(True))  # what schedulers send before they kill
    warmup, timed_from, since = max(1, options.steps // 10), done, time.monotonic()
    for step in range(done, options.steps):
        cosine = 0.5 + 0.5 * math.cos(math.pi * max(0, step - warmup) / max(1, options.steps - warmup))
        for group in optimizer.param_groups:  # a line up to the peak, then half a cosine down to a tenth
            group["lr"] = options.learning_rate * min((step + 1) / warmup, 0.1 + 0.9 * cosine)
        torch.manual_seed(int(np.random.SeedSequence([options.seed, step, rank]).generate_state(1)[0]))  # dropout
        loss_sum = torch.zeros((), device=device)
        batches = micro_batches(tokens.train, step, options, rank, world_size, device)
        for number, (inputs, targets) in enumerate(batches, start=1):
            # Only the last backward sends gradients. DDP decides in the forward pass, so it is inside, too.
            with replica.no_sync() if number < gradient_accumulation_steps else contextlib.nullcontext():
                with autocast:
                    loss = replica(inputs, targets)
                (loss * world_size / options.tokens_per_update).backward()  # DDP divides by world_size
            loss_sum += loss.detach()
            if number % 4 == 1 or device.type == "cpu":  # to read a number from a GPU is to wait for it
                requests = torch.tensor(len(stop_requests), device=device)
                dist.all_reduce(requests)  # whether any rank was asked: all have to stop at the same place
                if requests > 0:
                    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # torchrun sends it to all when one rank has left
                    save(options.run_dir, done, {"model": model.state_dict(), "optimizer": optimizer.state_dict()})
                    if rank == 0:
                        print(f"stopped after step {done}; with the same --run-dir it goes on", flush=True)
                    return True
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), options.gradient_clip)  # of the averaged gradient
        optimizer.step()
        optimizer.zero_grad()
        done, last = step + 1, step + 1 == options.steps
        if done % options.log_every == 0 or last:
            dist.all_reduce(loss_sum)  # over the global batch
            loss = loss_sum.item() / options.tokens_per_update
            rate = (done - timed_from) * options.tokens_per_update / (time.monotonic() - since)
            if rank == 0:
                print(f"step {done}  loss {loss:.6f}  gradient norm {norm:.4f}  tokens/s {rate:.0f}", flush=True)
        if done % options.checkpoint_every == 0 or last:
            save(options.run_dir, done, {"model": model.state_dict(), "optimizer": optimizer.state_dict()})
            validation_loss = validate(model, tokens.val, options, rank, world_size, device, autocast)
            if rank == 0:
                print(f"step {done}  validation loss {validation_loss:.6f}", flush=True)
            timed_from, since = done, time.monotonic()


def micro_batches(tokens, step, options, rank, world_size, device):
    """This rank's share of the global batch of a step, which depends on (seed, step) and not on the world size."""
    key, windows = np.array([options.seed, step], dtype=np.uint64), options.tokens_per_update // options.context
    starts = np.random.Philox(key=key).random_raw(windows) % np.uint64(len(tokens) - options.context)
    for rank_starts in starts.astype(np.int64).reshape(-1, world_size, options.micro_batch_size)[:, rank]:
        yield windows_at(rank_starts, tokens, options.context, device)


def windows_at(starts, tokens, context, device):
    """The windows that begin there, as inputs and targets: the target of a token is the token after it."""
    windows = torch.from_numpy(tokens[starts[:, None] + np.arange(context + 1)].astype(np.int64))
    windows = windows.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else windows
    return windows[:, :-1], windows[:, 1:]


def validate(model, tokens, options, rank, world_size, device, autocast):
    """Mean loss of a held-out token, by the bare model: the wrapper could wait for a rank that has one batch less."""
    model.eval()
    windows = math.ceil((len(tokens) - 1) / options.context)
    chosen = min(windows, options.validation_windows)
    starts = np.arange(rank, chosen, world_size) * windows // chosen * options.context  # spread evenly over the text
    starts = starts[starts < len(tokens) - options.context]  # without a last one that is too short
    total = torch.tensor([0.0, len(starts) * options.context], device=device, dtype=torch.float64)  # loss, tokens
    for first in range(0, len(starts), options.micro_batch_size):
        with torch.no_grad(), autocast:
            total[0] += model(*windows_at(starts[first:][: options.micro_batch_size], tokens, options.context, device))
    dist.all_reduce(total)
    model.train()
    return (total[0] / total[1]).item()


def save(run_dir, step, state, keep=2):
    """Rank 0 writes a new file and names it when it is whole; no rank returns before. The newest stay, 0: all."""
    if run_dir and dist.get_rank() == 0:
        with open(run_dir / "new", "wb") as file:
            torch.save(state, file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(run_dir / "new", run_dir / f"step_{step:08}.pt")
        for old in sorted(run_dir.glob("step_*.pt"))[:-keep]:
            old.unlink()
    dist.barrier()


def load(run_dir, model, optimizer, rank, world_size):
    """Lock the folder, and load its newest checkpoint on every rank; returns the number of steps it has done."""
    done, problem, answers = 0, "", [None] * world_size
    try:
        if rank == 0:  # an empty folder, or one of this script; the lock ends with the process
            run_dir.mkdir(parents=True, exist_ok=(run_dir / "lock").exists() or not any(run_dir.glob("*")))
            fcntl.flock(os.open(run_dir / "lock", os.O_CREAT | os.O_RDWR), fcntl.LOCK_EX | fcntl.LOCK_NB)
        if newest := max(run_dir.glob("step_*.pt"), default=None):
            done = int(newest.stem.removeprefix("step_"))
            state = torch.load(newest, map_location="cpu", weights_only=True)
            model.load_state_dict(state["model"])
            optimizer.load_state_dict(state["optimizer"])
    except Exception as error:
        problem = f"({type(error).__name__}: {error}".splitlines()[0] + ")"
    dist.all_gather_object(answers, f"step {done} {problem}".strip())
    if len(set(answers)) > 1 or problem:
        wrong = f"--run-dir {run_dir} has to be new, or an intact run of this script that is not in use, on all ranks: "
        raise SystemExit(wrong + "; ".join(sorted(set(answers))) if rank == 0 else 1)
    return done


if __name__ == "__main__":
    raise SystemExit(main())
