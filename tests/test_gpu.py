"""On a machine with a GPU: the trainer under NCCL, by torchrun. Everywhere else these tests skip themselves."""

import pytest
import torch
from training_runs import launch, metrics

from ddp_course.launcher import RunFailed
from ddp_course.training.throughput import peak_flops

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
GPT2 = ("--preset", "gpt2", "--steps", 6, "--tokens-per-update", 65_536, "--log-every", 1, "--checkpoint-every", 0)


@pytest.mark.parametrize(
    "flags",
    [GPT2, (*GPT2, "--compile"), ("--steps", 6, "--precision", "float16"), ("--steps", 6, "--precision", "tf32")],
    ids=["eager", "compiled", "float16", "tf32"],
)
def test_it_trains_on_one_gpu(tmp_path, flags):
    launch(tmp_path, *flags, nproc=1, timeout=600)
    assert metrics(tmp_path)[6] < metrics(tmp_path)[1]


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_two_gpus_equal_one(tmp_path):
    launch(tmp_path / "one", "--steps", 6, "--precision", "float64", nproc=1)
    launch(tmp_path / "two", "--steps", 6, "--precision", "float64", nproc=2)
    assert metrics(tmp_path / "two") == pytest.approx(metrics(tmp_path / "one"), abs=1e-10)


def test_more_processes_than_gpus_is_refused(tmp_path):
    too_many = torch.cuda.device_count() + 1
    with pytest.raises(RunFailed, match=rf"{too_many} processes were started .* has {too_many - 1} GPU"):
        launch(tmp_path, nproc=too_many)


@pytest.mark.skipif(
    torch.cuda.is_available() and peak_flops(torch.cuda.get_device_name(), "bfloat16") is None,
    reason="needs a GPU whose peak is known",
)
def test_utilisation_is_a_share(tmp_path):
    launch(tmp_path, *GPT2, nproc=1, timeout=600)
    assert 0 < metrics(tmp_path, "mfu")[6] < 1
