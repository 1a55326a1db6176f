"""The settings of grpo_ddp.py, and its presets."""

from dataclasses import dataclass
from typing import Annotated, Literal

from ddp_course.post_training.grpo import HIGHEST_BETA, LOWEST_BETA
from ddp_course.training.settings import (
    EXACT,
    FINITE,
    Bound,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    Repetitions,
    RunSettings,
    at_least,
    between,
)

BETA = Bound(
    f"0 or from {LOWEST_BETA:g} to {HIGHEST_BETA:g}", lambda value: value == 0 or LOWEST_BETA <= value <= HIGHEST_BETA
)


@dataclass(frozen=True)
class GRPOConfig(RunSettings):
    """Post-train a policy on the rewards of its completions. The prompts of a round are the same at any world size."""

    preset: Literal["laptop", "tiny", "gpus"] = "laptop"
    steps: PositiveInt = 40
    """Rounds of sampling in the whole run; each takes --passes optimizer steps."""
    learning_rate: NonNegativeFloat = 3e-4
    warmup_steps: NonNegativeInt = 5
    precision: Literal["float32", "bfloat16", "float64"] = "float32"
    """The number format of matrix products; weights stay float32 (float64 for float64)."""
    log_every: PositiveInt = 1
    validate_every: NonNegativeInt = 10
    checkpoint_every: NonNegativeInt = 20

    pretrained: str = ""
    """The policy to start from, which is also the frozen reference: a checkpoint or run directory of minigpt_ddp,
    hf:FOLDER_OR_NAME (Hugging Face transformers) or nanochat:SOURCE[/TAG[/STEP]]."""
    objective: Literal["grpo", "pairwise"] = "grpo"
    """grpo: groups of sampled completions. pairwise: fixed pairs of answers; nothing is sampled to learn from."""
    reward: Literal["parses", "model"] = "parses"
    """parses: 1 if prompt and completion are Python, else 0; nothing is executed. model: that of --reward-model."""
    reward_model: str = ""
    """A checkpoint or run directory of reward_ddp, for --reward model."""
    reward_backbone: str = ""
    """The reward model's backbone, as in reward_ddp, if it was moved; downloaded from the hub only if named here."""
    min_statements: PositiveInt = 1
    """New statements that a completion needs before it can count as one that parses."""
    data: str = "stdlib"
    """Python code whose function headers are the prompts: stdlib, or a file or folder."""
    pairs: str = ""
    """A JSONL file with prompt, chosen and rejected on each line, for --objective pairwise."""

    prompts_per_update: PositiveInt = 16
    """Prompts (or pairs) of one round, over all ranks."""
    group_size: Annotated[int, at_least(2), EXACT] = 8
    """Completions sampled for each prompt. Their advantages compare them with each other."""
    new_tokens: PositiveInt = 24
    """Tokens after which a completion is cut off."""
    temperature: Annotated[float, FINITE, between(0.001, 1000)] = 1.0
    """Temperature of the sampling, and of the log-probabilities in the loss."""
    passes: Repetitions = 2
    """Optimizer steps on the same completions. From the second on the ratio leaves 1, and can be clipped."""
    micro_batch_size: PositiveInt = 16
    """Sequences that one rank takes through the model at a time."""
    clip: PositiveFloat = 0.2
    """How far the ratio of the new probability of a token to its old one may leave 1 before it is clipped."""
    beta: Annotated[float, BETA] = 0.05
    """Weight of the KL penalty at the start."""
    kl_target: NonNegativeFloat = 0.2
    """KL to the reference, in nats per token, that beta is adapted to; 0: beta is constant."""
    beta_gain: NonNegativeFloat = 0.5
    """Gain of the adaptation: in a round beta changes by at most a fifth of this, as a share of beta."""
    validation_prompts: PositiveInt = 128
    """Held-out prompts of a validation; policy and reference write one completion for each."""
    samples: NonNegativeInt = 3
    """Held-out prompts whose completions by reference and policy are written to samples.txt at the end; 0: none."""

    def __post_init__(self) -> None:
        super().__post_init__()
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
