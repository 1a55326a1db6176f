"""Which number format the matrix products use, and what makes them use it fast."""

import torch

from ddp_course.errors import InputError
from ddp_course.parallel.process_group import World

HALF = {"bfloat16": torch.bfloat16, "float16": torch.float16}


def choose_precision(wanted: str, world: World) -> str:
    """Resolve "auto" to what is fast on this rank's device. Let one rank choose for all: machines differ.

    bfloat16 needs hardware for it: emulated, it is slower than float32. float16 needs a gradient scaler, and on
    a CPU has nothing to offer: InputError.
    """
    if wanted == "float16" and world.device.type == "cpu":
        raise InputError("--precision float16 needs a GPU; on a CPU use bfloat16 or float32")
    if wanted != "auto":
        return wanted
    if world.device.type == "cuda":
        return "bfloat16" if torch.cuda.is_bf16_supported(including_emulation=False) else "float16"
    capabilities = torch.cpu.get_capabilities()
    native = any(capabilities.get(unit) for unit in ("avx512_bf16", "amx_bf16", "bf16"))
    return "bfloat16" if native else "float32"


def parameter_dtype(precision: str) -> torch.dtype:
    """Weights, gradients and optimizer state stay in full precision; only float64 runs hold them in float64."""
    return torch.float64 if precision == "float64" else torch.float32


def autocast(precision: str, device: torch.device) -> torch.autocast:
    """Matrix products in half precision where `precision` says so; norms, sums and the loss in full."""
    half = HALF.get(precision)
    return torch.autocast(device.type, dtype=half or torch.bfloat16, enabled=half is not None)


def choose_attention(precision: str, device: torch.device, context: int) -> None:
    """Let scaled_dot_product_attention take the faster of its ways here; called once, before training.

    On a CPU in half precision its fused kernel saves memory but takes longer than three matrix products, as long
    as the context is short (`make bench` compares with trainers that leave it on). The switches are named after
    CUDA and hold for the CPU as well.
    """
    plain = device.type == "cpu" and precision in HALF and context <= 512
    torch.backends.cuda.enable_flash_sdp(not plain)
    torch.backends.cuda.allow_fp16_bf16_reduction_math_sdp(plain)  # else it would compute in float32
