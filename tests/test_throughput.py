"""The next batch is sent early; the share of a GPU's peak is logged where the peak is known."""

import torch
from training_runs import metrics, train_here

from ddp_course import minigpt_ddp
from ddp_course.training.throughput import peak_flops, prefetch


class Part:
    """Stands for a tensor; logs when `prefetch` pins and sends it."""

    def __init__(self, number, log):
        self.number, self.log = number, log

    def pin_memory(self):
        self.log.append(f"pin {self.number}")
        return self

    def to(self, device, non_blocking):
        assert non_blocking and device.type == "cuda"
        self.log.append(f"send {self.number}")
        return self


def test_the_next_batch_is_sent_before_this_one_is_used():
    log = []
    for (part,) in prefetch(((Part(n, log),) for n in range(3)), torch.device("cuda")):
        log.append(f"use {part.number}")
    assert log == ["pin 0", "send 0", "pin 1", "send 1", "use 0", "pin 2", "send 2", "use 1", "use 2"]


def test_on_a_cpu_batches_pass_as_they_are_and_none_is_read_early():
    log = []
    batches = [(torch.tensor(n),) for n in range(3)]
    for batch in prefetch((log.append(n) or batch for n, batch in enumerate(batches)), torch.device("cpu")):
        assert batch is batches[len(log) - 1]
    assert log == [0, 1, 2]


def test_peaks_are_found_by_name():
    assert peak_flops("NVIDIA H100 80GB HBM3", "bfloat16") == 989e12
    assert peak_flops("NVIDIA H100 PCIe", "tf32") == 378e12
    assert peak_flops("NVIDIA A100-SXM4-80GB", "float32") == 19.5e12
    assert peak_flops("NVIDIA L40S", "bfloat16") == 362e12
    assert peak_flops("NVIDIA A100-SXM4-80GB", "float64") is None
    for unknown in ("Some GPU of next year", "NVIDIA L40", "NVIDIA RTX A4000", "NVIDIA RTX A1000", "NVIDIA T400"):
        assert peak_flops(unknown, "bfloat16") is None


def test_utilisation_is_logged_where_the_peak_is_known(tmp_path, monkeypatch):
    flags = ("--steps", 2)
    assert "mfu" not in train_here(tmp_path / "unknown", *flags) and not metrics(tmp_path / "unknown", "mfu")
    monkeypatch.setattr(minigpt_ddp, "peak_per_second", lambda *_: 1e6)
    printed = train_here(tmp_path / "known", *flags)
    speed = metrics(tmp_path / "known", "tokens_per_s")
    assert metrics(tmp_path / "known", "mfu") == {step: rate / 1e6 for step, rate in speed.items()}
    assert f"tokens/s  mfu {speed[2] / 1e6:.1%}" in printed
