"""Post-train a language model with GRPO: sample groups of completions, reward them, make the better ones likelier.

    torchrun --standalone --nproc-per-node=2 ddp_course/grpo_ddp.py --pretrained runs/mine
    torchrun ... ddp_course/grpo_ddp.py --pretrained runs/mine --reward model --reward-model runs/reward
    torchrun ... ddp_course/grpo_ddp.py --pretrained hf:path/to/model      # from Hugging Face; or nanochat:SOURCE
    torchrun ... ddp_course/grpo_ddp.py --pretrained runs/mine --run-dir runs/grpo --resume auto

Shao et al., "DeepSeekMath" (2024). Read it from `train` downwards. The lines for many processes are marked
DDP 1/7 to DDP 7/7. `--objective pairwise` trains on fixed pairs instead: see `post_training/pairwise_objective.py`.
"""

if __name__ == "__main__":
    from ddp_course.base.command import begin_command

    begin_command()  # before torch is imported: from here on Ctrl-C is one line

import contextlib
import copy
import hashlib
import math
from dataclasses import asdict

import torch
from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_

from ddp_course.base.errors import InputError
from ddp_course.checkpoint.run_directory import open_run
from ddp_course.checkpoint.training_state import TrainingState
from ddp_course.data.pairs import pairs_of_step
from ddp_course.distributed import process_group
from ddp_course.distributed.bucket_order import wrap
from ddp_course.distributed.process_group import World
from ddp_course.distributed.replica_check import assert_replicas_equal
from ddp_course.distributed.sync import assert_same_value, from_rank_0, sum_over_ranks
from ddp_course.models.minigpt import MiniGPTConfig, set_attention
from ddp_course.post_training.backbones import prepare_backbone
from ddp_course.post_training.batch import Batch, compute_metrics
from ddp_course.post_training.grpo import AdaptiveBeta, grpo_loss, token_log_probs
from ddp_course.post_training.grpo_config import PRESETS, GRPOConfig
from ddp_course.post_training.grpo_prompts import collect_or_read_prompts
from ddp_course.post_training.pairwise_objective import pairwise_loss
from ddp_course.post_training.policies import load_policy, prepare_policy, write_as_folder
from ddp_course.post_training.prompts import prompts_of
from ddp_course.post_training.reward_model import load_reward_model
from ddp_course.post_training.rewards import Parses, parses
from ddp_course.post_training.rollout import RolloutModels, complete, real_completions, sample_groups, score_pairs
from ddp_course.training.command_line import run
from ddp_course.training.loop import TrainingLoop
from ddp_course.training.memory import require_memory
from ddp_course.training.optimization import make_adamw, set_learning_rate
from ddp_course.training.precision import autocast, choose_attention, parameter_dtype, set_matmul_precision
from ddp_course.training.process import prepare_process

IDENTITY = ("objective", "reward", "prompts_per_update", "group_size", "new_tokens", "passes", "seed", "precision")


def train(config: GRPOConfig) -> int:
    """Train as one rank, to the last step or until a stop was asked for; returns the exit code."""
    # DDP 1/7: join the other processes and take the device that belongs to this one.
    world = process_group.start(config.timeout_seconds, config.device)
    if config.prompts_per_update < world.size:
        raise InputError(
            f"--prompts-per-update {config.prompts_per_update} leaves ranks without work: there are "
            f"{world.size}, and a group stays on one rank"
        )
    if not config.pretrained:
        raise InputError("--pretrained is missing: give it a run directory of minigpt_ddp, or hf:FOLDER")
    run_directory, checkpoint = open_run(world, config.run_dir, config.resume, kind="grpo")
    start = load_policy(from_rank_0(world, lambda: prepare_policy(config.pretrained)))
    policy = start.model.to(world.device, parameter_dtype(config.precision))
    set_matmul_precision(config.precision)
    set_attention(policy, choose_attention(config.precision, world.device, policy.config.context))
    reward = Parses(config.min_statements)
    identity = {name: getattr(config, name) for name in IDENTITY}
    if config.reward == "model":
        name = config.reward_backbone
        backbone = from_rank_0(world, lambda: prepare_backbone(name)) if name else ""
        reward = load_reward_model(config.reward_model, world.device, backbone)
        identity["reward model"] = reward.fingerprint()  # a resumed run may find another one in the folder
    models = RolloutModels(
        policy,
        copy.deepcopy(policy).requires_grad_(False),
        reward,
        start.tokenizer,
        new_tokens=config.new_tokens,
        temperature=config.temperature,
        micro_batch_size=config.micro_batch_size,
        precision=config.precision,
        begin=start.begin,
    )
    previous = run_directory.resumed_settings
    prompts, pairs, prompts_file = from_rank_0(world, lambda: collect_or_read_prompts(config, models, previous))

    require_memory(world, "a step", least_bytes(config, policy, world.size))
    optimizer = make_adamw(policy, config.learning_rate, config.weight_decay)
    beta = AdaptiveBeta(config.beta, config.kl_target, config.beta_gain)
    # DDP 2/7: each rank draws random numbers of its own. A checkpoint holds the generators of all ranks, and beta.
    process_group.seed_rank(config.seed, world.rank)
    identity |= {
        "pretrained weights": start.weights,
        "prompts and pairs": hashlib.sha256(repr((prompts.train, pairs)).encode()).hexdigest()[:16],
    }
    assert_same_value("what the run starts from", identity)
    state = TrainingState({"model": policy, "optimizer": optimizer, "beta": beta}, identity)
    loop = TrainingLoop(run_directory, config, state)
    settings = asdict(policy.config) | {"prompts_file": prompts_file}
    # With the tokenizer in it, a checkpoint can be loaded by --pretrained.
    if not loop.begin(checkpoint, settings, {"tokenizer_state": start.tokenizer.state()}):
        return 0

    # DDP 3/7: the wrapper averages gradients. It is called in training only; sampling calls the bare model.
    ddp_policy = wrap(world, policy, torch.zeros(1, 2, dtype=torch.int64, device=world.device))
    held_out, real = prompts.held_out[world.rank :: world.size], prompts.real[world.rank :: world.size]
    reference_metrics = validate(models, complete(models, models.reference, held_out, config.seed), config, world)
    # The reward of real code: a policy that gets more need not write better code.
    corpus_metrics = validate(models, real_completions(models, held_out, real), config, world)
    baselines = {"reference": reference_metrics["reward"], "reference_parses": reference_metrics["parses"]}
    baselines |= {"real": corpus_metrics["reward"], "real_parses": corpus_metrics["parses"]}
    per_step = config.prompts_per_update * (config.group_size if config.objective == "grpo" else 2)
    for step in loop.steps(unit="completions", per_step=per_step, shown=("reward", "kl", "beta")):
        if step == 0:
            loop.progress.validation(0, **reference_metrics, **baselines)
        learning_rate = config.learning_rate_at(step)
        set_learning_rate(optimizer, learning_rate)
        # DDP 4/7: the prompts of a step are the same at any world size. A rank takes its share, in whole groups.
        if config.objective == "grpo":
            chosen = prompts_of(prompts.train, seed=config.seed, step=step, count=config.prompts_per_update)
            batch, distinct = sample_groups(models, chosen[world.rank :: world.size], config.group_size)
        else:
            chosen = pairs_of_step(config.seed, step, config.prompts_per_update, len(pairs))
            batch, distinct = score_pairs(models, [pairs[n] for n in chosen[world.rank :: world.size]], beta.value)
        if loop.abandons_step():  # sampling takes most of a step
            continue
        # DDP 5/7: the loss and every metric are a sum over all ranks, divided by a count over all ranks.
        metrics = compute_metrics(batch, distinct, world)
        target_count = metrics["tokens"] if config.objective == "grpo" else metrics["sequences"] / 2
        loss_sum, clipped_count, gradient_norm = learn(
            ddp_policy, optimizer, batch, target_count, beta.value, config, world
        )
        total_loss, total_clipped = loop.sum_over_ranks(loss_sum, clipped_count)
        loop.report(
            loss_sum,
            loss=total_loss / (target_count * config.passes),
            **metrics,
            beta=beta.value,
            learning_rate=learning_rate,
            clip_fraction=total_clipped / (metrics["tokens"] * config.passes),
            grad_norm=gradient_norm,
        )
        # DDP 6/7: beta follows the KL over all ranks' samples. By its own KL each rank would get another loss.
        beta.update(metrics["kl"])
        loop.save_and_validate(
            lambda: validate(models, complete(models, policy, held_out, config.seed), config, world) | baselines
        )

    assert_replicas_equal(world, policy)
    if loop.stopped_early:
        return loop.leave()
    # DDP 7/7: only rank 0 writes and prints. No collective follows, so no rank waits for it.
    if world.is_main:
        validated = loop.progress.validated
        print(
            f"\nmean reward on held-out prompts: {validated['reward']:.3f}, reference {baselines['reference']:.3f}, "
            f"{loop.progress.last['kl']:.4f} nats per token away\n"
            f"of what it writes {validated['parses']:.1%} parses, reference {baselines['reference_parses']:.1%}",
            flush=True,
        )
        chosen = prompts.held_out[: config.samples]
        for name, model in (("reference", models.reference), ("policy", policy)):
            completions = models.sample(model, [models.encode(prompt) for prompt in chosen], config.seed)
            for prompt, completion in zip(chosen, completions, strict=True):
                run_directory.add_sample(loop.step, f"# the {name}:\n{''.join(models.decode(prompt, completion))}")
        if folder := write_as_folder(policy, run_directory.path / f"huggingface_step_{loop.step:06d}"):
            print(f"the policy for transformers, and for --pretrained: hf:{folder}", flush=True)
        print(f"run directory: {run_directory.path}", flush=True)
    return 0


def least_bytes(config: GRPOConfig, policy: nn.Module, world_size: int) -> int:
    """A lower bound of the memory that a rank needs: its sequences and, for a MiniGPT, their key-value cache."""
    tokens = math.ceil(config.prompts_per_update / world_size) * config.new_tokens
    if config.objective == "pairwise":
        return 2 * tokens
    sizes = policy.config
    cached = 0  # keys and values of one token, at least two bytes each
    if isinstance(sizes, MiniGPTConfig):
        cached = 2 * sizes.layers * sizes.width * (sizes.kv_heads or sizes.heads) // sizes.heads
    return config.group_size * tokens * (8 + 2 * cached)


def learn(
    ddp_policy: nn.Module,
    optimizer: torch.optim.Optimizer,
    batch: Batch,
    target_count: float,
    beta: float,
    config: GRPOConfig,
    world: World,
) -> tuple[Tensor, Tensor, float]:
    """Take `passes` optimizer steps on one batch (collective). target_count: tokens or pairs, over all ranks.

    Returns this rank's sum of the loss and count of clipped tokens, over all passes, and the last gradient norm.
    """
    parts = list(batch.parts(config.micro_batch_size))
    loss_sum, clipped_count = torch.zeros(2, device=world.device)
    for _ in range(config.passes):
        for number, part in enumerate(parts, start=1):
            accumulates = number < len(parts) and world.size > 1  # ranks may differ in the number of parts
            with ddp_policy.no_sync() if accumulates else contextlib.nullcontext():
                with autocast(config.precision, world.device):
                    logits = ddp_policy(part.tokens)
                log_probs, _ = token_log_probs(logits, part.tokens, config.temperature)
                if config.objective == "grpo":
                    loss, clipped = grpo_loss(
                        log_probs, part.old, part.reference, part.advantages, part.counted, clip=config.clip, beta=beta
                    )
                    clipped_count += clipped
                else:
                    loss = pairwise_loss(log_probs, part.advantages, part.counted)
                # DDP divides the sum of the ranks' gradients by the world size. We want the mean over the global batch.
                (loss * (world.size / target_count)).backward()
            loss_sum += loss.detach()
        gradient_norm = clip_grad_norm_(ddp_policy.parameters(), config.gradient_clip or math.inf)
        optimizer.step()
        optimizer.zero_grad()
    return loss_sum, clipped_count, gradient_norm.item()


def validate(models: RolloutModels, texts: list[tuple[str, str]], config: GRPOConfig, world: World) -> dict[str, float]:
    """Mean reward of completions, and the share that parses, whatever the reward is (collective).

    texts: this rank's prompts and their completions.
    """
    reward = models.reward.score(*zip(*texts, strict=True)).sum().item() if texts else 0.0
    parsed = sum(parses(*text, config.min_statements) for text in texts)
    reward, parsed, count = sum_over_ranks(world, reward, parsed, len(texts))
    return {"reward": reward / count, "parses": parsed / count, "prompts": count}


if __name__ == "__main__":
    prepare_process()
    run(train, PRESETS)
