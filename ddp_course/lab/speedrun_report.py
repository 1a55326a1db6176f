"""What a speedrun did, on one Markdown page with figures: time, tokens, losses, accuracies, samples."""

import json
from pathlib import Path

from ddp_course.data.token_file import open_tokens, prepare
from ddp_course.lab import figures
from ddp_course.lab.machine import describe
from ddp_course.lab.quantity import format_number, quantity
from ddp_course.lab.speedrun import PRESETS, RECORD, REPORT

Records = list[dict]


def write_report(run_dir: str | Path) -> Path:
    """Write report.md and its figures into the folder of a finished speedrun; returns the page's path.

    Everything on it is read from what the stages have left there. Raises InputError if one has left no metrics.
    """
    run_dir = Path(run_dir)
    record = json.loads((run_dir / RECORD).read_text())
    metrics = {name: figures.read_metrics(run_dir / name) for name in ("pretrain", "reward", "grpo")}
    drawn = {"pretrain": draw_pretrain(metrics["pretrain"]), "reward": draw_reward(metrics["reward"]),
             "grpo": draw_grpo(metrics["grpo"])}  # fmt: skip
    for name, figure in drawn.items():
        figure.savefig(run_dir / f"{name}.png")
    pictures = [f"![{figure.title}]({name}.png)" for name, figure in drawn.items()]
    machine = describe()
    seconds = sum(stage["seconds"] for stage in record["stages"].values())
    page = [
        f"# Speedrun: {quantity(seconds / 60, 'minutes')} from text to a post-trained model",
        f"Preset {record['preset']}, data {record['data']}, seed {record['seed']}, {record['nproc']} processes; "
        f"{machine.cpu}, {machine.physical_cores} cores; GPUs: {', '.join(machine.gpus) or 'none'}; "
        f"PyTorch {machine.torch}.",
        stage_table(run_dir, record, metrics),
        *pictures,
        "## What the models write",
        "After pre-training:",
        as_code(run_dir / "pretrain"),
        "Before GRPO (the reference) and after it (the policy), on prompts that nobody learnt from:",
        as_code(run_dir / "grpo"),
    ]
    (run_dir / REPORT).write_text("\n\n".join(page) + "\n")
    return run_dir / REPORT


def stage_table(run_dir: Path, record: dict, metrics: dict[str, Records]) -> str:
    """A row for each stage: its seconds, what went through it, and the number it is judged by, first and last."""
    chosen = PRESETS[record["preset"]]["tokenizer"]
    tokens = open_tokens(prepare(record["data"], chosen["tokenizer"], chosen["vocab_size"]))
    config = {name: json.loads((run_dir / name / "config.json").read_text()) for name in metrics}
    read = config["pretrain"]["steps"] * config["pretrain"]["tokens_per_update"]
    compared = config["reward"]["steps"] * config["reward"]["pairs_per_update"]
    written = sum(values(metrics["grpo"], "tokens").values())
    rows = [
        ("tokenizer", f"{len(tokens.train) + len(tokens.val):,} tokens",
         f"{tokens.tokenizer.vocab_size:,} in the vocabulary"),
        ("pretrain", f"{read:,} tokens", first_to_last("validation loss", values(metrics["pretrain"], "val_loss"))),
        ("reward", f"{compared:,} pairs",
         first_to_last("held-out pair accuracy", values(metrics["reward"], "val_accuracy"))),
        ("grpo", f"{written:,.0f} sampled tokens",
         first_to_last("mean reward on held-out prompts", values(metrics["grpo"], "val_reward"))),
    ]  # fmt: skip
    lines = ["| stage | seconds | what went through it | what came of it |", "|---|---|---|---|"]
    for name, through, result in rows:
        lines.append(f"| {name} | {record['stages'][name]['seconds']:.0f} | {through} | {result} |")
    return "\n".join(lines)


def values(records: Records, key: str) -> dict[int, float]:
    """Step -> value of the records that have the key; a later record of a step replaces an earlier one."""
    return {record["step"]: record[key] for record in records if key in record}


def first_to_last(name: str, found: dict[int, float]) -> str:
    steps = sorted(found)
    first, last = format_number(found[steps[0]]), format_number(found[steps[-1]])
    if len(steps) == 1:
        return f"{name} {last} at step {steps[0]}"
    return f"{name} {first} at step {steps[0]}, {last} at step {steps[-1]}"


def draw_pretrain(records: Records):
    return figures.loss_curves({"training": records}, "Pre-training: " + first_to_last("loss", values(records, "loss")))


def draw_reward(records: Records):
    name = "held-out pair accuracy"
    found = values(records, "val_accuracy")
    return figures.loss_curves({name: curve(found, name)}, "Reward model: " + first_to_last(name, found), key=name)


def draw_grpo(records: Records):
    name = "mean reward on held-out prompts"
    policy, reference = values(records, "val_reward"), values(records, "val_reference")
    return figures.loss_curves(
        {"policy": curve(policy, name), "reference": curve(reference, name)},
        "GRPO: " + first_to_last(name, policy), key=name,
    )  # fmt: skip


def curve(found: dict[int, float], name: str) -> Records:
    return [{"step": step, name: value} for step, value in found.items()]


def as_code(run_dir: Path) -> str:
    """The samples of a stage as a block of code; a fence longer than any in the text keeps it one."""
    samples = run_dir / "samples.txt"
    text = samples.read_text().rstrip() if samples.exists() else "(no samples were asked for)"
    return f"``````python\n{text}\n``````"
