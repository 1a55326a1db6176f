"""Runs of reward_ddp on a backbone of a few thousand weights, and several of them in one launch.

torchrun ... tests/reward_runs.py CASES.json    [[flags of a run, fault], ...], one run after the other
"""

import json
import random
import sys
from pathlib import Path

import torch
from training_runs import one_process_group

from ddp_course import reward_ddp
from ddp_course.checkpoint import checkpoint
from ddp_course.data import density, tokenizer
from ddp_course.data.pairs import TRAIN, VALIDATION, Pair, write_pairs
from ddp_course.models.minigpt import MiniGPT, MiniGPTConfig
from ddp_course.training import command_line

LAUNCHABLE = Path(reward_ddp.__file__)


def make_backbone(run_dir: Path, seed: int = 1, width: int = 16, context: int = 48) -> Path:
    """A checkpoint as minigpt_ddp writes it, of an untrained model that reads bytes."""
    torch.manual_seed(seed)
    sizes = {"layers": 2, "heads": 2, "kv_heads": None, "width": width, "context": context}
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


def run_cases(cases: list[tuple[list[str], str]]) -> None:
    """Run each case in turn in one process group. A fault is a mistake that a test has to notice."""
    healthy = density.factors
    with one_process_group() as world:
        for flags, fault in cases:
            if fault == "own normaliser":
                density.factors = lambda weights, mode, cap, **_: healthy(
                    weights, mode, cap, total_weight=weights.sum().item() * world.size, pairs=len(weights) * world.size
                )
            try:
                reward_ddp.train(command_line.parse(reward_ddp.PRESETS, flags))
            finally:
                density.factors = healthy


if __name__ == "__main__":
    run_cases(json.loads(Path(sys.argv[1]).read_text()))
