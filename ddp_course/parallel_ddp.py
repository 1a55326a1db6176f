"""Pre-train MiniGPT on a mesh of ranks: data, fully sharded, context, tensor, pipeline and expert parallelism.

    torchrun --standalone --nproc-per-node=4 ddp_course/parallel_ddp.py --preset tiny --pp 2 --tp 2
    torchrun --standalone --nproc-per-node=8 ddp_course/parallel_ddp.py --dp 2 --shard 2 --cp 2
    torchrun --standalone --nproc-per-node=4 ddp_course/parallel_ddp.py --experts 8 --shard 4 --ep 2
    torchrun ... ddp_course/parallel_ddp.py --shard 4 --run-dir runs/mine --resume auto     # go on, on another mesh

Read `train` next to that of minigpt_ddp.py: the same flags train the same model on the same tokens, and each script
resumes from the other's checkpoints. What a mesh adds is marked MESH 1/7 to MESH 7/7.
"""

if __name__ == "__main__":
    from ddp_course.base.command import begin_command

    begin_command()  # before torch is imported: from here on Ctrl-C is one line

import math
from dataclasses import dataclass
from typing import Literal

import torch
import torch.distributed as dist
from torch.distributed.fsdp import MixedPrecisionPolicy

from ddp_course.base.errors import InputError
from ddp_course.checkpoint.run_directory import open_run
from ddp_course.checkpoint.training_state import TrainingState
from ddp_course.checkpoint.whole_state import WholeBuffers, WholeModel, WholeOptimizer, names_by_group
from ddp_course.data.token_file import Tokens
from ddp_course.distributed import process_group
from ddp_course.distributed.deferred_init import build_on_meta
from ddp_course.distributed.dropout_masks import window_keys
from ddp_course.distributed.expert_parallel import step_router_biases
from ddp_course.distributed.mesh import Mesh
from ddp_course.distributed.parameter_shards import (
    add_tensor_gradients,
    assert_copies_equal,
    average_expert_gradients,
    clip_gradients,
    parameter_shards,
)
from ddp_course.distributed.pipeline import Pipeline, add_other_end
from ddp_course.distributed.sync import sum_over_ranks
from ddp_course.trainers.minigpt_experts import flops_per_token, make_model, mixture_parameter_count
from ddp_course.trainers.minigpt_stage import TIED, Stage, check_cuts
from ddp_course.trainers.pretraining import (
    TINY,
    PretrainingConfig,
    count_gradient_accumulation_steps,
    even_held_out_batches,
    loss_and_target_count,
    make_identity,
    make_model_config,
    micro_batches,
    open_text,
    results,
)
from ddp_course.training.command_line import run
from ddp_course.training.loop import TrainingLoop
from ddp_course.training.memory import require_memory, training_bytes
from ddp_course.training.optimization import make_adamw, set_learning_rate
from ddp_course.training.precision import autocast, choose_attention, parameter_dtype, set_matmul_precision
from ddp_course.training.process import prepare_process
from ddp_course.training.settings import NonNegativeFloat, PositiveInt, Share
from ddp_course.training.throughput import peak_per_second


@dataclass(frozen=True)
class ParallelConfig(PretrainingConfig):
    """Pre-train MiniGPT on a mesh of ranks. The same flags mean the same training run on any mesh."""

    pp: PositiveInt = 1
    """Pipeline parallel: stages, each with some of the layers."""
    dp: PositiveInt = 1
    """Data parallel: replicas, each with some of the windows."""
    shard: PositiveInt = 1
    """Fully sharded data parallel: ranks, each with some of the windows and a shard of the weights."""
    cp: PositiveInt = 1
    """Context parallel: ranks, each with some of the tokens of a window."""
    tp: PositiveInt = 1
    """Tensor parallel: ranks, each with some of the heads, MLP units and vocabulary; between layers, of the tokens."""
    ep: PositiveInt = 1
    """Expert parallel: ranks, among those of shard and cp, each with some of the experts."""
    experts: PositiveInt | None = None
    """Experts of a block, each an MLP of the size of MiniGPT's. None: one MLP, without a router."""
    experts_per_token: PositiveInt = 2
    """Experts that a token is routed to."""
    bias_rate: NonNegativeFloat = 0.001
    """Change of an expert's router bias per step: down if it was chosen more often than the mean, up if less often."""
    schedule: Literal["1f1b", "gpipe"] = "1f1b"
    """Order of the micro-batches' forward and backward passes in a stage."""

    param_dtype: Literal["same", "bfloat16"] = "same"
    """Format of gathered weights and of all that layers compute from them; the main weights stay float32."""
    reduce_dtype: Literal["float32", "bfloat16"] = "float32"
    """Format in which gradients are added up over micro-batches and ranks, with --param-dtype."""

    micro_batch_size: PositiveInt = 4
    """Windows that one rank takes through its stage at a time."""
    dropout: Share = 0.0
    """Probability of dropping a unit; the same units on any mesh, others than in minigpt_ddp.py."""
    activation_checkpointing: bool = False
    """Recompute activations in backward: less memory, more time."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.ep > 1 and not self.experts:
            raise ValueError(f"--ep {self.ep} needs --experts")
        if self.experts and self.experts % self.ep:
            raise ValueError(
                f"--experts {self.experts} is not a multiple of --ep {self.ep}: each rank has whole experts"
            )
        if self.experts and self.experts_per_token > self.experts:
            raise ValueError(f"--experts-per-token {self.experts_per_token} is more than --experts {self.experts}")
        if self.param_dtype != "same" and self.precision != "float32":
            raise ValueError(
                f"--param-dtype {self.param_dtype} needs --precision float32, that of the main weights, not "
                f"{self.precision}"
            )


PRESETS = {
    "laptop": ParallelConfig(),
    "tiny": ParallelConfig(**TINY | {"layers": 4, "heads": 4, "micro_batch_size": 2}),
}


def train(config: ParallelConfig) -> int:
    """Train as one rank, to the last step or until a stop was asked for; returns the exit code."""
    world = process_group.start(config.timeout_seconds, config.device)
    # MESH 1/7: this rank's coordinates, and a group per axis. What cannot be cut is refused before anything is read.
    ep = config.experts and config.ep
    mesh = Mesh(world, pp=config.pp, dp=config.dp, shard=config.shard, cp=config.cp, tp=config.tp, ep=ep)
    check_cuts(config, mesh)
    gradient_accumulation_steps = micro_batches_per_step(config, mesh)
    run_directory, checkpoint = open_run(world, config.run_dir, config.resume, kind="parallel")

    tokens, windows = open_text(world, config, run_directory)
    process_group.seed_shared(config.seed)
    model_config, dtype = make_model_config(config, tokens), parameter_dtype(config.precision)
    parameters = sum(mixture_parameter_count(model_config, config.experts))
    shard_count = world.size // config.dp
    need = training_bytes(parameters // shard_count, dtype)
    need += 16 * config.tokens_per_update // mesh.replicas  # all tokens and targets of a step are in memory
    require_memory(world, "this training run", need + 8 * config.tokens_per_update // config.context)
    set_matmul_precision(config.precision)
    attention = choose_attention(config.precision, world.device, config.context)

    # MESH 2/7: the whole model has no memory; a rank makes some for its stage, heads, units and shards of it.
    whole, initial_values = build_on_meta(
        lambda: make_model(model_config, config.experts, config.experts_per_token, attention)
    )
    names = names_by_group(whole.to(dtype))
    policy = MixedPrecisionPolicy(getattr(torch, config.param_dtype, None), getattr(torch, config.reduce_dtype))
    precision = config.precision + f" computed in {config.param_dtype}" * (policy.param_dtype is not None)
    stage = Stage(whole, mesh, policy if policy.param_dtype else None)
    stage.allocate(world.device)
    optimizer = make_adamw(stage, config.learning_rate, config.weight_decay)  # after sharding
    shards, biases = parameter_shards(stage, mesh, TIED), dict(stage.named_buffers())
    # MESH 3/7: a checkpoint holds whole tensors, so any other mesh can go on from it, and minigpt_ddp.py as well.
    parts = {
        "model": WholeModel(mesh, shards, names, TIED),
        "optimizer": WholeOptimizer(mesh, shards, names, optimizer),
        "scaler": torch.amp.GradScaler(world.device.type, enabled=False),
    }
    identity = make_identity(config, tokens, precision)
    if config.experts:
        parts["router_biases"] = WholeBuffers(mesh, biases)
        identity |= {"experts": config.experts, "experts_per_token": config.experts_per_token}
    parts["model"].load_state_dict(initial_values)  # one parameter at a time, of which each rank keeps its shard
    loop = TrainingLoop(run_directory, config, TrainingState(parts, identity))
    settings = {"token_file": str(tokens.folder)}
    if not loop.begin(checkpoint, settings, {"tokenizer_state": tokens.tokenizer.state()}):
        return 0

    pipeline = Pipeline(stage, mesh.pp, world.device, gradient_accumulation_steps, config.schedule)
    counts = [0] * world.size
    dist.all_gather_object(counts, sum(shard.local.numel() for shard in shards))
    world.say(
        f"{parameters:,} parameters, {min(counts):,} to {max(counts):,} of them on a rank; {len(tokens.train):,} "
        f"training tokens{windows.description}; {precision} on {world.device}\nmesh: {mesh}; "
        f"{config.tokens_per_update:,} tokens per update = {mesh.replicas} share(s) x {gradient_accumulation_steps} "
        f"micro-batch(es) x {config.micro_batch_size} windows x {config.context} tokens"
    )
    computed_in = config.precision if config.param_dtype == "same" else config.param_dtype
    peak = peak_per_second(world, computed_in, flops_per_token(model_config, config.experts, config.experts_per_token))
    for step in loop.steps(unit="tokens", per_step=config.tokens_per_update, peak=peak):
        learning_rate = config.learning_rate_at(step)
        set_learning_rate(optimizer, learning_rate)
        target_count = windows.targets(step)  # of all ranks
        # MESH 4/7: windows go by the rank on dp and shard; peers on pp, cp and tp take the same ones.
        share = {"rank": mesh.replica, "world_size": mesh.replicas, "device": world.device}
        batches = micro_batches(windows, config, [step], **share)
        inputs, targets = map(torch.cat, zip(*batches, strict=True))  # the pipeline divides them again
        keys = window_keys(config.seed, step, config.tokens_per_update // config.context)  # for dropout, as windows go
        keys = keys.view(gradient_accumulation_steps, mesh.replicas, -1)[:, mesh.replica].flatten().to(world.device)
        with autocast(config.precision, world.device):
            # fully_shard averages over dp, shard and cp. We want the mean over the tokens.
            loss_sum = pipeline.forward_backward(inputs, targets, mesh.gradient_ranks / target_count, keys=keys)
        # MESH 5/7: both ends of the pipeline hold the tied table, and each has a part of its gradient.
        if mesh.pp.size > 1 and (stage.first or stage.last):
            add_other_end(stage.table.grad, mesh.pp)
        add_tensor_gradients(shards, mesh)
        average_expert_gradients(shards, mesh)
        # MESH 6/7: the norm of the whole gradient, of which each rank has pieces and some have copies.
        gradient_norm = clip_gradients(shards, config.gradient_clip or math.inf)
        optimizer.step()
        optimizer.zero_grad()
        metrics = windows.metrics(target_count)
        if config.experts:
            metrics["busiest"] = step_router_biases(stage.mixtures, (mesh.dp, mesh.shard, mesh.cp), config.bias_rate)
        if loop.passes(config.check_every):
            assert_copies_equal(world, shards, step + 1, biases)

        # MESH 7/7: tp peers compute the same loss, and only last stages know one. It is counted once.
        own_loss = loss_sum if mesh.reports_loss else 0.0
        [total_loss] = loop.sum_over_ranks(own_loss)
        loop.report(
            own_loss, loss=total_loss / target_count, learning_rate=learning_rate, grad_norm=gradient_norm, **metrics
        )
        loop.save_and_validate(lambda: {"loss": validate(stage, pipeline, tokens, config, mesh)})

    assert_copies_equal(world, shards, buffers=biases)
    if loop.stopped_early:
        return loop.leave()
    world.say(f"{results(loop.progress)}\nrun directory: {run_directory.path}")
    return 0


def micro_batches_per_step(config: ParallelConfig, mesh: Mesh) -> int:
    """Number of micro-batches of a replica per step. Raises InputError if --tokens-per-update or --pp does not fit."""
    count = count_gradient_accumulation_steps(config, mesh.replicas, f"--dp x --shard = {mesh.replicas}")
    if config.schedule == "1f1b" and count < config.pp:
        raise InputError(
            f"--pp {config.pp} stages need as many micro-batches or more, a step has {count}: choose a "
            "smaller --micro-batch-size, or a larger --tokens-per-update"
        )
    return count


def validate(stage: Stage, pipeline: Pipeline, tokens: Tokens, config: ParallelConfig, mesh: Mesh) -> float:
    """Mean loss per held-out token (collective), the same on any mesh: sum and count are reduced."""
    rows = micro_batches_per_step(config, mesh) * config.micro_batch_size
    batches = even_held_out_batches(tokens, config, rows, mesh.replica, mesh.replicas)
    loss_sum, count = loss_and_target_count(stage, pipeline.forward, batches, config.precision, mesh.world)
    is_counted = mesh.reports_loss
    loss_sum, count = sum_over_ranks(mesh.world, loss_sum * is_counted, count * is_counted / mesh.cp.size)
    return loss_sum / count


if __name__ == "__main__":
    prepare_process()
    run(train, PRESETS)
