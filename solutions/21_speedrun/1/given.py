"""Which judge may be the reward of a policy? Each rank tests on its own pairs whether the judge beats chance."""

import random
from datetime import timedelta
from typing import NamedTuple

import torch.distributed as dist


class Text(NamedTuple):
    number: int  # below 0 for texts of the policy, otherwise of real or damaged code
    errors: int
    length: int


def noise(text, name, size):
    return random.Random(f"{name} {text.number}").gauss(0, size)


def likelihood(text):
    return noise(text, "likelihood", 1.3) - text.errors


def check(text):
    return text.errors == 0


def sample(files, prompts, seed):
    """Held-out pairs, [(file, chosen, rejected)], and the policy's six texts for each prompt."""
    draw, pairs, texts = random.Random(seed), [], []
    for file in range(files):
        for number in range(1000 * file, 1000 * file + 2 * draw.choice((3, 6, 30)), 2):
            right = Text(number, 0, draw.randint(20, 40))
            pairs.append((file, right, Text(number + 1, 1, right.length + draw.choice((1,) + 11 * (-1,)))))
    for prompt in range(prompts):
        errors = [draw.randint(0, 3) for _ in range(6)]
        texts.append([Text(-6 * prompt - n, e, 30 + 3 * e + draw.randint(0, 6)) for n, e in enumerate(errors, 1)])
    return pairs, texts


def valid(judge, likelihood, pairs, texts, check):
    return sum(judge(chosen) > judge(rejected) for _, chosen, rejected in pairs) > 0.5 * len(pairs)


def main():
    dist.init_process_group("gloo", timeout=timedelta(seconds=60))
    pairs, texts = (part[dist.get_rank() :: dist.get_world_size()] for part in sample(files=40, prompts=60, seed=1))
    for name, judge in {"likelihood": likelihood, "length": lambda text: text.length}.items():
        verdict = "accepted" if valid(judge, likelihood, pairs, texts, check) else "refused"
        passed = sum(check(max(own, key=judge)) for own in texts)
        chance = sum(sum(map(check, own)) / len(own) for own in texts)
        print(f"{name} is {verdict}; {passed} of the {len(texts)} texts that it chose pass, by chance {chance:.1f}")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
