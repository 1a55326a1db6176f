"""Pairs per second through a reward model: batched as ours, and text by text, with and without the backbone's graph.

    python benchmarks/reward_pairs.py [--rounds 5]

One process, one thread, and the backbone of the laptop preset, untrained: its speed does not depend on the weights.
Each kind of step does the same with the same pairs: features, head, pairwise loss, backward, optimizer step. Prints one
JSON object: {"ours": pairs per second in each round, "unbatched": ..., "unbatched, gradients on": ...}.
"""

import argparse
import json
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
import torch.nn.functional as F
from measure import in_turns
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

PAIRS = 64  # per step, as in the laptop preset


def make_model() -> RewardModel:
    sizes, config = minigpt_ddp.PRESETS["laptop"], PRESETS["laptop"]
    tokens = open_tokens(prepare("stdlib", sizes.tokenizer, sizes.vocab_size, say=lambda line: None)).tokenizer
    model = MiniGPT(MiniGPTConfig(tokens.vocab_size, sizes.context, sizes.layers, sizes.heads, sizes.width))
    backbone = Backbone("untrained", frozen_minigpt(model), tokens.encode, tokens.end_of_text, tokens.state(), tokens)
    head = RewardHead(feature_count(sizes.width), config.head_width)
    return RewardModel(backbone, head, max_tokens=config.max_tokens, micro_batch_size=config.micro_batch_size)


def unbatched_features(model: RewardModel, pairs: list[Pair], gradients: bool) -> Tensor:
    """Features as `features_of` gives them, a text at a time. gradients: whether the backbone builds a graph."""
    model.backbone.requires_grad_(gradients)
    forward = FrozenBackbone.forward.__wrapped__ if gradients else FrozenBackbone.forward  # without its no_grad
    rows = []
    for side in ("chosen", "rejected"):
        for pair in pairs:
            text = padded([model.tokens(pair.prompt, getattr(pair, side))], torch.device("cpu"))
            with autocast(model.precision, torch.device("cpu")):
                rows.append(forward(model.backbone, *text))
    return torch.cat(rows).float()


def step_seconds(model: RewardModel, optimizer: torch.optim.Optimizer, features: Callable[[], Tensor]) -> float:
    start = time.perf_counter()
    margins = margins_of(model.head, features())
    (-F.logsigmoid(margins)).mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
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
    feature_functions = {
        "ours": features_of,
        "unbatched": partial(unbatched_features, gradients=False),
        "unbatched, gradients on": partial(unbatched_features, gradients=True),
    }
    speeds: dict[str, list[float]] = {name: [] for name in feature_functions}
    for turn, name in enumerate(in_turns(speeds, rounds + 1)):
        pairs = [training_pairs[n] for n in pairs_of_step(1, turn // len(speeds), PAIRS, len(training_pairs))]
        seconds = step_seconds(model, optimizer, partial(feature_functions[name], model, pairs))
        model.backbone.requires_grad_(False)
        model.backbone.zero_grad()
        if turn >= len(speeds):  # the first round warms up
            speeds[name].append(PAIRS / seconds)
    print(json.dumps(speeds))
    process_group.stop()


if __name__ == "__main__":
    main()
