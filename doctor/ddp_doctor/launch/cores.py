"""How many processes and threads this machine's cores and GPUs allow."""

import os
from pathlib import Path

import psutil


def default_processes() -> int:
    """How many processes a notebook starts: one per CUDA (or ROCm) GPU; two where there is none."""
    import torch  # not at the top: a caller that gives the number of processes need not wait for it

    return torch.cuda.device_count() or 2


def usable_cores() -> tuple[int, int]:
    """(physical, logical) cores that this process may use, within its CPU affinity and its container's quota."""
    if not hasattr(os, "sched_getaffinity"):  # macOS has no affinity
        return psutil.cpu_count(logical=False) or 1, psutil.cpu_count() or 1
    allowed = os.sched_getaffinity(0)
    # Logical cores with the same list of siblings are one physical core.
    siblings = {
        system_file(f"/sys/devices/system/cpu/cpu{core}/topology/thread_siblings_list") or str(core) for core in allowed
    }
    physical, logical = len(siblings), len(allowed)
    quota, _, period = system_file("/sys/fs/cgroup/cpu.max").partition(" ")  # "max 100000" or "150000 100000"
    if quota.isdigit() and period.isdigit():
        most = max(1, int(quota) // int(period))
        physical, logical = min(physical, most), min(logical, most)
    return physical, logical


def system_file(path: str) -> str:
    """The file's text, or "" where this system has no such file."""
    try:
        return Path(path).read_text(encoding="utf-8").strip()
    except OSError:
        return ""
