"""Fine-tune a Hugging Face causal language model: on prompts and answers, or on preferences (DPO); LoRA or all weights.

    torchrun --standalone --nproc-per-node=2 ddp_course/finetune_ddp.py --model FOLDER --data pairs.jsonl
    torchrun ... ddp_course/finetune_ddp.py --model FOLDER --data pairs.jsonl --lora-rank 0 --learning-rate 1e-5
    torchrun ... ddp_course/finetune_ddp.py --model FOLDER --data preferences.jsonl --objective dpo --merge
    torchrun ... ddp_course/finetune_ddp.py --model FOLDER --data pairs.jsonl --run-dir runs/mine --resume auto

Read it from `train` downwards. The differences to pre-training are marked TUNE 1/6 to 6/6. Notebook 27 has the methods.
"""

if __name__ == "__main__":
    from ddp_course.base.command import begin_command

    begin_command()  # before torch is imported: from here on Ctrl-C is one line

import contextlib
import copy
import math
import os
from collections.abc import Sequence
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_

from ddp_course.base.errors import InputError
from ddp_course.checkpoint.run_directory import open_run
from ddp_course.checkpoint.training_state import TrainingState
from ddp_course.data import pairs
from ddp_course.data.pairs import TRAIN, VALIDATION, Answer, Pair, find_pairs, read_pairs
from ddp_course.distributed import process_group
from ddp_course.distributed.bucket_order import wrap
from ddp_course.distributed.process_group import World
from ddp_course.distributed.replica_check import assert_replicas_equal
from ddp_course.distributed.sync import assert_same_value, from_rank_0, sum_over_ranks
from ddp_course.post_training.adapters import add_adapters, linear_layers, without_adapters, write_adapters
from ddp_course.post_training.examples import Example, batch_of, encode, examples_of_step
from ddp_course.post_training.fine_tuning import answer_log_probability, answer_loss
from ddp_course.post_training.finetune_config import PRESETS, FinetuneConfig
from ddp_course.post_training.lora import merge
from ddp_course.post_training.policies import load_policy, prepare_policy, write_as_folder
from ddp_course.training.command_line import run
from ddp_course.training.loop import TrainingLoop
from ddp_course.training.memory import require_memory, training_bytes
from ddp_course.training.optimization import make_adamw, set_learning_rate
from ddp_course.training.precision import autocast, parameter_dtype, set_matmul_precision
from ddp_course.training.process import prepare_process

IDENTITY = ("objective", "dpo_beta", "max_tokens", "examples_per_update", "seed", "precision")
LORA_IDENTITY = ("lora_rank", "lora_alpha", "lora_layers")


def train(config: FinetuneConfig) -> int:
    """Train as one rank, to the last step or until a stop was asked for; returns the exit code."""
    world = process_group.start(config.timeout_seconds, config.device)
    if config.examples_per_update < world.size:
        raise InputError(
            f"--examples-per-update {config.examples_per_update} leaves ranks without work: there are {world.size}"
        )
    run_directory, checkpoint = open_run(world, config.run_dir, config.resume, kind="finetune")
    # TUNE 1/6: every rank reads the checkpoint and the data; weights and examples must be the same on all.
    start = load_policy(from_rank_0(world, lambda: prepare_model(config.model)))
    if config.pack:
        start.model.assert_packs()
    kind = Answer if config.objective == "sft" else Pair
    folder = from_rank_0(world, lambda: prepare_data(config.data, kind))
    max_tokens = min(config.max_tokens, start.model.config.context)
    examples, held_out = (
        [encode(start, pair, max_tokens) for pair in read_pairs(folder / name, kind)] for name in (TRAIN, VALIDATION)
    )
    policy, dtype = start.model, parameter_dtype(config.precision)
    names = [name.strip() for name in config.lora_layers.split(",")]
    layers = linear_layers(policy, names) if config.lora_rank else []
    adapter_size = config.lora_rank * sum(layer.in_features + layer.out_features for layer in layers)
    size = sum(parameter.numel() for parameter in policy.parameters())
    require_memory(world, "this training run", training_bytes(adapter_size or size, dtype))
    require_memory(world, "the list of a step's examples", 8 * config.examples_per_update)

    policy.to(world.device, dtype)
    set_matmul_precision(config.precision)
    process_group.seed_shared(config.seed)
    # TUNE 2/6: adapters are trained and the model is frozen, or all weights are trained.
    # TUNE 3/6: DPO's reference is the initial model: the policy with its adapters turned off, else a frozen copy.
    reference = policy if config.lora_rank or config.objective == "sft" else copy.deepcopy(policy).requires_grad_(False)
    trainable_module = policy
    if config.lora_rank:
        trainable_module = add_adapters(policy, names, config.lora_rank, config.lora_alpha)
    optimizer = make_adamw(trainable_module, config.learning_rate, config.weight_decay)
    process_group.seed_rank(config.seed, world.rank)

    identity = {name: getattr(config, name) for name in IDENTITY + (LORA_IDENTITY if config.lora_rank else ())}
    identity |= {"weights": start.weights, "data": pairs.fingerprint(folder)}
    assert_same_value("what the run starts from", identity)
    parts = {"adapters" if config.lora_rank else "model": trainable_module, "optimizer": optimizer}
    loop = TrainingLoop(run_directory, config, TrainingState(parts, identity))
    if not loop.begin(checkpoint, {"data_folder": str(folder), "base": policy.config.policy}):
        return 0

    # TUNE 4/6: DDP all-reduces the gradients of trained parameters only.
    ddp_policy = wrap(world, policy, torch.zeros(1, 2, dtype=torch.int64, device=world.device))
    world.say(
        f"{sum(p.numel() for p in trainable_module.parameters()):,} parameters of a model with {size:,} learn; "
        f"{config.precision} on {world.device}\n{len(examples):,} examples to train on and {len(held_out):,} held out, "
        f"cut at {max_tokens} tokens; {config.examples_per_update} examples per step, over {world.size} rank(s)"
    )
    for step in loop.steps(unit="examples", per_step=config.examples_per_update):
        learning_rate = config.learning_rate_at(step)
        set_learning_rate(optimizer, learning_rate)
        numbers = examples_of_step(config.seed, step, config.examples_per_update, len(examples))
        # TUNE 5/6: one mean over all answer tokens of the step (dpo: pairs), whichever rank and micro-batch has them.
        target_count = count_targets(examples, numbers)
        share = [examples[number] for number in numbers[world.rank :: world.size]]
        loss_sum = torch.zeros((), dtype=torch.float64, device=world.device)
        for first in range(0, len(share), config.micro_batch_size):
            # A collective, so only while all ranks have a micro-batch left: the others would be in DDP's all-reduce.
            if 0 < first < len(numbers) // world.size and loop.abandons_step():
                break
            is_last = first + config.micro_batch_size >= len(share)
            with contextlib.nullcontext() if is_last or world.size == 1 else ddp_policy.no_sync():
                micro_batch = share[first : first + config.micro_batch_size]
                loss, _ = loss_of(ddp_policy, reference, micro_batch, config, world)
                # DDP divides the sum of the ranks' gradients by the world size. We want the mean over the step.
                (loss * (world.size / target_count)).backward()
            loss_sum += loss.detach()
        if loop.abandoned:
            continue
        gradient_norm = clip_grad_norm_(trainable_module.parameters(), config.gradient_clip or math.inf)
        optimizer.step()
        optimizer.zero_grad()

        [total] = loop.sum_over_ranks(loss_sum)
        loop.report(
            loss_sum,
            loss=total / target_count,
            targets=target_count,
            epoch=(step + 1) * config.examples_per_update / len(examples),
            learning_rate=learning_rate,
            grad_norm=gradient_norm.item(),
        )
        loop.save_and_validate(lambda: validate(policy, reference, held_out, config, world))

    assert_replicas_equal(world, trainable_module)
    if loop.stopped_early:
        return loop.leave()
    # TUNE 6/6: one rank writes the adapters, and the whole model if it was trained or --merge asks for it.
    if world.is_main:
        print(f"\nheld-out loss {loop.progress.validated['loss']:.4f}", flush=True)
        if config.lora_rank:
            adapter_folder = run_directory.path / f"adapters_step_{loop.step:06d}"
            print(f"the adapters, for peft: {write_adapters(policy, names, config, adapter_folder)}", flush=True)
        if config.merge or not config.lora_rank:
            model_folder = write_as_folder(merge(policy), run_directory.path / f"huggingface_step_{loop.step:06d}")
            print(f"the model, for transformers: {model_folder}", flush=True)
        print(f"run directory: {run_directory.path}", flush=True)
    return 0


def prepare_model(folder: str) -> str:
    """The policy's name for `load_policy`. Raises InputError if there is no such folder; call it on one rank."""
    if not folder:
        raise InputError("--model is missing: give it the folder of a Hugging Face checkpoint")
    if not os.path.isdir(folder):
        raise InputError(
            f"--model {folder[:200]!r} is no folder; give that of a Hugging Face checkpoint, which "
            "`hf download OWNER/NAME --local-dir FOLDER` makes"
        )
    return prepare_policy(f"hf:{folder}")


def prepare_data(data: str, kind: type) -> Path:
    """The folder of the examples. Raises InputError if there are none; call it on one rank."""
    if not data:
        raise InputError("--data is missing: give it a JSONL file")
    folder = find_pairs(data, kind)
    if not folder:
        raise InputError(f"--data {data[:200]!r} is neither a JSONL file nor a folder with {TRAIN} and {VALIDATION}")
    return folder


def count_targets(examples: Sequence[Example], numbers: Sequence[int]) -> int:
    """The number of targets of a step, over all ranks. Every rank has all examples, so nothing is communicated."""
    return sum(examples[number].target_count for number in numbers)


def loss_of(
    model: nn.Module, reference: nn.Module, examples: Sequence[Example], config: FinetuneConfig, world: World
) -> tuple[Tensor, Tensor]:
    """The summed loss of the examples; for dpo also the number of pairs that the policy ranks correctly, else 0.

    A pair is ranked correctly if the log-probability of the chosen answer, less the reference's, is the larger one.
    model: the policy, or DDP around it. reference: the policy, whose adapters can be turned off, or a frozen copy.
    """
    window_length = min(config.max_tokens, reference.config.context) if config.pack else None
    batch = {name: tensor.to(world.device) for name, tensor in batch_of(examples, window_length).items()}
    tokens, labels = batch.pop("input_ids"), batch.pop("labels")
    with autocast(config.precision, world.device):
        logits = model(tokens, **batch)
        if config.objective == "sft":
            return answer_loss(logits, labels)[0], torch.zeros(())
        with torch.no_grad(), without_adapters(reference):
            reference_log_probability = answer_log_probability(reference(tokens), labels)
        chosen, rejected = (answer_log_probability(logits, labels) - reference_log_probability).chunk(2)
        return -F.logsigmoid(config.dpo_beta * (chosen - rejected)).sum(), (chosen > rejected).sum()


@torch.no_grad()
def validate(
    policy: nn.Module, reference: nn.Module, held_out: Sequence[Example], config: FinetuneConfig, world: World
) -> dict[str, float]:
    """Mean loss on the held-out examples, and for dpo the accuracy: the same at any world size (collective)."""
    share = held_out[world.rank :: world.size]
    batches = [
        share[first : first + config.micro_batch_size] for first in range(0, len(share), config.micro_batch_size)
    ]
    sums = [loss_of(policy, reference, batch, config, world) for batch in batches]
    loss_sum, right_count = (sum(values) for values in zip(*sums, strict=True)) if sums else (0.0, 0)
    target_count = sum(example.target_count for example in share)
    loss_sum, right_count, target_count, count = sum_over_ranks(world, loss_sum, right_count, target_count, len(share))
    accuracy = {"accuracy": right_count / count} if config.objective == "dpo" else {}
    return {"loss": loss_sum / target_count, **accuracy, "examples": count}


if __name__ == "__main__":
    prepare_process()
    run(train, PRESETS)
