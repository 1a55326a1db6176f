"""The bytes that one GPU sends per optimizer step along each axis, over which link, and the seconds of the step.

Where the formulas are shown: a ring's share of a collective and ZeRO's collectives in notebook 17, tensor parallel's
all-reduces in 22, a pipeline's vectors and its bubble in 23, the ring of keys and values and the experts' all-to-all in
24, the order of the axes in 26.
"""

import math
from dataclasses import dataclass

from ddp_course.base.errors import InputError
from ddp_course.plan.assumptions import BETWEEN_LATENCY, INSIDE_LATENCY
from ddp_course.plan.job import Cluster, Job
from ddp_course.plan.memory import BYTES_PER_STEP, COMPUTED, Layout, layers_per_stage, stage_parameters


@dataclass(frozen=True)
class Traffic:
    """The messages of one axis, per GPU and optimizer step."""

    axis: str
    bytes: float
    link: str  # "inside" a node, or "between" nodes
    seconds: float
    overlap: str = "none"  # "none": waited for; overlaps with "all" of the computation, or the "last" backward pass


def micro_batches(job: Job, layout: Layout) -> int:
    """Micro-batches of each data rank per optimizer step. Raises InputError if the windows do not divide."""
    batch = layout.dp * layout.shard * layout.micro_batch
    if job.windows % batch:
        raise InputError(
            f"{job.windows} windows per step do not divide into {layout.dp * layout.shard} data ranks with "
            f"micro-batches of {layout.micro_batch}"
        )
    return job.windows // batch


def bubble(layout: Layout, count: int) -> float:
    """The bubble of 1F1B with `count` micro-batches m: idle / busy time (23.2, 23.3).

    Its share of the whole step is (p - 1) / (chunks m + p - 1).
    """
    return (layout.pp - 1) / (layout.chunks * count)


def traffic(job: Job, layout: Layout) -> list[Traffic]:
    """The Traffic of each axis with more than one rank."""
    model, size = job.model, COMPUTED[job.precision]
    count, layers = micro_batches(job, layout), layers_per_stage(model, layout)
    tokens = job.tokens / (layout.dp * layout.shard * layout.cp)  # of this rank
    vectors = size * model.width * tokens  # bytes of one vector per token
    common, experts = stage_parameters(model, layout)
    # The forward's messages once more; torch's checkpoint stops early, without tp's last of a layer (22.4).
    passes = 1 + 1.5 * layout.recompute_share if layout.recompute else 1
    pp, dp, tp, cp = layout.pp, layout.dp, layout.tp, layout.cp
    result = []

    def add(axis, ranks, stride, sent, messages, overlap="none"):
        if ranks > 1:
            link, seconds = _link_and_seconds(job.cluster, axis, ranks, stride, sent, messages)
            result.append(Traffic(axis, sent, link, seconds, overlap))

    def ring_share(ranks):  # of a tensor, sent by each rank in a reduce-scatter or all-gather
        return (ranks - 1) / ranks

    # Megatron-LM's second all-gather of the inputs of attention and MLP, in backward, overlaps and is not counted
    add("tp", tp, 1, passes * 4 * layers * 2 * ring_share(tp) * vectors, passes * 4 * layers * count)
    keys, rounds = vectors * model.key_value_ratio / tp, passes * (cp - 1) * layers
    add("cp", cp, tp, 4 * rounds * keys, 2 * rounds * count)
    expert_layers = layers * (model.expert_layers or model.layers) / model.layers
    all_to_alls = passes * 4 * expert_layers  # there and back, forward and backward
    inputs = vectors * (model.expert_bytes or size) / size
    sent = all_to_alls * model.experts_per_token * inputs * ring_share(layout.ep)
    add("ep", layout.ep, tp, sent, all_to_alls * count, "all" if layout.hides_experts else "none")
    zero, shards = layout.zero if layout.shards > 1 else 0, layout.shards
    copies = max(1, shards // layout.ep)  # ranks that hold the same experts
    scattered = {0: 0, 1: 1, 2: count, 3: count}[zero]  # reduce-scatters of the gradients
    gathered = {0: 0, 1: 1, 2: 1, 3: 2 * count}[zero]  # all-gathers of the weights
    per_parameter = scattered * layout.gradient_bytes + gathered * size
    sent = (ring_share(shards) * common + ring_share(copies) * experts) * per_parameter
    add("shard", shards, tp, sent, layers * (scattered + gathered), "last" if zero == 1 else "all")
    sharded, replicas = common / shards + experts / copies, dp * (cp if shards == 1 else 1)
    add("dp", replicas, tp * shards, 2 * ring_share(replicas) * layout.gradient_bytes * sharded, layers, "last")
    add("pp", pp, layout.gpus // pp, 2 * layout.chunks * vectors, 2 * layout.chunks * count, "all")
    return result


def _link_and_seconds(
    cluster: Cluster, axis: str, ranks: int, stride: int, sent: float, messages: float
) -> tuple[str, float]:
    """The slower link, "inside" or "between", and the seconds of an axis's messages on it.

    stride: distance between neighbouring ranks of the axis. In a collective, the ranks of one node share the bytes that
    leave it, each over its own card. Around cp's ring or down a pipeline, one rank per node sends all its bytes to the
    next node. An expert's tokens leave over the card of the rank that has them.
    """
    near = min(ranks, max(1, cluster.per_node // stride))
    inside = sent / (cluster.gpu.inside * cluster.link_share) + messages * INSIDE_LATENCY * (near - 1)
    if near == ranks:
        return "inside", inside
    share = {"cp": 1.0, "pp": 1.0, "ep": (ranks - near) / (ranks - 1)}.get(axis, 1 / near)  # of the bytes, per card
    depth = math.ceil(math.log2(ranks / near))
    between = share * sent / (cluster.link * cluster.link_share) + messages * BETWEEN_LATENCY * max(1, depth)
    return ("between", between) if between > inside or near == 1 else ("inside", inside)


@dataclass(frozen=True)
class Step:
    """An optimizer step: its parts in seconds, but for the ratios `bubble` and `mfu`."""

    computing: float  # forward and backward, recomputation included
    bubble: float  # idle / busy time
    waiting: float  # for messages
    updating: float  # AdamW, at the speed of the GPU's memory
    total: float
    mfu: float
    sent: list[Traffic]

    @property
    def idle_share(self) -> float:
        """The bubble as a share of computing and bubble together."""
        return self.bubble / (1 + self.bubble)


def step(job: Job, layout: Layout, exposed: float | None = None) -> Step:
    """The time of one optimizer step.

    The messages of tp, cp and ep are waited for. Those of shard and pp overlap with the whole computation, gradients
    that are sent once (dp and ZeRO-1) with the last micro-batch's backward pass; what outlasts it is waited for.
    exposed: overrides these rules by the share of all messages that is waited for.
    """
    model, cluster = job.model, job.cluster
    count, sent = micro_batches(job, layout), traffic(job, layout)
    useful = job.tokens * model.flops_per_token / (cluster.gpus * cluster.gpu.flops)
    kernels = cluster.kernels * (0.5 if job.precision == "fp32" else 1)  # TF32 has half the peak
    imbalance = layers_per_stage(model, layout) * layout.pp / model.layers  # of the stage that the others wait for
    computing = useful / kernels * imbalance * (1 + layout.recompute_share if layout.recompute else 1)
    seconds = {
        overlap: sum(axis.seconds for axis in sent if axis.overlap == overlap) for overlap in ("none", "all", "last")
    }
    idle = bubble(layout, count)
    if exposed is None:
        last = max(0.0, seconds["last"] - 2 / 3 * computing / count)
        waiting = seconds["none"] * (1 + idle) + max(0.0, seconds["all"] - computing) + last
    else:
        waiting = exposed * sum(seconds.values())
    common, experts = stage_parameters(model, layout)
    if layout.zero and layout.shards > 1:
        common, experts = common / layout.shards, experts / max(1, layout.shards // layout.ep)
    updating = BYTES_PER_STEP * (common + experts) / cluster.gpu.memory_bandwidth
    total = computing * (1 + idle) + waiting + updating
    return Step(computing, idle, waiting, updating, total, useful / total, sent)
