"""Describe this machine: its cores, memory, GPUs and backends, and its measured FLOP/s and memory bandwidth."""

import html
import platform
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass

import psutil
import torch
import torch.distributed

from ddp_course.base.errors import InputError
from ddp_course.base.quantity import with_prefix

# Notebooks import default_processes, threads_per_process and usable_cores from here.
from ddp_course.launcher.cores import default_processes, system_file, threads_per_process, usable_cores  # noqa: F401

BF16_FLAGS = ("avx512_bf16", "avx_ne_convert", "amx_bf16", "bf16", "svebf16", "smebf16")


@dataclass(frozen=True)
class Machine:
    """The result of `describe`. Cores and memory (bytes) are those that this process may use."""

    cpu: str
    physical_cores: int
    logical_cores: int
    memory_bytes: int
    gpus: tuple[str, ...]
    accelerator: str | None
    backends: tuple[str, ...]
    bf16_instructions: tuple[str, ...]
    torch: str
    python: str
    os: str

    def rows(self) -> list[tuple[str, str]]:
        """The rows of the table: (label, value)."""
        return [
            ("CPU", self.cpu),
            ("cores this process may use", f"{self.physical_cores} physical, {self.logical_cores} logical"),
            ("memory", with_prefix(self.memory_bytes, "B")),
            ("GPUs", ", ".join(self.gpus) or "none"),
            ("accelerator", self.accelerator or "none: computation runs on the CPU"),
            ("torch.distributed backends", ", ".join(self.backends) or "none"),
            ("bf16 instructions of the CPU", ", ".join(self.bf16_instructions) or "none found"),
            ("PyTorch", self.torch),
            ("Python", self.python),
            ("operating system", self.os),
        ]

    def __repr__(self) -> str:
        width = max(len(label) for label, _ in self.rows())
        return "\n".join(f"{label:<{width}}  {value}" for label, value in self.rows())

    def _repr_html_(self) -> str:
        cell = 'style="text-align:left;padding:2px 16px 2px 0"'
        lines = (
            f"<tr><th {cell}>{html.escape(label)}</th><td {cell}>{html.escape(value)}</td></tr>"
            for label, value in self.rows()
        )
        return f"<table><tbody>{''.join(lines)}</tbody></table>"


def describe() -> Machine:
    """Describe this machine; on Linux and macOS, with or without GPUs, without root rights."""
    physical, logical = usable_cores()
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    return Machine(
        cpu=_cpu_name(),
        physical_cores=physical,
        logical_cores=logical,
        memory_bytes=_usable_memory(),
        gpus=tuple(torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())),
        accelerator=accelerator.type if accelerator else None,
        backends=_backends(),
        bf16_instructions=_bf16_instructions(),
        torch=torch.__version__,
        python=platform.python_version(),
        os=_os_name(),
    )


def matmul_peak(dtype: torch.dtype = torch.float32, size: int | None = None, seconds: float = 0.5) -> float:
    """Measure the FLOP/s of a product of two size x size matrices: the highest within `seconds`.

    Runs on a CUDA (or ROCm) GPU if there is one, as the course's scripts do, else on the CPU with this process's
    current number of threads.
    size: 1024 on a CPU and 8192 on a GPU by default. A product counts 2 size^3 FLOP.
    Raises InputError if `dtype` is not a floating-point type.
    """
    if not isinstance(dtype, torch.dtype) or not dtype.is_floating_point:
        raise InputError(f"matmul_peak needs a floating-point torch.dtype such as torch.float32, got {dtype}.")
    device = _training_device()
    size = size or (1024 if device.type == "cpu" else 8192)
    a, b = (torch.randn(size, size, device=device).to(dtype) for _ in range(2))
    out = torch.empty_like(a)
    return 2 * size**3 / _fastest(lambda: torch.matmul(a, b, out=out), seconds)


def memory_bandwidth(seconds: float = 0.5) -> float:
    """Measure the bytes/s of a copy of a block far larger than the caches: the highest within `seconds`.

    Reads and writes count. The block has 256 MiB on a CPU and 1 GiB on a GPU; two are allocated.
    """
    device = _training_device()
    size = 2**28 if device.type == "cpu" else 2**30
    source, target = (torch.ones(size, dtype=torch.uint8, device=device) for _ in range(2))
    return 2 * size / _fastest(lambda: target.copy_(source), seconds)


def _fastest(work: Callable[[], object], seconds: float) -> float:
    """The shortest time of one call of `work`, of three at least. The first call is not counted: it warms up.

    Of three, one may have waited for a core that another program had.
    """
    wait = torch.cuda.synchronize if torch.cuda.is_available() else lambda: None
    work()
    wait()
    best, calls, end = float("inf"), 0, time.perf_counter() + seconds
    while True:
        start = time.perf_counter()
        work()
        wait()
        now = time.perf_counter()
        best, calls = min(best, now - start), calls + 1
        if now >= end and calls >= 3:
            return best


def _training_device() -> torch.device:
    """The device of the course's scripts: a CUDA GPU or the CPU, no other accelerator."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def _backends() -> tuple[str, ...]:
    return tuple(
        name
        for name in ("gloo", "nccl", "mpi", "ucc", "xccl")
        if getattr(torch.distributed, f"is_{name}_available", lambda: False)()
    )


def _bf16_instructions() -> tuple[str, ...]:
    if platform.system() == "Darwin":
        return ("bf16",) if _sysctl("hw.optional.arm.FEAT_BF16") == "1" else ()
    flags = set()
    for line in system_file("/proc/cpuinfo").splitlines():
        if line.lower().startswith(("flags", "features")):  # x86 and Arm name the line differently
            flags |= set(line.partition(":")[2].split())
    return tuple(flag for flag in BF16_FLAGS if flag in flags)


def _cpu_name() -> str:
    if platform.system() == "Darwin":
        return _sysctl("machdep.cpu.brand_string") or platform.machine()
    lines = system_file("/proc/cpuinfo").splitlines()
    names = [line.partition(":")[2] for line in lines if line.startswith("model name")]
    return " ".join(names[0].split()) if names else platform.processor() or platform.machine()


def _os_name() -> str:
    if platform.system() == "Darwin":
        return f"macOS {platform.mac_ver()[0]}, {platform.machine()}"
    try:
        name = platform.freedesktop_os_release()["PRETTY_NAME"] + ", "
    except (OSError, KeyError):
        name = ""
    kernel = ".".join(platform.release().split(".")[:2])
    return f"{name}{platform.system()} {kernel}, {platform.machine()}"


def _usable_memory() -> int:
    limit = system_file("/sys/fs/cgroup/memory.max")
    total = psutil.virtual_memory().total
    return min(total, int(limit)) if limit.isdigit() else total


def _sysctl(name: str) -> str:
    result = subprocess.run(["sysctl", "-n", name], capture_output=True, text=True, timeout=5)
    return result.stdout.strip() if result.returncode == 0 else ""
