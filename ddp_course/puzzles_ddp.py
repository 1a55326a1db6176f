"""Train a small recurrent model on sudokus, with an embedding row for each puzzle, on one process or on many.

    python ddp_course/puzzles_ddp.py                                                            # one process
    torchrun --standalone --nproc-per-node=2 ddp_course/puzzles_ddp.py puzzles=200 --seed 7     # two
    torchrun ... ddp_course/puzzles_ddp.py @mine.txt --run-dir runs/mine --resume auto          # go on after a stop

Read it from `train` downwards. It differs from minigpt_ddp.py in two ways: rank 0 builds the configuration for all
ranks, and an embedding table outside of DDP is kept equal on all ranks by an optimizer of its own.
"""

if __name__ == "__main__":
    from ddp_course.base.command import begin_command

    begin_command()  # before torch is imported: from here on Ctrl-C is one line

import math
import uuid
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Literal

import torch
from torch import nn
from torch.nn.utils import clip_grad_norm_

from ddp_course.checkpoint.run_directory import RunDirectory, open_run
from ddp_course.checkpoint.training_state import TrainingState
from ddp_course.data import sudoku
from ddp_course.data.puzzles import PuzzleBatches, Puzzles, fingerprint, guess_accuracy, make_sets, read_sets
from ddp_course.data.windows import IGNORED
from ddp_course.distributed import process_group
from ddp_course.distributed.bucket_order import wrap
from ddp_course.distributed.process_group import World
from ddp_course.distributed.replica_check import assert_replicas_equal
from ddp_course.distributed.sparse_embedding import SparseEmbedding, SparseSignSGD
from ddp_course.distributed.sync import from_rank_0, sum_over_ranks
from ddp_course.models.puzzle import PuzzleModel, PuzzleModelConfig, halting_steps
from ddp_course.training.command_line import run
from ddp_course.training.loop import TrainingLoop
from ddp_course.training.memory import require_memory, training_bytes
from ddp_course.training.optimization import make_adamw, set_learning_rate, warmup_cosine
from ddp_course.training.precision import HALF, autocast, parameter_dtype
from ddp_course.training.process import prepare_process
from ddp_course.training.settings import Bound, NonNegativeFloat, NonNegativeInt, PositiveInt, Repetitions, RunSettings

IDENTITY = (
    "size",
    "puzzles",
    "boards_per_puzzle",
    "held_out",
    "fewest_clues",
    "most_clues",
    "width",
    "heads",
    "layers",
    "embedding_width",
    "slow_steps",
    "fast_steps",
    "segments",
    "gradient",
    "boards_per_update",
    "precision",
    "seed",
)  # what a resumed run may not change


@dataclass(frozen=True)
class PuzzleConfig(RunSettings):
    """Train a puzzle model. Rank 0 reads these for all ranks, so they mean the same run at any number of processes."""

    preset: Literal["laptop", "tiny"] = "laptop"
    """A named set of values; every other flag changes it. tiny: seconds. laptop: a minute or two."""
    steps: PositiveInt = 400
    learning_rate: NonNegativeFloat = 2e-3
    """Peak learning rate of the model (AdamW), reached after the warm-up."""
    warmup_steps: NonNegativeInt = 30
    weight_decay: NonNegativeFloat = 0.1
    embedding_learning_rate: NonNegativeFloat = 1e-2
    """Peak learning rate of the embedding (sign-SGD): each number of a used row moves by it. It decays to a tenth."""
    embedding_weight_decay: NonNegativeFloat = 0.1
    """Weight decay of the embedding, on used rows only."""
    precision: Literal["float32", "bfloat16", "float64"] = "float32"
    """The number format of matrix products and of looked-up rows; weights stay float32 (float64 for float64)."""
    checkpoint_every: NonNegativeInt = 100
    run_name: str = ""
    """The name of the run; empty: a random name, the same on all ranks. Without --run-dir it names the folder."""

    data: str = ""
    """A folder with train.csv and test.csv, columns question and answer; empty: sudokus are made from the seed."""
    size: Annotated[int, Bound("one of 4, 9", lambda value: value in sudoku.SIZES)] = 4
    """Digits, and cells in a row, of a sudoku: 4 or 9."""
    puzzles: PositiveInt = 400
    """Puzzles to train on. Each has a row of its own in the embedding."""
    boards_per_puzzle: PositiveInt = 32
    """Boards of each puzzle: itself, and augmentations with digits, rows and columns exchanged. They share its row."""
    held_out: PositiveInt = 200
    """Puzzles to validate on; neither they nor their augmentations are trained on."""
    fewest_clues: NonNegativeInt = 4
    """Given cells of the hardest puzzles that are made (9x9: about 28)."""
    most_clues: NonNegativeInt = 7
    """Given cells of the easiest puzzles that are made (9x9: about 45)."""
    boards_per_update: PositiveInt = 64
    """Boards of one optimizer step, over all ranks: the constant of the run."""

    width: PositiveInt = 64
    """Units of a cell's state."""
    heads: PositiveInt = 4
    """Attention heads per block."""
    layers: PositiveInt = 1
    """Blocks per level."""
    embedding_width: PositiveInt = 16
    """Numbers in a puzzle's row."""
    slow_steps: Repetitions = 2
    """Steps of the slow level in a segment."""
    fast_steps: Repetitions = 2
    """Steps of the fast level for each slow one."""
    segments: Repetitions = 2
    """Answers the model gives on the way, each with its loss."""
    gradient: Literal["one-step", "full"] = "one-step"
    """Through the last step of each level only, or through all steps of a segment."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.run_name in (".", "..") or set(self.run_name) & set("/\\"):
            raise ValueError(f"--run-name must be a name, not a path like {self.run_name!r}; that is for --run-dir")
        if self.width % self.heads:
            raise ValueError(f"--width {self.width} does not divide into --heads {self.heads} of equal size")
        if not 0 <= self.fewest_clues <= self.most_clues < self.size**2:
            raise ValueError(
                f"--fewest-clues {self.fewest_clues} and --most-clues {self.most_clues} must be a range within "
                f"0 to {self.size**2 - 1}, so that a cell is left to find"
            )


PRESETS = {
    "laptop": PuzzleConfig(),
    "tiny": PuzzleConfig(
        preset="tiny",
        puzzles=30,
        boards_per_puzzle=2,
        held_out=11,
        boards_per_update=14,
        width=16,
        heads=2,
        embedding_width=4,
        steps=20,
        warmup_steps=2,
        log_every=1,
        validate_every=10,
        checkpoint_every=10,
    ),
}


def train(config: PuzzleConfig) -> int:
    """Train as one rank, to the last step or until a stop was asked for; returns the exit code."""
    world = process_group.start(config.timeout_seconds, config.device)
    folder = config.run_dir or (f"runs/{config.run_name}" if config.run_name and config.resume == "no" else "")
    run_directory, checkpoint = open_run(world, folder, config.resume, kind="puzzles")
    config = from_rank_0(world, lambda: with_name(config, run_directory))
    require_memory(world, "this training run", least_bytes(config, world.size))
    puzzles, held_out = from_rank_0(world, lambda: make_or_read_sets(config))

    process_group.seed_shared(config.seed)
    dtype = parameter_dtype(config.precision)
    model = PuzzleModel(make_model_config(config)).to(world.device, dtype)
    # Row 0 belongs to no training puzzle: it stays zero, and all held-out puzzles use it.
    embedding = SparseEmbedding(
        config.puzzles + 1, config.embedding_width, std=0.0, dtype=dtype, cast_to=HALF.get(config.precision)
    ).to(world.device)
    optimizer = make_adamw(model, config.learning_rate, config.weight_decay)
    embedding_optimizer = SparseSignSGD(embedding, world, config.embedding_learning_rate, config.embedding_weight_decay)

    identity = {name: getattr(config, name) for name in IDENTITY} | {"boards": fingerprint(puzzles, held_out)}
    optimizers = {"optimizer": optimizer, "embedding_optimizer": embedding_optimizer}
    parts = {"model": model, "embedding": embedding} | optimizers
    loop = TrainingLoop(run_directory, config, TrainingState(parts, identity))
    if not loop.begin(checkpoint, {}):
        return 0

    # Only the model is wrapped: DDP would all-reduce or broadcast the whole table in every step.
    cells = torch.zeros(1, config.size**2, dtype=torch.int64, device=world.device)
    with autocast(config.precision, world.device):
        ddp_model = wrap(world, model, cells, embedding.table[:1], cells)

    world.say(
        f"{config.run_name}: {len(puzzles):,} boards of {config.puzzles:,} puzzles, {len(held_out):,} held out; "
        f"{sum(p.numel() for p in model.parameters()):,} parameters, a table of {embedding.table.numel():,} numbers; "
        f"{config.precision} on {world.device}\n{config.boards_per_update} boards per step, {world.size} rank(s); "
        f"filled in at random, {guess_accuracy(held_out, config.seed):.3f} of the held-out puzzles come out right"
    )
    batches = iter(
        PuzzleBatches(
            puzzles,
            batch_size=config.boards_per_update,
            rank=world.rank,
            world_size=world.size,
            seed=config.seed,
            start=loop.step,
        )
    )
    for step in loop.steps(unit="boards", per_step=config.boards_per_update):
        learning_rate = config.learning_rate_at(step)
        peak = config.embedding_learning_rate
        embedding_learning_rate = warmup_cosine(step, config.steps, config.warmup_steps, peak, final=peak / 10)
        set_learning_rate(optimizer, learning_rate)
        set_learning_rate(embedding_optimizer, embedding_learning_rate)
        clues, targets, ids, _ = (tensor.to(world.device) for tensor in next(batches))
        # The loss is a mean over the empty cells of the global batch, so these are counted over all ranks first.
        [empty_cells] = sum_over_ranks(world, (targets != IGNORED).sum())
        with autocast(config.precision, world.device):
            loss = ddp_model(clues, embedding(ids), targets)
        (loss * (world.size / empty_cells)).backward()  # DDP divides by the world size; sign-SGD ignores the scale
        gradient_norm = clip_grad_norm_(model.parameters(), config.gradient_clip or math.inf)
        optimizer.step()
        embedding_optimizer.step()  # collective: all-gathers the rows that the ranks used
        optimizer.zero_grad()
        embedding_optimizer.zero_grad()

        [total_loss] = loop.sum_over_ranks(loss.detach())
        loop.report(
            loss,
            loss=total_loss / empty_cells,
            grad_norm=gradient_norm.item(),
            learning_rate=learning_rate,
            embedding_learning_rate=embedding_learning_rate,
        )
        loop.save_and_validate(lambda: evaluate(model, embedding, held_out, config, world))

    assert_replicas_equal(world, model)
    assert_replicas_equal(world, embedding, buffers=True)
    if loop.stopped_early:
        return loop.leave()
    first, last, validated = loop.progress.first, loop.progress.last, loop.progress.validated
    world.say(
        f"first loss {first['loss']:.4f}, last loss {last['loss']:.4f}; of the held-out puzzles "
        f"{validated['exact']:.3f} solved, of their empty cells {validated['cell_accuracy']:.3f}\n"
        f"run directory: {run_directory.path}"
    )
    return 0


def with_name(config: PuzzleConfig, run_directory: RunDirectory) -> PuzzleConfig:
    """The configuration with a run name; a resumed run keeps its own. Called on one rank: the name may be random."""
    name = config.run_name or str(run_directory.resumed_settings.get("run_name", ""))
    if not name:  # not from the seed: two runs of one seed have two names
        name = f"puzzles-{uuid.uuid4().hex[:6]}" if config.run_dir else run_directory.path.name
    return replace(config, run_name=name, run_dir=str(run_directory.path))


def make_or_read_sets(config: PuzzleConfig) -> tuple[Puzzles, Puzzles]:
    """(Puzzles to train on, held-out puzzles). Called on one rank, so that only this one needs --data."""
    counts = config.size, config.puzzles, config.boards_per_puzzle, config.held_out
    if config.data:
        return read_sets(Path(config.data), config.seed, *counts)
    return make_sets(config.seed, *counts, (config.fewest_clues, config.most_clues))


def make_model_config(config: PuzzleConfig) -> PuzzleModelConfig:
    """The sizes of the model to train."""
    return PuzzleModelConfig(
        size=config.size,
        width=config.width,
        heads=config.heads,
        layers=config.layers,
        puzzle_width=config.embedding_width,
        slow_steps=config.slow_steps,
        fast_steps=config.fast_steps,
        segments=config.segments,
        gradient=config.gradient,
    )


def least_bytes(config: PuzzleConfig, world_size: int) -> int:
    """A lower bound of the memory that a rank needs: the matrices of the blocks, boards, the table and one step."""
    model_config, dtype = make_model_config(config), parameter_dtype(config.precision)
    matrices = 12 * model_config.layers * model_config.width**2
    boards = (config.puzzles * config.boards_per_puzzle + config.held_out) * config.size**2 if not config.data else 0
    table = (config.puzzles + 1) * config.embedding_width * dtype.itemsize
    # Backward needs numbers of at least two bytes of each block, on two levels; clues and targets are int64.
    activations = 2 * model_config.segments * model_config.layers * 4 * model_config.width
    board_bytes = config.size**2 * (8 + 8 + 2 * activations)
    step = math.ceil(config.boards_per_update / world_size) * board_bytes
    return training_bytes(matrices, dtype) + 2 * boards + table + step


@torch.no_grad()
def evaluate(
    model: PuzzleModel, embedding: SparseEmbedding, puzzles: Puzzles, config: PuzzleConfig, world: World
) -> dict[str, float]:
    """Loss and metrics on the puzzles, without padding: equal on all ranks, and at any world size (collective).

    loss: mean per empty cell. cell_accuracy: share of empty cells found. exact: share of puzzles solved. halting_steps:
    mean number of segments after which the answer is final. Runs the bare model, not the DDP wrapper.
    """
    model.eval()
    embedding.eval()
    sums = torch.zeros(6, dtype=torch.float64)
    for clues, targets, ids, real in PuzzleBatches(
        puzzles, batch_size=config.boards_per_update, rank=world.rank, world_size=world.size
    ):
        clues, targets, ids, real = (part.to(world.device) for part in (clues, targets, ids, real))
        with autocast(config.precision, world.device):
            answers = model.answers(clues, embedding(ids))
        logits, empty = answers[-1], targets != IGNORED
        right = (logits.argmax(-1) == targets) | ~empty
        sums += torch.tensor(
            [
                nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="sum"),
                empty.sum(),
                (right & empty).sum(),
                right[real].all(dim=1).sum(),
                halting_steps(answers, empty)[real].sum(),
                real.sum(),
            ],
            dtype=torch.float64,
        )
    model.train()
    embedding.train()
    loss_sum, cells, right_cells, solved, halted, count = sum_over_ranks(world, *sums)
    return {
        "loss": loss_sum / cells,
        "cell_accuracy": right_cells / cells,
        "exact": solved / count,
        "halting_steps": halted / count,
    }


if __name__ == "__main__":
    prepare_process()
    run(train, PRESETS, on_rank_0=True)
