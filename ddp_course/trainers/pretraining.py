"""What further trainers of MiniGPT have in common with minigpt_ddp.py: its flags, tokens and windows, how a run
begins, is validated and ends.

minigpt_ddp.py shows all of it line by line. A trainer that begins here shows what it does otherwise.
"""

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from itertools import islice
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
from ddp_course.models.minigpt import MiniGPTConfig
from ddp_course.training.precision import autocast
from ddp_course.training.progress import Progress
from ddp_course.training.settings import RunSettings, check_ranges

IDENTITY = ("layers", "heads", "width", "context", "tokens_per_update", "seed")  # what a resumed run may not change


@dataclass(frozen=True)
class PretrainingSettings(RunSettings):
    """A trainer's settings start from these. The flags of minigpt_ddp.py, with its meanings."""

    preset: Literal["laptop", "tiny"] = "laptop"
    """A named set of values; every other flag changes it. tiny: seconds. laptop: minutes."""
    weight_decay: float = 0.1
    precision: Literal["float32", "bfloat16", "float64"] = "float32"
    """Of the matrix products; weights stay float32 (float64 for float64)."""

    data: str = "stdlib"
    """What to read: stdlib (Python's sources), shakespeare (a download), or a file or folder of text or of tokens."""
    tokenizer: str = "bpe"
    """How text becomes tokens: bytes, bpe or rustbpe, or the folder of an existing tokenizer (tokenizer.json)."""
    vocab_size: int | None = 2048
    """Tokens in the vocabulary; None leaves it to the tokenizer (bytes: always 256)."""
    pack: bool = False
    """Windows of whole documents, some of them not quite full, instead of windows cut out of the stream of tokens."""
    tokens_per_update: int = 4096
    """Tokens of one update, over all ranks and micro-batches: the constant of the run."""
    micro_batch_size: int = 4
    """Windows that one rank takes through the model at a time."""
    validation_windows: int | None = 64
    """Windows of a validation, spread evenly over the held-out text; None takes all of it."""
    layers: int = 4
    """Transformer blocks."""
    heads: int = 4
    """Attention heads per block."""
    width: int = 256
    """Units of the residual stream."""
    context: int = 128
    """Tokens per window."""
    dropout: float = 0.0
    """Probability of dropping a unit."""
    activation_checkpointing: bool = False
    """Recompute activations in backward: less memory, about a third more time."""

    def __post_init__(self) -> None:
        super().__post_init__()
        sizes = "layers", "heads", "width", "context", "tokens_per_update", "micro_batch_size", "validation_windows"
        check_ranges(self, at_least_1=sizes)
        if not 0 <= self.dropout < 1:
            raise ValueError(f"--dropout must be a probability from 0 to below 1, not {self.dropout}")
        if self.width % self.heads:
            raise ValueError(f"--width {self.width} does not divide into --heads {self.heads} of equal size")


def micro_steps_per_update(config: PretrainingSettings, shares: int, called: str = "") -> int:
    """How many micro-batches a rank accumulates, so that an update holds the same tokens at any world size.

    called: what the shares of an update are in the error, if not a rank each.
    """
    together = config.micro_batch_size * config.context * shares
    steps, rest = divmod(config.tokens_per_update, together)
    if rest:
        nearest = " or ".join(f"{n * together:,}" for n in (steps, steps + 1) if n)
        raise InputError(
            f"--tokens-per-update {config.tokens_per_update:,} is not a multiple of "
            f"{called or f'{shares} rank(s)'} x {config.micro_batch_size} windows x {config.context} "
            f"tokens = {together:,}; nearest that are: {nearest}"
        )
    return steps


def open_text(
    world: World, config: PretrainingSettings, before: Mapping[str, object]
) -> tuple[Tokens, StreamWindows | PackedWindows]:
    """The tokens, prepared by one rank and mapped by all, and the windows of a run (collective).

    before: the settings of the run that goes on, if one does. Raises InputError for a text shorter than a window.
    """
    tokens = open_tokens(
        from_rank_0(world, lambda: prepare(config.data, config.tokenizer, config.vocab_size, resumed_settings=before))
    )
    assert_same_value(world, "the token file", tokens.fingerprint)
    of_run = tokens.train, tokens.tokenizer.end_of_text, config.context, config.seed, config.tokens_per_update
    return tokens, PackedWindows(*of_run) if config.pack else StreamWindows(*of_run)


def shape_of(config: PretrainingSettings, tokens: Tokens) -> MiniGPTConfig:
    """Of the model to train."""
    return MiniGPTConfig(
        vocab_size=tokens.tokenizer.vocab_size,
        context=config.context,
        layers=config.layers,
        heads=config.heads,
        width=config.width,
        dropout=config.dropout,
        activation_checkpointing=config.activation_checkpointing,
    )


def identity_of(config: PretrainingSettings, tokens: Tokens) -> dict[str, object]:
    """What makes it this run and no other, in the words of minigpt_ddp.py's checkpoints."""
    identity = {name: getattr(config, name) for name in IDENTITY}
    data = tokens.fingerprint + " packed" * config.pack
    return identity | {"precision": config.precision, "data and tokenizer": data}


def begin(
    world: World, run_directory: RunDirectory, config: PretrainingSettings, tokens: Tokens, step: int
) -> dict[str, object]:
    """Write down that the run goes on from `step` (collective); returns what a checkpoint says of its settings."""
    settings = asdict(config) | {"world_size": world.size, "token_file": str(tokens.folder)}
    settings = run_directory.begin(step, settings)
    return settings | {"tokenizer_state": tokens.tokenizer.state()}  # a checkpoint reads and writes text on its own


def say_results(world: World, progress: Progress, run_directory: RunDirectory) -> None:
    """The last lines of a run that came to its end."""
    world.say(
        f"\nfirst loss {progress.first['loss']:.4f}, last loss {progress.last['loss']:.4f}, validation loss "
        f"{progress.validated['loss']:.4f}, {progress.per_second:,.0f} tokens/s\nrun directory: "
        f"{run_directory.path}"
    )


def even_validation_batches(
    tokens: Tokens, config: PretrainingSettings, rows: int, share: int, shares: int
) -> Iterator[tuple[Tensor, Tensor]]:
    """The held-out windows of one of several shares: pairs (inputs, targets), int64, (rows, context).

    All shares take as many batches of one shape, since a model may communicate in its forward pass. What is missing has
    no targets.
    """
    context = config.context
    windows = -(-(len(tokens.val) - 1) // context)
    most = -(-min(windows, config.validation_windows or windows) // shares)  # windows of a share
    batches = validation_batches(
        tokens.val,
        context=context,
        batch_size=rows,
        rank=share,
        world_size=shares,
        max_windows=config.validation_windows,
    )
    for _ in range(-(-most // rows)):
        inputs = torch.zeros(rows, context, dtype=torch.int64)
        targets = torch.full_like(inputs, IGNORED)
        for some_inputs, some_targets in islice(batches, 1):
            inputs[: len(some_inputs)], targets[: len(some_targets)] = some_inputs, some_targets
        yield inputs, targets


@torch.no_grad()
def validate(model: nn.Module, tokens: Tokens, config: PretrainingSettings, world: World) -> float:
    """Mean loss of a held-out token, the same at any world size: each rank does a share, sum and count are reduced."""
    model.eval()
    loss_sum, count = 0.0, 0
    for inputs, targets in even_validation_batches(tokens, config, config.micro_batch_size, world.rank, world.size):
        with autocast(config.precision, world.device):
            loss_sum += model(inputs.to(world.device), targets.to(world.device)).item()
        count += int((targets != IGNORED).sum())
    model.train()
    loss_sum, count = sum_over_ranks(world, loss_sum, count)
    return loss_sum / count
