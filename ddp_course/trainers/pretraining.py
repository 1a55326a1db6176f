"""Parts that the trainers of MiniGPT share: settings, text, the model's sizes, validation.

minigpt_ddp.py, parallel_ddp.py, diloco_ddp.py and experts_ddp.py train the same model on the same tokens for the same
flags, and can resume from each other's checkpoints as far as their settings agree.
"""

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from ddp_course.base.errors import InputError
from ddp_course.checkpoint.run_directory import RunDirectory
from ddp_course.data.packing import PackedWindows, StreamWindows
from ddp_course.data.token_file import Tokens, open_tokens, prepare
from ddp_course.data.windows import IGNORED, validation_batches
from ddp_course.distributed.process_group import World
from ddp_course.distributed.sync import assert_same_value, from_rank_0, sum_over_ranks
from ddp_course.models import minigpt
from ddp_course.models.minigpt import MiniGPTConfig
from ddp_course.training.precision import autocast
from ddp_course.training.progress import Progress
from ddp_course.training.settings import NonNegativeFloat, NonNegativeInt, PositiveInt, RunSettings, Share
from ddp_course.training.throughput import prefetch

IDENTITY = ("layers", "heads", "width", "context", "tokens_per_update", "seed")  # a resumed run may not change these
TINY = {  # the settings of --preset tiny
    "preset": "tiny",
    "tokenizer": "bytes",
    "vocab_size": None,
    "layers": 2,
    "heads": 2,
    "width": 64,
    "context": 64,
    "tokens_per_update": 2048,
    "micro_batch_size": 8,
    "steps": 20,
    "warmup_steps": 2,
    "precision": "float32",
    "validate_every": 10,
    "checkpoint_every": 10,
    "log_every": 1,
}


@dataclass(frozen=True)
class PretrainingConfig(RunSettings):
    """Pre-train MiniGPT."""

    preset: Literal["laptop", "tiny"] = "laptop"
    """A named set of values; every other flag changes it. tiny: seconds. laptop: minutes."""
    weight_decay: NonNegativeFloat = 0.1
    precision: Literal["float32", "bfloat16", "float64"] = "float32"
    """The number format of matrix products; weights stay float32 (float64 for float64)."""

    data: str = "stdlib"
    """The text: stdlib (Python's sources), shakespeare (a download), or a file or folder of text or of tokens."""
    tokenizer: str = "bpe"
    """How text becomes tokens: bytes, bpe or rustbpe, or the folder of an existing tokenizer (tokenizer.json)."""
    vocab_size: PositiveInt | None = 2048
    """Tokens in the vocabulary; None leaves it to the tokenizer (bytes: always 256)."""
    pack: bool = False
    """Windows of whole documents, some of them not quite full, instead of windows cut out of the stream of tokens."""
    tokens_per_update: PositiveInt = 4096
    """Tokens of one optimizer step, over all ranks and micro-batches: the constant of the run."""
    micro_batch_size: PositiveInt = 4
    """Windows that one rank takes through the model at a time."""
    validation_windows: PositiveInt | None = 64
    """Windows of a validation, spread evenly over the held-out text; None takes all of it."""
    check_every: NonNegativeInt = 0
    """Steps between checks of what must be equal on all ranks: weights and optimizer. 0: weights only, at the end."""
    layers: PositiveInt = 4
    """Transformer blocks."""
    heads: PositiveInt = 4
    """Attention heads per block."""
    kv_heads: PositiveInt | None = None
    """Heads of keys and values, each shared by equally many query heads (grouped-query attention); None: --heads."""
    width: PositiveInt = 256
    """Units of the residual stream."""
    context: PositiveInt = 128
    """Tokens per window."""
    dropout: Share = 0.0
    """Probability of dropping a unit."""
    activation_checkpointing: bool = False
    """Recompute activations in backward: less memory, for one more forward pass."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.width % self.heads:
            raise ValueError(f"--width {self.width} does not divide into --heads {self.heads} of equal size")
        if self.heads % (self.kv_heads or self.heads):
            raise ValueError(f"--heads {self.heads} does not divide over --kv-heads {self.kv_heads}")


def count_gradient_accumulation_steps(config: PretrainingConfig, world_size: int, ranks_name: str = "") -> int:
    """The micro-batches that a rank takes in a step, so that a step has the same tokens at any world size.

    world_size: the ranks over which the windows are divided. ranks_name: what the error calls them, if not "N rank(s)".
    Raises InputError if --tokens-per-update is not a multiple of the tokens of one micro-batch per rank.
    """
    micro_batch_tokens = config.micro_batch_size * config.context * world_size
    steps, rest = divmod(config.tokens_per_update, micro_batch_tokens)
    if rest:
        nearest = " or ".join(f"{n * micro_batch_tokens:,}" for n in (steps, steps + 1) if n)
        raise InputError(
            f"--tokens-per-update {config.tokens_per_update:,} is not a multiple of "
            f"{ranks_name or f'{world_size} rank(s)'} x {config.micro_batch_size} windows x {config.context} "
            f"tokens = {micro_batch_tokens:,}; nearest that are: {nearest}"
        )
    return steps


def open_text(
    world: World, config: PretrainingConfig, run_directory: RunDirectory
) -> tuple[Tokens, StreamWindows | PackedWindows]:
    """The tokens and the windows that are cut out of them (collective).

    One rank prepares the token file and all map it: nobody reads a file that another rank is still writing.
    Raises InputError for a text shorter than a window.
    """
    previous = run_directory.resumed_settings
    folder = from_rank_0(
        world, lambda: prepare(config.data, config.tokenizer, config.vocab_size, resumed_settings=previous)
    )
    tokens = open_tokens(folder)
    assert_same_value("the token file", tokens.fingerprint)
    make = PackedWindows if config.pack else StreamWindows
    end_of_text = tokens.tokenizer.end_of_text
    return tokens, make(tokens.train, end_of_text, config.context, config.seed, config.tokens_per_update)


def micro_batches(
    windows: StreamWindows | PackedWindows,
    config: PretrainingConfig,
    steps: Iterable[int],
    *,
    rank: int,
    world_size: int,
    device: torch.device,
) -> Iterator[tuple[Tensor, Tensor]]:
    """One rank's micro-batches (inputs, targets) of these steps, on `device`: its share of each step's global batch.

    The global batch is a function of the seed and the step: it is the same at any world size.
    """
    gradient_accumulation_steps = count_gradient_accumulation_steps(config, world_size)
    batches = (
        batch
        for step in steps
        for batch in windows.micro_batches(
            step=step,
            rank=rank,
            world_size=world_size,
            micro_batch_size=config.micro_batch_size,
            gradient_accumulation_steps=gradient_accumulation_steps,
        )
    )
    return prefetch(batches, device)


def make_model_config(config: PretrainingConfig, tokens: Tokens) -> MiniGPTConfig:
    """The config of the MiniGPT to train."""
    return MiniGPTConfig(
        vocab_size=tokens.tokenizer.vocab_size,
        context=config.context,
        layers=config.layers,
        heads=config.heads,
        width=config.width,
        dropout=config.dropout,
        activation_checkpointing=config.activation_checkpointing,
        kv_heads=config.kv_heads,
    )


def batch_bytes(config: PretrainingConfig, model_config: MiniGPTConfig) -> int:
    """A lower bound of the bytes that a rank needs besides the model: activations, and starts of a step's windows."""
    activations = minigpt.activation_bytes(model_config, config.micro_batch_size)
    return activations + 8 * config.tokens_per_update // config.context


def make_identity(config: PretrainingConfig, tokens: Tokens, precision: str) -> dict[str, object]:
    """The settings that a resumed run may not change; `TrainingState` compares them with those of the checkpoint."""
    identity = {name: getattr(config, name) for name in IDENTITY} | {"kv_heads": config.kv_heads or config.heads}
    data = f"{tokens.fingerprint} packed" if config.pack else tokens.fingerprint
    return identity | {"precision": precision, "data and tokenizer": data}


def results(progress: Progress) -> str:
    """The line that a finished run prints: its losses and its speed."""
    return (
        f"\nfirst loss {progress.first['loss']:.4f}, last loss {progress.last['loss']:.4f}, validation loss "
        f"{progress.validated['loss']:.4f}, {progress.per_second:,.0f} tokens/s"
    )


def validate(
    model: nn.Module, tokens: Tokens, config: PretrainingConfig, precision: str, world: World, even: bool = False
) -> float:
    """The mean loss per held-out token, the same at any world size (collective): sum and count are all-reduced.

    model: the bare model, not the DDP wrapper, since ranks may have different numbers of batches.
    even: give all ranks the same number of batches, for a model that communicates in its forward pass.
    """
    batches_of = even_held_out_batches if even else held_out_batches
    batches = batches_of(tokens, config, config.micro_batch_size, world.rank, world.size)
    loss_sum, target_count = sum_over_ranks(world, *loss_and_target_count(model, model, batches, precision, world))
    return loss_sum / target_count


@torch.no_grad()
def loss_and_target_count(
    model: nn.Module,
    forward: Callable[[Tensor, Tensor], Tensor],
    batches: Iterable[tuple[Tensor, Tensor]],
    precision: str,
    world: World,
) -> tuple[Tensor, int]:
    """This rank's sum of the loss and number of targets, with `model` in eval mode.

    forward: returns the summed loss of (inputs, targets). The sum stays on the device, because reading a number from a
    GPU after each batch would wait for the GPU.
    """
    model.eval()
    loss_sum = torch.zeros((), dtype=torch.float64, device=world.device)
    target_count = 0
    for inputs, targets in batches:
        with autocast(precision, world.device):
            loss_sum += forward(inputs.to(world.device), targets.to(world.device))
        target_count += int((targets != IGNORED).sum())
    model.train()
    return loss_sum, target_count


def held_out_batches(
    tokens: Tokens, config: PretrainingConfig, rows: int, rank: int, world_size: int
) -> Iterator[tuple[Tensor, Tensor]]:
    """One rank's share of the held-out windows: pairs (inputs, targets), int64, (up to `rows`, context)."""
    return validation_batches(
        tokens.val,
        context=config.context,
        batch_size=rows,
        rank=rank,
        world_size=world_size,
        max_windows=config.validation_windows,
    )


def even_held_out_batches(
    tokens: Tokens, config: PretrainingConfig, rows: int, rank: int, world_size: int
) -> Iterator[tuple[Tensor, Tensor]]:
    """The same windows, on every rank in as many batches of (rows, context). A row without window has no targets."""
    context = config.context
    window_count = math.ceil((len(tokens.val) - 1) / context)
    largest_share = math.ceil(min(window_count, config.validation_windows or window_count) / world_size)
    batches = held_out_batches(tokens, config, rows, rank, world_size)
    for _ in range(math.ceil(largest_share / rows)):
        inputs = torch.zeros(rows, context, dtype=torch.int64)
        targets = torch.full_like(inputs, IGNORED)
        if batch := next(batches, None):
            count = len(batch[0])
            inputs[:count], targets[:count] = batch
        yield inputs, targets
