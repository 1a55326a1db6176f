"""The step of a job that nobody has run yet: from a model, GPUs and cables to seconds, with an interval.

Four numbers are rarely known: the share of its peak that a GPU reaches (MFU), the share of a link that an all-reduce
reaches, the latency of a message, and how much a GPU's computation varies. Each is a range. The interval comes from
drawing all of them; which one to measure comes from fixing one after the other.
"""

import math
import random
import statistics
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache

from ddp_course.base.errors import InputError
from ddp_course.plan import all_reduce
from ddp_course.plan.hardware import GPU, Range, check_gpus
from ddp_course.plan.link import Link
from ddp_course.plan.schedule import BUCKET, MIB, Compute, Gradient, simulate
from ddp_course.plan.shape import Shape

DRAWS = 100
MOST_BUCKETS = 300  # are simulated one by one; of more, several together: the last one then is 1/300 of all
BYTES_OF_STATE = 16  # per parameter: float32 weights, gradients and both moments of AdamW
BYTES_OF_UPDATE = 28  # per parameter: AdamW reads four float32 tensors and writes three
NVLINK = Link(2e-6, 1.0)  # its latency; the bandwidth is the GPU's


@dataclass(frozen=True)
class Job:
    """Plain DDP on `gpus` GPUs. `link` is the stated speed of one network card, in bytes per second."""

    shape: Shape
    gpu: GPU
    gpus: int
    link: float
    ranges: Mapping[str, Range]
    per_node: int = 8
    rails: int | None = None  # network cards per node; one per GPU by default
    micro_batch: int = 8  # windows per GPU
    accumulation: int = 1
    context: int | None = None
    global_batch: int | None = None  # windows per update, of all GPUs: strong scaling
    bucket_mib: float | None = None
    gradient_bytes: float = 4

    def __post_init__(self):
        check_gpus(self.gpus, self.per_node)
        if self.micro_batch < 1 or self.accumulation < 1:
            raise InputError(
                f"micro-batch and accumulation are at least 1, got {self.micro_batch} and {self.accumulation}"
            )
        if self.bucket_mib is not None and not self.bucket_mib > 0:
            raise InputError(f"a bucket's limit is above 0 MiB, got {self.bucket_mib:g}")
        if self.context is not None and self.context < 1:
            raise InputError(f"a window has at least one token, got {self.context}")

    @property
    def tokens_per_window(self) -> int:
        return self.context or self.shape.context

    @property
    def bytes_needed(self) -> float:
        """Of a replica without its activations."""
        return BYTES_OF_STATE * self.shape.parameters

    def on(self, gpus: int) -> "Job":
        """The same work on another number of GPUs: the same windows per GPU, or of the whole if that was given."""
        job = replace(self, gpus=gpus)
        if self.global_batch is None:
            return job
        each, rest = divmod(self.global_batch, gpus)
        if rest or not each or each % min(each, self.micro_batch):
            raise InputError(
                f"a global batch of {self.global_batch} windows does not divide into {gpus} GPUs with "
                f"micro-batches of {self.micro_batch}"
            )
        micro_batch = min(each, self.micro_batch)
        return replace(job, micro_batch=micro_batch, accumulation=each // micro_batch)

    def tokens(self) -> int:
        return self.gpus * self.micro_batch * self.accumulation * self.tokens_per_window

    def seconds(self, known: Mapping[str, float]) -> float:
        """Of one step, with one number for each of the four."""
        flops = self.micro_batch * self.tokens_per_window * self.shape.flops_per_token(self.tokens_per_window)
        whole = flops / (self.gpu.flops * known["mfu"])
        optimizer = BYTES_OF_UPDATE * self.shape.parameters / self.gpu.memory_speed
        slowest = 1 + known["spread"] * expected_maximum(self.gpus)
        compute = Compute(whole / 3, 2 * whole / 3, optimizer).scaled(slowest)
        nodes, inside = max(1, self.gpus // self.per_node), replace(NVLINK, beta=self.gpu.inside * known["link_share"])
        between = Link(known["latency"], self.link * known["link_share"])
        in_node = min(self.gpus, self.per_node)

        def reduce(size: float) -> float:
            return all_reduce.pipelined(size, nodes, in_node, inside, between, min(self.rails or in_node, in_node))

        step = simulate(
            compute,
            _gradients(self.shape, self.gradient_bytes),
            reduce,
            bucket_mib=self._bucket_mib(),
            accumulation=self.accumulation,
        )
        return step.seconds

    def _bucket_mib(self) -> float | None:
        least = self.shape.parameters * self.gradient_bytes / MIB / MOST_BUCKETS
        return max(self.bucket_mib, least) if self.bucket_mib else least if least > BUCKET / MIB else self.bucket_mib


@dataclass(frozen=True)
class Interval:
    """A median, and what nine in ten draws lie between."""

    low: float
    middle: float
    high: float


@dataclass(frozen=True)
class Answer:
    """For one number of GPUs."""

    gpus: int
    step: Interval
    tokens_per_s: Interval
    speed_up: Interval
    efficiency: Interval


def answer(job: Job, draws: int = DRAWS) -> Answer:
    """Step time, tokens per second, and speed-up over one GPU that does the same work."""
    job, alone = job.on(job.gpus), job.on(1)
    steps, rates, gains = [], [], []
    for known in _draws(job.ranges, draws):
        seconds = job.seconds(known)
        steps.append(seconds)
        rates.append(job.tokens() / seconds)
        gains.append(rates[-1] * alone.seconds(known) / alone.tokens())
    return Answer(
        job.gpus, _interval(steps), _interval(rates), _interval(gains), _interval([gain / job.gpus for gain in gains])
    )


def worth_measuring(job: Job, draws: int = DRAWS) -> dict[str, dict[str, float]]:
    """For each number that is still a range: by which share knowing it narrows the interval of step and efficiency."""
    whole, found = answer(job, draws), {}
    for name, given in job.ranges.items():
        if not given.known:
            fixed = replace(job, ranges={**job.ranges, name: Range(given.middle, given.middle)})
            then = answer(fixed, draws)
            found[name] = {
                "step": 1 - _width(then.step) / max(_width(whole.step), 1e-12),
                "efficiency": 1 - _width(then.efficiency) / max(_width(whole.efficiency), 1e-12),
            }
    return found


def expected_maximum(count: int) -> float:
    """Of `count` draws from a normal distribution, in standard deviations (Blom's approximation). A step waits for its
    slowest rank."""
    return statistics.NormalDist().inv_cdf((count - 0.375) / (count + 0.25)) if count > 1 else 0.0


@lru_cache
def _gradients(shape: Shape, bytes_each: float) -> list[Gradient]:
    return shape.gradients(bytes_each)


def _draws(ranges: Mapping[str, Range], draws: int):
    chance = random.Random(0)
    for _ in range(1 if all(one.known for one in ranges.values()) else draws):
        yield {name: one.at(chance.random()) for name, one in ranges.items()}


def _interval(values: list[float]) -> Interval:
    ordered = sorted(values)
    last = len(ordered) - 1
    return Interval(ordered[round(0.05 * last)], statistics.median(ordered), ordered[round(0.95 * last)])


def _width(interval: Interval) -> float:
    return math.log(interval.high / interval.low)
