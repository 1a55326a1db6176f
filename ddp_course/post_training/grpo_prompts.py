"""The prompts and pairs of a run of grpo_ddp.py: collected from the corpus, or read again when the run resumes."""

from collections.abc import Mapping
from pathlib import Path

from ddp_course.base.errors import InputError
from ddp_course.data import corpora
from ddp_course.data.pairs import Pair, read_pairs
from ddp_course.post_training.grpo_config import GRPOConfig
from ddp_course.post_training.prompts import Prompts, collect, prompts_of, read_saved, save_in_cache
from ddp_course.post_training.rollout import RolloutModels


def collect_or_read_prompts(
    config: GRPOConfig, models: RolloutModels, resumed_settings: Mapping[str, object]
) -> tuple[Prompts, list[Pair], str]:
    """The prompts, the pairs (for the pairwise objective), and the path of the file with both. Called on one rank.

    resumed_settings: those of a resumed run, in which "prompts_file" is that path. While the file is undamaged the run
    reads it again, even if the corpus has changed. Raises InputError if the corpus has too few prompts, or no pair
    would be learned from.
    """
    if models.room < 1:
        raise InputError(
            f"--new-tokens {config.new_tokens} leaves no room for a prompt in the model's context of "
            f"{models.policy.config.context} tokens"
        )
    source = {name: getattr(config, name) for name in ("data", "pairs", "new_tokens", "validation_prompts")}
    if all(resumed_settings.get(name) == value for name, value in source.items()) and (
        file := resumed_settings.get("prompts_file")
    ):
        try:
            return *read_saved(Path(str(file))), str(file)
        except InputError as error:
            print(f"the prompts that this run began with are gone ({error}): reading {config.data} anew", flush=True)
    prompts = collect(corpora.load(config.data), models.tokenizer, models.room, config.validation_prompts)
    if config.objective == "grpo":
        prompts_of(prompts.train, seed=config.seed, step=0, count=config.prompts_per_update)  # refuses too few
    pairs = read_pairs(Path(config.pairs)) if config.pairs else []
    if pairs and all(has_equal_rewards(pair, models) for pair in pairs):
        raise InputError(
            f"--reward {config.reward} gives the same reward to both answers of each of the {len(pairs):,} pairs in "
            f"{config.pairs}, so nothing would be learned; give pairs whose chosen answer earns more"
        )
    return prompts, pairs, str(save_in_cache(prompts, pairs))


def has_equal_rewards(pair: Pair, models: RolloutModels) -> bool:
    """Whether both answers of the pair earn the same reward, so that the pairwise objective has nothing to learn."""
    chosen, rejected = models.reward.score([pair.prompt] * 2, [pair.chosen, pair.rejected]).tolist()
    return chosen == rejected
