"""Write the report of a speedrun, a Markdown page with figures: time, tokens, losses, accuracies, samples."""

import math
from pathlib import Path

from ddp_course.base.errors import InputError
from ddp_course.base.json_file import read_object
from ddp_course.base.quantity import quantity
from ddp_course.data.token_file import open_tokens, prepare
from ddp_course.lab import figures
from ddp_course.lab.machine import describe
from ddp_course.speedrun.curves import (
    Records,
    best_of,
    draw_grpo,
    draw_pretrain,
    draw_reward,
    first_to_last,
    last_of,
    values,
)
from ddp_course.speedrun.stages import PRESETS, RECORD, REPORT

DRAW = {"pretrain": draw_pretrain, "reward": draw_reward, "grpo": draw_grpo}


def write_report(run_dir: str | Path) -> Path:
    """Write report.md and its figures into the run directory of a finished speedrun; returns the page's path.

    All numbers come from the files of the stages. Raises InputError if a stage has no metrics.
    """
    run_dir = Path(run_dir)
    record = read_object(run_dir / RECORD)
    backbone = record["backbone"]
    stages = ["reward", "grpo"] if backbone else list(DRAW)
    metrics = {name: figures.read_metrics(run_dir / name) for name in stages}
    stage_figures = {name: DRAW[name](metrics[name]) for name in stages}
    pictures = [f"![{figure.title}]({name}.png)" for name, figure in stage_figures.items()]
    machine = describe()
    seconds = sum(stage["seconds"] for stage in record["stages"].values())
    start = "a backbone" if backbone else "text"
    page = [
        f"# Speedrun: {quantity(seconds / 60, 'minutes')} from {start} to a post-trained model",
        f"Preset {record['preset']}, data {record['data']}, seed {record['seed']}, {record['nproc']} processes; "
        f"{machine.cpu}, {machine.physical_cores} cores; GPUs: {', '.join(machine.gpus) or 'none'}; "
        f"PyTorch {machine.torch}.",
        *([f"It began with the backbone `{backbone}`: no tokenizer and no pre-training."] if backbone else []),
        stage_table(run_dir, record, metrics),
        "## Is the judge any good?",
        of_the_judge(metrics["reward"]),
        "## Is the policy better, or has it found what the judge likes?",
        of_the_policy(metrics["grpo"]),
        *pictures,
        "## What the models write",
        *([] if backbone else ["After pre-training:", samples_block(run_dir / "pretrain")]),
        "Before GRPO (the reference) and after it (the policy), on held-out prompts:",
        samples_block(run_dir / "grpo"),
    ]
    try:
        for name, figure in stage_figures.items():
            figure.savefig(run_dir / f"{name}.png")
        (run_dir / REPORT).write_text("\n\n".join(page) + "\n", encoding="utf-8")
    except OSError as error:
        raise InputError(f"cannot write the report into {run_dir}: {error.strerror}") from None
    return run_dir / REPORT


def stage_table(run_dir: Path, record: dict, metrics: dict[str, Records]) -> str:
    """A Markdown table with a row per stage: its seconds, the size of its input, its first and last result."""
    pair_count = product_of_settings(run_dir / "reward", "steps", "pairs_per_update")
    sampled_tokens = sum(values(metrics["grpo"], "tokens").values())
    rows = [] if record["backbone"] else pretraining_rows(run_dir, record, metrics["pretrain"])
    rows += [
        (
            "reward",
            f"{pair_count:,} pairs",
            first_to_last("held-out pair accuracy", values(metrics["reward"], "val_accuracy")),
        ),
        (
            "grpo",
            f"{sampled_tokens:,.0f} sampled tokens",
            first_to_last("mean reward on held-out prompts", values(metrics["grpo"], "val_reward"))
            + "; "
            + first_to_last("share that parses", values(metrics["grpo"], "val_parses")),
        ),
    ]
    lines = ["| stage | seconds | what went through it | what came of it |", "|---|---|---|---|"]
    for name, size, result in rows:
        lines.append(f"| {name} | {record['stages'][name]['seconds']:.0f} | {size} | {result} |")
    return "\n".join(lines)


def of_the_judge(records: Records) -> str:
    """A paragraph on the best checkpoint of the reward model: its accuracy against the backbone's likelihood."""
    best = best_of(records)
    accuracy, baseline, low, high, pairs = (
        values(records, f"val_{name}")[best] for name in ("accuracy", "baseline", "gain_low", "gain_high", "pairs")
    )
    verdict = "better" if low > 0 else "worse" if high < 0 else "not told apart"
    return (
        f"The judge, the checkpoint of step {best}, ranks {accuracy:.1%} of {pairs:,.0f} held-out pairs correctly; the "
        f"backbone's likelihood alone, with nothing trained, {baseline:.1%}. The difference is "
        f"{100 * (accuracy - baseline):+.1f} percentage points (95 % interval over files "
        f"{100 * low:+.1f} to {100 * high:+.1f}): **{verdict}**. "
        f"The step was chosen by the loss on the same pairs, which flatters it a little."
    )


def of_the_policy(records: Records) -> str:
    """A paragraph on the judge: whether it was valid before the first step, and whether it was over-optimised."""
    reward, rate = values(records, "val_reward"), values(records, "val_parses")
    first, last = reward[min(reward)], reward[max(reward)]
    first_rate, last_rate = rate[min(rate)], rate[max(rate)]
    real, real_rate = last_of(records, "val_real"), last_of(records, "val_real_parses")
    if first >= real and real_rate > first_rate:
        verdict = (
            "**The judge was invalid on such texts before the first step**: it gave real code no more reward than what "
            "the start policy wrote, although more of the real code parses. No reward of it says that a policy is "
            "better."
        )
    elif last > real and last_rate < min(real_rate, first_rate):
        verdict = (
            "**The judge was over-optimised**: at the start it gave real code more reward, at the end the "
            "policy's texts, and less of what the policy writes parses."
        )
    else:
        verdict = (
            "That shows neither a judge that was invalid from the start (real code would get no more reward than "
            "the start) nor an over-optimised one (the reward would pass that of real code, and less would parse)."
        )
    return (
        f"On held-out prompts the judge's mean reward went from {first:.2f} to {last:.2f}; real code after the same "
        f"prompts gets {real:.2f}. The judge does not see whether a text parses: {first_rate:.1%} did before and "
        f"{last_rate:.1%} after, of the real code, cut off as short, {real_rate:.1%}. " + verdict
    )


def pretraining_rows(run_dir: Path, record: dict, metrics: Records) -> list[tuple[str, str, str]]:
    """The rows (stage, size of its input, result) of the tokenizer and the pre-training."""
    sizes = PRESETS[record["preset"]]["tokenizer"]
    tokens = open_tokens(prepare(record["data"], sizes["tokenizer"], sizes["vocab_size"]))
    token_count = product_of_settings(run_dir / "pretrain", "steps", "tokens_per_update")
    return [
        (
            "tokenizer",
            f"{len(tokens.train) + len(tokens.val):,} tokens",
            f"{tokens.tokenizer.vocab_size:,} in the vocabulary",
        ),
        ("pretrain", f"{token_count:,} tokens", first_to_last("validation loss", values(metrics, "val_loss"))),
    ]


def product_of_settings(run_dir: Path, *names: str) -> int:
    """The product of whole numbers in a run's config.json, such as its steps and its tokens per update.

    Raises InputError if one of them is missing.
    """
    path = run_dir / "config.json"
    settings = read_object(path)
    for name in names:
        if type(settings.get(name)) is not int:
            raise InputError(f"{path} should hold a whole number {name!r}, found {str(settings.get(name))[:40]!r}")
    return math.prod(settings[name] for name in names)


def samples_block(run_dir: Path) -> str:
    """The samples of a stage as a Markdown code block, with a long fence, which a fence in a sample does not end."""
    samples = run_dir / "samples.txt"
    text = "(no samples were asked for)"
    if samples.is_file():
        text = samples.read_text(encoding="utf-8", errors="replace").rstrip()
    return f"``````python\n{text}\n``````"
