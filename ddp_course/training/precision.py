"""Which number format the matrix products use, and what makes them use it fast."""

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
LONG_ENOUGH = 0.3  # seconds of trials; at least three of each kind are made
Attention = Literal["fused", "math"]  # as MiniGPT takes it
Trial = Callable[[Attention], Tensor]  # does the work; if its result has a gradient, a backward pass belongs to it
WORTH_IT = 0.97  # what bfloat16 may take of float32's time: for less gain the digits are not given away


@dataclass(frozen=True)
class Arithmetic:
    """How a run computes its matrix products. Its settings keep it, so that a resumed run rounds as before.

    attention: "fused" is torch's kernel; "math" is three operations, two of them matrix products. MiniGPT takes it.
    """

    precision: str
    attention: Attention


def choose_precision(
    world: World, precision: str, context: int, resumed_settings: Mapping[str, object], make_trial: Callable[[], Trial]
) -> Arithmetic:
    """Decide on rank 0 how all ranks compute (collective).

    precision: one of them, or "auto", which stands for the fastest here. context: tokens per window.
    resumed_settings: those of the run that goes on, if one does; with "auto" its arithmetic is kept.
    make_trial: makes a piece of the model's own work to be timed. It is called only where there is a choice.
    Raises InputError for a precision that this device does not have.
    """
    return from_rank_0(world, lambda: _choose(world, precision, context, resumed_settings, make_trial))


def set_matmul_precision(precision: str) -> None:
    """Let float32 mean float32 in this whole process, whatever the environment says; TF32 keeps 10 bits of the inputs.

    torch has no other way than this switch.
    """
    torch.set_float32_matmul_precision("high" if precision == "tf32" else "highest")


def parameter_dtype(precision: str) -> torch.dtype:
    """Weights, gradients and optimizer state stay in full precision; only float64 runs hold them in float64."""
    return torch.float64 if precision == "float64" else torch.float32


def autocast(precision: str, device: torch.device) -> torch.autocast:
    """Matrix products in half precision where `precision` says so; norms, sums and the loss in full."""
    half = HALF.get(precision)
    return torch.autocast(device.type, dtype=half or torch.bfloat16, enabled=half is not None)


def choose_attention(precision: str, device: torch.device, context: int) -> Attention:
    """For a precision that somebody asked for: the same on every machine, because bits depend on it.

    On a CPU in half precision the fused attention saves memory but took longer, as long as the context was short,
    where we measured it (Zen 4). Raises InputError for a precision that this device does not have.
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
    """Time `trial` on a CPU in each way that may pay; returns the one to take and the shortest seconds of each."""
    ways = [Arithmetic("float32", "fused"), Arithmetic("bfloat16", "fused"), Arithmetic("bfloat16", "math")]
    seconds = dict.fromkeys(ways, float("inf"))
    end, rounds = time.perf_counter() + LONG_ENOUGH, 0
    while rounds < 3 or time.perf_counter() < end:  # in turns: a disturbance does not hit one of them alone
        for way in ways:
            seconds[way] = min(seconds[way], seconds_of(way, trial, device))
        rounds += 1
    full, half = ways[0], min(ways[1:], key=seconds.__getitem__)
    return (half if seconds[half] < WORTH_IT * seconds[full] else full), seconds


def seconds_of(way: Arithmetic, trial: Trial, device: torch.device) -> float:
    """Seconds of one run of `trial`, computed in this way."""
    start = time.perf_counter()
    with autocast(way.precision, device):
        result = trial(way.attention)
    if result.requires_grad:
        result.backward()
    return time.perf_counter() - start


def _choose(
    world: World, precision: str, context: int, resumed_settings: Mapping[str, object], make_trial: Callable[[], Trial]
) -> Arithmetic:
    resumed = resumed_settings.get("precision")
    if precision == "auto" and resumed in ("float32", "bfloat16", "float16"):
        attention = choose_attention(resumed, world.device, context)
        if world.device.type == "cpu" and "attention" in resumed_settings:
            attention = "fused" if resumed_settings["attention"] == "fused" else "math"  # "plain" in earlier settings
        return Arithmetic(resumed, attention)
    if precision == "auto" and world.device.type == "cuda":
        precision = "bfloat16" if has_bfloat16(world.device) else "float16"
    elif precision == "auto" and not has_bfloat16(world.device):
        precision = "float32"
    if precision != "auto":
        return Arithmetic(precision, choose_attention(precision, world.device, context))
    chosen, seconds = fastest(make_trial(), world.device)
    times = ", ".join(f"{way.precision} with {way.attention} attention {s * 1e3:.1f} ms" for way, s in seconds.items())
    world.say(f"--precision auto takes {chosen.precision}; a trial took: {times}")
    return chosen
