"""Packed windows: every token once, nothing across documents, equal at any world size, and the trainer on them."""

import json

import numpy as np
import pytest
from disturbance import copy_up_to
from training_runs import assert_same_run, checkpoint, largest_gap, metrics, train, train_here

from ddp_course.base.errors import InputError
from ddp_course.data.packing import PackedWindows, best_fit, chunk_documents, document_ends
from ddp_course.data.windows import IGNORED

END, CONTEXT = 0, 16


def corpus(lengths):
    """Documents of these numbers of tokens, each ended by END; all other tokens are different."""
    tokens = np.arange(1, 1 + sum(lengths))
    tokens[np.cumsum(lengths) - 1] = END
    return tokens


RAGGED = [1, 2, 3, 16, 17, 18, 5, 33, 34, 100, 1, 7, *np.random.default_rng(1).integers(1, 60, 80).tolist()]


def packed(lengths=RAGGED):
    return PackedWindows(corpus(lengths), END, CONTEXT, seed=3, per_update=8 * CONTEXT)


def test_every_token_but_a_documents_first_is_a_target_once():
    tokens, windows = corpus(RAGGED), packed()
    pairs = []
    for number in range(len(windows)):
        inputs, targets = windows.window(number)
        assert inputs.shape == targets.shape == (CONTEXT,) and inputs.dtype == targets.dtype == np.int64
        counted = targets != IGNORED
        pairs += zip(inputs[counted].tolist(), targets[counted].tolist(), strict=True)
    expected = [pair for pair in zip(tokens[:-1].tolist(), tokens[1:].tolist(), strict=True) if pair[0] != END]
    assert sorted(pairs) == sorted(expected)
    assert windows.fill_rate == len(expected) / (len(windows) * CONTEXT)


def test_a_document_that_fits_stays_whole():
    lengths = np.array(RAGGED)
    starts, sizes = chunk_documents(np.cumsum(lengths), CONTEXT)
    begins = np.cumsum(lengths) - lengths
    whole = (lengths > 1) & (lengths <= CONTEXT + 1)
    assert set(zip(begins[whole], lengths[whole], strict=True)) <= set(zip(starts, sizes, strict=True))
    assert sizes.min() >= 2 and sizes.max() == CONTEXT + 1


def test_the_best_fit_is_taken_and_windows_are_nearly_full():
    assert best_fit(np.array([3, 9, 8, 1, 2]), 10).tolist() == [2, 0, 1, 0, 1], "9 + 1, 8 + 2, and 3 alone"
    lengths = np.random.default_rng(2).integers(2, 40, 3000)
    windows = best_fit(lengths, 100)
    filled = np.bincount(windows, weights=lengths)
    assert filled.max() <= 100 and filled.sum() == lengths.sum()
    assert len(filled) <= 1.02 * lengths.sum() / 100, "close to the smallest number there can be"


@pytest.mark.parametrize("world_size", [2, 4])
def test_world_sizes_share_one_global_batch(world_size):
    windows = packed()
    [single] = windows.micro_batches(step=5, micro_batch_size=8, gradient_accumulation_steps=1, rank=0, world_size=1)
    sizes = {"micro_batch_size": 2, "gradient_accumulation_steps": 4 // world_size, "world_size": world_size}
    shares = [list(windows.micro_batches(step=5, rank=rank, **sizes)) for rank in range(world_size)]
    for kind, whole in enumerate(single):
        rows = [share[step][kind] for step in range(4 // world_size) for share in shares]
        assert np.array_equal(np.concatenate(rows), whole)
    assert int((single[1] != IGNORED).sum()) == windows.targets(5)
    assert windows.targets(5) != windows.targets(6), "steps differ in their targets"


def test_a_document_ends_after_its_end_of_text_and_the_last_at_the_end():
    assert document_ends(np.array([1, END, END, 2, 3]), END).tolist() == [2, 3, 5], "the last has no end of its own"
    assert document_ends(np.array([1, END]), END).tolist() == [2]


def test_documents_of_one_token_are_refused():
    with pytest.raises(InputError, match="--pack needs a document of 2 tokens or more, the corpus has 3 tokens in all"):
        packed([1, 1, 1])


# ---- the trainer -------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def code(tmp_path_factory):
    folder = tmp_path_factory.mktemp("code")
    for n in range(60):
        (folder / f"{n:02}.txt").write_text("".join(f"line {n} {line}\n" for line in range(1 + n % 7)))
    return folder


def flags(code, *more):
    words = "--pack --precision float64 --steps 4 --checkpoint-every 2 --keep-checkpoints 0 --validate-every 0"
    return ["--data", code, *words.split(), *more]


@pytest.fixture(scope="module")
def single(code, tmp_path_factory):
    run_dir = tmp_path_factory.mktemp("single")
    return run_dir, train_here(run_dir, *flags(code))


def test_two_processes_take_the_steps_of_one(single, code, tmp_path):
    """A loss divided by the targets of a rank would differ: ranks differ in how full their windows are."""
    train(tmp_path / "two", *flags(code))
    for key in ("loss", "grad_norm", "fill_rate", "val_loss"):
        assert metrics(single[0], key) == pytest.approx(metrics(tmp_path / "two", key), rel=1e-9)
    assert len(set(metrics(single[0], "fill_rate").values())) > 1
    assert largest_gap(checkpoint(single[0], 4)["model"], checkpoint(tmp_path / "two", 4)["model"]) < 1e-9


def test_a_loss_is_a_mean_over_targets(single):
    """Divided by all positions, with padding, it would be smaller by the fill rate."""
    loss, rate = metrics(single[0])[1], metrics(single[0], "fill_rate")[1]
    assert loss == pytest.approx(np.log(256), rel=0.02), "an untrained model predicts every byte alike"
    assert rate < 0.95, "so that the other divisor would show"


def test_the_fill_rate_is_printed_and_logged(single):
    run_dir, printed = single
    assert "packed windows, 9" in printed and "% filled" in printed
    assert all(0.5 < rate <= 1 for rate in metrics(run_dir, "fill_rate").values())
    assert json.loads((run_dir / "config.json").read_text())["pack"] is True


def test_resume_is_bit_equal_and_refuses_other_windows(single, code, tmp_path):
    run_dir = copy_up_to(single[0], 2, tmp_path / "run")
    train_here(run_dir, *flags(code, "--resume", "auto"))
    assert_same_run(run_dir, single[0], 4)
    run_dir = copy_up_to(single[0], 2, tmp_path / "other")
    with pytest.raises(InputError, match="it has data and tokenizer .* packed, this run has"):
        train_here(run_dir, *(flag for flag in flags(code, "--resume", "auto") if flag != "--pack"))
