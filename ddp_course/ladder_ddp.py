"""Climb the equivalence ladder: measure the gap between N processes and one process, technique by technique.

    torchrun --standalone --nproc-per-node=4 ddp_course/ladder_ddp.py --out runs/ladder_4.jsonl
    torchrun --standalone --nproc-per-node=2 ddp_course/ladder_ddp.py --model recurrent --seed 7 --width 64 --steps 20
    torchrun ... ddp_course/ladder_ddp.py --rungs plain,clipping --fault sum_for_mean       # injects a fault
    torchrun ... ddp_course/ladder_ddp.py --rungs "beyond data parallel"  # tensor, pipeline, context, experts, meshes

Exit code 1 if a rung is not as expected. The rungs are in ladder/, one module per topic.
"""

if __name__ == "__main__":
    import os

    from ddp_course.base.command import begin_command

    begin_command()  # before torch is imported: from here on Ctrl-C is one line
    os.environ["CUDA_VISIBLE_DEVICES"] = ""  # FSDP2 and PowerSGD would use a GPU if they saw one

import json
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import torch

from ddp_course.base.errors import InputError, write_errors
from ddp_course.base.json_file import parse
from ddp_course.distributed import process_group
from ddp_course.distributed.sync import from_rank_0
from ddp_course.ladder import (
    batch_rungs,
    by_hand_rungs,
    context_rungs,
    contrastive_rungs,
    dropout_rungs,
    expert_mesh_rungs,
    expert_rungs,
    format_rungs,
    mesh_rungs,
    model_rungs,
    muon_rungs,
    pipeline_rungs,
    rollout_rungs,
    sharding_rungs,
    stopping_rungs,
    tensor_rungs,
)
from ddp_course.ladder.comparison import Rung, measure
from ddp_course.ladder.faults import FAULTS
from ddp_course.ladder.setting import Setting
from ddp_course.training.command_line import run
from ddp_course.training.memory import require_memory, training_bytes
from ddp_course.training.process import prepare_process
from ddp_course.training.settings import PositiveInt, Seed, Timeout, between, check_bounds

# Import the rungs before a group exists: torch's ZeRO-1 would keep the group and its threads as a default argument.
DATA_PARALLEL = (batch_rungs, model_rungs, format_rungs, by_hand_rungs, sharding_rungs, stopping_rungs)
BEYOND = (tensor_rungs, pipeline_rungs, context_rungs, expert_rungs, expert_mesh_rungs, mesh_rungs)
BEYOND += (dropout_rungs, muon_rungs, contrastive_rungs, rollout_rungs)
PARTS = {"data parallel": DATA_PARALLEL, "beyond data parallel": BEYOND}


@dataclass(frozen=True)
class LadderConfig:
    """Measure the gap between N processes and one, technique by technique, on tiny models."""

    model: Literal["minigpt", "mlp", "recurrent"] = "minigpt"
    """The model. Some rungs (norms, branches, most beyond data parallel) need a model of their own and ignore this."""
    seed: Seed = 1
    """The seed of the weights, the text, the windows and the dropout masks."""
    layers: Annotated[int, between(1, 1000)] = 2
    """Blocks of the model."""
    width: PositiveInt = 16
    """Units of the residual stream; even."""
    context: PositiveInt = 8
    """Tokens per window."""
    windows: PositiveInt = 16
    """Windows of a global batch, at any number of processes."""
    steps: PositiveInt = 6
    """Optimizer steps of each rung."""
    rungs: str = "all"
    """Names of rungs or topics, separated by commas; or "data parallel", "beyond data parallel", "all".
    Rungs beyond data parallel enlarge sizes until they divide over the ranks."""
    out: str = ""
    """A file for the records, one JSON object per rung; it replaces records of an earlier run. Empty: no file."""
    fault: str = "none"
    """Inject a mistake into the training on several processes: no_all_reduce, sum_for_mean, same_share (data parallel);
    cut_matrices (shards); global_rank, masks_repeated, masks_by_rank (meshes); fused_as_one, no_backward_sum,
    bias_in_each_part, own_norm, not_tied (tensor); scale_grads, table_not_summed (pipeline); positions_from_0,
    own_tokens_only, heads_in_turn (context); experts_divided, balance_per_rank, experts_mixed, experts_apart,
    experts_undivided (experts); own_slice, columns_without_gradient, own_columns, labels_from_0 (losses over all
    ranks); own_divisor, own_stop (rollouts). Several, separated by commas, are injected one after the other. A rung
    to which a mistake does not apply runs without it."""
    timeout_seconds: Timeout = 60
    """How long a collective may wait for the other ranks before the job fails."""

    def __post_init__(self) -> None:
        check_bounds(self)
        for fault in self.fault.split(","):
            if fault not in FAULTS:
                raise ValueError(f"--fault {fault!r} is none of {', '.join(FAULTS)}")
        if self.width % 2:
            raise ValueError(f"--width {self.width} does not divide into the 2 attention heads of the ladder's MiniGPT")


def climb(config: LadderConfig) -> None:
    """Measure every chosen rung on all ranks; rank 0 prints a line per rung and writes the records."""
    world = process_group.start(config.timeout_seconds, "cpu")
    rungs = choose(config.rungs)
    weights = min(6 * config.layers, 24) * config.width**2  # lower bound over the models
    bytes_needed = training_bytes(weights, torch.float64) + 8 * config.windows * config.context
    require_memory(world, "this climb", bytes_needed)
    out = from_rank_0(world, lambda: _make_file(config.out))  # now, so that a bad path fails before the work
    records = []
    for fault in config.fault.split(","):
        setting = Setting(
            config.model, config.seed, config.layers, config.width, config.context, config.windows, config.steps, fault
        )
        for rung in rungs:
            records.append(measure(rung, setting, world) | {"fault": fault})
            world.say(format_record(records[-1]))
            from_rank_0(world, lambda: _append(out, records[-1]))
    surprises = [record["rung"] for record in records if not record["as_expected"]]
    world.say(
        f"{len(records)} rungs at world size {world.size}: "
        + (f"not as expected: {', '.join(surprises)}" if surprises else "all as expected")
    )
    if surprises:
        process_group.stop()
        sys.exit(1)


def all_rungs() -> list[Rung]:
    """Every rung, in the order of the course."""
    return [rung for part in PARTS.values() for topic in part for rung in topic.RUNGS]


def choose(selection: str) -> list[Rung]:
    """The rungs with these names, topics or parts. Raises InputError for an unknown name."""
    rungs = all_rungs()
    names = [name.strip() for name in selection.split(",")]
    names_of = {
        rung.name: {"all", rung.name, rung.topic, part}
        for part, topics in PARTS.items()
        for topic in topics
        for rung in topic.RUNGS
    }
    for name in names:
        if not any(name in known for known in names_of.values()):
            known_rungs = ", ".join(rung.name for rung in rungs)
            raise InputError(f"--rungs: {name!r} is no rung and no topic of the ladder; there are: {known_rungs}")
    return [rung for rung in rungs if names_of[rung.name] & set(names)]


def _make_file(out: str) -> Path | None:
    """Create an empty file for the records, and its folder; returns its path. Only a file of records is overwritten."""
    if not out:
        return None
    with write_errors(f"--out {str(out)!r}"):
        Path(out).parent.mkdir(parents=True, exist_ok=True)  # before the checks: nowhere/../out needs nowhere
        if os.path.isfile(out) and os.path.getsize(out) and not _holds_records(out):
            raise InputError(f"--out {out} is there already and holds no records of the ladder; give another file")
        Path(out).write_text("")
    return Path(out)


def _holds_records(path: str) -> bool:
    """Whether a file begins with a record of this script."""
    with open(path, "rb") as file:
        try:
            return parse(file.readline(1 << 16)).keys() >= {"rung", "gap", "tolerance", "as_expected"}
        except (ValueError, AttributeError):
            return False


def _append(out: Path | None, record: dict) -> None:
    """Append a record at once, so that earlier records survive a failure."""
    if out:
        with write_errors(f"--out {str(out)!r}"), open(out, "a") as file:
            file.write(json.dumps(record) + "\n")


def format_record(record: dict) -> str:
    """Format a record as one line of text."""
    verdict = record["expected"] if record["as_expected"] else f"NOT {record['expected']}"
    untrue = "".join(f"; not true: {fact}" for fact, true in record["facts"].items() if not true)
    fault = "" if record["fault"] == "none" else f"   ({record['fault']})"
    return (
        f"{record['rung']:<26} gap {record['gap']:.1e}   tolerance {record['tolerance']:.1e}   {verdict}{untrue}{fault}"
    )


if __name__ == "__main__":
    prepare_process()
    run(climb, {"ladder": LadderConfig()})
