"""The stream over files: each window once per epoch at any number of ranks, and a state from which any run resumes."""

import itertools
import json
import pickle
from collections import Counter

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from ddp_course.base.errors import InputError
from ddp_course.data.stream import TokenStream

pytestmark = pytest.mark.smoke

CONTEXT = 4
SIZES = [41, 3, 0, 22, 5, 67]  # tokens in each file; the second and third have no window
WINDOWS = sum((size - 1) // CONTEXT for size in SIZES if size)


@pytest.fixture
def files(tmp_path):
    """The tokens of all files count up from 0, so that a window's first token says where it is from."""
    bounds = np.cumsum([0, *SIZES])
    for number, (first, last) in enumerate(itertools.pairwise(bounds)):
        np.arange(first, last, dtype="<u2").tofile(tmp_path / f"{number}.bin")
    return sorted(tmp_path.glob("*.bin"))


def stream(files, **options):
    return TokenStream(files, **{"context": CONTEXT, "global_batch_size": 12, "seed": 7} | options)


def first_tokens(stream_of_rank, batches):
    """The first token of each window in the next `batches` batches of a stream or loader, a list for each batch."""
    return [inputs[:, 0].tolist() for inputs, _ in itertools.islice(stream_of_rank, batches)]


def global_batches(files, world, batches, workers=0, **options):
    """The first tokens of the windows that all ranks read: a list for each global batch, rank 0's windows first."""
    by_rank = []
    for rank in range(world):
        stream_of_rank = stream(files, rank=rank, world_size=world, **options)
        loader = DataLoader(stream_of_rank, batch_size=None, num_workers=workers) if workers else stream_of_rank
        by_rank.append(first_tokens(loader, batches))
    return [sum(parts, []) for parts in zip(*by_rank, strict=True)]


def test_an_epoch_holds_every_window_once(files):
    assert stream(files).windows == WINDOWS
    epochs = global_batches(files, 1, 10, global_batch_size=WINDOWS)
    of_file = np.repeat(range(len(SIZES)), SIZES)
    for epoch in epochs:
        # Windows of a file stand `context` apart: no token is a target twice.
        assert len(set(epoch)) == WINDOWS
        for file in range(len(SIZES)):
            starts = sorted(start for start in epoch if of_file[start] == file)
            assert all(b - a == CONTEXT for a, b in itertools.pairwise(starts))
            assert len(starts) == max(SIZES[file] - 1, 0) // CONTEXT
    assert len({tuple(epoch) for epoch in epochs}) == 10
    assert len({frozenset(epoch) for epoch in epochs}) > 1, "the windows are cut at the same places in every epoch"


def test_a_row_is_a_window_of_one_file_and_its_successors(files):
    of_file = np.repeat(range(len(SIZES)), SIZES)
    for inputs, targets in itertools.islice(stream(files), 20):
        assert inputs.dtype == targets.dtype == torch.int64 and inputs.shape == targets.shape == (12, CONTEXT)
        assert torch.equal(targets, inputs + 1)
        assert all(len(set(of_file[row[0] : row[-1] + 2])) == 1 for row in inputs.tolist())


@pytest.mark.parametrize("world", [2, 3, 4, 6])
def test_no_number_of_ranks_changes_the_global_batch(files, world):
    assert global_batches(files, world, 9) == global_batches(files, 1, 9)


@pytest.mark.parametrize("workers", [1, 2])
def test_no_number_of_workers_changes_the_order(files, workers):
    assert global_batches(files, 2, 9, workers=workers) == global_batches(files, 2, 9)


def test_a_run_resumes_exactly_with_any_ranks_and_batch_size(files):
    whole = sum(global_batches(files, 1, 12), [])
    for batches, world, batch_size in itertools.product((0, 1, 5), (1, 2, 4), (4, 12, 20)):
        state = json.loads(json.dumps(stream(files).state_after(batches)))
        rest = sum(global_batches(files, world, 2, state=state, global_batch_size=batch_size), [])
        assert rest == whole[12 * batches : 12 * batches + 2 * batch_size]
    with_workers = stream(files, state=stream(files).state_after(5), rank=1, world_size=2)
    rest = first_tokens(DataLoader(with_workers, batch_size=None, num_workers=2), 3)
    assert sum(rest, []) == sum((whole[start + 6 : start + 12] for start in range(60, 96, 12)), [])
    twice = stream(files, state=stream(files, state=stream(files).state_after(2)).state_after(3))
    assert sum(first_tokens(twice, 1), []) == whole[60:72]


def test_the_state_is_small_and_the_same_on_all_ranks(files):
    states = [stream(files, rank=rank, world_size=4).state_after(10**6) for rank in range(4)]
    assert all(state == states[0] for state in states) and len(json.dumps(states[0])) < 100


def test_a_resumed_stream_reads_nothing_it_does_not_use(files, monkeypatch):
    read = Counter()
    window = TokenStream.window
    monkeypatch.setattr(TokenStream, "window", lambda self, position: read.update([position]) or window(self, position))
    late = stream(files, state=stream(files).state_after(10**9), rank=1, world_size=2)
    first_tokens(late, 2)
    assert read == Counter({12 * (10**9 + batch) + 6 + row: 1 for batch in range(2) for row in range(6)})


def test_every_seed_and_epoch_has_an_order_of_its_own(files):
    epochs = {seed: first_tokens(stream(files, seed=seed, global_batch_size=WINDOWS), 3) for seed in (0, 1, 2)}
    assert len({tuple(epoch) for of_seed in epochs.values() for epoch in of_seed}) == 9


def test_text_has_one_token_per_byte(tmp_path):
    text = b"def add(a, b):\n    return a + b\n"
    (tmp_path / "add.py").write_bytes(text)
    stream_of_rank = TokenStream([tmp_path / "add.py"], context=len(text) - 1, global_batch_size=1, dtype="u1")
    [(inputs, targets)] = itertools.islice(stream_of_rank, 1)
    assert bytes(inputs[0].tolist()) == text[:-1] and bytes(targets[0].tolist()) == text[1:]


def test_the_pickle_for_a_worker_is_small(tmp_path):
    np.zeros(500_000, dtype="<u2").tofile(tmp_path / "large.bin")
    stream_of_rank = TokenStream([tmp_path / "large.bin"], context=1000, global_batch_size=2)
    list(itertools.islice(stream_of_rank, 3))
    assert len(pickle.dumps(stream_of_rank)) < 20_000
    assert first_tokens(pickle.loads(pickle.dumps(stream_of_rank)), 2) == first_tokens(stream_of_rank, 2)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"global_batch_size": 10, "world_size": 4}, "a batch of 10 windows cannot be shared equally by 4 ranks"),
        ({"global_batch_size": 0}, "a batch of 0 windows"),
        ({"rank": 2, "world_size": 2}, "the rank is 2 with 2 ranks, expected 0 to 1"),
        ({"context": 0}, "expected at least 1"),
        ({"context": 67}, "none of the 6 files has a window: that takes 68 tokens"),
        ({"seed": -1}, "the seed is -1"),
        ({"dtype": "<u4"}, "bytes, expected a multiple of 4"),
    ],
)
def test_bad_input_is_named(files, options, message):
    with pytest.raises(InputError, match=message):
        stream(files, **options)


def test_a_position_in_another_stream_is_refused(files):
    state = stream(files).state_after(3)
    for other in ({"seed": 8}, {"context": 3}, {"dtype": ">u2"}):
        with pytest.raises(InputError, match="resume with the same files, dtype, context and seed"):
            stream(files, state=state, **other)
    with open(files[0], "ab") as file:
        file.write(b"\0\0")
    with pytest.raises(InputError, match="resume with the same files"):
        stream(files, state=state)


def test_missing_files_are_named(tmp_path):
    for files, message in (([tmp_path / "no.bin"], "no.bin: No such file"), ([], "none of the 0 files")):
        with pytest.raises(InputError, match=message):
            stream(files)
