"""LoRA adapters of a Hugging Face model: find its layers, disable the adapters, save them in peft's format."""

import contextlib
import json
from collections.abc import Iterator, Sequence
from pathlib import Path

from torch import nn

from ddp_course.base.errors import InputError
from ddp_course.post_training.finetune_config import FinetuneConfig
from ddp_course.post_training.lora import LoRA, add_lora, trainable
from ddp_course.post_training.policies import ForeignModel, replacing_folder


def linear_layers(policy: ForeignModel, names: Sequence[str]) -> list[nn.Linear]:
    """The linear layers with these names, without the output layer, whose weights may be tied.

    Raises InputError for a name that no layer has.
    """
    output = policy.model.get_output_embeddings()
    layers = {
        path: layer for path, layer in policy.named_modules() if isinstance(layer, nn.Linear) and layer is not output
    }
    layer_names = {path.rpartition(".")[2] for path in layers}
    if missing := [name for name in names if name not in layer_names]:
        choice = f"those of this model are {', '.join(sorted(layer_names))}" if layer_names else "this model has none"
        raise InputError(f"--lora-layers: no linear layer is named {missing[0][:40]!r}; {choice}")
    return [layer for path, layer in layers.items() if path.rpartition(".")[2] in names]


def add_adapters(policy: nn.Module, names: Sequence[str], rank: int, alpha: float) -> nn.ParameterDict:
    """Freeze the policy and put an adapter on each linear layer of these names.

    Returns the trainable parameters as one module, for the optimizer and the checkpoint. Their names have / for dots.
    """
    add_lora(policy, names, rank, alpha)
    return nn.ParameterDict({name.replace(".", "/"): parameter for name, parameter in trainable(policy).items()})


@contextlib.contextmanager
def without_adapters(policy: nn.Module) -> Iterator[nn.Module]:
    """Disable the adapters in the block: the model computes what it did before `add_lora`."""
    layers = [layer for layer in policy.modules() if isinstance(layer, LoRA)]
    scales = [layer.scale for layer in layers]
    for layer in layers:
        layer.scale = 0.0
    try:
        yield policy
    finally:
        for layer, scale in zip(layers, scales, strict=True):
            layer.scale = scale


def write_adapters(policy: ForeignModel, names: Sequence[str], config: FinetuneConfig, folder: Path) -> Path:
    """Write `folder`, for `peft.PeftModel.from_pretrained(model, folder)`, and return it. An existing one is kept."""
    from safetensors.torch import save_file

    if folder.exists():
        return folder

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
    with replacing_folder(folder) as temporary:
        temporary.mkdir()
        save_file(tensors, temporary / "adapter_model.safetensors")
        (temporary / "adapter_config.json").write_text(json.dumps(settings, indent=2) + "\n")
    return folder
