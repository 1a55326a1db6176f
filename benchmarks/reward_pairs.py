"""Pairs a second through a reward model: our way, and a loop over single texts with gradients on in the backbone.

    python benchmarks/reward_pairs.py [--rounds 5]

One process, one thread, the backbone of the laptop preset (untrained: its speed does not depend on what it knows). All
sides do one step on the same pairs: features, head, pairwise loss, backward, optimizer step. Prints one JSON object:
{"ours": pairs a second of each round, "unbatched": ..., "unbatched, gradients on": ...}.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F
from measure import HERE, Table, divide, in_turns, one_thread
from torch import Tensor

from ddp_course import minigpt_ddp
from ddp_course.data.pairs import TRAIN, Pair, pairs_of_step, prepare_pairs, read_pairs
from ddp_course.data.token_file import open_tokens, prepare
from ddp_course.distributed import process_group
from ddp_course.models.minigpt import MiniGPT, MiniGPTConfig, set_attention
from ddp_course.models.reward import FrozenBackbone, RewardHead, feature_count
from ddp_course.post_training.backbones import Backbone, frozen_minigpt
from ddp_course.post_training.pair_validation import features_of, margins_of
from ddp_course.post_training.reward_model import RewardModel, padded
from ddp_course.reward_ddp import PRESETS, backbone_trial
from ddp_course.training.precision import autocast, choose_precision, set_matmul_precision

PAIRS = 64  # a step, as in the laptop preset


def compare_reward(table: Table, rounds: int) -> None:
    command = [sys.executable, HERE / "reward_pairs.py", "--rounds", str(rounds)]
    done = subprocess.run(command, check=True, capture_output=True, text=True, env=os.environ | one_thread())
    result = json.loads(done.stdout.splitlines()[-1])
    for side in ("unbatched, gradients on", "unbatched"):
        table.ratio(
            f"reward model, pairs a second on one thread: ours over a loop that is {side}",
            divide(result["ours"], result[side]),
        )


def make_model() -> RewardModel:
    shape = minigpt_ddp.PRESETS["laptop"]
    tokens = open_tokens(prepare("stdlib", shape.tokenizer, shape.vocab_size, say=lambda line: None)).tokenizer
    model = MiniGPT(MiniGPTConfig(tokens.vocab_size, shape.context, shape.layers, shape.heads, shape.width))
    backbone = Backbone("untrained", frozen_minigpt(model), tokens.encode, tokens.end_of_text, tokens.state(), tokens)
    config = PRESETS["laptop"]
    head = RewardHead(feature_count(shape.width), config.head_width)
    return RewardModel(backbone, head, max_tokens=config.max_tokens, micro_batch_size=config.micro_batch_size)


def one_by_one(model: RewardModel, pairs: list[Pair], gradients: bool) -> Tensor:
    """Features as `features_of` gives them, a text at a time, with or without a graph of the backbone's work."""
    model.backbone.requires_grad_(gradients)
    read = FrozenBackbone.forward.__wrapped__ if gradients else FrozenBackbone.forward  # without its no_grad
    rows = []
    for side in ("chosen", "rejected"):
        for pair in pairs:
            text = padded([model.tokens(pair.prompt, getattr(pair, side))], torch.device("cpu"))
            with autocast(model.precision, torch.device("cpu")):
                rows.append(read(model.backbone, *text))
    return torch.cat(rows).float()


def step_seconds(model: RewardModel, optimizer: torch.optim.Optimizer, features: Callable[[], Tensor]) -> float:
    start = time.perf_counter()
    margins = margins_of(model.head, features())
    (-F.logsigmoid(margins)).mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    torch.set_num_threads(1)
    folder = prepare_pairs("stdlib", 1000, 50, 1, say=lambda line: None)
    training_pairs, model = read_pairs(Path(folder) / TRAIN), make_model()
    arithmetic = choose_precision(
        process_group.start(),
        "auto",
        PRESETS["laptop"].max_tokens,
        {},
        make_trial=lambda: backbone_trial(model.backbone, PRESETS["laptop"]),
    )
    model.precision = arithmetic.precision
    set_matmul_precision(arithmetic.precision)
    set_attention(model, arithmetic.attention)
    optimizer = torch.optim.AdamW(model.head.parameters(), lr=1e-4)
    sides = {
        "ours": lambda pairs: features_of(model, pairs),
        "unbatched": lambda pairs: one_by_one(model, pairs, gradients=False),
        "unbatched, gradients on": lambda pairs: one_by_one(model, pairs, gradients=True),
    }
    speeds: dict[str, list[float]] = {side: [] for side in sides}
    for turn, side in enumerate(in_turns(sides, rounds + 1)):
        pairs = [training_pairs[n] for n in pairs_of_step(1, turn // len(sides), PAIRS, len(training_pairs))]
        seconds = step_seconds(model, optimizer, lambda side=side, pairs=pairs: sides[side](pairs))
        model.backbone.requires_grad_(False)
        model.backbone.zero_grad()
        if turn >= len(sides):  # the first round warms up
            speeds[side].append(PAIRS / seconds)
    print(json.dumps(speeds))
    process_group.stop()


if __name__ == "__main__":
    main()
