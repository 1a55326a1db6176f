"""Compare single techniques: each is measured by a script of its own."""

import statistics

from measure import Table, divide, run_script
from sampling_speed import NEW_TOKENS, PROMPT_TOKENS
from sparse_or_dense import WIDTH


def compare_wrappers(table: Table, rounds: int) -> None:
    for steps in (1, 4):
        result = run_script("by_hand_trainer.py", "--pairs", rounds + 2, "--gradient-accumulation-steps", steps)
        table.ratio(
            f"step time of our bucketed data parallel over torch's DDP, {steps} micro-batch{'es' * (steps > 1)} a step",
            result["ratios"],
            1.1,
            at_most=True,
        )
    seconds = run_script("synchronization.py", "once", "every", "--rounds", rounds)
    table.ratio(
        "step time with an all-reduce in every micro-batch over no_sync, 4 micro-batches a step",
        divide(seconds["every"], seconds["once"]),
    )


def compare_sharding(table: Table, rounds: int) -> None:
    for world_size, ratios in run_script("skip_or_shard.py", "--rounds", rounds, nproc=1).items():
        table.ratio(
            f"time of a batch: skipping the other ranks' batches over sharding at the source, "
            f"{world_size} rank{'s' * (world_size != '1')}",
            ratios,
        )


def compare_checkpoints(table: Table, rounds: int) -> None:
    seconds = run_script("checkpoint_cost.py", "--rounds", rounds, nproc=1)
    table.ratio(
        "seconds per GB: our atomic, flushed, checksummed checkpoint over plain torch.save",
        divide(seconds["ours"], seconds["plain"]),
        1.5,
        at_most=True,
    )
    table.ratio(
        "the same over torch.save with an fsync behind it", divide(seconds["ours"], seconds["plain and flushed"])
    )


def compare_reward(table: Table, rounds: int) -> None:
    speeds = run_script("reward_pairs.py", "--rounds", rounds, nproc=1)
    for loop in ("unbatched, gradients on", "unbatched"):
        table.ratio(
            f"reward model, pairs a second on one thread: ours over a loop that is {loop}",
            divide(speeds["ours"], speeds[loop]),
        )


def compare_sampling(table: Table, rounds: int) -> None:
    for texts, ratios in run_script("sampling_speed.py", "--rounds", rounds, nproc=1).items():
        table.ratio(
            f"tokens a second, {NEW_TOKENS} new tokens after {PROMPT_TOKENS}, {texts} text{'s' * (texts != '1')} at a "
            "time: with the key-value cache over without",
            ratios,
            3,
        )


def compare_sparse(table: Table, rounds: int) -> None:
    for row_count, results in run_script("sparse_or_dense.py", "--rounds", rounds).items():
        rows = f"{int(row_count):,} rows of {WIDTH} numbers"
        for name, result in results.items():
            text = "does not fit"
            if result:
                milliseconds = 1e3 * statistics.median(result["seconds"])
                mebibytes = max(result["memory"], 0) / 2**20
                text = f"{milliseconds:.2f} ms, {result['bytes']:,} bytes to the collectives, {mebibytes:.0f} MiB"
            table.figure(f"a step of the {name} embedding, {rows}", text)
        if results["dense"]:
            table.ratio(
                f"step time: dense embedding under DDP over sparse, {rows}",
                divide(results["dense"]["seconds"], results["sparse"]["seconds"]),
            )
