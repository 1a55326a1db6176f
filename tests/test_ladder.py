"""The equivalence ladder: N processes are one process on the joint batch, rung by rung.

Why equality is not bit-equality: N ranks add the same gradients in another order. One reordered sum of n terms
moves by about n times the unit roundoff (1e-16 in float64, 6e-8 in float32); a few updates amplify that. The
tolerances of 1e-10 and 1e-5 leave room for it and for nothing else: leaving one window out moves the loss by 1e-2.
"""

import pytest
from training_runs import checkpoint, largest_gap, metrics, train, train_alone

from ddp_course.data.token_file import open_tokens, prepare
from ddp_course.minigpt_ddp import PRESETS

STEPS = 6
TOLERANCE = {"float64": 1e-10, "float32": 1e-5}
# 2,048 tokens an update, 64 a window: 32 windows. Micro-batches of 8 make 4, 2, 1 micro-steps on 1, 2, 4 ranks;
# micro-batches of 2 make 16, 8, 4.
MICRO_BATCH = {"some accumulation": 8, "more accumulation": 2}


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Each run is made once: (precision, micro-batch size, ranks) -> its folder."""
    made = {}

    def run(precision, micro_batch_size, nproc):
        key = (precision, micro_batch_size, nproc)
        if key not in made:
            made[key] = tmp_path_factory.mktemp("run")
            flags = ("--steps", STEPS, "--precision", precision, "--micro-batch-size", micro_batch_size)
            if nproc == 1:
                assert train_alone(made[key], *flags).returncode == 0
            else:
                train(made[key], *flags, nproc=nproc)
        return made[key]

    return run


@pytest.mark.parametrize("nproc", [2, 4])
@pytest.mark.parametrize("accumulation", MICRO_BATCH)
@pytest.mark.parametrize("precision", TOLERANCE)
def test_n_processes_equal_one(runs, precision, accumulation, nproc):
    one = runs(precision, MICRO_BATCH[accumulation], 1)
    several = runs(precision, MICRO_BATCH[accumulation], nproc)
    tolerance = TOLERANCE[precision]
    for key in ("loss", "grad_norm", "val_loss"):
        assert metrics(several, key) == pytest.approx(metrics(one, key), abs=tolerance, rel=tolerance)
    assert len(metrics(one)) == STEPS
    assert largest_gap(checkpoint(several, STEPS)["model"], checkpoint(one, STEPS)["model"]) <= tolerance


@pytest.mark.parametrize("precision", TOLERANCE)
def test_accumulation_equals_one_large_batch(runs, precision):
    whole, parts = runs(precision, 32, 1), runs(precision, 2, 1)
    assert metrics(parts) == pytest.approx(metrics(whole), abs=TOLERANCE[precision])
    assert largest_gap(checkpoint(parts, STEPS)["model"], checkpoint(whole, STEPS)["model"]) <= TOLERANCE[precision]


def test_the_ladder_would_notice_another_seed(runs, tmp_path):
    """The comparison can fail: another order of the same data is far outside every tolerance."""
    one = runs("float64", 8, 1)
    assert train_alone(tmp_path, "--steps", STEPS, "--precision", "float64", "--seed", 2).returncode == 0
    assert largest_gap(checkpoint(tmp_path, STEPS)["model"], checkpoint(one, STEPS)["model"]) > 1e-3


def test_the_first_loss_is_that_of_the_data(runs):
    """Not only equal to each other, but right: the loss of update 0, computed again in the plainest way."""
    import torch

    from ddp_course.data.windows import window_starts
    from ddp_course.models.minigpt import MiniGPT, MiniGPTConfig

    config = PRESETS["tiny"]
    tokens = open_tokens(prepare("stdlib", "bytes"))
    torch.manual_seed(config.seed)
    model = MiniGPT(MiniGPTConfig(256, config.context, config.layers, config.heads, config.width)).double()
    total = 0.0
    for start in window_starts(config.seed, 0, 32, len(tokens.train), config.context):
        window = torch.from_numpy(tokens.train[start : start + config.context + 1].astype("int64"))
        log_probabilities = model(window[None, :-1])[0].log_softmax(-1)
        total -= log_probabilities[torch.arange(config.context), window[1:]].sum().item()
    assert metrics(runs("float64", 8, 2))[1] == pytest.approx(total / config.tokens_per_update, abs=1e-10)
