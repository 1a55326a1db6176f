"""How fast will my job be on that cluster? Plain DDP, predicted from the model, the GPUs and the cables.

    python -m ddp_course.predict --model gpt2 --gpus 64 --link 400Gb
    python -m ddp_course.predict --model 1.3B --gpus 8 --gpu a100 --link 100Gb --mfu 0.42   # a number you measured
    python -m ddp_course.predict --model gpt2 --gpus 32 --link 25Gb --global-batch 512      # strong scaling

What is not given is assumed to lie in a range; the answer is an interval, and says which number to measure next.
"""

import argparse
import sys
from dataclasses import replace

from ddp_course.base.command import run_command
from ddp_course.base.errors import InputError, in_one_line
from ddp_course.base.parser import Parser
from ddp_course.base.quantity import format_number, with_prefix
from ddp_course.plan.cluster_step import Answer, Interval, Job, answer, worth_measuring
from ddp_course.plan.hardware import ASSUMED, GPUS, Range, gpu, number_or_range
from ddp_course.plan.link import bytes_per_second
from ddp_course.plan.shape import SHAPES, shape

HOW = {  # range: its name in a sentence, how to measure it, the flag that takes the result
    "mfu": ("the time of a micro-batch", "time forward and backward on one GPU", "--micro-batch-seconds"),
    "link_share": (
        "the bandwidth of an all-reduce",
        "nccl-tests' all_reduce_perf, busbw over the link's speed",
        "--link-share",
    ),
    "latency": ("the latency of a message", "half the time of an 8-byte all-reduce of two nodes", "--latency-us"),
    "spread": ("the spread of a GPU's step", "standard deviation over mean of 100 steps on one GPU", "--spread"),
}


def parser() -> argparse.ArgumentParser:
    made = Parser(
        prog="python -m ddp_course.predict", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = made.add_argument
    add("--model", default="gpt2", help=f"{', '.join(SHAPES)}, or a number of parameters such as 350M (%(default)s)")
    add("--gpus", type=int, required=True, help="GPUs of the whole job")
    add("--link", required=True, metavar="SPEED", help="of one network card: 400Gb, 10Gbit (bits) or 50GB (bytes)")
    add("--gpu", default="h100", help=f"{', '.join(GPUS)} (%(default)s)")
    add("--peak-tflops", type=float, metavar="T", help="of another GPU, dense, in the precision of the training")
    add("--gpus-per-node", type=int, default=8, metavar="N", help="(%(default)s)")
    add("--inside", metavar="SPEED", help="of the links inside a node, one way; the GPU's NVLink if not given")
    add("--cards-per-node", type=int, metavar="N", help="network cards of a node; one per GPU if not given")
    add("--micro-batch", type=int, default=8, metavar="W", help="windows per GPU (%(default)s)")
    add("--accumulation", type=int, default=1, metavar="N", help="micro-batches per update (%(default)s)")
    add("--global-batch", type=int, metavar="W", help="windows per update of all GPUs: strong scaling, else weak")
    add("--context", type=int, metavar="TOKENS", help="per window; the model's if not given")
    add("--bucket-mib", type=float, metavar="MIB", help="DDP's bucket_cap_mb; 1 for the first and 25 if not given")
    add("--gradient-bytes", type=float, default=4, metavar="B", help="per element sent; 2 with bf16 (%(default)s)")
    add("--mfu", default=None, help=f"share of the peak: a number or a range ({_shown('mfu')})")
    add("--micro-batch-seconds", type=float, metavar="S", help="measured on one GPU; takes the place of --mfu")
    add("--link-share", default=None, help=f"of the links' speed, as all-reduces reach it ({_shown('link_share')})")
    add("--latency-us", default=None, help=f"microseconds per message between nodes ({_shown('latency', 1e6)})")
    add("--spread", default=None, help=f"of a GPU's computation, relative ({_shown('spread')})")
    add("--tokens", type=float, metavar="N", help="of the whole run, such as 300e9: how many days")
    add("--price", type=float, metavar="P", help="per GPU and hour: what a million tokens cost")
    return made


def job_from(given: argparse.Namespace) -> Job:
    """Raises InputError for what makes no sense."""
    card = gpu(given.gpu)
    if given.peak_tflops is not None:
        card = replace(card, flops=_positive(given.peak_tflops, "--peak-tflops") * 1e12)
    if given.inside:
        card = replace(card, inside=bytes_per_second(given.inside))
    _positive(given.gradient_bytes, "--gradient-bytes")
    ranges = dict(ASSUMED)
    for name, text, most in (("mfu", given.mfu, 1), ("link_share", given.link_share, 1), ("spread", given.spread, 1)):
        if text is not None:
            ranges[name] = number_or_range(text, f"--{name.replace('_', '-')}", most)
            if name != "spread" and not ranges[name].low:
                raise InputError(f"--{name.replace('_', '-')} is above 0, got {text!r}")
    if given.latency_us is not None:
        micro = number_or_range(given.latency_us, "--latency-us")
        ranges["latency"] = Range(micro.low / 1e6, micro.high / 1e6)
    job = Job(
        shape(given.model),
        card,
        given.gpus,
        bytes_per_second(given.link),
        ranges,
        given.gpus_per_node,
        given.cards_per_node,
        given.micro_batch,
        given.accumulation,
        given.context,
        given.global_batch,
        given.bucket_mib,
        given.gradient_bytes,
    )
    if given.cards_per_node is not None and not 1 <= given.cards_per_node <= given.gpus_per_node:
        raise InputError(
            f"a node with {given.gpus_per_node} GPUs has 1 to {given.gpus_per_node} network cards, got "
            f"{given.cards_per_node}"
        )
    if given.micro_batch_seconds is not None:
        if given.mfu is not None:
            raise InputError("--mfu and --micro-batch-seconds say the same twice; give one of them")
        flops = job.micro_batch * job.tokens_per_window * job.shape.flops_per_token(job.tokens_per_window)
        share = flops / card.flops / _positive(given.micro_batch_seconds, "--micro-batch-seconds")
        if share > 1:
            raise InputError(
                f"a micro-batch in {given.micro_batch_seconds:g} s would be {share:.0%} of the GPU's "
                f"peak; is --gpu, --micro-batch or --context another one?"
            )
        job = replace(job, ranges={**ranges, "mfu": Range(share, share)})
    return job


def report(job: Job, tokens: float | None = None, price: float | None = None) -> str:
    """The answer as text."""
    counts = [2**power for power in range(1, 30) if 2**power < job.gpus and _fits(job, 2**power)][-6:]
    found = [answer(job.on(count) if job.global_batch is None else replace(job, gpus=count)) for count in counts]
    last = answer(job)
    lines = [
        f"{format_number(job.shape.parameters)} parameters, {format_number(job.on(job.gpus).tokens())} tokens per "
        f"update, {'strong' if job.global_batch else 'weak'} scaling; median and 90 % interval",
        "",
        f"{'GPUs':>6}  {'ms per step':>24}  {'tokens/s':>30}  {'speed-up':>20}  {'efficiency':>18}",
    ]
    lines += [_row(one) for one in [*found, last]]
    if job.bytes_needed > job.gpu.memory:
        lines += [
            "",
            f"Note: weights, gradients and AdamW take {with_prefix(job.bytes_needed, 'B')} per GPU, which "
            f"has {with_prefix(job.gpu.memory, 'B')}: DDP does not fit, shard it (notebook 17); "
            "python -m ddp_course.plan says which meshes fit.",
        ]
    if tokens:
        days = [tokens / rate / 86400 for rate in (last.tokens_per_s.high, last.tokens_per_s.low)]
        lines += ["", f"{tokens:.3g} tokens: {format_number(days[0])} to {format_number(days[1])} days"]
    if price:
        cost = [price * job.gpus / 3600 / rate * 1e6 for rate in (last.tokens_per_s.high, last.tokens_per_s.low)]
        lines += ["", f"a million tokens cost {format_number(cost[0])} to {format_number(cost[1])}"]
    worth = worth_measuring(job)
    lines.append("")
    for target in ("step", "efficiency"):
        best = max(worth, key=lambda name: worth[name][target], default=None)
        if best is None or worth[best][target] < 0.01:
            lines.append(f"To be surer of the {target}: nothing is left to measure; run it.")
            continue
        what, how, flag = HOW[best]
        lines.append(
            f"To be surer of the {target}: measure {what} ({how}), give it as {flag}; the interval becomes "
            f"{worth[best][target]:.0%} narrower."
        )
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> int:
    try:
        given = parser().parse_args(arguments)
        for name in ("tokens", "price"):
            if getattr(given, name) is not None:
                _positive(getattr(given, name), f"--{name}")
        print(report(job_from(given), given.tokens, given.price))
    except InputError as error:
        print(f"error: {in_one_line(error)}", file=sys.stderr)
        return 2
    return 0


def _fits(job: Job, count: int) -> bool:
    if count > job.per_node and count % job.per_node:
        return False
    return job.global_batch is None or job.global_batch % count == 0


def _positive(number: float, flag: str) -> float:
    if not 0 < number < float("inf"):
        raise InputError(f"{flag} is above 0, got {number:g}")
    return number


def _row(one: Answer) -> str:
    percent = Interval(*(100 * end for end in (one.efficiency.low, one.efficiency.middle, one.efficiency.high)))
    step = Interval(*(1e3 * end for end in (one.step.low, one.step.middle, one.step.high)))
    cells = [_cell(step, ""), _cell(one.tokens_per_s, ""), _cell(one.speed_up, ""), _cell(percent, " %")]
    return f"{one.gpus:>6}  {cells[0]:>24}  {cells[1]:>30}  {cells[2]:>20}  {cells[3]:>18}"


def _cell(interval: Interval, unit: str) -> str:
    low, middle, high = (format_number(float(f"{end:.3g}")) for end in (interval.low, interval.middle, interval.high))
    return f"{middle}{unit} ({low}-{high})"


def _shown(name: str, factor: float = 1.0) -> str:
    return f"{ASSUMED[name].low * factor:g}-{ASSUMED[name].high * factor:g}"


if __name__ == "__main__":
    run_command(main)
