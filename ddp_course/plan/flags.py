"""The flags of both commands, `plan` and `predict`, and how their values are read."""

import argparse
import math
import re
import sys
from collections.abc import Callable
from dataclasses import replace

from ddp_course.base import hardware
from ddp_course.base.errors import InputError, in_one_line
from ddp_course.base.parser import Parser
from ddp_course.plan.assumptions import ASSUMED, KERNELS
from ddp_course.plan.job import Cluster
from ddp_course.plan.memory import STATE
from ddp_course.plan.models import MODELS, PREFIXES
from ddp_course.plan.trainers import TRAINERS
from ddp_course.plan.uncertainty import Range

GPUS = {name.lower(): gpu for name, gpu in reversed(hardware.GPUS.items()) if gpu.memory}
DEFAULT_GPU, LARGEST_COUNT = "h100", 10**9
UNITS = {"b": 1 / 8, "bit": 1 / 8, "B": 1.0}


def _parser(command: str, description: str | None, required: bool) -> Parser:
    """A parser with the flags that both commands have."""
    form = argparse.RawDescriptionHelpFormatter
    parser = Parser(prog=f"python -m ddp_course.{command}", description=description, formatter_class=form)
    add = parser.add_argument
    add("--gpus", type=int, required=required, help="GPUs of the whole job")
    link = "of one network card, one per GPU: 400Gb (bits) or 50GB (bytes)"
    add("--link", metavar="SPEED", required=required, help=link)
    add("--gpu", help=f"for its speed: {', '.join(GPUS)} ({DEFAULT_GPU})")
    add("--peak-tflops", type=float, metavar="T", help="of another GPU, dense, in the precision of the training")
    add("--gpus-per-node", type=int, default=8, metavar="N", help="GPUs of a node (%(default)s)")
    add("--inside", metavar="SPEED", help="of the links inside a node, one way; the GPU's NVLink if not given")
    return parser


def plan_parser(description: str | None = None) -> Parser:
    parser = _parser("plan", description, required=False)
    add = parser.add_argument
    add("--published", action="store_true", help="check the plan against published meshes; needs no other flag")
    add("--params", help="parameters: 7e9, 7B or 350M")
    add("--memory", metavar="SIZE", help="of a GPU: 80GB (as its maker counts, 2^30 bytes each)")
    add("--layers", type=int, help="derived from --params if not given, as --width and --heads")
    add("--width", type=int, help="of the residual stream")
    add("--heads", type=int, help="of attention: tp divides them")
    add("--context", type=int, default=4096, help="tokens per window (%(default)s)")
    add("--vocabulary", type=int, help="tokens of the vocabulary (128,000; 50,000 below 2B parameters)")
    add("--key-value-heads", type=int, metavar="N", help="as many as --heads if not given")
    add("--mlp", type=int, metavar="UNITS", help="of an MLP's inner layer (4 times the width, 8/3 if --gated)")
    add("--gated", action="store_true", help="the MLP has three matrices (SwiGLU, as Llama's), not two")
    add("--tokens-per-update", type=float, metavar="N", help="of all GPUs (about 4 million)")
    add("--precision", default="bf16", choices=STATE, help="format of the training (%(default)s)")
    add("--kernels", type=float, default=KERNELS, help="share of the peak while a GPU computes (%(default)s)")
    add("--active", metavar="N", help="of a mixture of experts: parameters that a token meets")
    add("--expert-params", metavar="N", help="of a mixture of experts: parameters in its experts")
    add("--measured", metavar="STEP", help='calibrates: "shard 8: 2.9 s" of this model and step, or a file with that')
    add("--trainer", choices=TRAINERS, help="only meshes that this one can run; prints its flags for the chosen one")
    of_experts = "of a mixture of experts: experts that a token is sent to (%(default)s)"
    add("--experts-per-token", type=int, default=2, metavar="N", help=of_experts)
    return parser


def predict_parser(description: str | None = None) -> Parser:
    parser = _parser("predict", description, required=True)
    add = parser.add_argument
    add("--model", default="gpt2", help=f"{', '.join(MODELS)}, or a number of parameters such as 350M (%(default)s)")
    add("--cards-per-node", type=int, metavar="N", help="network cards of a node; one per GPU if not given")
    add("--micro-batch", type=int, default=8, metavar="W", help="windows per GPU (%(default)s)")
    add("--accumulation", type=int, default=1, metavar="N", help="micro-batches per step (%(default)s)")
    add("--global-batch", type=int, metavar="W", help="windows per step of all GPUs: strong scaling, else weak")
    add("--context", type=int, metavar="TOKENS", help="per window; the model's if not given")
    add("--bucket-mib", type=float, metavar="MIB", help="DDP's bucket_cap_mb; 1 for the first and 25 if not given")
    add("--gradient-bytes", type=float, default=4, metavar="B", help="per element sent; 2 with bf16 (%(default)s)")
    add("--mfu", help=f"share of the peak: a number or a range ({_assumed('mfu')})")
    add("--micro-batch-seconds", type=float, metavar="S", help="measured on one GPU; takes the place of --mfu")
    add("--link-share", help=f"of the links' speed, as all-reduces reach it ({_assumed('link_share')})")
    add("--latency-us", help=f"microseconds per message between nodes ({_assumed('latency', 1e6)})")
    add("--spread", help=f"of a GPU's computation, relative ({_assumed('spread')})")
    add("--tokens", type=float, metavar="N", help="of the whole run, such as 300e9: how many days")
    add("--price", type=float, metavar="P", help="per GPU and hour: what a million tokens cost")
    return parser


def _assumed(name: str, factor: float = 1.0) -> str:
    return f"{ASSUMED[name].low * factor:g}-{ASSUMED[name].high * factor:g}"


def read_cluster(flags: argparse.Namespace, memory: str | None = None, **more) -> Cluster:
    """The cluster that the flags describe. memory: per GPU, such as "80GB"; its data sheet's if not given."""
    name = (flags.gpu or DEFAULT_GPU).lower()
    if name not in GPUS:
        raise InputError(f"no GPU {flags.gpu!r}; there are {', '.join(GPUS)}. For another one, give --peak-tflops")
    gpu = GPUS[name]
    if flags.peak_tflops is not None:
        gpu = replace(gpu, flops=above_0(flags.peak_tflops, "--peak-tflops") * 1e12)
    if flags.inside:
        gpu = replace(gpu, inside=bytes_per_second(flags.inside))
    size = read_memory(memory) if memory else gpu.memory
    return Cluster(flags.gpus, size, bytes_per_second(flags.link), gpu, flags.gpus_per_node, **more)


def check_counts(flags: argparse.Namespace, *names: str) -> None:
    """Raises InputError unless each of these flags is None or from 1 to LARGEST_COUNT."""
    for name in names:
        value, flag = getattr(flags, name), f"--{name.replace('_', '-')}"
        if value is not None and value < 1:
            raise InputError(f"{flag} is at least 1, got {value}")
        if value is not None and value > LARGEST_COUNT:
            raise InputError(f"{flag} is at most {LARGEST_COUNT:,}, got {value:,}")


def above_0(number: float, flag: str) -> float:
    """The number. Raises InputError, with the flag's name, if it is not positive or is beyond 1e15."""
    if not 1e-6 <= number <= 1e15:
        raise InputError(f"{flag} is above 0, from 1e-06 to 1e+15, got {number:g}")
    return number


def bytes_per_second(text: str) -> float:
    """The speed in "400Gb", "100 Mbit/s" (bits) or "450GB" (bytes), in bytes per second."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d*)?)\s*([kKMmGgTt]?)(bit|b|B)s?(?:/s|ps)?\s*", text)
    if not match or not 0 < float(match[1]) < math.inf:
        raise InputError(f"cannot read the speed {text!r}; write bits as in 400Gb or 100Mbit, or bytes as in 450GB")
    return float(match[1]) * PREFIXES[match[2].lower()] * UNITS[match[3]]


def read_memory(text: str) -> float:
    """The bytes of "80GB". GPU makers' GB have 2^30 bytes: an 80 GB card has 80 GiB."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d*)?)\s*(?:GB|GiB|G|gb)\s*", text)
    if not match or not 0 < float(match[1]) < math.inf:
        raise InputError(f"cannot read the memory {text!r}; write it as 80GB")
    return float(match[1]) * 2**30


def read_range(text: str, flag: str, most: float = float("inf")) -> Range:
    """The range in "0.3-0.5", or in "0.4", whose ends are equal. Raises InputError if an end is above `most`."""
    try:
        parts = [text] if "e-" in text.lower() else text.split("-")  # 3e-5 is one number
        ends = [float(part) for part in parts]
        if len(ends) > 2 or ends[-1] > most:
            raise ValueError
        return Range(ends[0], ends[-1])
    except (ValueError, InputError):
        limit = f" of at most {most:g}" if most < float("inf") else ""
        raise InputError(f"{flag} is a number{limit} such as 0.4, or a range such as 0.3-0.5, got {text!r}") from None


def print_report(parser: Parser, report: Callable[[argparse.Namespace], str], arguments: list[str] | None) -> int:
    """Print the report on the parsed arguments and return 0; after an InputError, print its sentence and return 2."""
    try:
        print(report(parser.parse_args(arguments)))
    except InputError as error:
        print(f"error: {in_one_line(error)}", file=sys.stderr)
        return 2
    return 0
