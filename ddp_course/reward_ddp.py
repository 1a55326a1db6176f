"""Train a reward model: a small head, on a frozen language model, learns which of two texts is better.

    python ddp_course/reward_ddp.py --backbone minigpt:runs/mine                                   # one process
    torchrun --standalone --nproc-per-node=2 ddp_course/reward_ddp.py --backbone minigpt:runs/mine  # two
    torchrun ... ddp_course/reward_ddp.py --backbone hf:FOLDER_OR_NAME --pairs mine.jsonl           # another model

Read it from `train` downwards. The differences to pre-training are marked REWARD 1/5 to REWARD 5/5.
"""

if __name__ == "__main__":
    from ddp_course.base.command import begin_command

    begin_command()  # before torch is imported: from here on Ctrl-C is one line

import functools
import math
from dataclasses import asdict
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.utils import clip_grad_norm_

from ddp_course.checkpoint import best_checkpoint
from ddp_course.checkpoint.run_directory import open_run
from ddp_course.checkpoint.training_state import TrainingState
from ddp_course.data import density, pairs
from ddp_course.data.pairs import TRAIN, VALIDATION, Pair, pairs_of_step, prepare_pairs, read_pairs
from ddp_course.distributed import process_group
from ddp_course.distributed.bucket_order import wrap
from ddp_course.distributed.process_group import World
from ddp_course.distributed.replica_check import assert_replicas_equal
from ddp_course.distributed.sync import assert_same_value, from_rank_0, sum_over_ranks
from ddp_course.models.minigpt import set_attention
from ddp_course.models.reward import FrozenBackbone, RewardHead, feature_count
from ddp_course.post_training.backbones import fingerprint, load_backbone, prepare_backbone
from ddp_course.post_training.pair_validation import features_of, margins_of, source_numbers, validate
from ddp_course.post_training.reward_config import PRESETS, RewardConfig
from ddp_course.post_training.reward_model import RewardModel
from ddp_course.training.command_line import run
from ddp_course.training.loop import TrainingLoop
from ddp_course.training.memory import require_memory, training_bytes
from ddp_course.training.optimization import set_learning_rate
from ddp_course.training.precision import Attention, Trial, choose_precision, parameter_dtype, set_matmul_precision
from ddp_course.training.process import prepare_process

IDENTITY = ("max_tokens", "head_width", "pairs_per_update", "seed", "weight_mode", "weight_cap")


def train(config: RewardConfig) -> int:
    """Train as one rank, to the last step or until a stop was asked for; returns the exit code."""
    world = process_group.start(config.timeout_seconds, config.device)
    run_directory, checkpoint = open_run(world, config.run_dir, config.resume, kind="reward")

    # REWARD 1/5: every rank loads the backbone; its weights and its tokenizer must be the same on all.
    backbone = load_backbone(from_rank_0(world, lambda: prepare_backbone(config.backbone)))
    backbone_fingerprint = fingerprint(backbone)
    assert_same_value("the backbone", backbone_fingerprint)

    # One rank makes or finds the pairs; all ranks read the same two files.
    counts = (config.train_pairs, config.validation_pairs)
    resumed = run_directory.resumed_settings
    folder = from_rank_0(world, lambda: prepare_pairs(config.pairs, *counts, config.seed, resumed_settings=resumed))
    train_pairs, held_out = read_pairs(folder / TRAIN), read_pairs(folder / VALIDATION)
    weights = weigh(train_pairs, config, world)
    weight_sum = math.fsum(weights.tolist())  # exact: the same with any number of threads
    pairs_fingerprint = pairs.fingerprint(folder)
    assert_same_value("the pairs and their weights", (pairs_fingerprint, weight_sum))

    arithmetic = choose_precision(
        world,
        config.precision,
        config.max_tokens,
        run_directory.resumed_settings,
        make_trial=lambda: backbone_trial(backbone.model, config),
    )
    set_matmul_precision(arithmetic.precision)
    set_attention(backbone.model, arithmetic.attention)
    precision, dtype = arithmetic.precision, parameter_dtype(arithmetic.precision)
    process_group.seed_shared(config.seed)
    require_memory(world, "this training run", least_bytes(config, backbone.model, dtype, world.size))
    head = RewardHead(feature_count(backbone.model.width), config.head_width)
    model = RewardModel(
        backbone, head, max_tokens=config.max_tokens, micro_batch_size=config.micro_batch_size, precision=precision
    ).to(world.device, dtype)
    optimizer = torch.optim.AdamW(head.parameters(), lr=config.learning_rate, weight_decay=config.weight_decay)
    process_group.seed_rank(config.seed, world.rank)

    identity = {name: getattr(config, name) for name in IDENTITY} | {"precision": precision}
    identity |= {"backbone": backbone_fingerprint, "pairs": pairs_fingerprint, "weights": weight_sum}
    loop = TrainingLoop(run_directory, config, TrainingState({"head": head, "optimizer": optimizer}, identity))
    settings = asdict(arithmetic) | {"backbone": backbone.name, "pairs_folder": str(folder)}
    if not loop.begin(checkpoint, settings, {"tokenizer_state": backbone.tokenizer_state}):
        return 0
    best = from_rank_0(world, lambda: best_checkpoint.name_best(run_directory.path, "val_loss"))

    # REWARD 2/5: DDP wraps the head only: it refuses a module without trainable parameters.
    ddp_head = wrap(world, head, torch.zeros(1, head.norm.normalized_shape[0]).to(head.reward.weight))

    truncated_count = sum(len(backbone.encode(pair.chosen)) >= config.max_tokens for pair in held_out)
    world.say(
        f"{config.backbone} is frozen; {sum(p.numel() for p in head.parameters()):,} parameters learn; {precision} on "
        f"{world.device}\n{len(train_pairs):,} pairs to train on and {len(held_out):,} held out\n"
        f"{config.pairs_per_update} pairs per step, over {world.size} rank(s); --max-tokens {config.max_tokens} cuts "
        f"the end off {truncated_count} of the held-out completions"
    )
    # The backbone is frozen, so the features of held-out pairs are computed once, at the first validation.
    sources = source_numbers(held_out)
    held_out_features = functools.cache(lambda: features_of(model, held_out[world.rank :: world.size]))
    for step in loop.steps(unit="pairs", per_step=config.pairs_per_update, shown=("loss", "accuracy")):
        learning_rate = config.learning_rate_at(step)
        set_learning_rate(optimizer, learning_rate)
        # Each rank takes its share of one global batch. Shares may differ by one pair, and may be empty.
        global_batch = torch.tensor(pairs_of_step(config.seed, step, config.pairs_per_update, len(train_pairs)))
        share = global_batch.tensor_split(world.size)[world.rank]
        # REWARD 3/5: one forward pass of the head for chosen and rejected texts, so one backward pass, one all-reduce.
        margins = margins_of(ddp_head, features_of(model, [train_pairs[n] for n in share]))
        losses = -F.logsigmoid(margins)
        # REWARD 4/5: one normaliser for all ranks. The weight of a pair must not depend on the other pairs of its rank.
        weight = weights[share].to(losses)
        [total_weight] = sum_over_ranks(world, weight.sum())
        factor = density.factors(
            weight, config.weight_mode, config.weight_cap, total_weight=total_weight, pairs=config.pairs_per_update
        )
        loss = (factor * losses).sum()
        # DDP divides the sum of the ranks' gradients by the world size. We want the sum over the pairs of the step.
        (loss * (world.size / config.pairs_per_update)).backward()
        gradient_norm = clip_grad_norm_(head.parameters(), config.gradient_clip or math.inf)
        optimizer.step()
        optimizer.zero_grad()

        # REWARD 5/5: sums are all-reduced first and divided by the count afterwards.
        sums = loop.sum_over_ranks(loss, losses.sum(), (margins > 0).sum(), margins.sum(), factor.sum())
        mean_loss, unweighted_loss, accuracy, margin, mean_factor = (total / config.pairs_per_update for total in sums)
        loop.report(
            loss,
            loss=mean_loss,
            unweighted_loss=unweighted_loss,
            accuracy=accuracy,
            margin=margin,
            factor_mean=mean_factor,
            weight_mean=total_weight / config.pairs_per_update,
            learning_rate=learning_rate,
            grad_norm=gradient_norm.item(),
        )
        validated = loop.save_and_validate(lambda: validate(head, held_out_features(), sources, world))
        # More steps are not always better: the file `best` names the checkpoint with the lowest held-out loss. The
        # accuracy counts each pair as right or wrong, so among few pairs its highest value is mostly chance.
        if validated and validated["loss"] < best:
            best = validated["loss"]
            loop.save()
            from_rank_0(world, lambda: best_checkpoint.name_best(run_directory.path, "val_loss"))

    assert_replicas_equal(world, head)
    backbone.model.assert_frozen()
    assert_same_value("the backbone", fingerprint(backbone))
    if loop.stopped_early:
        return loop.leave()
    if world.is_main:
        validated = loop.progress.validated
        gain = validated["accuracy"] - validated["baseline"]
        print(
            f"\npair accuracy on held-out files {validated['accuracy']:.3f} "
            f"({validated['pairs']:,.0f} pairs), {loop.progress.per_second:,.0f} pairs/s\n"
            f"the backbone's likelihood alone {validated['baseline']:.3f}, the head's gain {gain:+.3f} "
            f"(95 % interval over files {validated['gain_low']:+.3f} to {validated['gain_high']:+.3f})\n"
            f"the lowest held-out loss {best:.3f}",
            flush=True,
        )
        for pair in held_out[: config.sample_pairs]:
            run_directory.add_sample(loop.step, text := text_with_rewards(model, pair))
            print(text, flush=True)
        print(f"run directory: {run_directory.path}", flush=True)
    return 0


def least_bytes(config: RewardConfig, backbone: FrozenBackbone, dtype: torch.dtype, world_size: int) -> int:
    """A lower bound of a rank's memory besides the backbone's: the head, and the features and logits of a step."""
    features = feature_count(backbone.width)
    need = training_bytes(features * config.head_width, dtype) + 8 * config.pairs_per_update * features // world_size
    # Each text of a micro-batch has logits for one token at least, in float32 or wider.
    texts = min(config.micro_batch_size, 2 * config.pairs_per_update // world_size)
    return need + 4 * texts * backbone.output.weight.shape[0]


def weigh(train_pairs: list[Pair], config: RewardConfig, world: World) -> Tensor:
    """Weights of the training pairs, (pairs,) of float64 with mean 1; rank 0 reports how many prompts had none."""
    prompts = [pair.prompt for pair in train_pairs]
    if config.weight_mode == "none":
        return torch.ones(len(prompts), dtype=torch.float64)
    by_key = density.computed(prompts) if config.weights == "computed" else density.read_weights(Path(config.weights))
    weights = density.look_up(prompts, by_key, config.most_misses)
    world.say(
        f"weights ({config.weights}): largest {weights.values.max():.1f} times the mean; "
        f"{weights.misses:,} of {len(prompts):,} prompts have none and take the mean"
    )
    return weights.values


def backbone_trial(backbone: FrozenBackbone, config: RewardConfig) -> Trial:
    """A function that `choose_precision` times on the CPU: the backbone's forward pass on a micro-batch."""
    length = min(config.max_tokens, backbone.context)
    tokens = torch.zeros(min(config.micro_batch_size, 1 + 1024 // length), length, dtype=torch.int64)
    starts = torch.full((len(tokens),), length // 2)
    lengths = torch.full((len(tokens),), length)

    def trial(attention: Attention) -> Tensor:
        set_attention(backbone, attention)
        return backbone(tokens, starts, lengths)

    return trial


def text_with_rewards(model: RewardModel, pair: Pair) -> str:
    """A pair with the rewards of both completions, to be read."""
    chosen, rejected = model.score([pair.prompt] * 2, [pair.chosen, pair.rejected]).tolist()
    return (
        f"...{pair.prompt[-120:]}    chosen, reward {chosen:+.2f}:\n{pair.chosen}"
        f"    rejected ({pair.kind}), reward {rejected:+.2f}:\n{pair.rejected}"
    )


if __name__ == "__main__":
    prepare_process()
    run(train, PRESETS)
