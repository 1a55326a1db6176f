"""Measure single techniques: the by-hand wrapper, no_sync, sharding at the source, atomic checkpoints."""

import json
import subprocess
import sys

from measure import HERE, Table, one_thread

from ddp_course.launcher import torchrun


def on_two_ranks(script: str, *arguments: object) -> dict:
    return torchrun(HERE / script, *arguments, nproc=2, timeout=900, quiet=True, env=one_thread()).results[0]


def compare_wrappers(table: Table, rounds: int) -> None:
    for accumulation_steps in (1, 4):
        result = on_two_ranks("by_hand_trainer.py", "--pairs", rounds + 2, "--accumulation-steps", accumulation_steps)
        table.ratio(
            f"step time of our bucketed data parallel over torch's DDP, {accumulation_steps} micro-batch"
            f"{'es' * (accumulation_steps > 1)} a step",
            result["ratios"],
            1.1,
            at_most=True,
        )
    table.ratio(
        "step time with an all-reduce in every micro-batch over no_sync, 4 micro-batches a step",
        on_two_ranks("no_sync_or_sync.py")["ratios"],
    )


def compare_sharding(table: Table, rounds: int) -> None:
    command = [sys.executable, HERE / "skip_or_shard.py", "--rounds", str(rounds)]
    result = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    for world_size, ratios in result["ratios"].items():
        table.ratio(
            f"time of a batch: skipping the other ranks' batches over sharding at the source, "
            f"{world_size} rank{'s' * (world_size != '1')}",
            ratios,
        )


def compare_checkpoints(table: Table, rounds: int) -> None:
    result = on_two_ranks("checkpoint_cost.py", "--rounds", rounds)
    table.ratio(
        "seconds per GB: our atomic, flushed, checksummed checkpoint over plain torch.save",
        result["over_plain"],
        1.5,
        at_most=True,
    )
    table.ratio("the same over torch.save with an fsync behind it", result["over_plain_and_flushed"])
    table.ratio(
        "training time lost to a distributed save in the background, over one that is waited for",
        result["background_over_synchronous"],
    )
