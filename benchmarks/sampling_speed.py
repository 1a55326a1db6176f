"""Text sampled with the key-value cache, and by a full pass over the text so far for every token: the same tokens.

    python benchmarks/sampling_speed.py --rounds 5

Prints one JSON object: texts at a time -> seconds without the cache over seconds with it, in each round.
"""

import argparse
import json
import time
from collections.abc import Callable

import torch

from ddp_course.models.minigpt import MiniGPT, MiniGPTConfig, generate
from ddp_course.models.sampling import sample

MODEL = MiniGPTConfig(vocab_size=2048, context=512, layers=4, heads=4, width=256)  # `--preset laptop`, but longer
PROMPT_TOKENS, NEW_TOKENS, TEXT_COUNTS = 32, 256, (1, 4)


def timed(sampler: Callable, model: MiniGPT, prompts: object, seed: int) -> tuple[float, object]:
    """The seconds that a sampler takes, and its result."""
    generator = torch.Generator().manual_seed(seed)
    start = time.perf_counter()
    texts = sampler(model, prompts, NEW_TOKENS, temperature=1.0, top_k=50, generator=generator)
    return time.perf_counter() - start, texts


def speed_up(model: MiniGPT, texts: int, round_number: int) -> float:
    """Seconds of `generate`, which has no cache, over seconds of `sample`, which has one.

    Raises RuntimeError if their tokens differ.
    """
    prompts = torch.randint(MODEL.vocab_size, (texts, PROMPT_TOKENS))
    arguments = {generate: prompts, sample: prompts.tolist()}
    order = [generate, sample] if round_number % 2 == 0 else [sample, generate]
    results = {sampler: timed(sampler, model, arguments[sampler], round_number) for sampler in order}
    uncached_seconds, uncached_tokens = results[generate]
    cached_seconds, cached_tokens = results[sample]
    if uncached_tokens[:, PROMPT_TOKENS:].tolist() != cached_tokens:
        raise RuntimeError("the cache draws other tokens: the comparison means nothing")
    return uncached_seconds / cached_seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    rounds = range(parser.parse_args().rounds)
    torch.manual_seed(1)
    model = MiniGPT(MODEL)
    print(json.dumps({texts: [speed_up(model, texts, number) for number in rounds] for texts in TEXT_COUNTS}))


if __name__ == "__main__":
    main()
