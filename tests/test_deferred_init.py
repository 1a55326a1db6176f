"""A model built without memory gets the initial values of the whole one, and a rank allocates only its part."""

import pytest
import torch
import warm
from torch import nn
from training_runs import RECORDED_LOG, ROOT, merged

from ddp_course.distributed.deferred_init import build_on_meta
from ddp_course.models.minigpt import MiniGPT, MiniGPTConfig
from ddp_course.trainers.minigpt_experts import mixture_parameter_count

CONFIGS = {
    "plain": MiniGPTConfig(vocab_size=65, context=17, layers=3, heads=3, width=21),
    "grouped": MiniGPTConfig(vocab_size=300, context=64, layers=2, heads=4, kv_heads=2, width=64),
}


@pytest.mark.smoke
@pytest.mark.parametrize("model_config", CONFIGS.values(), ids=CONFIGS)
@pytest.mark.parametrize("seed", [0, 7])
def test_initial_values_are_those_of_the_whole_model(model_config, seed):
    torch.manual_seed(seed)
    whole, next_number = MiniGPT(model_config), torch.rand(())
    torch.manual_seed(seed)
    empty, values = build_on_meta(lambda: MiniGPT(model_config))
    assert torch.equal(torch.rand(()), next_number), "the generator is not where it would have been"
    assert {parameter.device.type for parameter in empty.parameters()} == {"meta"}
    expected = whole.state_dict()
    assert values.keys() == expected.keys()
    for name in reversed(list(values)):  # in any order
        assert torch.equal(values[name], expected[name]), name
    assert not torch.equal(values["blocks.0.expand.weight"], values["blocks.1.expand.weight"])


@pytest.mark.smoke
def test_a_write_that_cannot_be_repeated_is_refused():
    def build():
        layer = nn.Linear(2, 2)
        with torch.no_grad():
            layer.weight.mul_(2)
        return layer

    with pytest.raises(NotImplementedError, match="aten.mul_"):
        build_on_meta(build)


LARGE = MiniGPTConfig(vocab_size=256, context=16, layers=8, heads=4, width=768)
LARGEST = 4 * 4 * LARGE.width**2  # bytes of the matrix that expands
REST = 30 * 2**20  # bytes of the group, and of modules of torch that are imported meanwhile


@pytest.mark.parametrize("axis", ["pp", "tp", "shard", "cp", "ep"])
def test_construction_takes_the_memory_of_the_ranks_own_part(tmp_path, axis):
    """The model has 227 MB, 378 with experts. Each of two ranks needs half, and a few times the largest parameter."""
    experts = 2 if axis == "ep" else None
    whole, largest = 4 * sum(mixture_parameter_count(LARGE, experts)), LARGEST * (experts or 1)
    flags = merged("--preset", "tiny", "--data", RECORDED_LOG, "--run-dir", tmp_path / "run")
    for name in ("layers", "heads", "width", "context"):
        flags += [f"--{name}", str(getattr(LARGE, name))]
    sizes = "--tokens-per-update", 64, "--micro-batch-size", 1, f"--{axis}", 2
    sizes += ("--shard", 2, "--experts", experts) if experts else ()
    ranks = warm.ranks(ROOT / "tests/construction_memory.py", *flags, *sizes, nproc=2).results.values()
    for memory in ranks:
        assert memory["own"] < 0.55 * whole
        limit = memory["own"] + 3 * largest + REST
        assert limit < 0.95 * whole
        assert 0.9 * memory["own"] < memory["grown"] < limit
