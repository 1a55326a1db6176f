"""A folder of tokens: the same windows as one file, at any number of shards, and what cannot be right is refused."""

import numpy as np
import pytest

from ddp_course.base.errors import InputError
from ddp_course.data.shards import Shards
from ddp_course.data.token_file import open_tokens, prepare
from ddp_course.data.windows import micro_batches, validation_batches

pytestmark = pytest.mark.smoke

IDS = np.random.default_rng(1).integers(1, 256, 5000).astype("<u2")
LENGTHS = [900, 1, 2600, 499]  # and what is left


def write(folder, ids=IDS):
    folder.mkdir()
    for number, part in enumerate(np.split(ids, np.cumsum(LENGTHS))):
        part.tofile(folder / f"train_{number:06d}.bin")
    IDS[:300].tofile(folder / "val.bin")
    return folder


def test_shards_are_one_array(tmp_path):
    folder = write(tmp_path / "shards")
    array = Shards(sorted(folder.glob("train*")), "<u2")
    assert len(array) == 5000 and array[-1] == IDS[-1] and array[900] == IDS[900]
    assert (array[:] == IDS).all() and (array[895:3510:7] == IDS[895:3510:7]).all()
    places = np.random.default_rng(2).integers(0, 5000, (7, 9))
    assert (array[places] == IDS[places]).all()


@pytest.mark.parametrize("ranks", [1, 2])
def test_the_windows_are_those_of_one_file(tmp_path, ranks):
    tokens = open_tokens(prepare(str(write(tmp_path / "shards")), "bytes", None, tmp_path))
    arguments = {"context": 64, "seed": 3, "update": 5, "micro_batch_size": 4, "accumulation_steps": 4 // ranks}
    for rank in range(ranks):
        ours, theirs = (micro_batches(ids, **arguments, rank=rank, world_size=ranks) for ids in (tokens.train, IDS))
        for (inputs, targets), (expected, further) in zip(ours, theirs, strict=True):
            assert (inputs == expected).all() and (targets == further).all()
    padding_count = sum(
        int((targets >= 0).sum())
        for _, targets in validation_batches(tokens.val, context=64, batch_size=2, rank=0, world_size=1)
    )
    assert padding_count == 299


def test_shards_are_read_once_and_again_when_they_change(tmp_path):
    folder, messages = write(tmp_path / "shards"), []
    first = prepare(str(folder), "bytes", None, tmp_path, messages.append)
    assert prepare(str(folder), "bytes", None, tmp_path, messages.append) == first and len(messages) == 1
    IDS[:10].tofile(folder / "train_000000.bin")
    second = prepare(str(folder), "bytes", None, tmp_path, messages.append)
    assert second != first and len(messages) == 2
    assert open_tokens(first).fingerprint != open_tokens(second).fingerprint


def test_what_cannot_be_right_is_refused(tmp_path):
    folder = write(tmp_path / "shards")
    with pytest.raises(InputError, match="holds tokens, not text: give the folder of the tokenizer"):
        prepare(str(folder), "bpe", 2048, tmp_path)
    (folder / "train_000001.bin").write_bytes(b"123")
    with pytest.raises(InputError, match="train_000001.bin has 3 bytes, expected a positive multiple of 2"):
        prepare(str(folder), "bytes", None, tmp_path)
    np.array([256], "<u2").tofile(folder / "train_000001.bin")
    with pytest.raises(InputError, match="holds the id 256, the tokenizer bytes has 256"):
        prepare(str(folder), "bytes", None, tmp_path)
    folder = write(tmp_path / "with a broken link")
    (folder / "train_of_today.bin").symlink_to("nowhere")
    with pytest.raises(InputError, match="cannot read .*train_of_today.bin: No such file or directory"):
        prepare(str(folder), "bytes", None, tmp_path)
    folder = write(tmp_path / "with a folder")
    (folder / "train_of_today.bin").mkdir()
    with pytest.raises(InputError, match="cannot read .*train_of_today.bin: Is a directory"):
        prepare(str(folder), "bytes", None, tmp_path)


def test_a_run_that_goes_on_reads_the_same_tokens_or_says_so(tmp_path):
    folder, messages = write(tmp_path / "shards"), []
    asked = {"data": str(folder), "tokenizer": "bytes", "vocab_size": 256}
    first = prepare(str(folder), "bytes", None, tmp_path)
    resumed_settings = asked | {"token_file": str(first)}
    assert prepare(str(folder), "bytes", None, tmp_path, messages.append, resumed_settings) == first and not messages
    IDS[:10].tofile(folder / "train_000000.bin")
    assert prepare(str(folder), "bytes", None, tmp_path, messages.append, resumed_settings) != first
    assert "the token files that this run began with are gone (train.bin has checksum" in messages[0]
    (folder / "val.bin").unlink()
    with pytest.raises(InputError, match="no usable token files in"):
        open_tokens(first)
