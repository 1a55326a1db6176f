"""A folder of tokens: the windows of one file, at any number of shards; wrong sizes and ids are refused."""

import numpy as np
import pytest
import torch
from huggingface_folder import make_tokenizer

from ddp_course.base.errors import InputError
from ddp_course.data import shards
from ddp_course.data.shards import Shards
from ddp_course.data.token_file import open_tokens, prepare
from ddp_course.data.windows import IGNORED, micro_batches, validation_batches

pytestmark = [pytest.mark.smoke, pytest.mark.usefixtures("own_cache")]

IDS = np.random.default_rng(1).integers(1, 256, 5000).astype("<u2")
LENGTHS = [900, 1, 2600, 499]  # and the rest


def write(folder):
    folder.mkdir()
    for number, part in enumerate(np.split(IDS, np.cumsum(LENGTHS))):
        part.tofile(folder / f"train_{number:06d}.bin")
    IDS[:300].tofile(folder / "val.bin")
    return folder


def test_shards_are_one_array(tmp_path):
    folder = write(tmp_path / "shards")
    array = Shards(sorted(folder.glob("train*")), "<u2")
    assert len(array) == 5000 and array[-1] == IDS[-1] and array[900] == IDS[900]
    assert (array[:] == IDS).all() and (array[895:3510:7] == IDS[895:3510:7]).all()
    index = np.random.default_rng(2).integers(0, 5000, (7, 9))
    assert (array[index] == IDS[index]).all()


@pytest.mark.parametrize("ranks", [1, 2])
def test_the_windows_are_those_of_one_file(tmp_path, ranks):
    tokens = open_tokens(prepare(str(write(tmp_path / "shards")), "bytes"))
    arguments = {"context": 64, "seed": 3, "step": 5, "micro_batch_size": 4, "gradient_accumulation_steps": 4 // ranks}
    for rank in range(ranks):
        ours, theirs = (micro_batches(ids, **arguments, rank=rank, world_size=ranks) for ids in (tokens.train, IDS))
        for batch, expected in zip(ours, theirs, strict=True):
            assert torch.equal(torch.stack(batch), torch.stack(expected))
    batches = validation_batches(tokens.val, context=64, batch_size=2, rank=0, world_size=1)
    assert sum(int((targets != IGNORED).sum()) for _, targets in batches) == 299


def test_shards_are_read_once_and_again_when_they_change(tmp_path):
    folder, messages = write(tmp_path / "shards"), []
    first = prepare(str(folder), "bytes", say=messages.append)
    assert prepare(str(folder), "bytes", say=messages.append) == first and len(messages) == 1
    IDS[:10].tofile(folder / "train_000000.bin")
    second = prepare(str(folder), "bytes", say=messages.append)
    assert second != first and len(messages) == 2
    assert open_tokens(first).fingerprint != open_tokens(second).fingerprint


def test_shards_are_read_again_with_another_tokenizer(tmp_path):
    folder = str(write(tmp_path / "shards"))
    (tmp_path / "tokenizer").mkdir()
    with_other = prepare(folder, str(make_tokenizer(tmp_path / "tokenizer")))
    assert with_other != prepare(folder, "bytes")


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda file: file.write_bytes(b"123"), "has 3 bytes, expected a positive multiple of 2"),
        (lambda file: np.append(IDS, 256).astype("<u2").tofile(file), "holds the id 256, the tokenizer bytes has 256"),
        (lambda file: (file.unlink(), file.symlink_to("nowhere")), "No such file or directory"),
        (lambda file: (file.unlink(), file.mkdir()), "Is a directory"),
    ],
)
def test_a_bad_shard_is_named(tmp_path, monkeypatch, damage, message):
    monkeypatch.setattr(shards, "BLOCK_TOKENS", 1000)  # tokens read at a time: the last id is in the sixth block
    folder = write(tmp_path / "shards")
    damage(folder / "train_000001.bin")
    with pytest.raises(InputError, match=f"train_000001.bin.*{message}"):
        prepare(str(folder), "bytes")


def test_the_name_of_a_new_tokenizer_is_refused(tmp_path):
    with pytest.raises(InputError, match="holds tokens, not text: give the folder of the tokenizer"):
        prepare(str(write(tmp_path / "shards")), "bpe", 2048)


def test_a_resumed_run_reads_the_same_tokens_or_says_that_they_are_gone(tmp_path):
    folder, messages = write(tmp_path / "shards"), []
    settings = {"data": str(folder), "tokenizer": "bytes", "vocab_size": 256}
    first = prepare(str(folder), "bytes")
    resumed = settings | {"token_file": str(first)}
    assert prepare(str(folder), "bytes", say=messages.append, resumed_settings=resumed) == first and not messages
    IDS[:10].tofile(folder / "train_000000.bin")
    assert prepare(str(folder), "bytes", say=messages.append, resumed_settings=resumed) != first
    assert "the token files that this run began with are gone (train.bin has checksum" in messages[0]
    (folder / "val.bin").unlink()
    with pytest.raises(InputError, match="no usable token files in"):
        open_tokens(first)
