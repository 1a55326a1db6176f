"""Pre-train MiniGPT with DiLoCo or local SGD: one worker per rank, one all-reduce per --sync-every steps.

    torchrun --standalone --nproc-per-node=2 ddp_course/diloco_ddp.py --preset tiny
    torchrun --standalone --nproc-per-node=2 ddp_course/diloco_ddp.py --sync-every 50 --outer-momentum 0.9
    torchrun ... ddp_course/diloco_ddp.py --outer-lr 1 --outer-momentum 0         # local SGD: weights are averaged
    torchrun ... ddp_course/diloco_ddp.py --run-dir runs/mine --resume auto       # go on after a stop

Read `train` next to that of minigpt_ddp.py: the same flags give each rank the same windows, and each script resumes
from the other's checkpoints. The differences are marked DiLoCo 1/6 to DiLoCo 6/6. Notebook 25: the method.
"""

if __name__ == "__main__":
    from ddp_course.base.command import begin_command

    begin_command()  # before torch is imported: from here on Ctrl-C is one line

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import nn
from torch.nn.utils import clip_grad_norm_

from ddp_course.checkpoint.run_directory import open_run
from ddp_course.checkpoint.training_state import TrainingState
from ddp_course.distributed import process_group
from ddp_course.distributed.replica_check import assert_replicas_equal
from ddp_course.models import minigpt
from ddp_course.models.minigpt import MiniGPT, parameter_count
from ddp_course.trainers.pretraining import (
    TINY,
    PretrainingConfig,
    batch_bytes,
    count_gradient_accumulation_steps,
    make_identity,
    make_model_config,
    micro_batches,
    open_text,
    results,
    validate,
)
from ddp_course.training.command_line import run
from ddp_course.training.diloco import DiLoCo
from ddp_course.training.loop import TrainingLoop
from ddp_course.training.memory import require_memory, training_bytes
from ddp_course.training.optimization import make_adamw, set_learning_rate
from ddp_course.training.precision import autocast, choose_attention, parameter_dtype, set_matmul_precision
from ddp_course.training.process import prepare_process
from ddp_course.training.settings import PositiveFloat, PositiveInt, Share
from ddp_course.training.throughput import peak_per_second


@dataclass(frozen=True)
class DiLoCoConfig(PretrainingConfig):
    """Pre-train MiniGPT with DiLoCo, one worker per rank. A run resumes with as many workers as it had.

    Every --sync-every steps the workers all-reduce their changes and take one outer step. Logging, validation,
    checkpoints and stop requests wait for the next one. A worker that is early waits for the others, --timeout-seconds
    at most. --max-nonfinite-steps counts outer steps.
    """

    sync_every: PositiveInt = 25
    """Steps between outer steps. An outer step sends as much as DDP does in one step. The last step has one."""
    outer_lr: PositiveFloat = 0.7
    """Learning rate of the outer optimizer. 1, without momentum: the weights become the workers' mean."""
    outer_momentum: Share = 0.5
    """Nesterov momentum of the outer optimizer, below 1. The paper has 0.9, for runs with many more outer steps."""
    inner: Literal["adamw", "sgd"] = "adamw"
    """The optimizer of a worker between outer steps. sgd: without momentum."""


PRESETS = {"laptop": DiLoCoConfig(), "tiny": DiLoCoConfig(**TINY, sync_every=5)}


def train(config: DiLoCoConfig) -> int:
    """Train as one worker, to the last step or until a stop was asked for; returns the exit code."""
    world = process_group.start(config.timeout_seconds, config.device)
    gradient_accumulation_steps = count_gradient_accumulation_steps(config, world.size)
    run_directory, checkpoint = open_run(world, config.run_dir, config.resume, kind="diloco")
    tokens, windows = open_text(world, config, run_directory)
    process_group.seed_shared(config.seed)
    model_config, dtype = make_model_config(config, tokens), parameter_dtype(config.precision)
    parameters = parameter_count(model_config)
    need = training_bytes(parameters, dtype) + batch_bytes(config, model_config)
    need += 3 * parameters * dtype.itemsize  # the global weights, the outer gradient, and momentum
    require_memory(world, "this training run", need)
    set_matmul_precision(config.precision)
    attention = choose_attention(config.precision, world.device, config.context)

    # DiLoCo 1/6: no DDP wrapper. Each worker has its own inner optimizer; the outer optimizer is equal on all ranks.
    model = MiniGPT(model_config, attention).to(world.device, dtype)
    inner = make_inner(config, model)
    process_group.seed_rank(config.seed, world.rank)
    diloco = DiLoCo(world, model, inner, config.outer_lr, config.outer_momentum)
    # DiLoCo 2/6: a checkpoint holds the global weights, every worker's inner optimizer, and the outer momentum.
    scaler = torch.amp.GradScaler(world.device.type, enabled=False)  # disabled; minigpt_ddp.py resumes with one
    parts = {"model": model, "optimizer": diloco, "scaler": scaler}
    loop = TrainingLoop(run_directory, config, TrainingState(parts, make_identity(config, tokens, config.precision)))
    settings = {"token_file": str(tokens.folder)}
    if not loop.begin(checkpoint, settings, {"tokenizer_state": tokens.tokenizer.state()}):
        return 0

    world.say(
        f"{parameters:,} parameters; {len(tokens.train):,} training tokens{windows.description}; "
        f"{config.precision} on {world.device}\n{world.size} worker(s), an outer step every {config.sync_every} steps; "
        f"{config.tokens_per_update:,} tokens per update = {world.size} worker(s) x {gradient_accumulation_steps} "
        f"micro-batch(es) x {config.micro_batch_size} windows x {config.context} tokens"
    )
    steps = range(loop.step, config.steps)
    batches = micro_batches(windows, config, steps, rank=world.rank, world_size=world.size, device=world.device)
    peak = peak_per_second(world, config.precision, minigpt.flops_per_token(model_config))
    for first_step in loop.steps(unit="tokens", per_step=config.tokens_per_update, peak=peak):
        sync_step = min(config.steps, first_step - first_step % config.sync_every + config.sync_every)
        loss_sum = torch.zeros((), device=world.device, dtype=torch.float64)
        norm_sum, target_count = 0.0, 0
        # DiLoCo 3/6: between outer steps a worker trains on its own windows, and sends nothing.
        for step in range(first_step, sync_step):
            set_learning_rate(inner, config.learning_rate_at(step))
            for _ in range(gradient_accumulation_steps):
                inputs, targets = next(batches)
                with autocast(config.precision, world.device):
                    loss = model(inputs, targets)
                # As in minigpt_ddp.py: the mean over the workers is then the mean over the tokens of all of them.
                (loss * (world.size / windows.targets(step))).backward()
                loss_sum += loss.detach()
            # DiLoCo 4/6: a worker clips by its own gradient's norm. No rank has that of the global batch.
            norm_sum += clip_grad_norm_(model.parameters(), config.gradient_clip or math.inf)
            inner.step()
            inner.zero_grad()
            target_count += windows.targets(step)
        # DiLoCo 5/6: one all-reduce of the size of the model, and a small one for loss, norm and stop requests.
        outer_norm = diloco.outer_step()
        total_loss, total_norm = loop.sum_over_ranks(loss_sum, norm_sum)
        if loop.passes(config.check_every, sync_step):
            assert_replicas_equal(world, model, diloco.outer, own_random_state=True, step=sync_step)
        step_count = sync_step - first_step
        loop.report(
            loss_sum,
            step=sync_step,
            loss=total_loss / target_count,
            learning_rate=config.learning_rate_at(sync_step - 1),
            grad_norm=total_norm / step_count / world.size,
            outer_grad_norm=outer_norm,
            **windows.metrics(target_count / step_count),
        )
        # DiLoCo 6/6: only after an outer step do all ranks have the same model, to be saved and validated.
        loop.save_and_validate(lambda: {"loss": validate(model, tokens, config, config.precision, world)})

    assert_replicas_equal(world, model)
    if loop.stopped_early:
        return loop.leave()
    world.say(f"{results(loop.progress)}\nrun directory: {run_directory.path}")
    return 0


def make_inner(config: DiLoCoConfig, model: nn.Module) -> torch.optim.Optimizer:
    """The inner optimizer of a worker: AdamW or SGD. Both decay the same weights."""
    adamw = make_adamw(model, config.learning_rate, config.weight_decay)
    if config.inner == "adamw":
        return adamw
    groups = [{name: group[name] for name in ("params", "weight_decay")} for group in adamw.param_groups]
    return torch.optim.SGD(groups, lr=config.learning_rate)


if __name__ == "__main__":
    prepare_process()
    run(train, PRESETS)
