"""Choose the number format of the matrix products, and the attention that is fastest in it."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from ddp_course.base.errors import InputError
from ddp_course.distributed.process_group import World
from ddp_course.distributed.sync import from_rank_0

HALF = {"bfloat16": torch.bfloat16, "float16": torch.float16}
TRIAL_SECONDS = 0.3  # of all trials; at least three of each arithmetic are made
Attention = Literal["fused", "math"]  # as MiniGPT takes it
Trial = Callable[[Attention], Tensor]  # does the work; a result that requires a gradient gets a backward pass
LARGEST_TIME_SHARE = 0.97  # bfloat16 has to take less than this share of float32's time to be worth its lost digits


@dataclass(frozen=True)
class Arithmetic:
    """How a run computes its matrix products. config.json holds it, so that a resumed run rounds as before.

    attention: "fused" is torch's kernel; "math" is three operations, two of them matrix products.
    """

    precision: str
    attention: Attention


def choose_precision(
    world: World, precision: str, context: int, resumed_settings: Mapping[str, object], make_trial: Callable[[], Trial]
) -> Arithmetic:
    """Choose on rank 0 how all ranks compute (collective).

    precision: that of `RunSettings`; "auto" stands for the fastest here. context: tokens per window.
    resumed_settings: those of the run that is resumed, or {}; with "auto" its arithmetic is kept.
    make_trial: returns a part of the model's work, to be timed. It is called only where there is a choice.
    Raises InputError for a precision that this device does not have.
    """
    return from_rank_0(world, lambda: _choose(world, precision, context, resumed_settings, make_trial))


def set_matmul_precision(precision: str) -> None:
    """Set torch's switch for float32 matrix products in this process: TF32 (10 bits of the inputs) or float32.

    Set for every precision, because the environment can set it too. torch has no other way than this switch.
    """
    torch.set_float32_matmul_precision("high" if precision == "tf32" else "highest")


def parameter_dtype(precision: str) -> torch.dtype:
    """The dtype of weights, gradients and optimizer state: float64 for float64, float32 for all others."""
    return torch.float64 if precision == "float64" else torch.float32


def autocast(precision: str, device: torch.device) -> torch.autocast:
    """The context of a forward pass: with bfloat16 or float16, matrix products are computed in it, in float32 the
    operations that need its range, such as norms, sums and the loss."""
    half = HALF.get(precision)
    return torch.autocast(device.type, dtype=half or torch.bfloat16, enabled=half is not None)


def choose_attention(precision: str, device: torch.device, context: int) -> Attention:
    """The attention for a precision that is not "auto": never timed, because the bits of the results depend on it.

    On a CPU (measured on Zen 4) in half precision, fused attention saves memory, but takes longer if the context is
    short. Raises InputError for a precision that this device does not have.
    """
    if device.type == "cpu" and precision in ("float16", "tf32"):
        raise InputError(f"--precision {precision} needs a GPU; on a CPU use bfloat16 or float32")
    return "math" if device.type == "cpu" and precision in HALF and context <= 512 else "fused"


def has_bfloat16(device: torch.device) -> bool:
    """Whether the hardware computes in bfloat16. Emulated it is many times slower than float32."""
    if device.type == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    capabilities = torch.cpu.get_capabilities()
    return any(capabilities.get(unit) for unit in ("avx512_bf16", "amx_bf16", "bf16"))


def fastest(trial: Trial, device: torch.device) -> tuple[Arithmetic, dict[Arithmetic, float]]:
    """Time `trial` on a CPU in three arithmetics; returns the one to take, and the shortest seconds of each."""
    candidates = [Arithmetic("float32", "fused"), Arithmetic("bfloat16", "fused"), Arithmetic("bfloat16", "math")]
    seconds = dict.fromkeys(candidates, float("inf"))
    end, rounds = time.perf_counter() + TRIAL_SECONDS, 0
    while rounds < 3 or time.perf_counter() < end:  # in turns, so that a disturbance does not hit only one of them
        for candidate in candidates:
            seconds[candidate] = min(seconds[candidate], seconds_of(candidate, trial, device))
        rounds += 1
    full = candidates[0]
    half = min(candidates[1:], key=seconds.__getitem__)
    return (half if seconds[half] < LARGEST_TIME_SHARE * seconds[full] else full), seconds


def seconds_of(arithmetic: Arithmetic, trial: Trial, device: torch.device) -> float:
    """Seconds of one run of `trial` in this arithmetic, with its backward pass if it has one."""
    start = time.perf_counter()
    with autocast(arithmetic.precision, device):
        result = trial(arithmetic.attention)
    if result.requires_grad:
        result.backward()
    return time.perf_counter() - start


def _choose(
    world: World, precision: str, context: int, resumed_settings: Mapping[str, object], make_trial: Callable[[], Trial]
) -> Arithmetic:
    resumed_precision = resumed_settings.get("precision")
    if precision == "auto" and resumed_precision in ("float32", "bfloat16", "float16"):
        attention = choose_attention(resumed_precision, world.device, context)
        if world.device.type == "cpu" and "attention" in resumed_settings:
            attention = "fused" if resumed_settings["attention"] == "fused" else "math"
        return Arithmetic(resumed_precision, attention)
    if precision == "auto" and world.device.type == "cuda":
        precision = "bfloat16" if has_bfloat16(world.device) else "float16"
    elif precision == "auto" and not has_bfloat16(world.device):
        precision = "float32"
    if precision != "auto":
        return Arithmetic(precision, choose_attention(precision, world.device, context))
    chosen, seconds = fastest(make_trial(), world.device)
    times = ", ".join(f"{a.precision} with {a.attention} attention {s * 1e3:.1f} ms" for a, s in seconds.items())
    world.say(f"--precision auto takes {chosen.precision}; a trial took: {times}")
    return chosen
