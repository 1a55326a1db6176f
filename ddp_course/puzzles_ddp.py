"""Train a small recurrent model on sudokus, with an embedding row for each puzzle, on one process or on many.

    python ddp_course/puzzles_ddp.py                                                            # one process
    torchrun --standalone --nproc-per-node=2 ddp_course/puzzles_ddp.py lr=2e-3 puzzles=200      # two
    torchrun ... ddp_course/puzzles_ddp.py --file mine.txt run_dir=runs/mine resume=auto        # go on after a stop

Read it from `train` downwards. It differs from minigpt_ddp.py in what has to be agreed on: rank 0 builds the
configuration for all, and a table that DDP never sees is kept equal by an optimizer of its own.
"""

import json
import math
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Literal

import torch
import tyro
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import clip_grad_norm_

from ddp_course.data import sudoku
from ddp_course.data.puzzles import IGNORED, PuzzleBatches, Puzzles, guessed, make_sets
from ddp_course.models.puzzle import PuzzleModel, PuzzleModelConfig
from ddp_course.parallel import overrides, process_group
from ddp_course.parallel.bucket_order import settle_bucket_order
from ddp_course.parallel.command_line import run
from ddp_course.parallel.distributed_state import DistributedState
from ddp_course.parallel.optimizer import make_adamw
from ddp_course.parallel.precision import parameter_dtype
from ddp_course.parallel.process_group import World
from ddp_course.parallel.progress import Progress
from ddp_course.parallel.run_directory import CONFIG, open_run
from ddp_course.parallel.schedule import is_due, warmup_cosine
from ddp_course.parallel.sparse_embedding import SparseEmbedding, SparseSignSGD
from ddp_course.parallel.stop_request import StopRequest
from ddp_course.parallel.sync import assert_replicas_equal, from_rank_0, sum_over_ranks
from ddp_course.parallel.training_state import TrainingState

IDENTITY = ("size", "puzzles", "disguises", "held_out", "fewest_clues", "most_clues", "width", "heads", "layers",
            "embedding_width", "slow_steps", "fast_steps", "segments", "gradient", "batch", "precision", "seed",
            "checkpoint")  # what a resumed run may not change


@dataclass(frozen=True)
class PuzzleTraining:
    """What rank 0 reads for all ranks: the same values mean the same training run at any number of processes."""

    size: int = 4
    """Digits, and cells in a row, of a sudoku: 4 or 9."""
    puzzles: int = 400
    """Puzzles to train on. Each has a row of its own in the embedding."""
    disguises: int = 32
    """Boards of each puzzle: itself, and others with digits, rows and columns changed about. They share its row."""
    held_out: int = 200
    """Puzzles that are never trained on, in no disguise."""
    fewest_clues: int = 4
    """Given cells of the hardest puzzles (9x9: about 28)."""
    most_clues: int = 7
    """Given cells of the easiest puzzles (9x9: about 45)."""

    width: int = 64
    """Units of a cell's state."""
    heads: int = 4
    """Attention heads."""
    layers: int = 1
    """Blocks of a level."""
    embedding_width: int = 16
    """Numbers in a puzzle's row."""
    slow_steps: int = 2
    """Steps of the slow level in a segment."""
    fast_steps: int = 2
    """Steps of the fast level for each slow one."""
    segments: int = 2
    """Answers the model gives on the way, each with its loss."""
    gradient: Literal["one-step", "full"] = "one-step"
    """Through the last step of each level only, or through all steps of a segment."""

    batch: int = 64
    """Boards of one update, over all ranks: the constant of the run."""
    steps: int = 400
    """Updates in the whole run."""
    lr: float = 2e-3
    """Peak learning rate of the model (AdamW), reached after the warm-up; a tenth of it is left at the end."""
    weight_decay: float = 0.1
    """AdamW's decay, on matrices only."""
    embedding_lr: float = 1e-2
    """Peak learning rate of the embedding (sign-SGD): each number of a used row moves by this much in an update."""
    embedding_weight_decay: float = 0.1
    """The embedding's own decay, on used rows only."""
    warmup_steps: int = 30
    """Updates over which both learning rates rise from zero."""
    gradient_clip: float = 1.0
    """Largest norm of the model's joint gradient; 0 turns clipping off."""
    precision: Literal["float32", "float64"] = "float32"
    """Of weights and arithmetic."""
    seed: int = 1
    """Decides the puzzles, the initial weights and the order of the boards."""

    run_name: str = ""
    """What the run is called; empty: a random name, the same on all ranks."""
    run_dir: str = ""
    """Where the run is written; empty: runs/RUN_NAME."""
    resume: str = "no"
    """no, auto (the newest valid checkpoint of run_dir), or the path of a checkpoint."""
    log_every: int = 10
    """Updates between entries in metrics.jsonl."""
    validate_every: int = 50
    """Updates between validations; the last one always validates. 0: only then."""
    checkpoint_every: int = 100
    """Updates between checkpoints; the last one always saves one. 0: only then."""
    checkpoint: Literal["plain", "distributed"] = "plain"
    """Written by rank 0, or the tensors by all ranks together."""
    keep_checkpoints: int = 2
    """How many of the newest checkpoints stay; 0 keeps all."""
    max_seconds: float | None = None
    """Stop, with a checkpoint, after this many seconds of training."""

    def __post_init__(self) -> None:
        counts = ("puzzles", "disguises", "held_out", "width", "heads", "layers", "embedding_width", "slow_steps",
                  "fast_steps", "segments", "batch", "steps", "log_every")  # fmt: skip
        for name in counts:
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, not {getattr(self, name)}")
        for name in ("lr", "weight_decay", "embedding_lr", "embedding_weight_decay", "warmup_steps", "gradient_clip",
                     "validate_every", "checkpoint_every", "keep_checkpoints"):  # fmt: skip
            if getattr(self, name) < 0:
                raise ValueError(f"{name} must not be negative, but is {getattr(self, name)}")
        if self.max_seconds is not None and not self.max_seconds > 0:
            raise ValueError(f"max_seconds must be above 0, not {self.max_seconds}")
        if set(self.run_name) & set("/\\"):
            raise ValueError(f"run_name must be a name, not a path like {self.run_name!r}; that is for run_dir")
        if self.resume == "auto" and not self.run_dir:
            raise ValueError("resume=auto needs run_dir=, the folder of the run that should go on")
        if self.width % self.heads:
            raise ValueError(f"width={self.width} does not divide into heads={self.heads} of equal size")
        if self.size not in sudoku.SIZES:
            raise ValueError(f"size must be one of {', '.join(map(str, sudoku.SIZES))}, not {self.size}")
        if not 0 <= self.fewest_clues <= self.most_clues < self.size**2:
            raise ValueError(
                f"fewest_clues={self.fewest_clues} and most_clues={self.most_clues} must be a range within "
                f"0 to {self.size**2 - 1}, so that a cell is left to find"
            )
        if not 0 <= self.seed < 2**64:
            raise ValueError(f"seed must be a whole number from 0 to 2**64 - 1, not {self.seed}")


@dataclass(frozen=True)
class CommandLine:
    """Train a puzzle model: key=value, as often as needed."""

    settings: tyro.conf.Positional[tuple[str, ...]] = ()
    """Changes to the settings, as key=value."""
    file: str = ""
    """A file of such settings, one a line; the command line counts more."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where to train. Every rank reads this and the next for itself: before it, ranks cannot talk."""
    timeout_seconds: float = 120
    """How long a collective may wait for the other ranks before the job fails."""


def train(command: CommandLine) -> None:
    """One rank's part of the run. Returns when the last step is done, or when a stop was asked for."""
    world = process_group.start(command.timeout_seconds, command.device)
    # One rank reads files, settings and the dice; what it cannot read ends all ranks with its sentence.
    config = from_rank_0(world, lambda: configure(command))
    run_directory, checkpoint = open_run(world, config.run_dir, config.resume, kind="puzzles")
    puzzles, held_out = from_rank_0(world, lambda: make_sets(
        config.seed, config.size, config.puzzles, config.disguises, config.held_out,
        (config.fewest_clues, config.most_clues),
    ))  # fmt: skip

    process_group.seed_shared(config.seed)
    dtype = parameter_dtype(config.precision)
    model = PuzzleModel(model_shape(config)).to(world.device, dtype)
    # Row 0 belongs to no puzzle: it stays zero, and is what a puzzle gets that was never trained on.
    embedding = SparseEmbedding(config.puzzles + 1, config.embedding_width, std=0.0, dtype=dtype).to(world.device)
    optimizer = make_adamw(model, config.lr, config.weight_decay)
    embedding_optimizer = SparseSignSGD(embedding, world, config.embedding_lr, config.embedding_weight_decay)

    identity = {name: getattr(config, name) for name in IDENTITY}
    if config.checkpoint == "distributed":  # the sign-SGD remembers nothing but its rate, which the step decides
        state = DistributedState(nn.ModuleDict({"model": model, "embedding": embedding}), optimizer, identity)
    else:
        parts = {"model": model, "embedding": embedding, "optimizer": optimizer,
                 "embedding_optimizer": embedding_optimizer}  # fmt: skip
        state = TrainingState(parts, identity)
    step = state.restore(world, checkpoint) if checkpoint else 0
    if step >= config.steps:
        world.say(f"nothing left to do: step {step} of {config.steps} is done; steps= takes the run further")
        return
    settings = asdict(config) | {"world_size": world.size}
    run_directory.begin(step, settings)

    # The model alone is wrapped: DDP would reduce, or broadcast, the whole table in every update.
    replica = model if world.size == 1 else DistributedDataParallel(model, gradient_as_bucket_view=True)
    if world.size > 1:
        cells = torch.zeros(1, config.size**2, dtype=torch.int64, device=world.device)
        settle_bucket_order(replica, cells, embedding.table[:1], cells)

    world.say(
        f"{config.run_name}: {len(puzzles):,} boards of {config.puzzles:,} puzzles, {len(held_out):,} held out; "
        f"{sum(p.numel() for p in model.parameters()):,} parameters, a table of {embedding.table.numel():,} numbers\n"
        f"{config.batch} boards an update over {world.size} rank(s), {config.precision} on {world.device}; "
        f"filled in at random, {guessed(held_out, config.seed):.3f} of the held-out puzzles come out right"
    )
    progress = Progress(
        run_directory, first_step=step, last_step=config.steps, per_update=config.batch, unit="boards",
        log_every=config.log_every,
    )  # fmt: skip
    stop_request = StopRequest(world, config.max_seconds)
    batches = iter(PuzzleBatches(
        puzzles, batch_size=config.batch, rank=world.rank, world_size=world.size, seed=config.seed, start=step
    ))  # fmt: skip
    stopping = False
    while step < config.steps and not stopping:
        for chosen, peak in ((optimizer, config.lr), (embedding_optimizer, config.embedding_lr)):
            learning_rate = warmup_cosine(step, config.steps, config.warmup_steps, peak, peak / 10)
            for group in chosen.param_groups:
                group["lr"] = learning_rate
        clues, targets, ids, _ = (part.to(world.device) for part in next(batches))
        # How many cells there are to find is known only when all ranks have counted theirs.
        [cells] = sum_over_ranks(world, (targets != IGNORED).sum())
        loss = replica(clues, embedding(ids), targets)
        (loss * (world.size / cells)).backward()  # DDP divides by the world size; a sign takes no notice
        gradient_norm = clip_grad_norm_(model.parameters(), config.gradient_clip or math.inf)
        optimizer.step()
        embedding_optimizer.step()  # gathers the rows that any rank has used: a collective, like DDP's backward
        optimizer.zero_grad()
        embedding_optimizer.zero_grad()
        step += 1

        loss_sum, ranks_asked = sum_over_ranks(world, loss.detach(), stop_request.asked())
        stopping = ranks_asked > 0
        progress.step(step, loss=loss_sum / cells, grad_norm=gradient_norm.item(), lr=optimizer.param_groups[0]["lr"],
                      embedding_lr=embedding_optimizer.param_groups[0]["lr"])  # fmt: skip
        with progress.paused():
            if stopping:  # before anything else: who asked may not wait for a validation
                state.save(world, run_directory.path, step, settings, keep=config.keep_checkpoints)
            if is_due(step, config.validate_every, config.steps):
                progress.validation(step, **evaluate(model, embedding, held_out, config.batch, world))
            if is_due(step, config.checkpoint_every, config.steps) and not stopping:
                state.save(world, run_directory.path, step, settings, keep=config.keep_checkpoints)
    progress.close()

    assert_replicas_equal(world, model)
    assert_replicas_equal(world, embedding, buffers=True)
    if stopping and step < config.steps:
        world.say(f"stopped after step {step}: {stop_request.reason or 'another rank was asked to'}; "
                  f"go on with run_dir={run_directory.path} resume=auto")  # fmt: skip
    else:
        world.say(f"first loss {progress.first['loss']:.4f}, last loss {progress.last['loss']:.4f}; of the held-out "
                  f"puzzles {progress.validated['exact']:.3f} solved, of their empty cells "
                  f"{progress.validated['cell_accuracy']:.3f}\nrun directory: {run_directory.path}")  # fmt: skip


def configure(command: CommandLine) -> PuzzleTraining:
    """The configuration of the run, with a name. On one rank: another one would draw another name."""
    config = overrides.read(PuzzleTraining, command.settings, command.file)
    name = config.run_name or overrides.random_name("puzzles")
    if config.resume == "no":
        return replace(config, run_name=name, run_dir=config.run_dir or f"runs/{name}")
    before = Path(config.run_dir or Path(config.resume).absolute().parent.parent) / CONFIG
    if before.is_file() and not config.run_name:  # a run that goes on keeps its name
        name = json.loads(before.read_text())["run_name"]
    return replace(config, run_name=name)


def model_shape(config: PuzzleTraining) -> PuzzleModelConfig:
    return PuzzleModelConfig(
        size=config.size, width=config.width, heads=config.heads, layers=config.layers,
        puzzle_width=config.embedding_width, slow_steps=config.slow_steps, fast_steps=config.fast_steps,
        segments=config.segments, gradient=config.gradient,
    )  # fmt: skip


@torch.no_grad()
def evaluate(model: PuzzleModel, embedding: SparseEmbedding, puzzles: Puzzles, batch: int, world: World) -> dict:
    """Mean loss of an empty cell, share of empty cells found, share of puzzles solved: the same on all ranks, and at
    any number of them. Padding has no cell to find and is no puzzle. It runs the bare model: nothing here talks.
    """
    model.eval(), embedding.eval()
    loss_sum = found = cells = solved = count = 0.0
    for clues, targets, ids, real in PuzzleBatches(puzzles, batch_size=batch, rank=world.rank, world_size=world.size):
        clues, targets, vectors = clues.to(world.device), targets.to(world.device), embedding(ids.to(world.device))
        logits, asked = model(clues, vectors), targets != IGNORED
        loss_sum += nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="sum").item()
        right = (logits.argmax(-1) == targets) | ~asked
        found, cells = found + (right & asked).sum().item(), cells + asked.sum().item()
        solved, count = solved + right.cpu()[real].all(dim=1).sum().item(), count + real.sum().item()
    model.train(), embedding.train()
    loss_sum, found, cells, solved, count = sum_over_ranks(world, loss_sum, found, cells, solved, count)
    return {"loss": loss_sum / cells, "cell_accuracy": found / cells, "exact": solved / count}


if __name__ == "__main__":
    CommandLine.__doc__ = f"{CommandLine.__doc__}\n\n{overrides.listing(PuzzleTraining)}"
    run(train, {"default": CommandLine()})
