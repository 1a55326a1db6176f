"""Post-train a language model with GRPO: sample groups of completions, reward them, make the better ones likelier.

    torchrun --standalone --nproc-per-node=2 ddp_course/grpo_ddp.py --pretrained runs/mine
    torchrun ... ddp_course/grpo_ddp.py --pretrained runs/mine --reward model --reward-model runs/reward
    torchrun ... ddp_course/grpo_ddp.py --pretrained hf:path/to/model      # of Hugging Face; nanochat:SOURCE as well
    torchrun ... ddp_course/grpo_ddp.py --pretrained runs/mine --run-dir runs/grpo --resume auto

Shao et al., "DeepSeekMath" (2024). Read it from `train` downwards. What many processes need and one does not is marked
DDP 1/7 to DDP 7/7. `--objective pairwise` trains on fixed pairs instead: see `post_training/pairwise_objective.py`.
"""

if __name__ == "__main__":
    from ddp_course.base.command import begin_command

    begin_command()  # before torch is imported: from here on Ctrl-C is one line

import contextlib
import copy
import hashlib
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_

from ddp_course.base.errors import InputError
from ddp_course.checkpoint.run_directory import open_run
from ddp_course.checkpoint.training_state import TrainingState
from ddp_course.data import corpora
from ddp_course.data.pairs import Pair, pairs_of_update, read_pairs
from ddp_course.distributed import process_group
from ddp_course.distributed.bucket_order import wrap
from ddp_course.distributed.process_group import World
from ddp_course.distributed.replica_check import assert_replicas_equal
from ddp_course.distributed.sync import assert_same_value, from_rank_0, sum_over_ranks
from ddp_course.models.minigpt import MiniGPTConfig
from ddp_course.post_training.backbones import prepare_backbone
from ddp_course.post_training.batch import Batch, describe
from ddp_course.post_training.grpo import HIGHEST_BETA, LOWEST_BETA, AdaptiveBeta, grpo_loss, token_log_probs
from ddp_course.post_training.pairwise_objective import pairwise_loss
from ddp_course.post_training.policies import load_policy, prepare_policy, write_as_folder
from ddp_course.post_training.prompts import Prompts, collect, keep, prompts_of, read_kept
from ddp_course.post_training.reward_model import load_reward_model
from ddp_course.post_training.rewards import Parses, parses
from ddp_course.post_training.rollout import Players, cut_off, sample_groups, take_pairs, write
from ddp_course.training.command_line import run
from ddp_course.training.memory import require_memory
from ddp_course.training.optimization import is_due, make_adamw, set_learning_rate
from ddp_course.training.precision import autocast, by_rule, parameter_dtype
from ddp_course.training.progress import Progress
from ddp_course.training.settings import RunSettings, check_ranges
from ddp_course.training.stop_request import StopRequest

IDENTITY = ("objective", "reward", "prompts_per_update", "group_size", "new_tokens", "passes", "seed", "precision")


@dataclass(frozen=True)
class GRPOConfig(RunSettings):
    """Post-train a policy by the rewards of what it writes. Prompts and update are the same at any world size."""

    preset: Literal["laptop", "tiny", "gpus"] = "laptop"
    steps: int = 40
    """Updates in the whole run; each samples anew and takes --passes optimizer steps."""
    learning_rate: float = 3e-4
    warmup_steps: int = 5
    precision: Literal["float32", "bfloat16", "float64"] = "float32"
    """Of the matrix products; weights stay float32 (float64 for float64)."""
    log_every: int = 1
    validate_every: int = 10
    checkpoint_every: int = 20

    pretrained: str = ""
    """The policy to start from, which is also the frozen reference: a checkpoint or run directory of minigpt_ddp,
    hf:FOLDER_OR_NAME (Hugging Face transformers) or nanochat:SOURCE[/TAG[/STEP]]."""
    objective: Literal["grpo", "pairwise"] = "grpo"
    """grpo: groups of sampled completions. pairwise: fixed pairs of answers; nothing is sampled to learn from."""
    reward: Literal["parses", "model"] = "parses"
    """parses: 1 if prompt and completion are Python, else 0; nothing is executed. model: what --reward-model says."""
    reward_model: str = ""
    """A checkpoint or run directory of reward_ddp, for --reward model."""
    reward_backbone: str = ""
    """Its backbone, as in reward_ddp, if it is not where it was; a hub's is fetched only if it is named here."""
    min_statements: int = 1
    """New statements that a completion needs before it can count as one that parses."""
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
    passes: int = 2
    """Optimizer steps on the same completions. From the second on the ratio leaves 1, and can be clipped."""
    micro_batch_size: int = 16
    """Sequences that one rank takes through the model at a time."""
    clip: float = 0.2
    """How far the ratio of the new probability of a token to its old one may leave 1 before it is clipped."""
    beta: float = 0.05
    """Weight of the KL penalty at the start."""
    kl_target: float = 0.2
    """KL to the reference, in nats per token, that beta steers for; 0 leaves beta as it is."""
    beta_gain: float = 0.5
    """How fast beta follows: an update changes it by at most a fifth of this share."""
    validation_prompts: int = 128
    """Held-out prompts of a validation; policy and reference write one completion for each."""
    samples: int = 3
    """Held-out prompts that reference and policy complete at the end, to be read; 0 writes none."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_ranges(
            self,
            at_least_1=(
                "prompts_per_update",
                "new_tokens",
                "min_statements",
                "passes",
                "micro_batch_size",
                "validation_prompts",
            ),
            at_least_0=("beta", "kl_target", "beta_gain", "samples"),
            above_0=("clip",),
        )
        if not 1e-3 <= self.temperature <= 1e3:
            raise ValueError(f"--temperature must be from 0.001 to 1000, not {self.temperature}")
        if self.beta and not LOWEST_BETA <= self.beta <= HIGHEST_BETA:
            raise ValueError(f"--beta must be 0 or from {LOWEST_BETA:g} to {HIGHEST_BETA:g}, not {self.beta}")
        if self.group_size < 2:
            raise ValueError(f"--group-size must be at least 2, not {self.group_size}: a group is compared with itself")
        if (self.reward == "model") != bool(self.reward_model):
            raise ValueError("--reward model and --reward-model PATH belong together: one was given without the other")
        if self.reward_backbone and not self.reward_model:
            raise ValueError("--reward-backbone is the backbone of --reward-model, which was not given")
        if (self.objective == "pairwise") != bool(self.pairs):
            raise ValueError("--objective pairwise and --pairs FILE belong together: one was given without the other")


PRESETS = {
    "laptop": GRPOConfig(),
    "tiny": GRPOConfig(
        preset="tiny",
        prompts_per_update=4,
        group_size=4,
        new_tokens=12,
        steps=4,
        warmup_steps=2,
        micro_batch_size=8,
        validate_every=2,
        validation_prompts=8,
        checkpoint_every=2,
        samples=1,
    ),
    "gpus": GRPOConfig(
        preset="gpus",
        prompts_per_update=256,
        group_size=16,
        new_tokens=256,
        min_statements=4,
        micro_batch_size=64,
        steps=500,
        learning_rate=1e-5,
        warmup_steps=20,
        precision="bfloat16",
        validate_every=50,
        validation_prompts=1024,
        checkpoint_every=100,
    ),
}


def train(config: GRPOConfig) -> int:
    """One rank\'s part of the run, to the last update or until a stop was asked for; returns the exit code."""
    # DDP 1/7: join the other processes and take the device that belongs to this one.
    world = process_group.start(config.timeout_seconds, config.device)
    if config.prompts_per_update < world.size:
        raise InputError(
            f"--prompts-per-update {config.prompts_per_update} leaves ranks without work: there are "
            f"{world.size}, and a group stays on one rank"
        )
    if not config.pretrained:
        raise InputError("--pretrained is missing: give it a run directory of minigpt_ddp, or hf:FOLDER")
    run_directory, resumed = open_run(world, config.run_dir, config.resume, kind="grpo")
    start = load_policy(from_rank_0(world, lambda: prepare_policy(config.pretrained)))
    policy = start.model.to(world.device, parameter_dtype(config.precision))
    by_rule(config.precision, world.device, policy.config.context).use()
    reward, of_judge = Parses(config.min_statements), {}
    if config.reward == "model":
        given = config.reward_backbone
        backbone = from_rank_0(world, lambda: prepare_backbone(given)) if given else ""
        reward = load_reward_model(config.reward_model, world.device, backbone)
        of_judge = {"reward model": reward.fingerprint()}  # the folder may hold a better one tomorrow
    players = Players(
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
    prompts, pairs, kept = from_rank_0(world, lambda: what_to_learn_from(config, players, run_directory.before))

    require_memory(world, "an update", bytes_of_an_update(config, policy, world.size))
    optimizer = make_adamw(policy, config.learning_rate, config.weight_decay)
    beta = AdaptiveBeta(config.beta, config.kl_target, config.beta_gain)
    # DDP 2/7: each rank draws random numbers of its own. A checkpoint holds the generators of all ranks, and beta.
    process_group.seed_rank(config.seed, world.rank)
    identity = {name: getattr(config, name) for name in IDENTITY} | of_judge
    identity |= {
        "pretrained weights": start.weights,
        "prompts and pairs": hashlib.sha256(repr((prompts.train, pairs)).encode()).hexdigest()[:16],
    }
    assert_same_value(world, "what the run starts from", identity)
    state = TrainingState({"model": policy, "optimizer": optimizer, "beta": beta}, identity)
    step = state.restore(world, resumed) if resumed else 0
    if step >= config.steps:
        world.say(f"nothing left to do: step {step} of {config.steps} is done; --steps takes the run further")
        return 0
    settings = asdict(config) | asdict(policy.config) | {"world_size": world.size, "prompts_file": kept}
    settings = run_directory.begin(step, settings)
    settings["tokenizer_state"] = start.tokenizer.state()  # our checkpoints can be read as pre-trained models

    # DDP 3/7: the wrapper averages gradients. It is called where the policy learns; the bare model samples.
    replica = wrap(world, policy, torch.zeros(1, 2, dtype=torch.int64, device=world.device))
    progress = Progress(
        run_directory,
        config,
        first_step=step,
        unit="completions",
        shown=("reward", "kl", "beta"),
        per_update=config.prompts_per_update * (config.group_size if config.objective == "grpo" else 2),
    )
    held_out, real = prompts.held_out[world.rank :: world.size], prompts.real[world.rank :: world.size]
    unchanged = validate(players, write(players, players.reference, held_out, config.seed), config, world)
    compared = {"reference": unchanged["reward"], "reference_parses": unchanged["parses"]}
    if prompts.real:  # what the corpus itself would earn: a policy that is paid more has not become better than that
        of_corpus = validate(players, cut_off(players, held_out, real), config, world)
        compared |= {"real": of_corpus["reward"], "real_parses": of_corpus["parses"]}
    if step == 0:
        progress.validation(0, **unchanged, **compared)
    stop_request = StopRequest(world, config)
    stopping = False
    while step < config.steps and not stopping:
        learning_rate = config.learning_rate_at(step)
        set_learning_rate(optimizer, learning_rate)
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
        total, clipped, ranks_asked = sum_over_ranks(world, loss_sum, clipped, stop_request.asked())
        step += 1
        stopping = ranks_asked > 0
        progress.step(
            step,
            loss_sum,
            loss=total / (losses * config.passes),
            **seen,
            beta=beta.value,
            learning_rate=learning_rate,
            clip_fraction=clipped / (seen["tokens"] * config.passes),
            grad_norm=gradient_norm,
        )
        # DDP 6/7: beta follows the KL of all ranks' samples: one that followed its own would train on another loss.
        beta.update(seen["kl"])
        with progress.paused():
            # Saved first: who asked the run to stop may not wait for a validation.
            if stopping or is_due(step, config.checkpoint_every, config.steps):
                state.save(world, run_directory.path, step, settings, keep=config.keep_checkpoints)
            if is_due(step, config.validate_every, config.steps):
                written = write(players, policy, held_out, config.seed)
                progress.validation(step, **validate(players, written, config, world), **compared)
    progress.close()

    assert_replicas_equal(world, policy)
    if stopping and step < config.steps:
        return stop_request.leave(step, run_directory.path)
    # DDP 7/7: one rank writes and speaks for all. No collective follows, so nobody waits for it.
    if world.is_main:
        print(
            f"\nmean reward on held-out prompts: {progress.validated['reward']:.3f}, reference "
            f"{unchanged['reward']:.3f}, {progress.last['kl']:.4f} nats per token away\n"
            f"of what it writes {progress.validated['parses']:.1%} parses, reference {unchanged['parses']:.1%}",
            flush=True,
        )
        chosen = prompts.held_out[: config.samples]
        for who, model in (("reference", players.reference), ("policy", policy)):
            completions = players.sample(model, [players.encode(prompt) for prompt in chosen], config.seed)
            for prompt, completion in zip(chosen, completions, strict=True):
                run_directory.add_sample(step, f"# the {who}:\n{''.join(players.decode(prompt, completion))}")
        if folder := write_as_folder(policy, run_directory.path / f"huggingface_step_{step:06d}"):
            print(f"the policy for transformers, and for --pretrained: hf:{folder}", flush=True)
        print(f"run directory: {run_directory.path}", flush=True)
    return 0


def what_to_learn_from(
    config: GRPOConfig, players: Players, before: Mapping[str, object]
) -> tuple[Prompts, list[Pair], str]:
    """The prompts, for the pairwise objective the pairs, and the file that keeps them. Called on one rank.

    `before`: the settings of a run that goes on, with that file as "prompts_file". While it is there and undamaged, it
    is what the run reads again, whatever has become of the corpus meanwhile.
    """
    if players.room < 1:
        raise InputError(
            f"--new-tokens {config.new_tokens} leaves no room for a prompt in the model's context of "
            f"{players.policy.config.context} tokens"
        )
    asked = {name: getattr(config, name) for name in ("data", "pairs", "new_tokens", "validation_prompts")}
    if {name: before.get(name) for name in asked} == asked and (kept := before.get("prompts_file")):
        try:
            return *read_kept(Path(str(kept))), str(kept)
        except InputError as error:
            print(f"the prompts that this run began with are gone ({error}): reading {config.data} anew", flush=True)
    prompts = collect(corpora.load(config.data), players.tokenizer, players.room, config.validation_prompts)
    if config.objective == "grpo":
        prompts_of(prompts.train, seed=config.seed, update=0, count=config.prompts_per_update)  # refuses too few
    pairs = read_pairs(Path(config.pairs)) if config.pairs else []
    return prompts, pairs, str(keep(prompts, pairs))


def bytes_of_an_update(config: GRPOConfig, policy: nn.Module, world_size: int) -> int:
    """A lower bound of what a rank holds: its sequences and, while a MiniGPT samples them, all keys and values."""
    tokens = -(-config.prompts_per_update // world_size) * config.new_tokens
    if config.objective == "pairwise":
        return 2 * tokens
    shape = policy.config
    kept = 2 * shape.layers * shape.width if isinstance(shape, MiniGPTConfig) else 0  # numbers of at least two bytes
    return config.group_size * tokens * (8 + 2 * kept)


def learn(
    replica: nn.Module,
    optimizer: torch.optim.Optimizer,
    batch: Batch,
    losses: float,
    beta: float,
    config: GRPOConfig,
    world: World,
) -> tuple[Tensor, Tensor, float]:
    """Take `passes` optimizer steps on one batch (collective). `losses`: what the loss is a mean over, how many.

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
                    loss, cut = grpo_loss(
                        log_probs, part.old, part.reference, part.advantages, part.counted, clip=config.clip, beta=beta
                    )
                    clipped += cut
                else:
                    loss = pairwise_loss(log_probs, part.advantages, part.counted)
                # DDP divides the sum of the ranks' gradients by the world size. We want the mean over the global batch.
                (loss * (world.size / losses)).backward()
            loss_sum += loss.detach()
        gradient_norm = clip_grad_norm_(replica.parameters(), config.gradient_clip or math.inf)
        optimizer.step()
        optimizer.zero_grad()
    return loss_sum, clipped, gradient_norm.item()


def validate(players: Players, mine: list[tuple[str, str]], config: GRPOConfig, world: World) -> dict[str, float]:
    """Mean reward of completions of held-out prompts, and the share that parses, which a learned reward does not see.

    mine: this rank's prompts and completions (collective). Those of two models are drawn with the same random numbers.
    """
    reward = players.reward.score(*zip(*mine, strict=True)).sum().item() if mine else 0.0
    parsed = sum(parses(*both, config.min_statements) for both in mine)
    reward, parsed, count = sum_over_ranks(world, reward, parsed, len(mine))
    return {"reward": reward / count, "parses": parsed / count, "prompts": count}


if __name__ == "__main__":
    run(train, PRESETS)
