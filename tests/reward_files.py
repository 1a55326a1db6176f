"""A backbone of a few thousand weights, and pairs, on which tests train a reward model."""

import random
from pathlib import Path

import torch

from ddp_course.checkpoint import checkpoint
from ddp_course.data import tokenizer
from ddp_course.data.pairs import TRAIN, VALIDATION, Pair, write_pairs
from ddp_course.models.minigpt import MiniGPT, MiniGPTConfig


def make_backbone(run_dir: Path, seed: int = 1) -> Path:
    """A checkpoint as minigpt_ddp writes it, of an untrained model that reads bytes."""
    torch.manual_seed(seed)
    sizes = {"layers": 2, "heads": 2, "kv_heads": None, "width": 16, "context": 48}
    model = MiniGPT(MiniGPTConfig(vocab_size=256, **sizes))
    for parameter in model.parameters():  # larger than usual initial weights, so that texts differ in their states
        torch.nn.init.normal_(parameter, std=0.2)
    config = sizes | {"tokenizer_state": tokenizer.build("bytes", []).state()}
    return checkpoint.save(run_dir, 1, {"step": 1, "config": config, "model": model.state_dict()})


def make_pairs(folder: Path, train: int = 60, held_out: int = 24, learnable: bool = False) -> Path:
    """Write pairs of different lengths, some longer than the context.

    learnable: chosen texts have lower-case letters only, rejected texts upper-case letters only.
    """
    choose = random.Random(7)
    folder.mkdir(parents=True, exist_ok=True)

    def text(letters: str, most: int) -> str:
        return "".join(choose.choice(letters) for _ in range(choose.randint(1, most)))

    for name, count in ((TRAIN, train), (VALIDATION, held_out)):
        pairs = []
        for n in range(count):
            prompt = text("abcdef(=", 40) + "\n" + ("x = 1\n" if n % 3 else "")  # two of three end in a crowded line
            small, large = ("abcdefgh", "ABCDEFGH") if learnable else ("abcABC+()", "abcABC+()")
            source = f"file {n % 5}" if n % 2 else ""
            pairs.append(Pair(prompt, text(small, 20) + "1", text(large, 20) + "2", f"kind {n % 2}", source))
        write_pairs(folder / name, pairs)
    return folder
