"""Which number format the matrix products use, and what makes them use it fast."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from ddp_course.base.errors import InputError
from ddp_course.distributed.process_group import World
from ddp_course.distributed.sync import from_rank_0

HALF = {"bfloat16": torch.bfloat16, "float16": torch.float16}
LONG_ENOUGH = 0.3  # seconds of trials; at least three of each kind are made
Trial = Callable[[], Tensor]  # does the work; if what it returns has a gradient, a backward pass belongs to it
WORTH_IT = 0.97  # what bfloat16 may take of float32's time: for less gain the digits are not given away


@dataclass(frozen=True)
class Arithmetic:
    """How a run computes its matrix products. Its settings keep it, so that a resumed run rounds as before.

    attention: "fused" leaves torch its fused kernel; "plain" is three operations, two of them matrix products.
    """

    precision: str
    attention: str

    def use(self) -> None:
        """Set torch's switches, for this whole process. The one for attention is named after CUDA: it holds for CPUs
        as well. float32 means float32, whatever the environment says; TF32 keeps 10 bits of the inputs."""
        plain = self.attention == "plain"
        torch.backends.cuda.enable_flash_sdp(not plain)
        torch.backends.cuda.allow_fp16_bf16_reduction_math_sdp(plain)  # else it would compute in float32
        torch.set_float32_matmul_precision("high" if self.precision == "tf32" else "highest")


def settle_arithmetic(
    world: World, wanted: str, context: int, before: Mapping[str, object], trial: Callable[[], Trial]
) -> Arithmetic:
    """Decide on rank 0 how all ranks compute, and set their switches (collective). Call it before the model is built.

    wanted: a precision, or "auto", which stands for the fastest here. context: tokens per window.
    before: the settings of the run that goes on, if one does; with "auto" its arithmetic is kept.
    trial: makes a piece of the model's own work to be timed. It is called only where there is a choice.
    Raises InputError for a precision that this device does not have.
    """
    chosen = from_rank_0(world, lambda: _choose(world, wanted, context, before, trial))
    chosen.use()
    return chosen


def parameter_dtype(precision: str) -> torch.dtype:
    """Weights, gradients and optimizer state stay in full precision; only float64 runs hold them in float64."""
    return torch.float64 if precision == "float64" else torch.float32


def autocast(precision: str, device: torch.device) -> torch.autocast:
    """Matrix products in half precision where `precision` says so; norms, sums and the loss in full."""
    half = HALF.get(precision)
    return torch.autocast(device.type, dtype=half or torch.bfloat16, enabled=half is not None)


def by_rule(precision: str, device: torch.device, context: int) -> Arithmetic:
    """For a precision that somebody asked for: the same on every machine, because bits depend on it.

    On a CPU in half precision the fused attention saves memory but took longer, as long as the context was short,
    where we measured it (Zen 4).
    """
    if device.type == "cpu" and precision in ("float16", "tf32"):
        raise InputError(f"--precision {precision} needs a GPU; on a CPU use bfloat16 or float32")
    plain = device.type == "cpu" and precision in HALF and context <= 512
    return Arithmetic(precision, "plain" if plain else "fused")


def has_bfloat16(device: torch.device) -> bool:
    """Whether the hardware computes in bfloat16. Emulated it is many times slower than float32."""
    if device.type == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    capabilities = torch.cpu.get_capabilities()
    return any(capabilities.get(unit) for unit in ("avx512_bf16", "amx_bf16", "bf16"))


def fastest(trial: Trial, device: torch.device) -> tuple[Arithmetic, dict[Arithmetic, float]]:
    """Time `trial` on a CPU in each way that may pay; returns the one to take and the shortest seconds of each."""
    ways = [Arithmetic("float32", "fused"), Arithmetic("bfloat16", "fused"), Arithmetic("bfloat16", "plain")]
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
    way.use()
    start = time.perf_counter()
    with autocast(way.precision, device):
        result = trial()
    if result.requires_grad:
        result.backward()
    return time.perf_counter() - start


def _choose(
    world: World, wanted: str, context: int, before: Mapping[str, object], trial: Callable[[], Trial]
) -> Arithmetic:
    if wanted == "auto" and before.get("precision") in ("float32", "bfloat16", "float16"):
        settled = by_rule(before["precision"], world.device, context)
        return Arithmetic(settled.precision, before.get("attention", settled.attention))
    if wanted != "auto":
        return by_rule(wanted, world.device, context)
    if world.device.type == "cuda":
        return by_rule("bfloat16" if has_bfloat16(world.device) else "float16", world.device, context)
    if not has_bfloat16(world.device):
        return by_rule("float32", world.device, context)
    chosen, seconds = fastest(trial(), world.device)
    times = ", ".join(f"{way.precision} with {way.attention} attention {s * 1e3:.1f} ms" for way, s in seconds.items())
    world.say(f"--precision auto takes {chosen.precision}; a trial took: {times}")
    return chosen
