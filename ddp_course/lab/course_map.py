"""The map of the course: every notebook, the question that it answers, and its exercises."""

import re
from collections.abc import Iterator
from pathlib import Path

from IPython.display import Markdown

ROOT = Path(__file__).resolve().parents[2]
PARTS = {  # number of the first notebook -> title of the part
    "00": "First steps",
    "05": "Data parallel",
    "10": "A real trainer",
    "11": "Failures",
    "14": "Performance and clusters",
    "18": "Post-training",
    "22": "Beyond DDP",
    "27": "What people do at work",
}
ANSWERS = {
    "00": "How do I run a script on several processes, and what does this machine allow?",
    "01": "What does a training script do on one process?",
    "01b": "What limits a step on one process: FLOPs, bytes, memory? The roofline",
    "02": "What are ranks, process groups and collectives?",
    "02b": "What does each collective send, and how long does a message take?",
    "02c": "Which calls give wrong numbers without an error?",
    "03": "How does data parallelism work? Broadcast, shard, all-reduce, by hand, and why buckets exist",
    "04": "How do I turn a script into DDP, and what does DDP do?",
    "05": "Which rank reads which sample? `set_epoch`, padding, streams, `Join`",
    "05b": "What do loader workers repeat, and how does a stream resume on other ranks?",
    "06": "How do I accumulate gradients? `no_sync`, one mean over all tokens, the learning rate",
    "07": "How do I use bf16, fp16 and its scaler, and clip gradients?",
    "07b": "Out of memory: what does a step hold, and what do checkpointing and `torch.compile` change?",
    "07c": "The loss is NaN in float16: on which rank, in which layer? Autocast, TF32, loss scales",
    "08": "How do I validate, count and log on several ranks?",
    "09": "How do I save so that a killed run resumes exactly? Checksums, DCP",
    "10": "What does the whole trainer look like, and how is it proved equal?",
    "10b": "**How do I convert my own script?**",
    "10c": "What do Accelerate, Fabric and the Trainer do for me, and what do they leave to me?",
    "11": "Why does it hang or crash, and on which rank?",
    "11b": "How do I stop one rank in a debugger? And why does a job never start?",
    "12": "The loss falls and the run is wrong: how would I know?",
    "13": "What if a rank is killed, or a node joins or leaves?",
    "14": "Where does the time of a step go? Profiles, overlap, stragglers",
    "15": "How fast would it be on more machines?",
    "15b": "What do 16,384 GPUs gain, on paper? Strong and weak scaling, MFU",
    "16": "How does a job run on two machines, and under Slurm?",
    "16b": "How does it run on Kubernetes, SkyPilot and Ray?",
    "17": "The model fits on no GPU: ZeRO-1, 2, 3, FSDP2",
    "17b": "How do I accumulate, clip and save with FSDP2 and HSDP? Muon",
    "18": "How do I train a reward model?",
    "19": "How does GRPO work on several ranks?",
    "20": "How do I send only the rows of a table that were used?",
    "21": "How does text become a post-trained model in one command?",
    "21b": "The reward rises and the texts get worse: was the reward valid?",
    "22": "A layer is too wide for one GPU: tensor and sequence parallelism",
    "23": "A model is too deep for one GPU: pipeline schedules",
    "24": "A context is too long: ring attention, Ulysses",
    "25": "The network is too slow: local SGD, DiLoCo, compressed gradients",
    "26": "How do all of these combine in one script?",
    "26b": "Which mesh for my model and cluster?",
    "27": "How do I fine-tune a checkpoint on several GPUs? LoRA, peft and DPO under DDP and FSDP2",
    "28": "A contrastive loss over all GPUs: which `all_gather` carries a gradient, and the factor N",
    "29": "Can weights live in bf16, and products in FP8? Scales, stochastic rounding, equal replicas",
    "30": "More parameters at the same work per token: a mixture of experts, and its load",
    "31": "RL with generation on ranks of its own: stale samples, which ratio, which groups teach",
}


def lessons(root: Path = ROOT) -> Iterator[tuple[str, str, Path, Path | None]]:
    """(number such as "10b", title, path of the notebook, path of its exercises or None) of every notebook, sorted."""
    for path in sorted((root / "notebooks").glob("[0-9][0-9]*.ipynb")):
        number, letter, name = re.match(r"(\d\d)([a-z]?)_(.*)", path.stem).groups()
        exercises = [] if letter else sorted((root / "exercises").glob(f"{number}_*.ipynb"))
        yield number + letter, name.replace("_", " "), path, exercises[0] if exercises else None


def course_map(notebooks: str = "") -> Markdown:
    """A table with a row for each notebook.

    notebooks: the path of their folder relative to the page that shows the table, such as "../notebooks/".
    """
    rows = ["| | notebook | what it answers | |", "|---|---|---|---|"]
    for number, title, path, exercises in lessons():
        if number in PARTS:
            rows.append(f"| | **{PARTS[number]}** | | |")
        link = f"[exercises]({notebooks}../exercises/{exercises.name})" if exercises else ""
        rows.append(f"| {number} | [{title}]({notebooks}{path.name}) | {ANSWERS[number]} | {link} |")
    return Markdown("\n".join(rows))
