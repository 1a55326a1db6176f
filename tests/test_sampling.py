"""Sampling with the key-value cache draws the same tokens as sampling without it."""

import copy

import pytest
import torch

from ddp_course.base.errors import InputError
from ddp_course.models.minigpt import MiniGPT, MiniGPTConfig, generate
from ddp_course.models.sampling import KeyValueCache, sample, sample_without_cache

pytestmark = pytest.mark.smoke

CONTEXT, VOCABULARY = 32, 61
RAGGED = [[1, 2, 3], [7], [5, 4, 3, 2, 1, 0, 9, 8], [11, 12]]


@pytest.fixture(scope="module", params=[torch.float32, torch.float64], ids=str)
def model(request):
    torch.manual_seed(1)
    model = MiniGPT(MiniGPTConfig(VOCABULARY, CONTEXT, layers=3, heads=4, width=32, dropout=0.5)).to(request.param)
    for parameter in model.parameters():  # with initial weights the draws would hardly depend on the prompt
        torch.nn.init.normal_(parameter, std=0.3)
    return model


def seeded():
    return torch.Generator().manual_seed(3)


def without_cache(model, prompts, new_tokens, temperature=1.0):
    """The reference: each text by itself, its whole window through the model for every token."""
    model.eval()
    texts, generator = [list(prompt) for prompt in prompts], seeded()
    for _ in range(new_tokens):
        with torch.no_grad():
            rows = [model(torch.tensor([text[-CONTEXT:]]))[0, -1].float() for text in texts]
        drawn = torch.multinomial((torch.stack(rows) / temperature).softmax(-1), 1, generator=generator)
        for text, token in zip(texts, drawn[:, 0].tolist(), strict=True):
            text.append(token)
    return [text[len(prompt) :] for text, prompt in zip(texts, prompts, strict=True)]


@pytest.mark.parametrize("new_tokens", [1, 12, 24], ids=lambda n: f"{n} tokens")
def test_the_same_tokens_as_without_a_cache(model, new_tokens):
    """Texts of 1 to 8 tokens in one batch: each attends to its own tokens, and to no padding."""
    texts = sample(model, RAGGED, new_tokens, generator=seeded())
    assert texts == without_cache(model, RAGGED, new_tokens)
    assert len({tuple(text) for text in texts}) == len(RAGGED)


def test_past_the_end_of_the_context_the_window_slides(model):
    """The longest text fills the context with 24 new tokens; those after the 25th are drawn without the cache."""
    assert sample(model, RAGGED, 45, generator=seeded()) == without_cache(model, RAGGED, 45)
    full = [list(range(CONTEXT))]
    assert sample(model, full, 3, generator=seeded()) == without_cache(model, full, 3)


@pytest.mark.parametrize("top_k", [5, 50, 99])
def test_the_same_tokens_as_generate(model, top_k):
    prompts = torch.randint(VOCABULARY, (3, 6), generator=seeded())
    slow = generate(model, prompts, 40, temperature=0.8, top_k=top_k, generator=seeded())
    fast = sample(model, prompts.tolist(), 40, temperature=0.8, top_k=top_k, generator=seeded())
    assert fast == slow[:, 6:].tolist()


def test_temperature_and_the_default_generator(model):
    torch.manual_seed(3)
    assert sample(model, RAGGED, 8, temperature=0.5) == without_cache(model, RAGGED, 8, temperature=0.5)
    assert sample(model, RAGGED, 8, temperature=0.5, generator=seeded()) != sample(model, RAGGED, 8, generator=seeded())


def test_a_completion_ends_with_the_end_of_text(model):
    whole = sample(model, RAGGED, 20, generator=seeded())
    end = whole[0][4]
    texts = sample(model, RAGGED, 20, end_of_text=end, generator=seeded())
    for short, long in zip(texts, whole, strict=True):
        expected = long[: long.index(end) + 1] if end in long else long
        assert short == expected
    assert texts[0][-1] == end and len(texts[0]) <= 5


def record_sizes(monkeypatch):
    """A list that gets the shape of the tokens of every pass through the model."""
    sizes, real = [], KeyValueCache.hidden

    def hidden(cache, tokens, positions):
        sizes.append(tuple(tokens.shape))
        return real(cache, tokens, positions)

    monkeypatch.setattr(KeyValueCache, "hidden", hidden)
    return sizes


@pytest.mark.parametrize("rows", [1, 3, 99])
def test_a_model_of_another_library_gets_the_same_tokens(model, rows):
    """At any number of texts per pass; and a text that has ended is left out."""
    model.eval()
    options = {"device": torch.device("cpu"), "rows": rows}
    texts = sample_without_cache(model, RAGGED, 12, temperature=0.7, generator=seeded(), **options)
    assert texts == sample(model, RAGGED, 12, temperature=0.7, generator=seeded())
    likeliest = sample(model, RAGGED, 12, temperature=1e-4)
    end, sizes = likeliest[0][4], []

    def watched(tokens):
        sizes.append(len(tokens))
        return model(tokens)

    texts = sample_without_cache(watched, RAGGED, 12, temperature=1e-4, end_of_text=end, **options)
    assert texts == sample(model, RAGGED, 12, temperature=1e-4, end_of_text=end)
    assert texts[0] == likeliest[0][: likeliest[0].index(end) + 1]
    assert sum(sizes) == sum(map(len, texts)), "as many rows as tokens were drawn"


def test_it_stops_when_all_texts_have_ended(model, monkeypatch):
    (whole,) = sample(model, [[1, 2]], 20, generator=seeded())
    steps = whole.index(whole[2]) + 1
    sizes = record_sizes(monkeypatch)
    assert sample(model, [[1, 2]], 20, end_of_text=whole[2], generator=seeded()) == [whole[:steps]]
    assert len(sizes) == steps < 20


def test_each_token_goes_through_the_model_once(model, monkeypatch):
    """The model computes 4 prompts of up to 8 tokens, then one token per text and step."""
    sizes = record_sizes(monkeypatch)
    sample(model, RAGGED, 6, generator=seeded())
    assert sizes == [(4, 8), *[(4, 1)] * 5]


def test_the_model_is_left_as_it_was(model):
    model.train()
    weights = {name: value.clone() for name, value in model.state_dict().items()}
    sample(model, RAGGED, 3, generator=seeded())
    assert model.training and all(torch.equal(value, weights[name]) for name, value in model.state_dict().items())
    assert not any(parameter.grad is not None for parameter in model.parameters())


def test_logits_that_are_not_finite_are_an_input_error(model):
    diverged = copy.deepcopy(model)
    torch.nn.init.constant_(diverged.final_norm.bias, torch.nan)
    with pytest.raises(InputError, match="the model has diverged: its logits are not finite"):
        sample(diverged, [[1]], 3)


def test_no_prompts_or_no_new_tokens_give_no_tokens(model):
    assert sample(model, [], 5) == [] and sample(model, RAGGED, 0) == [[], [], [], []]


@pytest.mark.parametrize(
    ("prompts", "options", "message"),
    [
        ([[1], []], {}, "1 to 32 tokens, found 0"),
        ([[1] * 33], {}, "found 33 to 33"),
        ([[1]], {"temperature": 0.0}, "above 0, found 0.0"),
    ],
)
def test_what_cannot_be_sampled_is_refused(model, prompts, options, message):
    with pytest.raises(ValueError, match=message):
        sample(model, prompts, 3, **options)
