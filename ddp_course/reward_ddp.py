"""Train a reward model: a small head that learns, on a frozen language model that reads, which of two texts is better.

    python ddp_course/reward_ddp.py --backbone minigpt:runs/mine                                   # one process
    torchrun --standalone --nproc-per-node=2 ddp_course/reward_ddp.py --backbone minigpt:runs/mine  # two
    torchrun ... ddp_course/reward_ddp.py --backbone hf:FOLDER_OR_NAME --pairs mine.jsonl           # another model

Read it from `train` downwards. What is unlike pre-training is marked REWARD 1/5 to REWARD 5/5.
"""

import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import clip_grad_norm_

from ddp_course.data import density, pairs
from ddp_course.data.pairs import TRAIN, VALIDATION, Pair, pairs_of_update, prepare_pairs, read_pairs
from ddp_course.models.reward import RewardHead, feature_count
from ddp_course.parallel import process_group
from ddp_course.parallel.bucket_order import settle_bucket_order
from ddp_course.parallel.command_line import run
from ddp_course.parallel.precision import choose_attention, choose_precision, parameter_dtype
from ddp_course.parallel.process_group import World
from ddp_course.parallel.progress import Progress
from ddp_course.parallel.run_directory import open_run
from ddp_course.parallel.schedule import is_due, warmup_cosine
from ddp_course.parallel.settings import check_ranges, check_tensorboard
from ddp_course.parallel.stop_request import StopRequest
from ddp_course.parallel.sync import assert_replicas_equal, assert_same_value, from_rank_0, sum_over_ranks
from ddp_course.parallel.training_state import TrainingState
from ddp_course.post_training.backbones import fingerprint, load_backbone, prepare_backbone
from ddp_course.post_training.interval import wilson_interval
from ddp_course.post_training.reward_model import RewardModel

IDENTITY = ("max_tokens", "head_width", "pairs_per_update", "seed", "weight_mode", "weight_cap")


@dataclass(frozen=True)
class RewardConfig:
    """Train a reward model on pairs. The same flags mean the same training run at any number of processes."""

    preset: Literal["laptop", "tiny", "gpus"] = "laptop"
    """A named set of sizes; every other flag changes it. tiny: seconds. laptop: two minutes. gpus: GPUs."""
    backbone: str = ""
    """The language model that reads, frozen: minigpt:PATH (a checkpoint or run directory of minigpt_ddp),
    hf:FOLDER_OR_NAME (Hugging Face transformers) or nanochat:SOURCE[/TAG[/STEP]]."""
    pairs: str = "stdlib"
    """Where pairs come from: stdlib (Python's own sources, broken in known ways), a file or folder of Python code, a
    .jsonl file, or a folder with train.jsonl and validation.jsonl."""
    train_pairs: int = 8000
    """Pairs to make for training, if they are made."""
    validation_pairs: int = 1000
    """Pairs to make for validation, from files of their own."""
    max_tokens: int = 64
    """Tokens of a prompt and its completion; what is longer loses the prompt's beginning."""
    head_width: int = 256
    """Units of the head's hidden layer."""

    weight_mode: density.Mode = "mean"
    """How a pair's weight enters the loss. none: not at all. mean: as a share of the joint batch's weight. sum: as it
    is, so that a heavy batch takes a larger step."""
    weights: str = "computed"
    """computed (1 / how many training prompts end in a line of the same shape), or a JSON file {md5: weight}."""
    weight_cap: float | None = 3.0
    """No pair counts more than this many average ones; None: no limit."""
    most_misses: float = 0.01
    """Share of prompts that may be missing in the file of weights."""

    pairs_per_update: int = 64
    """Pairs of one optimizer step, over all ranks: the constant of the run."""
    micro_batch_size: int = 32
    """Texts that one rank takes through the backbone at a time."""
    steps: int = 200
    """Optimizer steps in the whole run."""
    learning_rate: float = 3e-3
    """Peak learning rate, reached after the warm-up."""
    final_learning_rate: float = 1e-4
    """Learning rate at the last step, reached along a cosine."""
    warmup_steps: int = 10
    """Steps over which the learning rate rises from zero."""
    weight_decay: float = 0.01
    """AdamW's decay of the head's weights."""
    gradient_clip: float = 1.0
    """Largest norm of the joint gradient; 0 turns clipping off."""

    precision: Literal["auto", "float32", "bfloat16", "float16", "float64"] = "auto"
    """Of the backbone's matrix products; the head computes in float32 (float64 for float64)."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where to train; auto takes GPUs if there are any."""
    timeout_seconds: float = 120
    """How long a collective may wait for the other ranks before the job fails."""
    seed: int = 1
    """Decides the head's initial weights, which pairs are made, and their order."""

    run_dir: str = ""
    """Where the run is written; empty: runs/reward-DATE-TIME."""
    resume: str = "no"
    """no, auto (the newest valid checkpoint of --run-dir), or the path of a checkpoint."""
    log_every: int = 10
    """Steps between entries in metrics.jsonl."""
    validate_every: int = 50
    """Steps between validations; the last step always validates. 0: only then."""
    checkpoint_every: int = 50
    """Steps between checkpoints; the last step always saves one. 0: only then."""
    keep_checkpoints: int = 2
    """How many of the newest checkpoints stay; 0 keeps all."""
    max_seconds: float | None = None
    """Stop, with a checkpoint, after this many seconds of training."""
    sample_pairs: int = 3
    """Held-out pairs to show with their rewards at the end."""
    tensorboard: bool = False
    """Also write the metrics for TensorBoard."""

    def __post_init__(self) -> None:
        check_ranges(
            self,
            at_least_1=("train_pairs", "validation_pairs", "head_width", "pairs_per_update", "micro_batch_size",
                        "steps", "log_every"),
            at_least_0=("learning_rate", "final_learning_rate", "warmup_steps", "weight_decay", "gradient_clip", "seed",
                        "validate_every", "checkpoint_every", "keep_checkpoints", "sample_pairs"),
            above_0=("timeout_seconds", "max_seconds"),
        )  # fmt: skip
        check_tensorboard(self.tensorboard)
        if self.weight_cap is not None and not self.weight_cap >= 1:
            raise ValueError(f"--weight-cap must be at least 1, the average, not {self.weight_cap}")
        if not 0 <= self.most_misses < 1:
            raise ValueError(f"--most-misses must be a share from 0 to below 1, not {self.most_misses}")


PRESETS = {
    "laptop": RewardConfig(),
    "tiny": RewardConfig(
        preset="tiny", train_pairs=256, validation_pairs=64, max_tokens=64, head_width=32, pairs_per_update=16,
        micro_batch_size=16, steps=20, warmup_steps=2, precision="float32", validate_every=10, checkpoint_every=10,
        log_every=1,
    ),
    "gpus": RewardConfig(
        preset="gpus", train_pairs=200_000, validation_pairs=5000, max_tokens=512, head_width=1024,
        pairs_per_update=512, micro_batch_size=64, steps=1000, learning_rate=1e-3, warmup_steps=50,
    ),
}  # fmt: skip


def train(config: RewardConfig) -> None:
    """One rank's part of the run. Returns when the last step is done, or when a stop was asked for."""
    world = process_group.start(config.timeout_seconds, config.device)
    precision = from_rank_0(world, lambda: choose_precision(config.precision, world))
    choose_attention(precision, world.device, config.max_tokens)
    run_directory, checkpoint = open_run(world, config.run_dir, config.resume, kind="reward")

    # REWARD 1/5: the backbone comes by name, and all ranks must hold the same one, with the same tokenizer.
    backbone = load_backbone(from_rank_0(world, lambda: prepare_backbone(config.backbone)))
    of_backbone = fingerprint(backbone)
    assert_same_value(world, "the backbone", of_backbone)

    # One rank makes the pairs, or finds them, and all read the same two files.
    folder = Path(from_rank_0(world, lambda: str(prepare_pairs(
        config.pairs, config.train_pairs, config.validation_pairs, config.seed))))  # fmt: skip
    train_pairs, held_out = read_pairs(folder / TRAIN), read_pairs(folder / VALIDATION)
    weights = weigh(train_pairs, config, world)
    of_data = (pairs.fingerprint(folder), math.fsum(weights.tolist()))  # exact: the same with any number of threads
    assert_same_value(world, "the pairs and their weights", of_data)

    process_group.seed_shared(config.seed)
    head = RewardHead(feature_count(backbone.model.width), config.head_width)
    model = RewardModel(backbone, head, max_tokens=config.max_tokens, micro_batch_size=config.micro_batch_size,
                        precision=precision).to(world.device, parameter_dtype(precision))  # fmt: skip
    optimizer = torch.optim.AdamW(head.parameters(), lr=config.learning_rate, weight_decay=config.weight_decay)
    process_group.seed_rank(config.seed, world.rank)

    identity = {name: getattr(config, name) for name in IDENTITY}
    identity |= {"precision": precision, "backbone": of_backbone, "pairs": of_data[0], "weights": of_data[1]}
    state = TrainingState({"head": head, "optimizer": optimizer}, identity)
    step = state.restore(world, checkpoint) if checkpoint else 0
    if step >= config.steps:
        world.say(f"nothing left to do: step {step} of {config.steps} is done; --steps takes the run further")
        return
    settings = asdict(config) | {"backbone": backbone.name, "precision": precision, "world_size": world.size}
    run_directory.begin(step, settings)
    settings["tokenizer_state"] = backbone.tokenizer_state

    # REWARD 2/5: DDP around the head, and around nothing else: it refuses a module without anything to train.
    replica = head if world.size == 1 else DistributedDataParallel(head, gradient_as_bucket_view=True)
    if world.size > 1:
        settle_bucket_order(replica, torch.zeros(1, head.norm.normalized_shape[0]).to(head.reward.weight))

    cut = sum(len(backbone.encode(pair.chosen)) >= config.max_tokens for pair in held_out)
    world.say(
        f"{config.backbone} is frozen; {sum(p.numel() for p in head.parameters()):,} parameters learn; {precision} on "
        f"{world.device}\n{len(train_pairs):,} pairs to train on and {len(held_out):,} held out\n"
        f"{config.pairs_per_update} pairs an update, over {world.size} rank(s); --max-tokens {config.max_tokens} cuts "
        f"the end off {cut} of the held-out completions"
    )
    progress = Progress(
        run_directory, first_step=step, last_step=config.steps, per_update=config.pairs_per_update, unit="pairs",
        log_every=config.log_every, shown=("loss", "accuracy"), tensorboard=config.tensorboard,
    )  # fmt: skip
    stop_request = StopRequest(world, config.max_seconds)
    held_out_features: list[Tensor] = []  # of this rank's share: the backbone is frozen, so once is enough
    stopping = False
    while step < config.steps and not stopping:
        learning_rate = warmup_cosine(
            step, config.steps, config.warmup_steps, config.learning_rate, config.final_learning_rate
        )
        for group in optimizer.param_groups:
            group["lr"] = learning_rate
        # Each rank takes its share of one joint batch. Shares may differ by one pair, and may be empty.
        joint = torch.tensor(pairs_of_update(config.seed, step, config.pairs_per_update, len(train_pairs)))
        mine = joint.tensor_split(world.size)[world.rank]
        # REWARD 3/5: chosen and rejected go through the head together, and come back in one backward: one all-reduce.
        margins = margins_of(replica, features_of(model, [train_pairs[n] for n in mine]))
        losses = -F.logsigmoid(margins)
        # REWARD 4/5: one normaliser for all ranks. What a pair counts must not depend on who happens to share its rank.
        weight = weights[mine].to(losses)
        [total_weight] = sum_over_ranks(world, weight.sum())
        factor = density.factors(weight, config.weight_mode, config.weight_cap,
                                 total_weight=total_weight, pairs=config.pairs_per_update)  # fmt: skip
        loss = (factor * losses).sum()
        # DDP divides the sum of the ranks' gradients by the world size. We want the sum over the pairs of the update.
        (loss * (world.size / config.pairs_per_update)).backward()
        gradient_norm = clip_grad_norm_(head.parameters(), config.gradient_clip or math.inf)
        optimizer.step()
        optimizer.zero_grad()
        step += 1

        # REWARD 5/5: sums and counts are reduced, and divided after that.
        *sums, ranks_asked = sum_over_ranks(
            world, loss, (margins > 0).sum(), margins.sum(), factor.sum(), stop_request.asked()
        )
        loss, accuracy, margin, used = (one / config.pairs_per_update for one in sums)
        stopping = ranks_asked > 0
        progress.step(
            step, loss=loss, accuracy=accuracy, margin=margin, weight_mean=total_weight / config.pairs_per_update,
            factor_mean=used, lr=learning_rate, grad_norm=gradient_norm.item(),
        )  # fmt: skip
        with progress.paused():
            if stopping:  # before anything else: who asked may not wait for a validation
                state.save(world, run_directory.path, step, settings, keep=config.keep_checkpoints)
            if is_due(step, config.validate_every, config.steps):
                if not held_out_features:
                    held_out_features.append(features_of(model, held_out[world.rank :: world.size]))
                progress.validation(step, **validate(head, held_out_features[0], world))
            if is_due(step, config.checkpoint_every, config.steps) and not stopping:
                state.save(world, run_directory.path, step, settings, keep=config.keep_checkpoints)
    progress.close()

    assert_replicas_equal(world, head)
    backbone.model.assert_frozen()
    assert_same_value(world, "the backbone", fingerprint(backbone))
    if stopping and step < config.steps:
        world.say(f"stopped after step {step}: {stop_request.reason or 'another rank was asked to'}; "
                  f"go on with --run-dir {run_directory.path} --resume auto")  # fmt: skip
    elif world.is_main:
        found = progress.validated
        low, high = wilson_interval(found["accuracy"] * found["pairs"], found["pairs"])
        print(f"\npair accuracy on held-out files {found['accuracy']:.3f} (95 % interval {low:.3f} to {high:.3f}, "
              f"{found['pairs']:,.0f} pairs), {progress.per_second:,.0f} pairs/s", flush=True)  # fmt: skip
        for pair in held_out[: config.sample_pairs]:
            run_directory.add_sample(step, scored(model, pair))
            print(scored(model, pair), flush=True)
        print(f"run directory: {run_directory.path}", flush=True)


def weigh(train_pairs: list[Pair], config: RewardConfig, world: World) -> Tensor:
    """The weight of every training pair, with mean 1; rank 0 reports how many prompts had none."""
    prompts = [pair.prompt for pair in train_pairs]
    if config.weight_mode == "none":
        return torch.ones(len(prompts), dtype=torch.float64)
    by_key = density.computed(prompts) if config.weights == "computed" else density.read_weights(Path(config.weights))
    found = density.look_up(prompts, by_key, config.most_misses)
    world.say(f"weights ({config.weights}): largest {found.values.max():.1f} times the mean; "
              f"{found.misses:,} of {len(prompts):,} prompts have none and take the mean")  # fmt: skip
    return found.values


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
    """Loss, accuracy and margin of held-out pairs, each pair counted once; the same at any world size."""
    margins = margins_of(head, features)
    loss, right, margin, count = sum_over_ranks(
        world, -F.logsigmoid(margins).sum(), (margins > 0).sum(), margins.sum(), len(margins)
    )
    return {"loss": loss / count, "accuracy": right / count, "margin": margin / count, "pairs": count}


def scored(model: RewardModel, pair: Pair) -> str:
    """A pair with its two rewards, as text."""
    chosen, rejected = model.score([pair.prompt] * 2, [pair.chosen, pair.rejected]).tolist()
    return (f"...{pair.prompt[-120:]}    chosen, reward {chosen:+.2f}:\n{pair.chosen}"
            f"    rejected ({pair.kind}), reward {rejected:+.2f}:\n{pair.rejected}")  # fmt: skip


if __name__ == "__main__":
    run(train, PRESETS)
