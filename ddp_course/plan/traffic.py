"""Bytes that one GPU sends per update along each axis, over which link, and the seconds of an update.

Where the formulas are shown: a ring's share of a collective and ZeRO's collectives in notebook 17, tensor parallel's
all-reduces in 22, a pipeline's vectors and its bubble in 23, the ring of keys and values and the experts' all-to-all in
24, which axis comes last in 26.
"""

import math
from dataclasses import dataclass

from ddp_course.base.errors import InputError
from ddp_course.plan.assumptions import BETWEEN_LATENCY, INSIDE_LATENCY
from ddp_course.plan.job import Cluster, Job, Model
from ddp_course.plan.memory import BYTES_PER_STEP, COMPUTED, Layout, layers_here, stage_parameters


@dataclass(frozen=True)
class Traffic:
    """The messages of one axis, per GPU and update."""

    axis: str
    bytes: float
    link: str  # "inside" a node, or "between" nodes
    seconds: float
    how: str = "waited"  # for, or hidden behind "all" of the computation, or behind the "last" backward pass


def micro_batches(model: Model, layout: Layout, tokens: float) -> int:
    """Per update and pipeline. Raises InputError if the windows do not divide."""
    windows, data = round(tokens / model.context), layout.dp * layout.shard * layout.micro_batch
    if not windows or windows % data:
        raise InputError(
            f"{windows} windows per update do not divide into {layout.dp * layout.shard} data ranks with "
            f"micro-batches of {layout.micro_batch}"
        )
    return windows // data


def bubble(layout: Layout, count: int) -> float:
    """Idle over busy time of 1F1B: of the whole step it is (p - 1) / (chunks m + p - 1) (23.2, 23.3)."""
    return (layout.pp - 1) / (layout.chunks * count)


def traffic(job: Job, layout: Layout) -> list[Traffic]:
    """The Traffic of each axis with more than one rank."""
    model, cluster = job.model, job.cluster
    count, size, layers = micro_batches(model, layout, job.tokens), COMPUTED[job.precision], layers_here(model, layout)
    vectors = size * model.width * job.tokens / (layout.dp * layout.shard * layout.cp)  # one per token of this rank
    common, experts = stage_parameters(model, layout)
    passes = 1 + 1.5 * layout.recomputed if layout.recompute else 1  # the forward's messages once more
    pp, dp, tp, cp = layout.pp, layout.dp, layout.tp, layout.cp
    axes = []

    def add(axis, ranks, stride, sent, messages, how="waited"):
        if ranks > 1:
            axes.append(Traffic(axis, sent, *_over(cluster, axis, ranks, stride, sent, messages), how))

    def ring(ranks):
        return (ranks - 1) / ranks

    # Megatron-LM gathers the inputs of attention and MLP again in backward, behind a product: not waited for
    add("tp", tp, 1, passes * 4 * layers * 2 * ring(tp) * vectors, passes * 4 * layers * count)
    pairs, rounds = vectors * model.key_values / tp, passes * (cp - 1) * layers
    add("cp", cp, tp, 4 * rounds * pairs, 2 * rounds * count)
    mixed = layers * (model.expert_layers or model.layers) / model.layers  # there and back, forward and backward
    numbers = vectors * (model.expert_bytes or size) / size
    sent = passes * 4 * model.chosen * mixed * numbers * ring(layout.ep)
    add("ep", layout.ep, tp, sent, passes * 4 * mixed * count, "all" if layout.hides_experts else "waited")
    zero, shards = layout.zero if layout.shards > 1 else 0, layout.shards
    copies = max(1, shards // layout.ep)
    scattered = {0: 0, 1: 1, 2: count, 3: count}[zero]
    gathered = {0: 0, 1: 1, 2: 1, 3: 2 * count}[zero]
    sent = (ring(shards) * common + ring(copies) * experts) * (scattered * layout.gradient_bytes + gathered * size)
    add("shard", shards, tp, sent, layers * (scattered + gathered), "last" if zero == 1 else "all")
    own, replicas = common / shards + experts / copies, dp * (cp if shards == 1 else 1)
    add("dp", replicas, tp * shards, 2 * ring(replicas) * layout.gradient_bytes * own, layers, "last")
    add("pp", pp, layout.gpus // pp, 2 * layout.chunks * vectors, 2 * layout.chunks * count, "all")
    return axes


def _over(cluster: Cluster, axis: str, ranks: int, stride: int, sent: float, messages: float) -> tuple[str, float]:
    """The link that decides, and the seconds on it. In a collective the ranks of one node share what leaves it, over as
    many cards. Around a ring or down a pipeline one rank per node sends all it has to the next node, and an expert's
    tokens leave over the card of their own rank."""
    near = min(ranks, max(1, cluster.per_node // stride))
    inside = sent / (cluster.gpu.inside * cluster.link_share) + messages * INSIDE_LATENCY * (near - 1)
    if near == ranks:
        return "inside", inside
    leaves = {"cp": 1.0, "pp": 1.0, "ep": (ranks - near) / (ranks - 1)}.get(axis, 1 / near)
    depth = math.ceil(math.log2(ranks / near))
    between = leaves * sent / (cluster.link * cluster.link_share) + messages * BETWEEN_LATENCY * max(1, depth)
    return ("between", between) if between > inside or near == 1 else ("inside", inside)


@dataclass(frozen=True)
class Step:
    """In seconds."""

    computing: float
    bubble: float  # idle over busy
    waiting: float  # for messages
    updating: float  # the optimizer's step, at the speed of the GPU's memory
    total: float
    mfu: float
    sent: list[Traffic]

    @property
    def idle_share(self) -> float:
        return self.bubble / (1 + self.bubble)


def step(job: Job, layout: Layout, exposed: float | None = None) -> Step:
    """An update. tp, cp and ep are waited for; shard and pp hide behind the computation as far as it lasts; what is
    sent once, gradients under dp and ZeRO-1, hides behind the last micro-batch's backward pass. exposed: not by these
    rules, but this share of all messages is waited for."""
    model, cluster = job.model, job.cluster
    count, sent = micro_batches(model, layout, job.tokens), traffic(job, layout)
    useful = job.tokens * model.flops_per_token / (cluster.gpus * cluster.gpu.flops)
    kernels = cluster.kernels * (0.5 if job.precision == "fp32" else 1)  # TF32 has half the peak
    fullest = layers_here(model, layout) * layout.pp / model.layers  # the stage that the others wait for
    computing = useful / kernels * fullest * (1 + layout.recomputed if layout.recompute else 1)
    parts = {how: sum(axis.seconds for axis in sent if axis.how == how) for how in ("waited", "all", "last")}
    idle = bubble(layout, count)
    if exposed is None:
        last = max(0.0, parts["last"] - 2 / 3 * computing / count)
        waiting = parts["waited"] * (1 + idle) + max(0.0, parts["all"] - computing) + last
    else:
        waiting = exposed * sum(parts.values())
    common, experts = stage_parameters(model, layout)
    if layout.zero and layout.shards > 1:
        common, experts = common / layout.shards, experts / max(1, layout.shards // layout.ep)
    updating = BYTES_PER_STEP * (common + experts) / cluster.gpu.memory_speed
    total = computing * (1 + idle) + waiting + updating
    return Step(computing, idle, waiting, updating, total, useful / total, sent)
