"""MiniGPT: its loss, and grouped-query attention: fewer heads of keys and values than of queries."""

from dataclasses import asdict, replace

import pytest
import torch

from ddp_course.checkpoint import checkpoint
from ddp_course.data import tokenizer
from ddp_course.models import minigpt
from ddp_course.models.minigpt import MiniGPT, MiniGPTConfig, flops_per_token, generate, parameter_count
from ddp_course.models.sampling import KeyValueCache, sample
from ddp_course.post_training.pretrained import load_pretrained

pytestmark = pytest.mark.smoke
PLAIN = MiniGPTConfig(vocab_size=31, context=12, layers=2, heads=4, width=16)
SIZE = 4  # units of a head
TOKENS = torch.arange(24).view(2, 12) % 31


def build(config, attention="fused"):
    torch.manual_seed(3)
    model = MiniGPT(config, attention).double()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return model


def copied_heads(state, kv_heads):
    """The weights of plain attention with a copy of the key and value head for each query head that shares it."""
    plain = dict(state)
    for name, tensor in state.items():
        if "query_key_value" in name:
            query, key, value = tensor.split([PLAIN.width, kv_heads * SIZE, kv_heads * SIZE])
            heads = [part.unflatten(0, (kv_heads, SIZE)) for part in (key, value)]
            copies = [part.repeat_interleave(PLAIN.heads // kv_heads, 0).flatten(0, 1) for part in heads]
            plain[name] = torch.cat([query, *copies])
    return plain


@pytest.mark.parametrize("attention", ["fused", "math"])
@pytest.mark.parametrize("kv_heads", [1, 2, 4])
def test_shared_heads_are_plain_attention_with_copies(kv_heads, attention):
    model, plain = build(replace(PLAIN, kv_heads=kv_heads), attention), build(PLAIN)
    plain.load_state_dict(copied_heads(model.state_dict(), kv_heads))
    torch.testing.assert_close(model(TOKENS), plain(TOKENS), rtol=0, atol=1e-12)


def test_the_loss_is_the_sum_over_all_targets(monkeypatch):
    model, targets = build(PLAIN), TOKENS.roll(1, dims=1)
    targets[0, 3:5] = -100
    monkeypatch.setattr(minigpt, "LOSS_TOKENS", 7)  # so that the loss is computed in four pieces
    expected = torch.nn.functional.cross_entropy(model(TOKENS).flatten(0, 1), targets.flatten(), reduction="sum")
    torch.testing.assert_close(model(TOKENS, targets), expected, rtol=1e-12, atol=0)


def test_as_many_key_heads_as_heads_is_the_plain_model_to_the_last_bit():
    torch.manual_seed(5)
    plain = MiniGPT(PLAIN)
    torch.manual_seed(5)
    model = MiniGPT(replace(PLAIN, kv_heads=4))
    assert model.state_dict().keys() == plain.state_dict().keys()
    assert torch.equal(model(TOKENS, TOKENS), plain(TOKENS, TOKENS))


@pytest.mark.parametrize("kv_heads", [None, 1, 2, 4])
def test_parameters_and_operations_are_counted(kv_heads):
    config = replace(PLAIN, kv_heads=kv_heads)
    model = MiniGPT(config)
    assert parameter_count(config) == sum(parameter.numel() for parameter in model.parameters())
    matrices = [weight for name, weight in model.named_parameters() if weight.dim() == 2 and "position" not in name]
    attention = PLAIN.layers * 4 * PLAIN.context * PLAIN.width
    assert flops_per_token(config) == 3 * (2 * sum(matrix.numel() for matrix in matrices) + attention)


def test_the_cache_holds_the_key_heads_alone():
    model = build(replace(PLAIN, kv_heads=2)).eval()
    prompt = [3, 1, 4, 1, 5]
    draws = [torch.Generator().manual_seed(7) for _ in range(2)]
    plain = generate(model, torch.tensor([prompt]), 6, temperature=1.0, top_k=31, generator=draws[0])[0, 5:].tolist()
    assert sample(model, [prompt], 6, top_k=31, generator=draws[1]) == [plain]
    cache = KeyValueCache(model, capacity=5)
    cache.hidden(torch.tensor([prompt]), torch.arange(5)[None])
    assert cache._layers[0]._keys_and_values[0].shape == (1, 5, 2, SIZE)


def test_a_checkpoint_is_read_with_its_key_heads(tmp_path):
    model = build(replace(PLAIN, kv_heads=2, vocab_size=256)).float()
    config = asdict(model.config) | {"tokenizer_state": tokenizer.build("bytes", []).state()}
    path = checkpoint.save(tmp_path, 1, {"step": 1, "config": config, "model": model.state_dict()})
    assert torch.equal(load_pretrained(path).model(TOKENS), model(TOKENS))


def test_heads_that_do_not_divide_are_refused():
    with pytest.raises(ValueError, match="4 heads do not divide over 3 heads of keys and values"):
        replace(PLAIN, kv_heads=3)
