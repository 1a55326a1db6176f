"""The settings of grpo_ddp.py, and its presets."""

from dataclasses import dataclass
from typing import Literal

from ddp_course.post_training.grpo import HIGHEST_BETA, LOWEST_BETA
from ddp_course.training.settings import RunSettings, check_ranges


@dataclass(frozen=True)
class GRPOConfig(RunSettings):
    """Post-train a policy by the rewards of what it writes. Prompts and update are the same at any world size."""

    preset: Literal["laptop", "tiny", "gpus"] = "laptop"
    steps: int = 40
    """Rounds of sampling in the whole run; each takes --passes optimizer steps."""
    learning_rate: float = 3e-4
    warmup_steps: int = 5
    precision: Literal["float32", "bfloat16", "float64"] = "float32"
    """The number format of matrix products; weights stay float32 (float64 for float64)."""
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
    """Prompts (or pairs) of one round, over all ranks."""
    group_size: int = 8
    """Completions sampled for each prompt."""
    new_tokens: int = 24
    """Tokens after which a completion is cut off."""
    temperature: float = 1.0
    """Temperature of the sampling, and of the log-probabilities: the policy is what is sampled from."""
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
    """How fast beta follows: a round changes it by at most a fifth of this share."""
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
