"""Which parallelism? Every mesh of dp, shard, tp, pp and cp on a cluster: memory, traffic, bubble, step, by formula.

    python -m ddp_course.plan --params 7e9 --gpus 64 --memory 80GB --link 400Gb
    python -m ddp_course.plan --params 405e9 --layers 126 --width 16384 --heads 128 --context 8192 --gpus 8192 \\
        --memory 80GB --link 400Gb --tokens-per-update 16777216
    python -m ddp_course.plan --published       # meshes that others trained on, beside the plan's best

In brackets: the notebook whose formula a number comes from. Plain data parallelism, in detail: ddp_course.predict.
"""

import argparse
import re
import sys

from ddp_course.errors import InputError, in_one_line
from ddp_course.plan.memory import STATE, Model
from ddp_course.plan.report import published_report, report
from ddp_course.plan.search import Job, search
from ddp_course.plan.traffic import KERNELS, Cluster
from ddp_course.predict.hardware import GPUS, gpu
from ddp_course.predict.link import bytes_per_second
from ddp_course.training.standard_output import StandardOutput


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(prog="python -m ddp_course.plan", description=__doc__,
                                   formatter_class=argparse.RawDescriptionHelpFormatter)  # fmt: skip
    add = made.add_argument
    add("--published", action="store_true", help="check the plan against published meshes; needs no other flag")
    add("--params", help="parameters: 7e9, 7B or 350M")
    add("--gpus", type=int, help="GPUs of the whole job")
    add("--memory", metavar="SIZE", help="of a GPU: 80GB (as its maker counts, 2^30 bytes each)")
    add("--link", metavar="SPEED", help="of one network card, one per GPU: 400Gb (bits) or 50GB (bytes)")
    add("--gpu", default="h100", help=f"for its speed: {', '.join(GPUS)} (%(default)s)")
    add("--gpus-per-node", type=int, default=8, metavar="N", help="(%(default)s)")
    add("--layers", type=int, help="derived from --params if not given, as the next two")
    add("--width", type=int, help="of the residual stream")
    add("--heads", type=int, help="of attention: tp divides them")
    add("--context", type=int, default=4096, help="tokens per window (%(default)s)")
    add("--vocabulary", type=int, help="tokens of the vocabulary (128,000; 50,000 below 2B parameters)")
    add("--key-value-heads", type=int, metavar="N", help="as many as --heads if not given")
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
    for name in ("layers", "width", "heads", "context", "vocabulary", "key_value_heads", "experts_per_token"):
        if getattr(given, name) is not None and getattr(given, name) < 1:
            raise InputError(f"--{name.replace('_', '-')} is at least 1, got {getattr(given, name)}")
    parameters, said = count(given.params, "--params"), []
    vocabulary = given.vocabulary or (128_000 if parameters >= 2e9 else 50_000)
    if (given.active is None) != (given.expert_params is None):
        raise InputError("a mixture of experts needs both --active and --expert-params")
    experts = {} if given.active is None else {
        "active": count(given.active, "--active"), "experts": count(given.expert_params, "--expert-params"),
        "chosen": given.experts_per_token}  # fmt: skip
    dense = experts.get("active", parameters)  # of as many, a token's way through the layers is made
    layers, width, heads = given.layers, given.width, given.heads
    if width is None:  # 12 width^2 parameters per layer; Llama's layers are about 128 times as wide as there are layers

        def tried(one):
            return 12 * (layers or max(1, round(one / 128))) * one**2 + 2 * vocabulary * one

        even = 1024 if dense >= 5e9 else 512 if dense >= 1e9 else 64  # so that tp can divide the heads
        width = min(range(even, 65537, even), key=lambda one: abs(tried(one) - dense))
        said.append(f"--width {width}")
    if layers is None:
        layers = max(1, round((dense - 2 * vocabulary * width) / (12 * width**2)))
        said.append(f"--layers {layers}")
    if heads is None:
        heads = max(1, width // 128) if width % 128 == 0 else max(1, width // 64)
        said.append(f"--heads {heads}")
    if width % heads:
        raise InputError(f"--width {width} does not divide into --heads {heads} of equal size")
    share = (given.key_value_heads or heads) / heads
    if share > 1:
        raise InputError(f"--key-value-heads {given.key_value_heads} are at most --heads {heads}")
    model = Model(parameters, layers, width, heads, given.context, vocabulary, key_values=share, **experts)
    tokens = given.tokens_per_update
    if tokens is None:
        tokens = max(1, 2**22 // given.context) * given.context
        said.append(f"--tokens-per-update {tokens}")
    if not 1 <= tokens < 1e12:
        raise InputError(f"--tokens-per-update is a number of tokens from 1 up, got {tokens:g}")
    if not 1 <= given.gpus <= 2**17:
        raise InputError(f"--gpus is from 1 to {2**17:,}, got {given.gpus:,}")
    cluster = Cluster(given.gpus, size(given.memory), bytes_per_second(given.link), gpu(given.gpu),
                      given.gpus_per_node, given.kernels)  # fmt: skip
    return Job(model, cluster, int(tokens), given.precision), said


def count(text: str, flag: str) -> float:
    """7e9, 7B, 350M."""
    found = re.fullmatch(r"(\d+\.?\d*(?:e\d+)?)([kKmMbBtT]?)", text.strip())
    number = float(found[1]) * {"": 1, "k": 1e3, "m": 1e6, "b": 1e9, "t": 1e12}[found[2].lower()] if found else 0
    if not 1e5 <= number <= 1e14:
        raise InputError(f"{flag} is a number of parameters from 0.1M to 100T, such as 7e9, 7B or 350M, got {text!r}")
    return number


def size(text: str) -> float:
    """GPU makers' GB have 2^30 bytes: an 80 GB card has 80 GiB."""
    found = re.fullmatch(r"\s*(\d+\.?\d*)\s*(?:GB|GiB|G|gb)\s*", text)
    if not found or not float(found[1]):
        raise InputError(f"cannot read the memory {text!r}; write it as 80GB")
    return float(found[1]) * 2**30


def main(arguments: list[str] | None = None) -> int:
    given = parser().parse_args(arguments)
    try:
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
    sys.stdout = StandardOutput(sys.stdout)  # `| head` may have left when the plan is ready
    sys.exit(main())
