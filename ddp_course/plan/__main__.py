"""Which parallelism? Every mesh of dp, shard, tp, pp and cp on a cluster: memory, traffic, bubble, step, by formula.

    python -m ddp_course.plan --params 7e9 --gpus 64 --memory 80GB --link 400Gb
    python -m ddp_course.plan --params 405e9 --layers 126 --width 16384 --heads 128 --context 8192 --gpus 8192 \\
        --memory 80GB --link 400Gb --tokens-per-update 16777216
    python -m ddp_course.plan --published       # meshes that others trained on or measured, beside the plan's best

In brackets: the notebook whose formula a number comes from. Plain data parallelism, in detail: ddp_course.predict.
"""

import argparse
import re
import sys
from dataclasses import replace

from ddp_course.base.command import run_command
from ddp_course.base.errors import InputError, in_one_line
from ddp_course.base.parser import Parser
from ddp_course.plan.derived import model_from, windows
from ddp_course.plan.hardware import GPUS, check_gpus, gpu
from ddp_course.plan.link import bytes_per_second
from ddp_course.plan.memory import STATE
from ddp_course.plan.published_report import published_report
from ddp_course.plan.report import report
from ddp_course.plan.search import Job, search
from ddp_course.plan.traffic import KERNELS, Cluster

GPU, LARGEST = "h100", 10**9


def parser() -> argparse.ArgumentParser:
    made = Parser(
        prog="python -m ddp_course.plan", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = made.add_argument
    add("--published", action="store_true", help="check the plan against published meshes; needs no other flag")
    add("--params", help="parameters: 7e9, 7B or 350M")
    add("--gpus", type=int, help="GPUs of the whole job")
    add("--memory", metavar="SIZE", help="of a GPU: 80GB (as its maker counts, 2^30 bytes each)")
    add("--link", metavar="SPEED", help="of one network card, one per GPU: 400Gb (bits) or 50GB (bytes)")
    add("--gpu", help=f"for its speed: {', '.join(GPUS)} ({GPU})")
    add("--inside", metavar="SPEED", help="of the links inside a node, one way; the GPU's NVLink if not given")
    add("--gpus-per-node", type=int, default=8, metavar="N", help="(%(default)s)")
    add("--layers", type=int, help="derived from --params if not given, as the next two")
    add("--width", type=int, help="of the residual stream")
    add("--heads", type=int, help="of attention: tp divides them")
    add("--context", type=int, default=4096, help="tokens per window (%(default)s)")
    add("--vocabulary", type=int, help="tokens of the vocabulary (128,000; 50,000 below 2B parameters)")
    add("--key-value-heads", type=int, metavar="N", help="as many as --heads if not given")
    add("--mlp", type=int, metavar="UNITS", help="of an MLP's inner layer (4 times the width, 8/3 if --gated)")
    add("--gated", action="store_true", help="the MLP has three matrices (SwiGLU, as Llama's), not two")
    add("--tokens-per-update", type=float, metavar="N", help="of all GPUs (about 4 million)")
    add("--precision", default="bf16", choices=STATE, help="(%(default)s)")
    add("--kernels", type=float, default=KERNELS, help="share of the peak while a GPU computes (%(default)s)")
    add("--active", metavar="N", help="of a mixture of experts: parameters that a token meets")
    add("--expert-params", metavar="N", help="of a mixture of experts: parameters in its experts")
    add("--experts-per-token", type=int, default=2, metavar="N", help="(%(default)s)")
    return made


def job_from(given: argparse.Namespace) -> tuple[Job, list[str]]:
    """The job, and what was derived. Raises InputError for what makes no sense."""
    missing = [f"--{name}" for name in ("params", "gpus", "memory", "link") if getattr(given, name) is None]
    if missing:
        raise InputError(
            f"a plan needs {', '.join(missing)}, such as --params 7e9 --gpus 64 --memory 80GB --link 400Gb"
        )
    for name in ("layers", "width", "heads", "context", "vocabulary", "key_value_heads", "mlp", "experts_per_token"):
        value, flag = getattr(given, name), f"--{name.replace('_', '-')}"
        if value is not None and value < 1:
            raise InputError(f"{flag} is at least 1, got {value}")
        if value is not None and value > LARGEST:
            raise InputError(f"{flag} is at most {LARGEST:,}, got {value:,}")
    check_gpus(given.gpus, given.gpus_per_node)
    model, said = model_from(given)
    tokens = given.tokens_per_update
    if tokens is None:
        tokens = given.context * windows(max(1, 2**22 // given.context), given.gpus)
        said.append(f"--tokens-per-update {tokens}")
    if not 1 <= tokens < 1e12:
        raise InputError(f"--tokens-per-update is a number of tokens from 1 up, got {tokens:g}")
    if tokens % given.context:
        below = int(tokens // given.context * given.context)
        raise InputError(
            f"tokens per update are whole windows of {given.context:,} tokens, got {tokens:,.10g}; take "
            f"{f'{below:,} or ' if below else ''}{below + given.context:,}"
        )
    card = gpu(given.gpu or GPU)
    if given.gpu is None:
        said.append(f"--gpu {GPU}")
    if given.inside:
        card = replace(card, inside=bytes_per_second(given.inside))
    cluster = Cluster(
        given.gpus, size(given.memory), bytes_per_second(given.link), card, given.gpus_per_node, given.kernels
    )
    return Job(model, cluster, int(tokens), given.precision), said


def size(text: str) -> float:
    """GPU makers' GB have 2^30 bytes: an 80 GB card has 80 GiB."""
    found = re.fullmatch(r"\s*(\d+\.?\d*)\s*(?:GB|GiB|G|gb)\s*", text)
    if not found or not float(found[1]):
        raise InputError(f"cannot read the memory {text!r}; write it as 80GB")
    return float(found[1]) * 2**30


def main(arguments: list[str] | None = None) -> int:
    try:
        given = parser().parse_args(arguments)
        if given.published:
            print(published_report())
        else:
            job, said = job_from(given)
            print(report(job, said, search(job)))
    except InputError as error:
        print(f"error: {in_one_line(error)}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    run_command(main)
