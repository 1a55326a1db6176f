"""Post-train MiniGPT with GRPO: sample groups of completions, reward them, make the better ones likelier.

    torchrun --standalone --nproc-per-node=2 ddp_course/grpo_ddp.py --pretrained runs/mine
    torchrun ... ddp_course/grpo_ddp.py --pretrained runs/mine --reward model --reward-model runs/reward
    torchrun ... ddp_course/grpo_ddp.py --pretrained runs/mine --run-dir runs/grpo --resume auto

Shao et al., "DeepSeekMath" (2024). Read it from `train` downwards. What many processes need and one does not is marked
DDP 1/7 to DDP 7/7. `--objective pairwise` trains on fixed pairs instead: see `post_training/pairwise_objective.py`.
"""

import contextlib
import copy
import hashlib
import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import clip_grad_norm_

from ddp_course.data import corpora
from ddp_course.data.pairs import Pair, pairs_of_update, read_pairs
from ddp_course.errors import InputError
from ddp_course.models.minigpt import MiniGPT
from ddp_course.parallel import checkpoint, process_group
from ddp_course.parallel.bucket_order import settle_bucket_order
from ddp_course.parallel.command_line import run
from ddp_course.parallel.precision import autocast, choose_attention, parameter_dtype
from ddp_course.parallel.process_group import World
from ddp_course.parallel.progress import Progress
from ddp_course.parallel.run_directory import open_run
from ddp_course.parallel.schedule import is_due, warmup_cosine
from ddp_course.parallel.settings import check_ranges, check_tensorboard
from ddp_course.parallel.stop_request import StopRequest
from ddp_course.parallel.sync import assert_replicas_equal, assert_same_value, from_rank_0, sum_over_ranks
from ddp_course.parallel.training_state import TrainingState
from ddp_course.post_training.adaptive_beta import AdaptiveBeta
from ddp_course.post_training.batch import Batch, describe
from ddp_course.post_training.grpo import grpo_loss, token_log_probs
from ddp_course.post_training.pairwise_objective import pairwise_loss
from ddp_course.post_training.pretrained import load_pretrained
from ddp_course.post_training.prompts import Prompts, collect, prompts_of
from ddp_course.post_training.reward_model import load_reward_model
from ddp_course.post_training.rewards import Parses
from ddp_course.post_training.rollout import Players, reward_sum, sample_groups, take_pairs

IDENTITY = ("objective", "reward", "prompts_per_update", "group_size", "new_tokens", "passes", "seed", "precision")


@dataclass(frozen=True)
class GRPOConfig:
    """Post-train a MiniGPT by the rewards of what it writes. Prompts and update are the same at any world size."""

    preset: Literal["laptop", "tiny", "gpus"] = "laptop"
    """A named set of sizes; every other flag changes it. tiny: seconds. laptop: minutes. gpus: a machine of eight."""
    pretrained: str = ""
    """The policy to start from, which is also the frozen reference: a checkpoint or run directory of minigpt_ddp."""
    objective: Literal["grpo", "pairwise"] = "grpo"
    """grpo: groups of sampled completions. pairwise: fixed pairs of answers; nothing is sampled to learn from."""
    reward: Literal["parses", "model"] = "parses"
    """parses: 1 if prompt and completion are Python, else 0; nothing is executed. model: what --reward-model says."""
    reward_model: str = ""
    """A checkpoint or run directory of reward_ddp, for --reward model."""
    data: str = "stdlib"
    """Python code whose function headers are the prompts: stdlib, or a file or folder."""
    pairs: str = ""
    """A JSONL file with prompt, chosen and rejected on each line, for --objective pairwise."""

    prompts_per_update: int = 16
    """Prompts (or pairs) of one update, over all ranks."""
    group_size: int = 8
    """Completions sampled for each prompt."""
    new_tokens: int = 24
    """Tokens after which a completion is cut off."""
    temperature: float = 1.0
    """Of the sampling. The policy is what is sampled from, so its log-probabilities are taken at it, too."""
    min_statements: int = 1
    """New statements that a completion needs before it can count as one that parses."""
    passes: int = 2
    """Optimizer steps on the same completions. From the second on the ratio leaves 1, and can be clipped."""
    micro_batch_size: int = 16
    """Sequences that one rank takes through the model at a time."""
    steps: int = 40
    """Updates; each samples anew and takes --passes optimizer steps."""
    learning_rate: float = 3e-4
    """Peak learning rate, reached after the warm-up; from there it falls to a tenth along a cosine."""
    warmup_steps: int = 5
    """Updates over which the learning rate rises from zero."""
    clip: float = 0.2
    """How far the ratio of the new probability of a token to its old one may leave 1 before it stops paying."""
    beta: float = 0.05
    """Weight of the KL penalty at the start."""
    kl_target: float = 0.2
    """KL to the reference, in nats a token, that beta steers for; 0 leaves beta as it is."""
    beta_gain: float = 0.5
    """How fast beta follows: an update changes it by at most a fifth of this share."""
    gradient_clip: float = 1.0
    """Largest norm of the joint gradient; 0 turns clipping off."""

    precision: Literal["float32", "bfloat16", "float64"] = "float32"
    """Of the matrix products; weights stay float32 (float64 for float64)."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where to train; auto takes GPUs if there are any."""
    timeout_seconds: float = 120
    """How long a collective may wait for the other ranks before the job fails."""
    seed: int = 1
    """Decides the prompts of every update and (with the rank) what is sampled."""

    run_dir: str = ""
    """Where the run is written; empty: runs/grpo-DATE-TIME."""
    resume: str = "no"
    """no, auto (the newest valid checkpoint of --run-dir), or the path of a checkpoint."""
    log_every: int = 1
    """Updates between entries in metrics.jsonl."""
    validate_every: int = 10
    """Updates between validations on held-out prompts; the last always validates. 0: only then."""
    validation_prompts: int = 128
    """Held-out prompts of a validation; policy and reference write one completion for each."""
    checkpoint_every: int = 20
    """Updates between checkpoints; the last always saves one. 0: only then."""
    keep_checkpoints: int = 2
    """How many of the newest checkpoints stay; 0 keeps all."""
    max_seconds: float | None = None
    """Stop, with a checkpoint, after this many seconds of training."""
    samples: int = 3
    """Held-out prompts that reference and policy complete at the end, to be read; 0 writes none."""
    tensorboard: bool = False
    """Also write the metrics for TensorBoard."""

    def __post_init__(self) -> None:
        check_ranges(
            self,
            at_least_1=("prompts_per_update", "new_tokens", "min_statements", "passes", "micro_batch_size", "steps",
                        "log_every", "validation_prompts"),
            at_least_0=("learning_rate", "warmup_steps", "beta", "kl_target", "beta_gain", "gradient_clip", "seed",
                        "validate_every", "checkpoint_every", "keep_checkpoints", "samples"),
            above_0=("temperature", "clip", "timeout_seconds", "max_seconds"),
        )  # fmt: skip
        check_tensorboard(self.tensorboard)
        if self.group_size < 2:
            raise ValueError(f"--group-size must be at least 2, not {self.group_size}: a group is compared with itself")
        if (self.reward == "model") != bool(self.reward_model):
            raise ValueError("--reward model and --reward-model PATH belong together: one was given without the other")
        if (self.objective == "pairwise") != bool(self.pairs):
            raise ValueError("--objective pairwise and --pairs FILE belong together: one was given without the other")


PRESETS = {
    "laptop": GRPOConfig(),
    "tiny": GRPOConfig(
        preset="tiny", prompts_per_update=4, group_size=4, new_tokens=12, steps=4, warmup_steps=2,
        micro_batch_size=8, validate_every=2, validation_prompts=8, checkpoint_every=2, samples=1,
    ),
    "gpus": GRPOConfig(
        preset="gpus", prompts_per_update=256, group_size=16, new_tokens=256, min_statements=4, micro_batch_size=64,
        steps=500, learning_rate=1e-5, warmup_steps=20, precision="bfloat16", validate_every=50,
        validation_prompts=1024, checkpoint_every=100,
    ),
}  # fmt: skip


def train(config: GRPOConfig) -> None:
    """One rank's part of the run. Returns when the last update is done, or when a stop was asked for."""
    # DDP 1/7: join the other processes and take the device that belongs to this one.
    world = process_group.start(config.timeout_seconds, config.device)
    if config.prompts_per_update < world.size:
        raise InputError(f"--prompts-per-update {config.prompts_per_update} leaves ranks without work: there are "
                         f"{world.size}, and a group stays on one rank")  # fmt: skip
    if not config.pretrained:
        raise InputError("--pretrained is missing: give it a run directory of minigpt_ddp, or a checkpoint of one")
    run_directory, resumed = open_run(world, config.run_dir, config.resume, kind="grpo")
    start = load_pretrained(config.pretrained)
    policy = start.model.to(world.device, parameter_dtype(config.precision))
    choose_attention(config.precision, world.device, policy.config.context)
    reward = Parses(config.min_statements)
    if config.reward == "model":
        reward = load_reward_model(config.reward_model, world.device)
    players = Players(
        policy, copy.deepcopy(policy).requires_grad_(False), reward, start.tokenizer, new_tokens=config.new_tokens,
        temperature=config.temperature, micro_batch_size=config.micro_batch_size, precision=config.precision,
    )  # fmt: skip
    prompts, pairs = from_rank_0(world, lambda: what_to_learn_from(config, players))

    optimizer = torch.optim.AdamW(policy.parameters(), config.learning_rate, (0.9, 0.95), weight_decay=0.0, fused=True)
    beta = AdaptiveBeta(config.beta, config.kl_target, config.beta_gain)
    # DDP 2/7: each rank draws random numbers of its own. A checkpoint holds the generators of all ranks, and beta.
    process_group.seed_rank(config.seed, world.rank)
    identity = {name: getattr(config, name) for name in IDENTITY} | {
        "pretrained weights": (start.source / checkpoint.CHECKSUM).read_text().split()[0][:16],
        "prompts and pairs": hashlib.sha256(repr((prompts.train, pairs)).encode()).hexdigest()[:16],
    }
    assert_same_value(world, "what the run starts from", identity)
    state = TrainingState({"model": policy, "optimizer": optimizer, "beta": beta}, identity)
    step = state.restore(world, resumed) if resumed else 0
    if step >= config.steps:
        world.say(f"nothing left to do: step {step} of {config.steps} is done; --steps takes the run further")
        return
    settings = asdict(config) | asdict(policy.config) | {"world_size": world.size}
    run_directory.begin(step, settings)
    settings["tokenizer_state"] = start.tokenizer.state()  # our checkpoints can be read as pre-trained models

    # DDP 3/7: the wrapper averages gradients. It is called where the policy learns; to sample, the bare model will do.
    replica = policy if world.size == 1 else DistributedDataParallel(policy, gradient_as_bucket_view=True)
    if world.size > 1:
        nothing = torch.zeros(1, 2, dtype=torch.int64, device=world.device)
        settle_bucket_order(replica, nothing, nothing)
    progress = Progress(
        run_directory, first_step=step, last_step=config.steps, log_every=config.log_every, unit="completions",
        per_update=config.prompts_per_update * (config.group_size if config.objective == "grpo" else 2),
        shown=("reward", "kl", "beta"), tensorboard=config.tensorboard,
    )  # fmt: skip
    unchanged = validate(players, players.reference, prompts.held_out, config, world)
    if step == 0:
        progress.validation(0, reward=unchanged, reference=unchanged)
    stop_request = StopRequest(world, config.max_seconds)
    stopping = False
    while step < config.steps and not stopping:
        learning_rate = warmup_cosine(
            step, config.steps, config.warmup_steps, config.learning_rate, config.learning_rate / 10
        )
        for group in optimizer.param_groups:
            group["lr"] = learning_rate
        # DDP 4/7: the prompts of an update are the same at any world size. A rank takes its share, in whole groups.
        if config.objective == "grpo":
            chosen = prompts_of(prompts.train, seed=config.seed, update=step, count=config.prompts_per_update)
            batch, distinct = sample_groups(players, chosen[world.rank :: world.size], config.group_size)
        else:
            chosen = pairs_of_update(config.seed, step, config.prompts_per_update, len(pairs))
            batch, distinct = take_pairs(players, [pairs[n] for n in chosen[world.rank :: world.size]], beta.value)
        # DDP 5/7: every number is a sum over a count, each over all ranks; so is the loss.
        seen = describe(batch, distinct, world)
        losses = seen["tokens"] if config.objective == "grpo" else seen["sequences"] / 2
        loss_sum, clipped, gradient_norm = learn(replica, optimizer, batch, losses, beta.value, config, world)
        loss_sum, clipped, ranks_asked = sum_over_ranks(world, loss_sum, clipped, stop_request.asked())
        step += 1
        stopping = ranks_asked > 0
        progress.step(
            step, loss=loss_sum / (losses * config.passes), **seen, beta=beta.value, lr=learning_rate,
            clip_fraction=clipped / (seen["tokens"] * config.passes), grad_norm=gradient_norm,
        )  # fmt: skip
        # DDP 6/7: a weight that followed this rank's own samples would be another on each rank, and so the loss.
        beta.update(seen["kl"])
        with progress.paused():
            if stopping:  # before anything else: who asked may not wait for a validation
                state.save(world, run_directory.path, step, settings, keep=config.keep_checkpoints)
            if is_due(step, config.validate_every, config.steps):
                now = validate(players, policy, prompts.held_out, config, world)
                progress.validation(step, reward=now, reference=unchanged)
            if is_due(step, config.checkpoint_every, config.steps) and not stopping:
                state.save(world, run_directory.path, step, settings, keep=config.keep_checkpoints)
    progress.close()

    assert_replicas_equal(world, policy)
    if stopping and step < config.steps:
        world.say(f"stopped after step {step}: {stop_request.reason or 'another rank was asked to'}; "
                  f"go on with --run-dir {run_directory.path} --resume auto")  # fmt: skip
    # DDP 7/7: one rank writes and speaks for all. No collective follows, so nobody waits for it.
    elif world.is_main:
        print(f"\nmean reward on held-out prompts: {progress.validated['reward']:.3f}, reference {unchanged:.3f}, "
              f"{progress.last['kl']:.4f} nats a token away", flush=True)  # fmt: skip
        chosen = prompts.held_out[: config.samples]
        for who, model in (("reference", players.reference), ("policy", policy)):
            completions = players.write(model, [players.tokenizer.encode(prompt) for prompt in chosen], config.seed)
            for prompt, completion in zip(chosen, completions, strict=True):
                run_directory.add_sample(step, f"# the {who}:\n{''.join(players.read(prompt, completion))}")
        print(f"run directory: {run_directory.path}", flush=True)


def what_to_learn_from(config: GRPOConfig, players: Players) -> tuple[Prompts, list[Pair]]:
    """The prompts, and for the pairwise objective the pairs. Called on one rank."""
    room = players.policy.config.context - config.new_tokens
    if room < 1:
        raise InputError(f"--new-tokens {config.new_tokens} leaves no room for a prompt in the model's context of "
                         f"{players.policy.config.context} tokens")  # fmt: skip
    prompts = collect(corpora.load(config.data), players.tokenizer, room, config.validation_prompts)
    if config.objective == "grpo":
        prompts_of(prompts.train, seed=config.seed, update=0, count=config.prompts_per_update)  # refuses too few
    return prompts, read_pairs(Path(config.pairs)) if config.pairs else []


def learn(replica: nn.Module, optimizer: torch.optim.Optimizer, batch: Batch, losses: float, beta: float,
          config: GRPOConfig, world: World) -> tuple[Tensor, Tensor, float]:  # fmt: skip
    """Take `passes` optimizer steps on one batch (collective). `losses`: what the joint loss is a mean over, how many.

    Returns this rank's sums, over all passes, of the loss and of the clipped tokens; and the last gradient norm.
    """
    parts = list(batch.parts(config.micro_batch_size))
    loss_sum, clipped = torch.zeros((), device=world.device), torch.zeros((), device=world.device)
    for _ in range(config.passes):
        for number, part in enumerate(parts, start=1):
            silent = number < len(parts) and world.size > 1  # ranks may differ in the number of parts
            with replica.no_sync() if silent else contextlib.nullcontext():
                with autocast(config.precision, world.device):
                    logits = replica(part.tokens)
                log_probs, _ = token_log_probs(logits, part.tokens, config.temperature)
                if config.objective == "grpo":
                    loss, cut = grpo_loss(log_probs, part.old, part.reference, part.advantages, part.counted,
                                          clip=config.clip, beta=beta)  # fmt: skip
                    clipped += cut
                else:
                    loss = pairwise_loss(log_probs, part.advantages, part.counted)
                # DDP divides the sum of the ranks' gradients by the world size. We want the mean over the joint batch.
                (loss * (world.size / losses)).backward()
            loss_sum += loss.detach()
        gradient_norm = clip_grad_norm_(replica.parameters(), config.gradient_clip or math.inf)
        optimizer.step()
        optimizer.zero_grad()
    return loss_sum, clipped, gradient_norm.item()


def validate(players: Players, model: MiniGPT, prompts: list[str], config: GRPOConfig, world: World) -> float:
    """Mean reward of what a model writes after prompts that nobody learns from (collective).

    Each time with the same random numbers: two models, or one before and after, differ by what they have learnt.
    """
    mine = prompts[world.rank :: world.size]
    total, count = sum_over_ranks(world, reward_sum(players, model, mine, config.seed), len(mine))
    return total / count


if __name__ == "__main__":
    run(train, PRESETS)
