"""LoRA on a Hugging Face model: put on, turned off, saved alone in the format of peft."""

import contextlib
import json
from collections.abc import Iterator, Sequence
from pathlib import Path

from torch import nn

from ddp_course.base.errors import InputError
from ddp_course.post_training.finetune_config import FinetuneConfig
from ddp_course.post_training.lora import LoRA, trainable
from ddp_course.post_training.policies import ForeignModel, replacing_folder


def linear_layers(policy: ForeignModel, names: Sequence[str]) -> list[nn.Linear]:
    """The layers of these names. Raises InputError for a name without one; the output layer may share its weights."""
    output = policy.model.get_output_embeddings()
    layers = {
        path: layer for path, layer in policy.named_modules() if isinstance(layer, nn.Linear) and layer is not output
    }
    known = {path.rpartition(".")[2] for path in layers}
    if missing := [name for name in names if name not in known]:
        there = f"those of this model are {', '.join(sorted(known))}" if known else "this model has none"
        raise InputError(f"--lora-layers: no linear layer is named {missing[0][:40]!r}; {there}")
    return [layer for path, layer in layers.items() if path.rpartition(".")[2] in names]


def adapters_of(policy: nn.Module) -> nn.ParameterDict:
    """The parameters that learn, as a module of their own: what the optimizer moves and a checkpoint holds."""
    return nn.ParameterDict({name.replace(".", "/"): parameter for name, parameter in trainable(policy).items()})


@contextlib.contextmanager
def without_adapters(policy: nn.Module) -> Iterator[nn.Module]:
    """The model as it was before `add_lora`, for as long as the block runs."""
    layers = [layer for layer in policy.modules() if isinstance(layer, LoRA)]
    scales = [layer.scale for layer in layers]
    for layer in layers:
        layer.scale = 0.0
    try:
        yield policy
    finally:
        for layer, scale in zip(layers, scales, strict=True):
            layer.scale = scale


def write_adapters(policy: ForeignModel, names: Sequence[str], config: FinetuneConfig, where: Path) -> Path:
    """Write a folder that `peft.PeftModel.from_pretrained(model, folder)` reads; one that is there already stays."""
    from safetensors.torch import save_file

    tensors = {
        f"base_model.model.{name.rpartition('.')[0]}.lora_{name[-1]}.weight": parameter.detach().cpu().contiguous()
        for name, parameter in trainable(policy.model).items()
    }
    settings = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": policy.config.policy.removeprefix("hf:"),
        "r": config.lora_rank,
        "lora_alpha": config.lora_alpha,
        "target_modules": list(names),
        "inference_mode": True,
    }
    if where.exists():
        return where
    with replacing_folder(where) as folder:
        folder.mkdir()
        save_file(tensors, folder / "adapter_model.safetensors")
        (folder / "adapter_config.json").write_text(json.dumps(settings, indent=2) + "\n")
    return where
