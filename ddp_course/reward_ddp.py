"""Train a reward model: a small head that learns, on a frozen language model that reads, which of two texts is better.

    python ddp_course/reward_ddp.py --backbone minigpt:runs/mine                                   # one process
    torchrun --standalone --nproc-per-node=2 ddp_course/reward_ddp.py --backbone minigpt:runs/mine  # two
    torchrun ... ddp_course/reward_ddp.py --backbone hf:FOLDER_OR_NAME --pairs mine.jsonl           # another model

Read it from `train` downwards. What is unlike pre-training is marked REWARD 1/5 to REWARD 5/5.
"""

if __name__ == "__main__":
    from ddp_course.base.command import begin_command

    begin_command()  # before torch is imported: from here on Ctrl-C is one line

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.utils import clip_grad_norm_

from ddp_course.checkpoint import best_checkpoint
from ddp_course.checkpoint.run_directory import open_run
from ddp_course.checkpoint.training_state import TrainingState
from ddp_course.data import density, pairs
from ddp_course.data.pairs import TRAIN, VALIDATION, Pair, pairs_of_update, prepare_pairs, read_pairs
from ddp_course.distributed import process_group
from ddp_course.distributed.bucket_order import wrap
from ddp_course.distributed.process_group import World
from ddp_course.distributed.replica_check import assert_replicas_equal
from ddp_course.distributed.sync import assert_same_value, from_rank_0, sum_over_ranks
from ddp_course.models.reward import FrozenBackbone, RewardHead, feature_count
from ddp_course.post_training.backbones import fingerprint, load_backbone, prepare_backbone
from ddp_course.post_training.interval import wilson_interval
from ddp_course.post_training.reward_model import RewardModel
from ddp_course.training.command_line import run
from ddp_course.training.memory import require_memory, training_bytes
from ddp_course.training.optimization import is_due, set_learning_rate
from ddp_course.training.precision import parameter_dtype, settle_arithmetic
from ddp_course.training.progress import Progress
from ddp_course.training.settings import RunSettings, check_ranges
from ddp_course.training.stop_request import StopRequest

IDENTITY = ("max_tokens", "head_width", "pairs_per_update", "seed", "weight_mode", "weight_cap")


@dataclass(frozen=True)
class RewardConfig(RunSettings):
    """Train a reward model on pairs. The same flags mean the same training run at any number of processes."""

    preset: Literal["laptop", "tiny", "gpus"] = "laptop"
    steps: int = 200
    final_learning_rate: float | None = 1e-4
    warmup_steps: int = 10
    weight_decay: float = 0.01

    backbone: str = ""
    """The language model that reads, frozen: minigpt:PATH (a checkpoint or run directory of minigpt_ddp),
    hf:FOLDER_OR_NAME (Hugging Face transformers) or nanochat:SOURCE[/TAG[/STEP]]."""
    max_tokens: int = 64
    """Tokens of a prompt and its completion; what is longer loses the prompt's beginning."""
    head_width: int = 256
    """Units of the head's hidden layer."""
    pairs: str = "stdlib"
    """Where pairs come from: stdlib (Python's own sources, broken in known ways), a file or folder of Python code, a
    .jsonl file, or a folder with train.jsonl and validation.jsonl."""
    train_pairs: int = 8000
    """Pairs to make for training, if they are made."""
    validation_pairs: int = 1000
    """Pairs to make for validation, from files of their own."""
    pairs_per_update: int = 64
    """Pairs of one update, over all ranks: the constant of the run."""
    micro_batch_size: int = 32
    """Texts that one rank takes through the backbone at a time."""
    sample_pairs: int = 3
    """Held-out pairs to show with their rewards at the end."""

    weight_mode: density.Mode = "mean"
    """How a pair's weight enters the loss. none: not at all. mean: as a share of the global batch's weight. sum: as it
    is, so that a heavy batch takes a larger step."""
    weights: str = "computed"
    """computed (1 / how many training prompts end in a line of the same shape), or a JSON file {md5: weight}."""
    weight_cap: float | None = 3.0
    """No pair counts more than this many average ones; None: no limit."""
    most_misses: float = 0.01
    """Share of prompts that may be missing in the file of weights."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_ranges(
            self,
            at_least_1=("train_pairs", "validation_pairs", "head_width", "pairs_per_update", "micro_batch_size"),
            at_least_0=("sample_pairs",),
        )
        if self.weight_cap is not None and not self.weight_cap >= 1:
            raise ValueError(f"--weight-cap must be at least 1, the average, not {self.weight_cap}")
        if not 0 <= self.most_misses < 1:
            raise ValueError(f"--most-misses must be a share from 0 to below 1, not {self.most_misses}")


PRESETS = {
    "laptop": RewardConfig(),
    "tiny": RewardConfig(
        preset="tiny",
        train_pairs=256,
        validation_pairs=64,
        max_tokens=64,
        head_width=32,
        pairs_per_update=16,
        micro_batch_size=16,
        steps=20,
        warmup_steps=2,
        precision="float32",
        validate_every=10,
        checkpoint_every=10,
        log_every=1,
    ),
    "gpus": RewardConfig(
        preset="gpus",
        train_pairs=200_000,
        validation_pairs=5000,
        max_tokens=512,
        head_width=1024,
        pairs_per_update=512,
        micro_batch_size=64,
        steps=1000,
        learning_rate=1e-3,
        warmup_steps=50,
    ),
}


def train(config: RewardConfig) -> int:
    """One rank\'s part of the run, to the last step or until a stop was asked for; returns the exit code."""
    world = process_group.start(config.timeout_seconds, config.device)
    run_directory, resumed = open_run(world, config.run_dir, config.resume, kind="reward")

    # REWARD 1/5: the backbone comes by name, and all ranks must hold the same one, with the same tokenizer.
    backbone = load_backbone(from_rank_0(world, lambda: prepare_backbone(config.backbone)))
    of_backbone = fingerprint(backbone)
    assert_same_value(world, "the backbone", of_backbone)

    # One rank makes the pairs, or finds them, and all read the same two files.
    folder = Path(
        from_rank_0(
            world,
            lambda: str(
                prepare_pairs(
                    config.pairs,
                    config.train_pairs,
                    config.validation_pairs,
                    config.seed,
                    resumed_settings=run_directory.before,
                )
            ),
        )
    )
    train_pairs, held_out = read_pairs(folder / TRAIN), read_pairs(folder / VALIDATION)
    weights = weigh(train_pairs, config, world)
    of_data = (pairs.fingerprint(folder), math.fsum(weights.tolist()))  # exact: the same with any number of threads
    assert_same_value(world, "the pairs and their weights", of_data)

    arithmetic = settle_arithmetic(
        world, config.precision, config.max_tokens, run_directory.before, trial=lambda: reading(backbone.model, config)
    )
    precision = arithmetic.precision
    process_group.seed_shared(config.seed)
    features = feature_count(backbone.model.width)
    need = training_bytes(features * config.head_width, parameter_dtype(precision))
    need += 8 * config.pairs_per_update * features // world.size
    # A text of a micro-batch has a completion of one token at least, with logits in float32 or wider.
    texts = min(config.micro_batch_size, 2 * config.pairs_per_update // world.size)
    require_memory(world, "this training run", need + 4 * texts * backbone.model.output.weight.shape[0])
    head = RewardHead(features, config.head_width)
    model = RewardModel(
        backbone, head, max_tokens=config.max_tokens, micro_batch_size=config.micro_batch_size, precision=precision
    ).to(world.device, parameter_dtype(precision))
    optimizer = torch.optim.AdamW(head.parameters(), lr=config.learning_rate, weight_decay=config.weight_decay)
    process_group.seed_rank(config.seed, world.rank)

    identity = {name: getattr(config, name) for name in IDENTITY}
    identity |= {"precision": precision, "backbone": of_backbone, "pairs": of_data[0], "weights": of_data[1]}
    state = TrainingState({"head": head, "optimizer": optimizer}, identity)
    step = state.restore(world, resumed) if resumed else 0
    if step >= config.steps:
        world.say(f"nothing left to do: step {step} of {config.steps} is done; --steps takes the run further")
        return 0
    settings = asdict(config) | asdict(arithmetic) | {"backbone": backbone.name, "pairs_folder": str(folder)}
    settings = run_directory.begin(step, settings | {"world_size": world.size})
    settings["tokenizer_state"] = backbone.tokenizer_state
    best = from_rank_0(world, lambda: best_checkpoint.settle(run_directory.path, "val_accuracy"))

    # REWARD 2/5: DDP around the head, and around nothing else: it refuses a module without anything to train.
    replica = wrap(world, head, torch.zeros(1, head.norm.normalized_shape[0]).to(head.reward.weight))

    cut = sum(len(backbone.encode(pair.chosen)) >= config.max_tokens for pair in held_out)
    world.say(
        f"{config.backbone} is frozen; {sum(p.numel() for p in head.parameters()):,} parameters learn; {precision} on "
        f"{world.device}\n{len(train_pairs):,} pairs to train on and {len(held_out):,} held out\n"
        f"{config.pairs_per_update} pairs per update, over {world.size} rank(s); --max-tokens {config.max_tokens} cuts "
        f"the end off {cut} of the held-out completions"
    )
    progress = Progress(
        run_directory,
        config,
        first_step=step,
        per_update=config.pairs_per_update,
        unit="pairs",
        shown=("loss", "accuracy"),
    )
    stop_request = StopRequest(world, config)
    held_out_features: list[Tensor] = []  # of this rank's share: the backbone is frozen, so once is enough
    stopping = False
    while step < config.steps and not stopping:
        learning_rate = config.learning_rate_at(step)
        set_learning_rate(optimizer, learning_rate)
        # Each rank takes its share of one global batch. Shares may differ by one pair, and may be empty.
        global_batch = torch.tensor(pairs_of_update(config.seed, step, config.pairs_per_update, len(train_pairs)))
        mine = global_batch.tensor_split(world.size)[world.rank]
        # REWARD 3/5: chosen and rejected go through the head together, and come back in one backward: one all-reduce.
        margins = margins_of(replica, features_of(model, [train_pairs[n] for n in mine]))
        losses = -F.logsigmoid(margins)
        # REWARD 4/5: one normaliser for all ranks. The weight of a pair must not depend on the other pairs of its rank.
        weight = weights[mine].to(losses)
        [total_weight] = sum_over_ranks(world, weight.sum())
        factor = density.factors(
            weight, config.weight_mode, config.weight_cap, total_weight=total_weight, pairs=config.pairs_per_update
        )
        loss = (factor * losses).sum()
        # DDP divides the sum of the ranks' gradients by the world size. We want the sum over the pairs of the update.
        (loss * (world.size / config.pairs_per_update)).backward()
        gradient_norm = clip_grad_norm_(head.parameters(), config.gradient_clip or math.inf)
        optimizer.step()
        optimizer.zero_grad()
        step += 1

        # REWARD 5/5: sums and counts are reduced, and divided after that.
        *sums, ranks_asked = sum_over_ranks(
            world, loss, losses.sum(), (margins > 0).sum(), margins.sum(), factor.sum(), stop_request.asked()
        )
        mean_loss, unweighted_loss, accuracy, margin, used = (one / config.pairs_per_update for one in sums)
        stopping = ranks_asked > 0
        progress.step(
            step,
            loss,
            loss=mean_loss,
            unweighted_loss=unweighted_loss,
            accuracy=accuracy,
            margin=margin,
            factor_mean=used,
            weight_mean=total_weight / config.pairs_per_update,
            learning_rate=learning_rate,
            grad_norm=gradient_norm.item(),
        )
        with progress.paused():
            # Saved first: who asked the run to stop may not wait for a validation.
            if stopping or is_due(step, config.checkpoint_every, config.steps):
                state.save(world, run_directory.path, step, settings, keep=config.keep_checkpoints)
            if is_due(step, config.validate_every, config.steps):
                if not held_out_features:
                    held_out_features.append(features_of(model, held_out[world.rank :: world.size]))
                found = validate(head, held_out_features[0], world)
                progress.validation(step, **found)
                # More steps are not always better: the file `best` names the checkpoint that judged these pairs best.
                if found["accuracy"] > best:
                    best = found["accuracy"]
                    state.save(world, run_directory.path, step, settings, keep=config.keep_checkpoints)
                    from_rank_0(world, lambda: best_checkpoint.settle(run_directory.path, "val_accuracy"))
    progress.close()

    assert_replicas_equal(world, head)
    backbone.model.assert_frozen()
    assert_same_value(world, "the backbone", fingerprint(backbone))
    if stopping and step < config.steps:
        return stop_request.leave(step, run_directory.path)
    if world.is_main:
        found = progress.validated
        low, high = wilson_interval(found["accuracy"] * found["pairs"], found["pairs"])
        print(
            f"\npair accuracy on held-out files {found['accuracy']:.3f} (95 % interval {low:.3f} to {high:.3f}, "
            f"{found['pairs']:,.0f} pairs), {progress.per_second:,.0f} pairs/s\n"
            f"the backbone's likelihood alone {found['baseline']:.3f}; the best checkpoint {best:.3f}",
            flush=True,
        )
        for pair in held_out[: config.sample_pairs]:
            run_directory.add_sample(step, scored(model, pair))
            print(scored(model, pair), flush=True)
        print(f"run directory: {run_directory.path}", flush=True)
    return 0


def weigh(train_pairs: list[Pair], config: RewardConfig, world: World) -> Tensor:
    """The weight of every training pair, with mean 1; rank 0 reports how many prompts had none."""
    prompts = [pair.prompt for pair in train_pairs]
    if config.weight_mode == "none":
        return torch.ones(len(prompts), dtype=torch.float64)
    by_key = density.computed(prompts) if config.weights == "computed" else density.read_weights(Path(config.weights))
    found = density.look_up(prompts, by_key, config.most_misses)
    world.say(
        f"weights ({config.weights}): largest {found.values.max():.1f} times the mean; "
        f"{found.misses:,} of {len(prompts):,} prompts have none and take the mean"
    )
    return found.values


def reading(backbone: FrozenBackbone, config: RewardConfig) -> Callable[[], Tensor]:
    """A trial to time, on the CPU: the backbone reads a micro-batch of long texts."""
    length = min(config.max_tokens, backbone.context)
    tokens = torch.zeros(min(config.micro_batch_size, 1 + 1024 // length), length, dtype=torch.int64)
    starts, lengths = torch.full((len(tokens),), length // 2), torch.full((len(tokens),), length)
    return lambda: backbone(tokens, starts, lengths)


def features_of(model: RewardModel, some: list[Pair]) -> Tensor:
    """What the head reads: (2 * pairs, features), the chosen first, then the rejected in the same order."""
    prompts = [pair.prompt for pair in some]
    return model.features(prompts + prompts, [pair.chosen for pair in some] + [pair.rejected for pair in some])


def margins_of(head: torch.nn.Module, features: Tensor) -> Tensor:
    """By how much the head prefers the chosen to the rejected, (pairs,)."""
    rewards = head(features)
    return rewards[: len(rewards) // 2] - rewards[len(rewards) // 2 :]


@torch.no_grad()
def validate(head: RewardHead, features: Tensor, world: World) -> dict[str, float]:
    """Loss, accuracy and margin of held-out pairs, each pair counted once; the same at any world size.

    baseline: the share that needs no head, where the backbone finds the chosen text likelier, by the mean over its
    tokens. gained: the share that the head ranks correctly and the baseline does not; lost: the reverse.
    """
    margins = margins_of(head, features)
    right = margins > 0
    chosen, rejected = features[:, -2].chunk(2)
    likelier = chosen < rejected  # of negative log-likelihoods
    names = ("loss", "accuracy", "margin", "baseline", "gained", "lost")
    values = (-F.logsigmoid(margins), right, margins, likelier, right & ~likelier, likelier & ~right)
    *sums, count = sum_over_ranks(world, *(value.sum() for value in values), len(margins))
    return dict(zip(names, (one / count for one in sums), strict=True)) | {"pairs": count}


def scored(model: RewardModel, pair: Pair) -> str:
    """A pair with its two rewards, as text."""
    chosen, rejected = model.score([pair.prompt] * 2, [pair.chosen, pair.rejected]).tolist()
    return (
        f"...{pair.prompt[-120:]}    chosen, reward {chosen:+.2f}:\n{pair.chosen}"
        f"    rejected ({pair.kind}), reward {rejected:+.2f}:\n{pair.rejected}"
    )


if __name__ == "__main__":
    run(train, PRESETS)
