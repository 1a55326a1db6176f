"""The job that the flags of `predict` describe, and the text with its predicted step for several numbers of GPUs."""

import argparse
from dataclasses import replace

from ddp_course.base.errors import InputError
from ddp_course.base.quantity import format_number, with_prefix
from ddp_course.plan.assumptions import ASSUMED
from ddp_course.plan.ddp_step import DDP, MOST_MICRO_BATCHES, Prediction, predict_step, worth_measuring
from ddp_course.plan.flags import above_0, check_counts, read_cluster, read_range
from ddp_course.plan.job import Job
from ddp_course.plan.memory import STATE
from ddp_course.plan.models import named_model
from ddp_course.plan.uncertainty import Interval, Range

MEASUREMENTS = {  # range: its name in a sentence, how to measure it, the flag that takes the result
    "mfu": ("the time of a micro-batch", "time forward and backward on one GPU", "--micro-batch-seconds"),
    "link_share": (
        "the bandwidth of an all-reduce",
        "nccl-tests' all_reduce_perf, busbw over the link's speed",
        "--link-share",
    ),
    "latency": ("the latency of a message", "half the time of an 8-byte all-reduce of two nodes", "--latency-us"),
    "spread": ("the spread of a GPU's step", "standard deviation over mean of 100 steps on one GPU", "--spread"),
}


def ddp_from(flags: argparse.Namespace) -> DDP:
    """The job that the flags describe. Raises InputError if they make no sense."""
    check_counts(flags, "context", "micro_batch", "accumulation", "global_batch")
    model, cluster = named_model(flags.model), read_cluster(flags, cards=flags.cards_per_node)
    model = replace(model, context=flags.context or model.context)
    windows = flags.global_batch or flags.gpus * flags.micro_batch * flags.accumulation
    return DDP(
        Job(model, cluster, windows * model.context),
        _ranges(flags, flags.micro_batch * model.context * model.flops_per_token / cluster.gpu.flops),
        flags.micro_batch,
        flags.global_batch is not None,
        flags.bucket_mib,
        above_0(flags.gradient_bytes, "--gradient-bytes"),
    )


def _ranges(flags: argparse.Namespace, seconds_at_peak: float) -> dict[str, Range]:
    """The ranges of DDP: those of the flags, else of ASSUMED. seconds_at_peak: of a micro-batch, at an MFU of 1."""
    ranges, measured = dict(ASSUMED), flags.micro_batch_seconds
    for name in ("mfu", "link_share", "spread"):
        text, flag = getattr(flags, name), f"--{name.replace('_', '-')}"
        if text is not None:
            ranges[name] = read_range(text, flag, most=1)
            if name != "spread" and ranges[name].low < 1e-6:
                raise InputError(f"{flag} is above 0, at least 1e-06, got {text!r}")
    if flags.latency_us is not None:
        microseconds = read_range(flags.latency_us, "--latency-us")
        ranges["latency"] = Range(microseconds.low / 1e6, microseconds.high / 1e6)
    if measured is not None:
        if flags.mfu is not None:
            raise InputError("--mfu and --micro-batch-seconds say the same twice; give one of them")
        share = seconds_at_peak / above_0(measured, "--micro-batch-seconds")
        if share > 1:
            raise InputError(
                f"a micro-batch in {measured:g} s would be {share:.0%} of the GPU's peak; is --gpu, --micro-batch or "
                "--context another one?"
            )
        ranges["mfu"] = Range(share, share)
    return ranges


def prediction_report(flags: argparse.Namespace) -> str:
    """The text that `predict` prints."""
    ddp = ddp_from(flags)
    for name in ("tokens", "price"):
        if getattr(flags, name) is not None:
            above_0(getattr(flags, name), f"--{name}")
    predictions = [predict_step(ddp.on(count)) for count in gpu_counts(ddp)]
    model, gpu, rates = ddp.job.model, ddp.job.cluster.gpu, predictions[-1].tokens_per_s
    lines = [
        f"{format_number(model.parameters)} parameters, {format_number(ddp.job.tokens)} tokens per update, "
        f"{'strong' if ddp.strong else 'weak'} scaling; median and 90 % interval",
        "",
        f"{'GPUs':>6}  {'ms per step':>24}  {'tokens/s':>30}  {'speed-up':>20}  {'efficiency':>18}",
        *map(_row, predictions),
    ]
    replica = sum(STATE["fp32"]) * model.parameters
    if replica > gpu.memory:
        lines += [
            "",
            f"Note: weights, gradients and AdamW take {with_prefix(replica, 'B')} per GPU, which has "
            f"{with_prefix(gpu.memory, 'B')}: DDP does not fit, shard it (notebook 17); python -m ddp_course.plan says "
            "which meshes fit.",
        ]
    if flags.tokens:
        days = [format_number(flags.tokens / rate / 86400) for rate in (rates.high, rates.low)]
        lines += ["", f"{flags.tokens:.3g} tokens: {days[0]} to {days[1]} days"]
    if flags.price:
        cost = [format_number(flags.price * ddp.gpus / 3600 / rate * 1e6) for rate in (rates.high, rates.low)]
        lines += ["", f"a million tokens cost {cost[0]} to {cost[1]}"]
    return "\n".join([*lines, "", *_next_measurements(ddp)])


def _next_measurements(ddp: DDP) -> list[str]:
    """For step and efficiency, a sentence on the measurement that narrows the interval most."""
    narrowing, lines = worth_measuring(ddp), []
    for target in ("step", "efficiency"):
        best = max(narrowing, key=lambda name: narrowing[name][target], default=None)
        if best is None or narrowing[best][target] < 0.01:
            lines.append(f"To be surer of the {target}: nothing is left to measure; run it.")
            continue
        number, how, flag = MEASUREMENTS[best]
        lines.append(
            f"To be surer of the {target}: measure {number} ({how}), give it as {flag}; the interval becomes "
            f"{narrowing[best][target]:.0%} narrower."
        )
    return lines


def gpu_counts(ddp: DDP) -> list[int]:
    """The numbers of GPUs in the report: the six largest possible powers of two below the job's, and the job's."""
    powers = [2**power for power in range(1, 30) if 2**power < ddp.gpus and _divides(ddp, 2**power)]
    return [*powers[-6:], ddp.gpus]


def _divides(ddp: DDP, gpus: int) -> bool:
    """Whether the GPUs fill whole nodes, and strong scaling can divide the windows over them."""
    node = ddp.job.cluster.per_node
    if ddp.strong and (ddp.job.windows % gpus or ddp.job.windows > gpus * ddp.micro_batch * MOST_MICRO_BATCHES):
        return False
    return gpus <= node or gpus % node == 0


def _row(prediction: Prediction) -> str:
    step, percent = _cell(prediction.step, 1e3), _cell(prediction.efficiency, 100, " %")
    return (
        f"{prediction.gpus:>6}  {step:>24}  {_cell(prediction.tokens_per_s):>30}  {_cell(prediction.speed_up):>20}  "
        f"{percent:>18}"
    )


def _cell(interval: Interval, scale: float = 1, unit: str = "") -> str:
    ends = (scale * end for end in (interval.low, interval.middle, interval.high))
    low, middle, high = (format_number(float(f"{end:.3g}")) for end in ends)
    return f"{middle}{unit} ({low}-{high})"
