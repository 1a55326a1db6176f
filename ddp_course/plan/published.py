"""Published training runs with enough details for the formulas, and each compared with the plan's best mesh.

Every number is the linked report's own, unless a comment says otherwise; `tests/test_plan_published.py` checks that
they agree with each other. Configurations of a benchmark: `ddp_course.plan.playbook`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from ddp_course.base.hardware import GPU, GPUS
from ddp_course.plan.assumptions import KERNELS
from ddp_course.plan.job import Cluster, Job, Model
from ddp_course.plan.memory import Layout, memory
from ddp_course.plan.search import Plan, refusal_reason, search
from ddp_course.plan.traffic import Step, micro_batches, step
from ddp_course.plan.uncertainty import Range

GIB = 2**30
LLAMA_3 = "https://arxiv.org/abs/2407.21783"  # section 3.3, tables 3 and 4
DEEPSEEK_V3 = "https://arxiv.org/abs/2412.19437"  # sections 2.1.2, 3.1 to 3.3, 4.2, tables 1 and 2
DEEPSEEK_HARDWARE = "https://arxiv.org/abs/2505.09343"  # table 4
PALM = "https://arxiv.org/abs/2204.02311"  # section 4, tables 1 and 3, appendix B
OLMO_2_32B = "https://github.com/allenai/OLMo-core/blob/main/src/scripts/official/OLMo2/OLMo-2-0325-32B-train.py"
OLMO_2_BLOG = "https://allenai.org/blog/olmo2-32B"
MEGATRON = "https://arxiv.org/abs/2104.04473"  # table 1; parameters follow from its shapes
PLAYBOOK = "https://huggingface.co/spaces/nanotron/ultrascale-playbook"


@dataclass(frozen=True)
class Published:
    """A training run as its source describes it.

    mfu        as reported; None if it was not
    chunks     the range of chunks per pipeline rank, if the source leaves it open
    in_flight  whether no more micro-batches are in flight than under 1F1B, even with chunks
    state      overrides memory.STATE
    sent_once  whether gradients are accumulated over micro-batches before they are sent
    reported   other reported numbers
    measured   link to the source of mfu and reported, if that is not `source`
    """

    name: str
    source: str
    job: Job
    layout: Layout
    mfu: float | None = None
    chunks: Range | None = None
    in_flight: bool = False
    state: tuple[float, float, float] | None = None
    sent_once: bool = False
    reported: Mapping[str, float] = field(default_factory=dict)
    measured: str = ""
    note: str = ""

    def plan(self) -> Plan:
        """The run's mesh by the plan's formulas, with its step even if the plan would refuse the mesh."""
        job, unchunked = self.job, replace(self.layout, chunks=1)  # DualPipe's equivalent of chunks is no whole number
        count = micro_batches(job, unchunked)
        needed = memory(job.model, unchunked if self.in_flight else self.layout, count, job.precision, self.state)
        return Plan(self.layout, refusal_reason(job, unchunked), count, needed, self.step())

    def step(
        self,
        kernels: float | None = None,
        link_share: float | None = None,
        chunks: float | None = None,
        exposed: float | None = None,
    ) -> Step:
        """The run's step by the formulas; each argument that is not None replaces the run's own assumption.

        exposed: the share of all messages that is waited for.
        """
        cluster, layout = self.job.cluster, replace(self.layout, chunks=chunks or self.layout.chunks)
        assumed = {"kernels": kernels or cluster.kernels, "link_share": link_share or cluster.link_share}
        if self.sent_once:
            layout = replace(layout, zero=1)
        return step(replace(self.job, cluster=replace(cluster, **assumed)), layout, exposed)


# Llama 3's kernels are not described. If 3 of a gated MLP's 4 numbers are saved and as few micro-batches are in flight
# as under 1F1B, the formulas count 75.9 GB of 77.3 on 8,192 GPUs; 89.9 with all 4 numbers, 83.9 with an interleaved
# schedule's micro-batches.
_LLAMA = Model(405e9, 126, 16384, 128, 8192, 128256, key_value_ratio=8 / 128, mlp_ratio=53248 / 16384, keeps="fused")
# In 58 of DeepSeek's layers, a token goes to 8 of 256 experts, each of three matrices 7168 x 2048, but to at most 4
# nodes: one byte per number on the way there, two on the way back, 1.5 on average. Heads of keys have a size of 192,
# those of values 128: 160 on average.
_EXPERTS = {
    "expert_parameters": 58 * 256 * 3 * 7168 * 2048,
    "experts_per_token": 4,
    "expert_layers": 58,
    "expert_bytes": 1.5,
}
_LAYERS = {"mlp_ratio": 9 * 2048 / 7168, "keeps": "fused", "attention_width": 128 * 160, "causal": True}
_DEEPSEEK = Model(671e9, 61, 7168, 128, 4096, 129280, active=37e9, **_LAYERS, **_EXPERTS)
_PALM = Model(
    540.35e9, 118, 18432, 48, 2048, 256_000, tables=1, key_value_ratio=1 / 48, keeps="gated", attention_width=48 * 256
)
_OLMO_32B = Model(32.2e9, 64, 5120, 40, 4096, 100352, key_value_ratio=8 / 40, mlp_ratio=27648 / 5120, keeps="gated")

ASSUMED_OF_LLAMA = (
    "fits by two assumptions: 3 of the MLP's 4 numbers kept (all 4: 89.9 GB), and 1F1B's micro-batches\n"
    "    in flight (an interleaved schedule's: 83.9 GB)"
)
LONG_WINDOWS = "the same, and kernels that are as fast on a window's 16 parts as on the whole"
RECOMPUTES = "checkpoints each block (a third more computation), and had no ZeRO"
_TPU_V4 = GPU(275e12, memory=32 * GIB, memory_bandwidth=1.2e12, inside=270e9)


def _h100(gpus: int, name: str = "H100", kernels: float = KERNELS) -> Cluster:
    return Cluster(gpus, 80 * GIB, 50e9, GPUS[name], kernels=kernels)


def _llama(run: str, gpus: int, shard: int, mfu: float, reported: dict, context=8192, cp=1, note=ASSUMED_OF_LLAMA):
    """A run of Llama 3 405B.

    Gradients and optimizer state are sharded, and weights are not gathered again in backward: ZeRO-2. The schedule is
    interleaved with one layer per chunk: "the first model chunk on the first stage has only the embedding", so that
    embedding, 126 layers and output are 128 chunks on 16 stages. It trades micro-batches in flight against messages;
    over how many micro-batches gradients are accumulated before they are sent, the report leaves open. pp is the
    outermost axis here, as in the plan, but dp in the report.
    """
    job = Job(replace(_LLAMA, context=context), _h100(gpus), 2**24)
    layout = Layout(16, 1, shard, cp, 8, zero=2, chunks=8)
    return Published(
        f"Llama 3 405B, {run}", LLAMA_3, job, layout, mfu, in_flight=True, sent_once=True, reported=reported, note=note
    )


def _megatron(
    billions: float, heads: int, width: int, layers: int, tp: int, pp: int, gpus: int, windows: int, teraflops: float
) -> Published:
    """A row of Megatron-LM's table: recomputed activations, 80 GB A100, 8 cards of 200 Gb/s per node.

    Assumed: one chunk, as the table leaves their number out, and micro-batches of one window.
    """
    model = Model(billions * 1e9, layers, width, heads, 2048, 51200, tables=1)
    layout = Layout(pp, gpus // tp // pp, tp=tp, zero=0, recompute=True)
    job = Job(model, Cluster(gpus, 80 * GIB, 25e9, GPUS["A100"]), windows * 2048)
    mfu = 0.75 * teraflops / 312  # the table's FLOP count the recomputed forward pass, too
    return Published(f"Megatron {billions:g}B, {gpus:,} A100", MEGATRON, job, layout, mfu, note=RECOMPUTES)


_LLAMA_TOTALS = {"FLOP/s per GPU": 430e12, "tokens": 15.6e12, "FLOP": 3.8e25}
_DEEPSEEK_REPORTED = {
    "step": 19.926,  # seconds, as the next two, which are parts of it
    "bubble": 2.06,
    "optimizer": 0.29,
    "tokens per day": 272.8e9,
    "GPU hours per 10^12 tokens": 180e3,
    "tokens": 14.8e12,
    "GPU hours": 2.664e6,
    "price of a GPU hour": 2.0,
}
_PALM_REPORTED = {
    "tokens per s": 238.3e3,
    "MFU and recomputation": 0.578,
    "speed-up of two pods": 1.95,
    "hosts": 1536,
    "bits per s between pods": 81e12,
}
RUNS = [
    _llama("8,192 H100", 8192, 64, 0.43, _LLAMA_TOTALS),
    _llama("16,384 H100", 16384, 128, 0.41, {"FLOP/s per GPU": 400e12}),
    # the table's first version says dp 4; with 8 the axes multiply to 16,384, and the tokens of a batch to 16M
    _llama("131,072 tokens", 16384, 8, 0.38, {"FLOP/s per GPU": 380e12}, 131072, 16, LONG_WINDOWS),
    # AdamW's averages are in bfloat16, and DualPipe holds the weights twice. Norms and attention's up-projections are
    # recomputed, about 3 % of the computation; memory is counted here as if all were. 20 of 132 SMs send and receive.
    # Table 2: the bubble is (PP/2 - 1)(F&B + B - 3W), which is 14 F if W = F = B/2; 1F1B's 15 (F + B) is 45 F.
    Published(
        "DeepSeek-V3, 2,048 H800",
        DEEPSEEK_V3,
        Job(_DEEPSEEK, _h100(2048, "H800", KERNELS * 112 / 132), 15360 * 4096),
        Layout(16, 1, 128, ep=64, zero=1, recompute=True, chunks=45 / 14, recompute_share=0.03, hides_experts=True),
        0.3894,
        Range(1, 45 / 14),
        in_flight=True,
        state=(4, 4, 8),
        reported=_DEEPSEEK_REPORTED,
        measured=DEEPSEEK_HARDWARE,  # the last four of `reported` are in the source
        note="multiplies in FP8, MFU is of the BF16 peak; hides its experts' messages",
    ),
    # two pods of 3,072 chips, each counted as a node here; four chips per host, which sends 81 Tbit/s / 1,536
    Published(
        "PaLM 540B, 6,144 TPU v4",
        PALM,
        Job(_PALM, Cluster(6144, 32 * GIB, 6.6e9 / 4, _TPU_V4, 3072), 2048 * 2048),
        Layout(dp=2, shard=256, tp=12, zero=3, micro_batch=4, recompute=True, recompute_share=0.25, gradient_bytes=2),
        mfu=0.462,
        reported=_PALM_REPORTED,
        note="checkpoints each block though memory is left; attention beside MLP halves tp's messages",
    ),
    # The script shards over 64 ranks, in micro-batches of four windows, and leaves the number of replicas open. The MFU
    # is from Ai2's announcement, read in a report on it, for an unknown number of GPUs. Assumed: 512, 400 Gb/s each.
    Published(
        "OLMo 2 32B, 512 H100",
        OLMO_2_32B,
        Job(_OLMO_32B, _h100(512), 2048 * 4096),
        Layout(dp=8, shard=64, micro_batch=4, recompute=True),
        mfu=0.38,
        reported={"tokens per s per GPU": 1800},
        measured=OLMO_2_BLOG,
        note="512 GPUs and their 400 Gb/s are assumed; checkpoints each block (a third more computation)",
    ),
    _megatron(1.7, 24, 2304, 24, 1, 1, 32, 512, 137),
    _megatron(18.4, 48, 6144, 40, 8, 1, 256, 1024, 135),
    _megatron(145.6, 96, 12288, 80, 8, 8, 1536, 2304, 148),
    _megatron(1008, 160, 25600, 128, 8, 64, 3072, 3072, 163),
]


def run(name: str) -> Published:
    """The published run whose name begins with `name`."""
    return next(run for run in RUNS if run.name.startswith(name))


def compared(run: Published) -> dict[str, object]:
    """A run's own mesh and the quickest that the plan finds for its job.

    "plan": the run's Plan; "best": the quickest Plan that fits, None if none does; "slower": step of "plan" / step of
    "best" - 1, or None.
    """
    plan, fits = run.plan(), search(run.job).fits
    slower = plan.step.total / fits[0].step.total - 1 if fits else None
    return {"plan": plan, "best": fits[0] if fits else None, "slower": slower}
