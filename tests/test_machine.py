"""The description of the machine, checked against the system and with made-up systems, and its measurements."""

import os
import subprocess
import sys
from html import escape
from types import SimpleNamespace

import psutil
import pytest
import torch
from ddp_doctor.launch import cores

from ddp_course.base.errors import InputError
from ddp_course.lab import machine
from ddp_course.launcher import cores as launcher_cores

pytestmark = pytest.mark.smoke


def test_the_description_agrees_with_the_system():
    described = machine.describe()
    assert 1 <= described.physical_cores <= described.logical_cores <= os.cpu_count()
    assert 2**28 < described.memory_bytes <= psutil.virtual_memory().total
    assert described.torch == torch.__version__ and described.python == sys.version.split()[0]
    assert len(described.gpus) == torch.cuda.device_count()
    assert (described.accelerator is None) == (not torch.accelerator.is_available())
    assert ("gloo" in described.backends) == torch.distributed.is_gloo_available()
    assert described.cpu.strip() and described.os.strip()


def test_both_tables_hold_every_row():
    described = machine.describe()
    page = described._repr_html_()
    assert page.count("<tr>") == len(described.rows()) == len(repr(described).splitlines())
    for what, value in described.rows():
        assert what in repr(described) and value in repr(described)
        assert escape(what) in page and escape(value) in page


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="this system has no CPU affinity")
def test_affinity_limits_the_cores():
    core = min(os.sched_getaffinity(0))
    code = f"import os; os.sched_setaffinity(0, [{core}]); from ddp_doctor.launch.cores import *; print(usable_cores())"
    finished = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=600)
    assert finished.stdout.strip() == "(1, 1)", finished.stderr


def fake_files(monkeypatch, files, allowed):
    for module in (cores, machine):
        monkeypatch.setattr(module, "system_file", lambda path: files.get(path, ""))
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(allowed)), raising=False)


def test_two_hyperthreads_are_one_physical_core(monkeypatch):
    topology = "/sys/devices/system/cpu/cpu{}/topology/thread_siblings_list"
    fake_files(monkeypatch, {topology.format(core): f"{core % 2},{core % 2 + 2}" for core in range(4)}, allowed=4)
    assert cores.usable_cores() == (2, 4)


@pytest.mark.parametrize(
    ("quota", "expected"), [("150000 100000", 1), ("300000 100000", 3), ("max 100000", 8), ("", 8)]
)
def test_a_container_quota_limits_the_cores(monkeypatch, quota, expected):
    fake_files(monkeypatch, {"/sys/fs/cgroup/cpu.max": quota}, allowed=8)
    assert cores.usable_cores() == (expected, expected)


def test_bf16_instructions_are_read_from_the_flags(monkeypatch):
    monkeypatch.setattr(machine.platform, "system", lambda: "Linux")
    fake_files(monkeypatch, {"/proc/cpuinfo": "flags\t\t: sse amx_bf16 avx512_bf16\nbugs : bf16"}, allowed=1)
    assert machine._bf16_instructions() == ("avx512_bf16", "amx_bf16")
    fake_files(monkeypatch, {"/proc/cpuinfo": "Features : fp asimd bf16"}, allowed=1)
    assert machine._bf16_instructions() == ("bf16",)


def test_on_macos_the_description_comes_from_sysctl(monkeypatch):
    answers = {"machdep.cpu.brand_string": "Apple M3", "hw.optional.arm.FEAT_BF16": "1"}
    monkeypatch.setattr(machine.platform, "system", lambda: "Darwin")
    monkeypatch.setattr(machine.platform, "mac_ver", lambda: ("15.1", (), "arm64"))
    monkeypatch.setattr(machine, "_sysctl", answers.get)
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    monkeypatch.setattr(machine, "system_file", lambda path: "")
    described = machine.describe()
    assert (described.cpu, described.bf16_instructions) == ("Apple M3", ("bf16",))
    assert described.os.startswith("macOS 15.1")
    assert described.logical_cores == psutil.cpu_count()


@pytest.mark.parametrize(("gpus", "processes"), [(0, 2), (1, 1), (8, 8)])
def test_one_process_per_gpu_else_two(monkeypatch, gpus, processes):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    assert cores.default_processes() == processes


def test_threads_share_the_physical_cores_and_are_never_zero(monkeypatch):
    monkeypatch.setattr(launcher_cores, "usable_cores", lambda: (6, 12))
    assert [launcher_cores.threads_per_process(n) for n in (1, 2, 4, 6, 100)] == [6, 3, 1, 1, 1]
    for bad in (0, -1):
        with pytest.raises(InputError, match="at least one"):
            launcher_cores.threads_per_process(bad)


@pytest.mark.parametrize(
    "pauses",
    [
        [1.0, 4.0, 2.0, 4.0, 0.5],  # the first is the warm-up, the last is past the end
        [1.0, 30.0, 2.0, 4.0, 0.5],  # one waits for a core
    ],
)
def test_the_fastest_call_counts_and_the_first_does_not(monkeypatch, pauses):
    clock, pauses = [0.0], iter(pauses)

    def work():
        clock[0] += next(pauses)

    monkeypatch.setattr(machine, "time", SimpleNamespace(perf_counter=lambda: clock[0]))
    assert machine._fastest(work, seconds=9.0) == 2.0


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_matmul_peak_counts_two_flop_for_each_multiply_and_add(monkeypatch, dtype):
    monkeypatch.setattr(machine, "_fastest", lambda work, seconds: (work(), 0.5)[1])
    assert machine.matmul_peak(dtype, size=32) == 2 * 32**3 / 0.5


def test_memory_bandwidth_counts_reads_and_writes(monkeypatch):
    monkeypatch.setattr(machine, "_fastest", lambda work, seconds: 0.5)
    block = 2**30 if torch.cuda.is_available() else 2**28
    assert machine.memory_bandwidth() == 2 * block / 0.5


def test_measurements_are_plausible_on_any_machine():
    assert 1e7 < machine.matmul_peak(size=256, seconds=0.05) < 1e16
    assert 1e8 < machine.memory_bandwidth(seconds=0.05) < 1e14


@pytest.mark.parametrize("dtype", [torch.int64, "float32"])
def test_matmul_peak_needs_a_floating_point_type(dtype):
    with pytest.raises(InputError, match="floating-point"):
        machine.matmul_peak(dtype)
