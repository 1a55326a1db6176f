"""Three rounds of GRPO on fixed completions, in float64, as a rank: python grpo_rung.py WEIGHTS.pt POLICY...

Prints {"POLICY, FAULT": metrics}; rank 0 saves the weights by the same titles. A fault is a mistake in the training
that test_grpo.py has to notice.
"""

import copy
import itertools
import json
import sys
from dataclasses import dataclass
from pathlib import Path

import torch
from torch.nn.parallel import DistributedDataParallel
from training_runs import one_process_group

from ddp_course.data import tokenizer
from ddp_course.distributed.replica_check import assert_replicas_equal
from ddp_course.grpo_ddp import GRPOConfig, learn
from ddp_course.models.minigpt import MiniGPT, MiniGPTConfig
from ddp_course.post_training.batch import compute_metrics
from ddp_course.post_training.grpo import AdaptiveBeta, kl_estimate
from ddp_course.post_training.policies import load_policy
from ddp_course.post_training.rollout import RolloutModels, sample_groups

PROMPTS = [f"def f{n}({'a, ' * (n % 3)}b):" for n in range(5)]  # 5 prompts: 4 ranks have 2, 1, 1, 1
GROUP = 3
FAULTS = "none", "own divisor", "own beta"


def completion(prompt, number):
    generator = torch.Generator().manual_seed(31 * PROMPTS.index(prompt) + number)
    length = int(torch.randint(1, 12, (1,), generator=generator))
    return torch.randint(1, 128, (length,), generator=generator).tolist()


@dataclass(frozen=True)
class FixedModels(RolloutModels):
    """Models whose completions depend on the prompt alone."""

    def sample(self, model, prompts, seed=None):
        texts = [self.tokenizer.decode(prompt[len(self.begin) :]) for prompt in prompts]
        return [completion(text, number % GROUP) for number, text in enumerate(texts)]


class Length:
    def score(self, prompts, completions):
        return torch.tensor([len(text) % 5 + text.count("a") for text in completions], dtype=torch.float64)


def models(name):
    """Policy, reference, tokenizer, and the tokens before a prompt."""
    torch.manual_seed(1)
    if name == "minigpt":
        policy, reference = (MiniGPT(MiniGPTConfig(256, 48, 2, 2, 16)).double() for _ in range(2))
        return policy, reference, tokenizer.build("bytes", []), ()
    start = load_policy(name)
    policy, reference = start.model.double(), copy.deepcopy(start.model).double()
    with torch.no_grad():
        for parameter in reference.parameters():
            parameter += 0.02 * torch.randn_like(parameter)
    return policy, reference, start.tokenizer, start.begin


def train(world, name, fault):
    policy, reference, words, begin = models(name)
    rollout = FixedModels(policy, reference, Length(), words, 12, 0.9, 2, precision="float64", begin=begin)
    config = GRPOConfig(passes=2, micro_batch_size=2, clip=0.02, temperature=0.9, precision="float64")
    optimizer = torch.optim.AdamW(policy.parameters(), lr=1e-3)
    beta = AdaptiveBeta(0.5, target=0.0075, gain=0.5)
    replica = policy if world.size == 1 else DistributedDataParallel(policy)
    rounds = []
    for number in range(3):
        prompts = PROMPTS[number:] + PROMPTS[:number]
        batch, distinct = sample_groups(rollout, prompts[world.rank :: world.size], GROUP)
        metrics = compute_metrics(batch, distinct, world)
        divisor = int(batch.counted.sum()) * world.size if fault == "own divisor" else metrics["tokens"]
        _, _, norm = learn(replica, optimizer, batch, divisor, beta.value, config, world)
        own_kl = kl_estimate(batch.old, batch.reference)[batch.counted].mean().item()
        beta.update(own_kl if fault == "own beta" else metrics["kl"])
        rounds.append(metrics | {"norm": norm})
    assert_replicas_equal(world, policy)
    return {"rounds": rounds, "beta": beta.value}, policy.state_dict()


def climb(weights_file, *policies):
    with one_process_group() as world:
        cases = itertools.product(policies, FAULTS)
        runs = {f"{name.partition(':')[0]}, {fault}": train(world, name, fault) for name, fault in cases}
        if world.is_main:
            torch.save({title: weights for title, (_, weights) in runs.items()}, weights_file)
    return {title: metrics for title, (metrics, _) in runs.items()}


if __name__ == "__main__":
    print(json.dumps(climb(Path(sys.argv[1]), *sys.argv[2:])), flush=True)
