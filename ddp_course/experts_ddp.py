"""Pre-train MiniGPT with a mixture of experts in every block, the experts spread over the ranks.

    torchrun --standalone --nproc-per-node=2 ddp_course/experts_ddp.py --preset tiny
    torchrun --standalone --nproc-per-node=4 ddp_course/experts_ddp.py --experts 16 --ep 2      # two replicas
    torchrun ... ddp_course/experts_ddp.py --run-dir runs/mine --resume auto      # go on, at any number of ranks

Read `train` next to that of minigpt_ddp.py: the same flags give the same windows and the same training run at any
number of ranks. The lines for experts are marked MoE 1/7 to MoE 7/7. Notebook 30 has the method.
"""

if __name__ == "__main__":
    from ddp_course.base.command import begin_command

    begin_command()  # before torch is imported: from here on Ctrl-C is one line

import math
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from ddp_course.base.errors import InputError
from ddp_course.checkpoint.run_directory import open_run
from ddp_course.checkpoint.training_state import TrainingState
from ddp_course.checkpoint.whole_state import WholeModel, WholeOptimizer, names_by_group
from ddp_course.distributed import process_group
from ddp_course.distributed.expert_parallel import add_gradients
from ddp_course.distributed.mesh import Mesh
from ddp_course.distributed.parameter_shards import assert_copies_equal, clip_gradients, parameter_shards
from ddp_course.trainers.minigpt_experts import MixtureGPT, mixture_parameter_count
from ddp_course.trainers.minigpt_stage import TIED
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
from ddp_course.training.loop import TrainingLoop
from ddp_course.training.memory import require_memory, training_bytes
from ddp_course.training.optimization import make_adamw, set_learning_rate
from ddp_course.training.precision import autocast, choose_attention, parameter_dtype, set_matmul_precision
from ddp_course.training.process import prepare_process
from ddp_course.training.settings import NonNegativeFloat, PositiveInt


@dataclass(frozen=True)
class ExpertsConfig(PretrainingConfig):
    """Pre-train MiniGPT with experts. The same flags mean the same training run at any number of processes.

    With several micro-batches per step, an extra forward pass over all of them counts the routers' choices first.
    """

    experts: PositiveInt = 8
    """Experts of a block, each an MLP of the size of MiniGPT's."""
    experts_per_token: PositiveInt = 2
    """Experts that a token is routed to."""
    ep: PositiveInt | None = None
    """Ranks that hold one copy of the experts between them; further ranks hold replicas. None: all ranks."""
    balance: NonNegativeFloat = 0.01
    """Weight of the balance loss, which is 1 in a layer whose experts are equally popular."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.experts_per_token > self.experts:
            raise ValueError(f"--experts-per-token {self.experts_per_token} is more than --experts {self.experts}")


PRESETS = {"laptop": ExpertsConfig(), "tiny": ExpertsConfig(**TINY)}


def train(config: ExpertsConfig) -> int:
    """Train as one rank, to the last step or until a stop was asked for; returns the exit code."""
    world = process_group.start(config.timeout_seconds, config.device)
    gradient_accumulation_steps = count_gradient_accumulation_steps(config, world.size)
    # MoE 1/7: experts are sharded over the mesh's tp axis and replicated over dp; windows are sharded over all ranks.
    expert_ranks = config.ep or world.size
    if world.size % expert_ranks or config.experts % expert_ranks:
        raise InputError(
            f"--ep {expert_ranks} must divide the number of processes, {world.size}, and --experts "
            f"{config.experts}: each rank holds as many whole experts"
        )
    mesh = Mesh(world, pp=1, dp=world.size // expert_ranks, shard=1, cp=1, tp=expert_ranks)
    run_directory, checkpoint = open_run(world, config.run_dir, config.resume, kind="experts")
    tokens, windows = open_text(world, config, run_directory)
    process_group.seed_shared(config.seed)
    model_config, dtype = make_model_config(config, tokens), parameter_dtype(config.precision)
    expert_size, other_size = mixture_parameter_count(model_config, config.experts)
    size = expert_size + other_size
    local_size = expert_size // expert_ranks + other_size
    need = max(size * dtype.itemsize, training_bytes(local_size, dtype))
    need += 16 * config.tokens_per_update // world.size  # all tokens and targets of a step are in memory
    require_memory(world, "this training run", need + batch_bytes(config, model_config))
    set_matmul_precision(config.precision)
    attention = choose_attention(config.precision, world.device, config.context)

    # MoE 2/7: every rank builds the same whole model, then keeps its own experts only. All else is replicated.
    model = MixtureGPT(model_config, config.experts, config.experts_per_token, attention).to(world.device, dtype)
    names = names_by_group(model)
    model.shard_over(mesh.tp)
    optimizer = make_adamw(model, config.learning_rate, config.weight_decay)  # after sharding
    shards = parameter_shards(model, mesh, {})
    process_group.seed_rank(config.seed, world.rank)
    # MoE 3/7: a checkpoint holds all experts, so that any number of ranks can resume from it.
    whole_optimizer = WholeOptimizer(mesh, shards, names, optimizer)
    parts = {"model": WholeModel(mesh, shards, names, TIED), "optimizer": whole_optimizer}
    identity = {"experts": config.experts, "experts_per_token": config.experts_per_token}
    identity |= make_identity(config, tokens, config.precision)
    loop = TrainingLoop(run_directory, config, TrainingState(parts, identity))
    settings = {"token_file": str(tokens.folder)}
    if not loop.begin(checkpoint, settings, {"tokenizer_state": tokens.tokenizer.state()}):
        return 0

    world.say(
        f"{size:,} parameters, {local_size:,} of them on rank 0; "
        f"{len(tokens.train):,} training tokens{windows.description}; {config.precision} on {world.device}\n"
        f"{config.experts} experts over {expert_ranks} rank(s), {mesh.dp.size} replica(s); "
        f"{config.tokens_per_update:,} tokens per update = {world.size} rank(s) x {gradient_accumulation_steps} "
        f"micro-batch(es) x {config.micro_batch_size} windows x {config.context} tokens"
    )
    sharded = [shard.parameter for shard in shards if shard.placements]
    replicated = [shard.parameter for shard in shards if not shard.placements]
    for step in loop.steps(unit="tokens", per_step=config.tokens_per_update):
        learning_rate = config.learning_rate_at(step)
        set_learning_rate(optimizer, learning_rate)
        target_count = windows.targets(step)  # of all ranks
        share = {"rank": world.rank, "world_size": world.size, "device": world.device}
        batches = list(micro_batches(windows, config, [step], **share))
        loss_sum, balance_sum = torch.zeros(2, device=world.device, dtype=torch.float64)
        # MoE 4/7: the balance loss counts the choices of all micro-batches of a step, so these are counted first.
        choices = count_choices(model, batches, config, world.device) if gradient_accumulation_steps > 1 else None
        for micro_step, (inputs, targets) in enumerate(batches):
            if micro_step and loop.abandons_step():
                break
            with autocast(config.precision, world.device):
                loss = model(inputs, targets)
            if choices is None:
                choices = model.choices()
                dist.all_reduce(choices)
            balance = model.balance(choices, config.tokens_per_update)
            (loss / target_count + config.balance * balance).backward()
            loss_sum += loss.detach()
            balance_sum += balance.detach()
        if loop.abandoned:
            continue
        # MoE 5/7: gradients of replicated parameters are summed over all ranks, an expert's over its replicas only: all
        # tokens of its tp group that chose it were sent to it.
        add_gradients(replicated, dist.group.WORLD)
        add_gradients(sharded, mesh.dp.group)
        # MoE 6/7: the norm of the whole gradient, with the experts of all ranks.
        gradient_norm = clip_gradients(shards, config.gradient_clip or math.inf)
        optimizer.step()
        optimizer.zero_grad()
        if loop.passes(config.check_every):
            assert_copies_equal(world, shards, step + 1)

        total_loss, total_balance = loop.sum_over_ranks(loss_sum, balance_sum)
        loop.report(
            loss_sum,
            loss=total_loss / target_count,
            learning_rate=learning_rate,
            grad_norm=gradient_norm,
            balance=total_balance / config.layers,
            busiest=busiest(choices),
            **windows.metrics(target_count),
        )
        # MoE 7/7: ranks communicate in the forward pass, so all take the same number of batches.
        loop.save_and_validate(lambda: {"loss": validate(model, tokens, config, config.precision, world, even=True)})

    assert_copies_equal(world, shards)
    if loop.stopped_early:
        return loop.leave()
    world.say(f"{results(loop.progress)}\nrun directory: {run_directory.path}")
    return 0


@torch.no_grad()
def count_choices(
    model: MixtureGPT, batches: list[tuple[Tensor, Tensor]], config: ExpertsConfig, device: torch.device
) -> Tensor:
    """How often each expert is chosen in a step, over all ranks (collective): (layers, experts).

    The random generators are left as they were.
    """
    choices = torch.zeros(config.layers, config.experts, dtype=torch.int64, device=device)
    with torch.random.fork_rng([device] if device.type == "cuda" else []), autocast(config.precision, device):
        for inputs, targets in batches:
            model(inputs, targets)
            choices += model.choices()
    dist.all_reduce(choices)
    return choices


def busiest(choices: Tensor) -> float:
    """The count of the most chosen expert over the mean count of its layer, in the layer where this is largest.

    choices: (layers, experts). All other ranks wait for the rank of that expert.
    """
    return (choices.max(1).values / choices.double().mean(1)).max().item()


if __name__ == "__main__":
    prepare_process()
    run(train, PRESETS)
