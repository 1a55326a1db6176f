"""Supervised fine-tuning on prompts and answers, and direct preference optimization (Rafailov et al., 2023).

A batch is {"input_ids", "labels"}, each (rows, length); labels are IGNORED where a token is no part of an answer. Other
entries of a batch are arguments of the model. Models return logits as Hugging Face's do.
"""

import contextlib

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from ddp_course.base.errors import InputError
from ddp_course.data.packing import best_fit
from ddp_course.data.windows import IGNORED

Batch = dict[str, Tensor]


def collate(rows: list[dict[str, list[int]]]) -> Batch:
    """A batch of rows padded on the right, where the tokens of a causal model do not attend to the padding.

    Without rows: a row without an answer, so that a rank without examples takes part in a step and adds nothing to it.
    """
    rows = rows or [{"input_ids": [0, 0], "labels": [IGNORED, IGNORED]}]
    padding = {"input_ids": 0, "labels": IGNORED}
    return {
        name: pad_sequence([torch.tensor(row[name]) for row in rows], batch_first=True, padding_value=value)
        for name, value in padding.items()
    }


def pack(rows: list[dict[str, list[int]]], length: int) -> Batch:
    """A batch of windows of several whole rows each, with position_ids from 0 and an attention_mask for each row.

    attention_mask: (windows, 1, length, length), True where a token attends: to its own row up to itself. A row's
    first token is no target. Raises InputError if a row is longer than a window.
    """
    sizes = np.array([len(row["labels"]) for row in rows])
    if sizes.max() > length:
        raise InputError(f"a row of {sizes.max()} tokens does not fit into a window of {length}")
    windows = best_fit(sizes, length)
    shape = (windows.max() + 1, length)
    filled = [0] * len(rows)
    ids, positions = torch.zeros(2, *shape, dtype=torch.int64)
    labels, row_of = torch.full(shape, IGNORED), torch.full(shape, -1)  # -1: padding
    for number, (row, window, size) in enumerate(zip(rows, windows, sizes, strict=True)):
        span = slice(filled[window], filled[window] + size)
        filled[window] = span.stop
        ids[window, span] = torch.tensor(row["input_ids"])
        labels[window, span] = torch.tensor([IGNORED, *row["labels"][1:]])
        positions[window, span] = torch.arange(size)
        row_of[window, span] = number
    same_row = row_of[:, None, :, None] == row_of[:, None, None, :]
    return {"input_ids": ids, "labels": labels, "position_ids": positions, "attention_mask": same_row.tril()}


def answer_loss(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """The summed loss of the answer tokens, and their number."""
    logits, labels = logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten()
    return F.cross_entropy(logits, labels, ignore_index=IGNORED, reduction="sum"), (labels != IGNORED).sum()


def step_loss(model: nn.Module, batches: list[Batch], rank_count: int, mean_over: str = "step") -> float:
    """Backward of a step's micro-batches on this rank; returns the step's loss over all ranks.

    mean_over: "step", one mean over the answer tokens of the whole step on all ranks; "micro-batch", the mean of the
    micro-batches' means, in which a token of a short answer weighs more.
    """
    step_tokens = torch.stack([(batch["labels"][:, 1:] != IGNORED).sum() for batch in batches]).sum()
    if rank_count > 1:
        dist.all_reduce(step_tokens)  # before the first backward
    total = torch.zeros((), dtype=torch.float64, device=step_tokens.device)
    for batch in batches:
        sync = rank_count == 1 or batch is batches[-1]
        sharded = hasattr(model, "set_requires_gradient_sync")  # FSDP2's, in place of no_sync
        if sharded:
            model.set_requires_gradient_sync(sync)
        with contextlib.nullcontext() if sync or sharded else model.no_sync():
            inputs = {name: values for name, values in batch.items() if name != "labels"}
            loss, tokens = answer_loss(model(**inputs).logits, batch["labels"])
            loss = loss / (step_tokens if mean_over == "step" else tokens * len(batches) * rank_count)
            (loss * rank_count).backward()  # DDP and FSDP2 average the ranks' gradients
        total += loss.detach()
    if rank_count > 1:
        dist.all_reduce(total)
    return total.item()


def log_probability(model: nn.Module, batch: Batch) -> Tensor:
    """The log-probability of each answer as a whole, given its prompt: (rows,)."""
    logits = model(batch["input_ids"]).logits
    return answer_log_probability(logits, batch["labels"])


def dpo_loss(replica: nn.Module, model: nn.Module, batch: Batch, beta: float = 0.1) -> Tensor:
    """Mean over pairs. batch: the chosen answers, then the rejected ones. model: peft's model inside `replica`."""
    with torch.no_grad(), model.disable_adapter():
        reference = log_probability(model, batch)  # of the frozen model: no second copy
    chosen, rejected = (log_probability(replica, batch) - reference).chunk(2)
    return -F.logsigmoid(beta * (chosen - rejected)).mean()


def answer_log_probability(logits: Tensor, labels: Tensor) -> Tensor:
    """The summed log-probability of each row's answer tokens: (rows,)."""
    logits, labels = logits[:, :-1].transpose(1, 2), labels[:, 1:]
    return -F.cross_entropy(logits, labels, ignore_index=IGNORED, reduction="none").sum(1)
