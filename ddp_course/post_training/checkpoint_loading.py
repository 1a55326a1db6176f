"""Load a Hugging Face causal language model on N ranks: every rank reads it, or rank 0 reads and sends.

transformers is imported when a model is asked for, and not before.
"""

from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, set_model_state_dict
from torch.distributed.fsdp import fully_shard


def every_rank_reads(folder: str | Path, dtype: torch.dtype = torch.float32) -> nn.Module:
    """The model in `folder`. In the dtype of the file its weights are pages of the file, which processes share."""
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, local_files_only=True)


def without_values(folder: str | Path, dtype: torch.dtype) -> nn.Module:
    """The model on the meta device: names, shapes and types, and no memory."""
    from transformers import AutoConfig, AutoModelForCausalLM

    with torch.device("meta"):
        return AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(folder, local_files_only=True), dtype=dtype)


def rank_0_sends(folder: str | Path, dtype: torch.dtype = torch.float32, buffers: bool = True) -> nn.Module:
    """The model on every rank, read by rank 0 alone. buffers=False leaves out what no checkpoint holds: wrong."""
    if dist.get_rank() == 0:
        model = every_rank_reads(folder, dtype)
    else:
        model = without_values(folder, dtype).to_empty(device="cpu")
        model.tie_weights()  # to_empty made two tensors of the tied one
    for tensor in [*model.parameters(), *(model.buffers() if buffers else [])]:
        dist.broadcast(tensor.detach(), src=0)
    return model


def rank_0_sends_shards(folder: str | Path, dtype: torch.dtype = torch.float32) -> nn.Module:
    """The model under FSDP2: only rank 0 ever holds all of it."""
    source = every_rank_reads(folder, dtype) if dist.get_rank() == 0 else None
    model = without_values(folder, dtype)
    for layer in model.model.layers:
        fully_shard(layer)
    fully_shard(model).to_empty(device="cpu")
    options = StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)
    set_model_state_dict(model, source.state_dict() if source else {}, options=options)
    for name, buffer in model.named_buffers():
        if source:
            buffer.copy_(source.get_buffer(name))
        dist.broadcast(buffer, src=0)
    return model
