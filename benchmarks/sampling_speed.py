"""Text sampled with the key-value cache, and by a full pass over the text so far for every token: the same tokens.

    python benchmarks/sampling_speed.py --rounds 5

Prints one JSON object: texts at a time -> ratios of their times, one a round; the sides take turns.
"""

import argparse
import json
import os
import subprocess
import sys
import time

import torch

from ddp_course.models.minigpt import MiniGPT, MiniGPTConfig, generate
from ddp_course.models.sampling import sample

SHAPE = MiniGPTConfig(vocab_size=2048, context=512, layers=4, heads=4, width=256)  # `--preset laptop`, but longer
PROMPT, NEW, TEXTS = 32, 256, (1, 4)


def compare_sampling(table, rounds: int) -> None:
    """Add a row for each number of texts to the benchmark's table."""
    command = [sys.executable, __file__, "--rounds", str(rounds)]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, check=True, capture_output=True, text=True, env=environment)
    for texts, ratios in json.loads(done.stdout).items():
        table.ratio(
            f"tokens a second, {NEW} new tokens after {PROMPT}, {texts} text{'s' * (texts != '1')} at a time: "
            "with the key-value cache over without",
            ratios,
            3,
        )


def seconds_and_tokens(call, model: MiniGPT, prompts: object, seed: int) -> tuple[float, list[list[int]]]:
    dice = torch.Generator().manual_seed(seed)
    start = time.perf_counter()
    texts = call(model, prompts, NEW, temperature=1.0, top_k=50, generator=dice)
    seconds = time.perf_counter() - start
    return seconds, texts[:, PROMPT:].tolist() if isinstance(texts, torch.Tensor) else texts


def main(rounds: int) -> None:
    torch.manual_seed(1)
    model = MiniGPT(SHAPE)
    ratios: dict[int, list[float]] = {texts: [] for texts in TEXTS}
    for number in range(rounds):
        for texts in TEXTS:
            prompts = torch.randint(SHAPE.vocab_size, (texts, PROMPT))
            sides = [(generate, prompts), (sample, prompts.tolist())]
            took = {}
            for call, arguments in sides[:: 1 if number % 2 == 0 else -1]:  # nobody always finds the warmer machine
                took[call] = seconds_and_tokens(call, model, arguments, seed=number)
            if took[sample][1] != took[generate][1]:
                raise RuntimeError("the cache draws other tokens: the comparison means nothing")
            ratios[texts].append(took[generate][0] / took[sample][0])
    print(json.dumps(ratios))


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, required=True)
    main(parser.parse_args().rounds)
