"""This machine, in the words of the course: its cores, memory, GPUs, backends, and how fast it really is."""

import html
import platform
import subprocess
import time
from dataclasses import dataclass

import psutil
import torch
import torch.distributed

from ddp_course.base.errors import InputError
from ddp_course.base.quantity import with_prefix
from ddp_course.launcher.cores import default_processes, system_file, threads_per_process, usable_cores  # noqa: F401

BF16_FLAGS = ("avx512_bf16", "avx_ne_convert", "amx_bf16", "bf16", "svebf16", "smebf16")


@dataclass(frozen=True)
class Machine:
    """What `describe` found. Sizes in bytes; cores and memory are what this process may use, not what is built in."""

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
        """(what, value) for each line of the table."""
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
        width = max(len(what) for what, _ in self.rows())
        return "\n".join(f"{what:<{width}}  {value}" for what, value in self.rows())

    def _repr_html_(self) -> str:
        cell = 'style="text-align:left;padding:2px 16px 2px 0"'
        lines = (
            f"<tr><th {cell}>{html.escape(what)}</th><td {cell}>{html.escape(value)}</td></tr>"
            for what, value in self.rows()
        )
        return f"<table><tbody>{''.join(lines)}</tbody></table>"


def describe() -> Machine:
    """This machine, as far as it can be seen without being root; on Linux and macOS, with and without GPUs."""
    physical, logical = usable_cores()
    return Machine(
        cpu=_cpu_name(),
        physical_cores=physical,
        logical_cores=logical,
        memory_bytes=_usable_memory(),
        gpus=tuple(torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())),
        accelerator=None if _device().type == "cpu" else _device().type,
        backends=_backends(),
        bf16_instructions=_bf16_instructions(),
        torch=torch.__version__,
        python=platform.python_version(),
        os=_os_name(),
    )


def matmul_peak(dtype: torch.dtype = torch.float32, size: int | None = None, seconds: float = 0.5) -> float:
    """FLOP/s of the fastest product of two size x size matrices, tried again and again for `seconds`.

    On a CUDA (or ROCm) GPU if there is one, as the course's scripts are, else on the CPU with this process's current
    number of threads.
    size: 1024 on a CPU and 8192 on a GPU by default. A product counts 2 size^3 FLOP.
    Raises InputError if `dtype` is not a floating-point type.
    """
    if not isinstance(dtype, torch.dtype) or not dtype.is_floating_point:
        raise InputError(f"matmul_peak needs a floating-point torch.dtype such as torch.float32, got {dtype}.")
    device = _scripts_run_on()
    size = size or (1024 if device.type == "cpu" else 8192)
    a, b = (torch.randn(size, size, device=device).to(dtype) for _ in range(2))
    out = torch.empty_like(a)
    return 2 * size**3 / _fastest(lambda: torch.matmul(a, b, out=out), seconds)


def memory_bandwidth(seconds: float = 0.5) -> float:
    """Bytes/s of the fastest copy of a block far larger than the caches: each byte counts as read and as written.

    The block has 256 MiB on a CPU and 1 GiB on a GPU; two are allocated.
    """
    device = _scripts_run_on()
    size = 2**28 if device.type == "cpu" else 2**30
    source, target = (torch.ones(size, dtype=torch.uint8, device=device) for _ in range(2))
    return 2 * size / _fastest(lambda: target.copy_(source), seconds)


def _fastest(work, seconds: float) -> float:
    """The shortest time of one call of `work`, in seconds. The first call is not counted: it warms up."""
    wait = torch.cuda.synchronize if torch.cuda.is_available() else lambda: None
    work()
    wait()
    best, end = float("inf"), time.perf_counter() + seconds
    while True:
        start = time.perf_counter()
        work()
        wait()
        now = time.perf_counter()
        best = min(best, now - start)
        if now >= end:
            return best


def _device() -> torch.device:
    """Where computation runs: the accelerator if one is present (not only compiled in), else the CPU."""
    return torch.accelerator.current_accelerator(check_available=True) or torch.device("cpu")


def _scripts_run_on() -> torch.device:
    """What the course's scripts compute on: other accelerators are shown by `describe`, but not trained on."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def _backends() -> tuple[str, ...]:
    if not torch.distributed.is_available():
        return ()
    return tuple(
        name
        for name in ("gloo", "nccl", "mpi", "ucc", "xccl")
        if getattr(torch.distributed, f"is_{name}_available", lambda: False)()
    )


def _bf16_instructions() -> tuple[str, ...]:
    if platform.system() == "Darwin":
        return ("bf16",) if _sysctl("hw.optional.arm.FEAT_BF16") == "1" else ()
    found = set()
    for line in system_file("/proc/cpuinfo").splitlines():
        if line.lower().startswith(("flags", "features")):  # x86 and Arm name the line differently
            found |= set(line.partition(":")[2].split())
    return tuple(flag for flag in BF16_FLAGS if flag in found)


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
    found = subprocess.run(["sysctl", "-n", name], capture_output=True, text=True, timeout=5)
    return found.stdout.strip() if found.returncode == 0 else ""
