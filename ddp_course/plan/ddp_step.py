"""Predict the seconds of a job's step under plain DDP, with an interval.

Four numbers are rarely known: the share of its peak that a GPU reaches (MFU), the share of a link that an all-reduce
reaches, the latency of a message, and how much a GPU's computation varies. Each is a range. The interval comes from
drawing all of them. To see which one is worth measuring, one after the other is fixed.
"""

import statistics
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache

from ddp_course.base.errors import InputError
from ddp_course.plan import all_reduce, models
from ddp_course.plan.assumptions import ASSUMED, INSIDE_LATENCY
from ddp_course.plan.job import Job
from ddp_course.plan.link import Link
from ddp_course.plan.memory import BYTES_PER_STEP
from ddp_course.plan.schedule import BUCKET, MIB, Compute, SimulatedStep, simulate
from ddp_course.plan.uncertainty import Interval, Range, draw, interval

DRAWS = 100
MOST_MICRO_BATCHES = 1000  # each is simulated
MOST_BUCKETS = 300  # if there are more, buckets are simulated as if they were 1/300 of all gradients
gradients = lru_cache(models.gradients)


@dataclass(frozen=True)
class DDP:
    """A job under DDP.

    ranges: the four unknown numbers, by their names in ASSUMED. micro_batch: the most windows per GPU and micro-batch.
    strong: strong scaling, in which `on` keeps the global batch; else it keeps the windows per GPU.
    """

    job: Job
    ranges: Mapping[str, Range] = field(default_factory=lambda: ASSUMED)
    micro_batch: int = 8
    strong: bool = False
    bucket_mib: float | None = None
    gradient_bytes: float = 4  # per element sent

    def __post_init__(self):
        if self.bucket_mib is not None and not 1e-6 <= self.bucket_mib <= 1e15:
            raise InputError(f"a bucket's limit is above 0 MiB, from 1e-06 to 1e+15, got {self.bucket_mib:g}")

    @property
    def gpus(self) -> int:
        return self.job.cluster.gpus

    @property
    def middle(self) -> dict[str, float]:
        """The middle of each range, by name."""
        return {name: unknown.middle for name, unknown in self.ranges.items()}

    def on(self, gpus: int) -> "DDP":
        """The job on another number of GPUs: strong or weak scaling."""
        tokens = self.job.tokens if self.strong else self.job.tokens // self.gpus * gpus
        return replace(self, job=replace(self.job, cluster=replace(self.job.cluster, gpus=gpus), tokens=tokens))

    def micro_batches(self) -> tuple[int, int]:
        """Windows per GPU and micro-batch, and micro-batches per optimizer step.

        Raises InputError if the windows do not divide, or if there are more than MOST_MICRO_BATCHES.
        """
        windows, rest = divmod(self.job.windows, self.gpus)
        size = min(windows, self.micro_batch)
        if rest or windows % size:
            raise InputError(
                f"a global batch of {self.job.windows} windows does not divide into {self.gpus} GPUs with "
                f"micro-batches of {self.micro_batch}"
            )
        if windows // size > MOST_MICRO_BATCHES:
            raise InputError(
                f"a step has at most {MOST_MICRO_BATCHES:,} micro-batches per GPU, got {windows // size:,}"
            )
        return size, windows // size

    def step(self, values: Mapping[str, float]) -> SimulatedStep:
        """Simulate one step. values: a number for each name in `ranges`."""
        model, cluster, (size, count) = self.job.model, self.job.cluster, self.micro_batches()
        computing = size * model.context * model.flops_per_token / (cluster.gpu.flops * values["mfu"])
        optimizer = BYTES_PER_STEP * model.parameters / cluster.gpu.memory_bandwidth
        slowest = 1 + values["spread"] * expected_maximum(self.gpus)
        compute = Compute(computing / 3, 2 * computing / 3, optimizer).scaled(slowest)
        nodes, in_node = max(1, self.gpus // cluster.per_node), min(self.gpus, cluster.per_node)
        inside = Link(INSIDE_LATENCY, cluster.gpu.inside * values["link_share"])
        between = Link(values["latency"], cluster.link * values["link_share"])

        def all_reduce_seconds(size: float) -> float:
            return all_reduce.pipelined(size, nodes, in_node, inside, between, min(cluster.cards or in_node, in_node))

        sent = gradients(model, self.gradient_bytes)
        return simulate(compute, sent, all_reduce_seconds, bucket_mib=self._bucket_mib(), accumulation=count)

    @property
    def gradient_mib(self) -> float:
        """The size of all gradients, in MiB."""
        return self.job.model.parameters * self.gradient_bytes / MIB

    @property
    def least_bucket_mib(self) -> float:
        """The smallest bucket that is simulated, in MiB; smaller ones are simulated as if they had this size."""
        return self.gradient_mib / MOST_BUCKETS

    def _bucket_mib(self) -> float | None:
        least = self.least_bucket_mib
        if self.bucket_mib:
            return max(self.bucket_mib, least)
        return least if least > BUCKET / MIB else None


@dataclass(frozen=True)
class Prediction:
    """The prediction for one number of GPUs."""

    gpus: int
    step: Interval  # seconds
    tokens_per_s: Interval
    speed_up: Interval  # of tokens per second, over one GPU
    efficiency: Interval  # speed_up / gpus


def predict_step(ddp: DDP, draws: int = DRAWS) -> Prediction:
    """The Prediction for the job's GPUs; the speed-up is over `ddp.on(1)`."""
    single, tokens = ddp.on(1), ddp.job.tokens
    steps, rates, speed_ups = [], [], []
    for values in draw(ddp.ranges, draws):
        steps.append(ddp.step(values).seconds)
        rates.append(tokens / steps[-1])
        speed_ups.append(rates[-1] * single.step(values).seconds / single.job.tokens)
    efficiencies = [speed_up / ddp.gpus for speed_up in speed_ups]
    return Prediction(ddp.gpus, *map(interval, (steps, rates, speed_ups, efficiencies)))


def worth_measuring(ddp: DDP) -> dict[str, dict[str, float]]:
    """name of a range -> "step" and "efficiency" -> the share by which fixing it at its middle narrows that interval.

    Ranges that are known are left out.
    """
    baseline, narrowed = predict_step(ddp), {}
    for name, unknown in ddp.ranges.items():
        if not unknown.known:
            ranges = {**ddp.ranges, name: Range(unknown.middle, unknown.middle)}
            prediction = predict_step(replace(ddp, ranges=ranges))
            narrowed[name] = {
                target: 1 - getattr(prediction, target).width / max(getattr(baseline, target).width, 1e-12)
                for target in ("step", "efficiency")
            }
    return narrowed


def expected_maximum(count: int) -> float:
    """The expected maximum of `count` normal draws, in standard deviations, by Blom's approximation."""
    return statistics.NormalDist().inv_cdf((count - 0.375) / (count + 0.25)) if count > 1 else 0.0
