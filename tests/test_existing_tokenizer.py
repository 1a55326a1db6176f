"""An existing tokenizer, by the folder of its tokenizer.json."""

import json
import shutil

import pytest
import tokenizers
from huggingface_folder import make_tokenizer

from ddp_course.base.errors import InputError
from ddp_course.data import tokenizer
from ddp_course.data.token_file import open_tokens, prepare

pytestmark = [pytest.mark.smoke, pytest.mark.usefixtures("own_cache")]


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "tokenizer").mkdir()
    return make_tokenizer(tmp_path / "tokenizer")


@pytest.fixture
def code(tmp_path):
    path = tmp_path / "work.py"
    path.write_text("".join(f"def work_{n}(a, b):\n    return a + {n}\n\n\n" for n in range(60)))
    return path


def test_it_encodes_the_token_files(folder, code):
    tokens = open_tokens(prepare(str(code), str(folder)))
    assert tokens.tokenizer.decode(tokens.train[:40]).startswith("def work_0(a, b):")
    assert tokens.tokenizer.fingerprint == tokenizer.existing(folder).fingerprint
    assert tokens.train[-1] == tokens.tokenizer.end_of_text and tokens.train.max() < tokens.tokenizer.vocab_size


def test_a_special_token_in_a_text_stays_letters(folder):
    loaded = tokenizer.existing(folder)
    text = "x = '<|end|>' # åß∂"
    assert loaded.end_of_text not in loaded.encode(text) and loaded.decode(loaded.encode(text)) == text
    assert loaded.decode([loaded.end_of_text, 10**6]) == "<|end|>", "an id that it does not know is left out"


def test_its_truncation_and_padding_are_off(folder):
    library = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    library.enable_truncation(4)
    library.enable_padding(length=8)
    library.save(str(folder / "tokenizer.json"))
    loaded = tokenizer.existing(folder)
    assert [loaded.decode(loaded.encode(text)) for text in ("x", "x = y * 77")] == ["x", "x = y * 77"]


def test_a_resumed_run_does_not_need_it(folder, code):
    first = prepare(str(code), str(folder))
    settings = {"data": str(code), "tokenizer": str(folder), "vocab_size": None, "token_file": str(first)}
    shutil.rmtree(folder)
    assert prepare(str(code), str(folder), resumed_settings=settings) == first
    with pytest.raises(InputError, match="no tokenizer .*: the names are bytes, bpe, rustbpe, or the folder of"):
        prepare(str(code), str(folder))


def test_two_tokenizers_have_token_files_of_their_own(folder, code):
    first = prepare(str(code), str(folder))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": {"content": "a"}}))
    assert prepare(str(code), str(folder)) != first


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("tokenizer.json", None, "cannot read .*tokenizer.json: No such file"),
        ("tokenizer.json", "{}", "tokenizer.json is not a tokenizer of Hugging Face's: "),
        ("tokenizer.json", "{", "cannot read .*tokenizer.json: expected a JSON object"),
        ("tokenizer_config.json", '{"eos_token": "<|none|>"}', "no token that ends a text: it does not know <|none|>"),
        ("tokenizer_config.json", None, "no token that ends a text: it does not know <|endoftext|>"),
    ],
)
def test_a_file_that_is_no_tokenizer_is_refused(folder, file, content, message):
    (folder / file).unlink()
    if content is not None:
        (folder / file).write_text(content)
    with pytest.raises(InputError, match=message.replace("|", r"\|")):
        tokenizer.existing(folder)


def test_another_vocabulary_size_is_refused(folder, code):
    with pytest.raises(InputError, match="tokens, not 2048: give --vocab-size None"):
        prepare(str(code), str(folder), 2048)
