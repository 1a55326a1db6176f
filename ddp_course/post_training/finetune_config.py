"""The settings of finetune_ddp.py, and its presets."""

from dataclasses import dataclass
from typing import Annotated, Literal

from ddp_course.training.settings import (
    EXACT,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    RunSettings,
    at_least,
)


@dataclass(frozen=True)
class FinetuneConfig(RunSettings):
    """Fine-tune a Hugging Face model. The same flags mean the same training run at any number of processes."""

    preset: Literal["laptop", "tiny"] = "laptop"
    """A named set of values; every other flag changes it. tiny: seconds. laptop: minutes."""
    steps: PositiveInt = 200
    learning_rate: NonNegativeFloat = 2e-4
    warmup_steps: NonNegativeInt = 10
    precision: Literal["float32", "bfloat16", "float64"] = "float32"
    """The number format of matrix products; weights stay float32 (float64 for float64), frozen ones too."""

    model: str = ""
    """Folder of a Hugging Face checkpoint: config.json, tokenizer.json, model.safetensors."""
    data: str = ""
    """A JSONL file with prompt and answer (dpo: prompt, chosen, rejected) on each line, of which every 20th prompt is
    held out for validation; or a folder with train.jsonl and validation.jsonl."""
    objective: Literal["sft", "dpo"] = "sft"
    """sft: the mean loss of the answer tokens. dpo: direct preference optimization, relative to the initial model."""
    dpo_beta: PositiveFloat = 0.1
    """Strength with which DPO keeps the policy near the reference."""
    max_tokens: Annotated[int, at_least(2), EXACT] = 512
    """Tokens of a prompt and its answer, at most the model's context; longer ones lose the prompt's beginning."""
    examples_per_update: PositiveInt = 32
    """Examples of one optimizer step, over all ranks: the constant of the run."""
    micro_batch_size: PositiveInt = 8
    """Examples that one rank takes through the model at a time."""
    pack: bool = False
    """Lay the examples of a micro-batch end to end in windows of at most --max-tokens, each with its own positions and
    mask, instead of padding them: the same loss from fewer computed positions. For --objective sft."""

    lora_rank: NonNegativeInt = 8
    """Rank of the LoRA adapters on the frozen model; 0: train all weights, with a lower --learning-rate."""
    lora_alpha: PositiveFloat = 16.0
    """The output of an adapter is multiplied by this and divided by its rank."""
    lora_layers: str = "q_proj,k_proj,v_proj,o_proj"
    """Names of the linear layers that get an adapter, separated by commas."""
    merge: bool = False
    """At the end, also add the adapters to the weights and write the whole model, as a folder for transformers."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.pack and self.objective == "dpo":
            raise ValueError("--pack is for --objective sft: dpo compares answers one by one")


PRESETS = {
    "laptop": FinetuneConfig(),
    "tiny": FinetuneConfig(
        preset="tiny",
        max_tokens=64,
        examples_per_update=16,
        micro_batch_size=4,
        steps=20,
        warmup_steps=2,
        learning_rate=1e-2,
        validate_every=10,
        checkpoint_every=10,
        log_every=1,
    ),
}
