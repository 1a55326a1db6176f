"""Meshes that others trained on, with their source. Every number is the linked report's own, unless a comment says
otherwise; `python -m ddp_course.plan --published` puts each beside the plan's best."""

from dataclasses import dataclass, replace

from ddp_course.plan.memory import Mesh, Model, memory
from ddp_course.plan.search import Job, Plan, evaluate, search
from ddp_course.plan.traffic import Cluster
from ddp_course.predict.hardware import GPUS

GIB80 = 80 * 2**30
LLAMA_3 = "https://arxiv.org/abs/2407.21783"  # section 3.3, tables 3 and 4
DEEPSEEK_V3 = "https://arxiv.org/abs/2412.19437"  # sections 3.1, 3.2 and 4.2
DEEPSEEK_HARDWARE = "https://arxiv.org/abs/2505.09343"  # table 4
OLMO_2_32B = "https://github.com/allenai/OLMo-core/blob/main/src/scripts/official/OLMo2/OLMo-2-0325-32B-train.py"
MEGATRON = "https://arxiv.org/abs/2104.04473"  # table 1
MEGATRON_BYTES = "https://github.com/NVIDIA/Megatron-LM#distributed-optimizer"
PLAYBOOK = "https://huggingface.co/spaces/nanotron/ultrascale-playbook"  # memory for weights, gradients, optimizer

# bytes per parameter on d data ranks: precision -> (no rank shares, the optimizer is shared)
MEGATRON_PER_PARAMETER = {"bf16": (lambda d: 18, lambda d: 6 + 12 / d), "fp32": (lambda d: 16, lambda d: 8 + 8 / d)}
PLAYBOOK_GB = {1e9: (16, 20), 7e9: (112, 140), 70e9: (1120, 1400), 405e9: (6480, 8100)}  # fp32; bf16, fp32 gradients


@dataclass(frozen=True)
class Published:
    """mfu: as reported, if it was. in_flight: its schedule keeps as many micro-batches as 1F1B, interleaved or not.
    state: bytes of weights, gradients and optimizer per parameter, where they are not the plan's."""

    name: str
    source: str
    job: Job
    mesh: Mesh
    mfu: float | None = None
    in_flight: bool = False
    state: tuple[float, float, float] | None = None
    sent_once: bool = False  # gradients are added up over micro-batches first; how many, the report leaves open
    note: str = ""

    def plan(self) -> Plan:
        """As the plan's formulas see it."""
        seen = evaluate(self.job, self.mesh)
        if seen.refused:
            return seen
        mesh = replace(self.mesh, chunks=1) if self.in_flight else self.mesh
        held = memory(self.job.model, mesh, seen.micro_batches, self.job.precision, self.state)
        timed = evaluate(self.job, replace(self.mesh, zero=1)) if self.sent_once else seen
        return replace(seen, memory=held, step=timed.step)


_LLAMA = Model(405e9, 126, 16384, 128, 8192, 128256, key_values=8 / 128)
_LLAMA_LONG = replace(_LLAMA, context=131072)
# a token goes to 8 of 256 experts in 58 of the layers, each of three matrices 7168 x 2048
_DEEPSEEK = Model(671e9, 61, 7168, 128, 4096, 129280, active=37e9, experts=58 * 256 * 3 * 7168 * 2048, chosen=8)
_OLMO_32B = Model(32.2e9, 64, 5120, 40, 4096, 100352, key_values=8 / 40)


MEGATRON_NOTE = "recomputes each block, a third more computation, and had nothing to shard with"


def _h100(gpus: int, name: str = "h100") -> Cluster:
    return Cluster(gpus, GIB80, 50e9, GPUS[name])


def _megatron(billions: float, heads: int, width: int, layers: int, tp: int, pp: int, gpus: int, windows: int,
              teraflops: float) -> Published:  # fmt: skip
    """A row of the table. It recomputes activations; A100 of 80 GB, 8 cards of 200 Gb/s per node. The number of chunks
    is not in the table; micro-batches of one window."""
    model = Model(billions * 1e9, layers, width, heads, 2048, 51200, tables=1)
    mesh = Mesh(pp, gpus // tp // pp, tp=tp, zero=0, recompute=True)
    cluster = Cluster(gpus, GIB80, 25e9, GPUS["a100"])
    job = Job(model, cluster, windows * 2048)
    # the table's FLOP count the forward pass twice
    return Published(
        f"Megatron {billions:g}B, {gpus:,} A100", MEGATRON, job, mesh, 0.75 * teraflops / 312, note=MEGATRON_NOTE
    )


RUNS = [
    # gradients and optimizer sharded, weights not gathered again in backward: ZeRO-2. Interleaved; the number of chunks
    # is not in the report, and its schedule trades micro-batches in flight against messages
    Published("Llama 3 405B, 8,192 H100", LLAMA_3, Job(_LLAMA, _h100(8192), 2**24),
              Mesh(16, 1, 64, 1, 8, zero=2, chunks=8), 0.43, in_flight=True, sent_once=True),
    Published("Llama 3 405B, 16,384 H100", LLAMA_3, Job(_LLAMA, _h100(16384), 2**24),
              Mesh(16, 1, 128, 1, 8, zero=2, chunks=8), 0.41, in_flight=True, sent_once=True),
    Published("Llama 3 405B, 131,072 tokens", LLAMA_3, Job(_LLAMA_LONG, _h100(16384), 2**24),
              Mesh(16, 1, 8, 16, 8, zero=2, chunks=8), 0.38, in_flight=True, sent_once=True,
              note="cp 16 between nodes; the plan assumes kernels as fast on short parts of a window as on long ones"),
    # it recomputes parts of a layer, keeps AdamW's averages in bfloat16, and its schedule runs both ways at once
    Published("DeepSeek-V3, 2,048 H800", DEEPSEEK_V3, Job(_DEEPSEEK, _h100(2048, "h800"), 15360 * 4096),
              Mesh(16, 1, 128, ep=64, zero=1, recompute=True), 0.3894, state=(2, 4, 8),
              note="hides the experts' messages, which have one byte per number and go to four nodes at most; "
              "here they are waited for"),
    # the script leaves the number of GPUs open: 64 ranks share, the rest are replicas; micro-batches of four windows
    Published("OLMo 2 32B, 512 H100", OLMO_2_32B, Job(_OLMO_32B, _h100(512), 2048 * 4096),
              Mesh(dp=8, shard=64, micro_batch=4, recompute=True),
              note="recomputes each block, a third more computation; one window at a time would fit without"),
    _megatron(1.7, 24, 2304, 24, 1, 1, 32, 512, 137),
    _megatron(18.4, 48, 6144, 40, 8, 1, 256, 1024, 135),
    _megatron(145.6, 96, 12288, 80, 8, 8, 1536, 2304, 148),
    _megatron(1008, 160, 25600, 128, 8, 64, 3072, 3072, 163),
]  # fmt: skip


def compared(run: Published) -> dict[str, object]:
    """The published mesh and the plan's best: memory, MFU by the formulas, MFU as reported."""
    seen, found = run.plan(), search(run.job)
    best = found.fits[0] if found.fits else None
    return {"run": run, "seen": seen, "best": best,
            "fits": not seen.refused and seen.memory.total <= run.job.limit,
            "slower": seen.step.total / best.step.total - 1 if best and seen.step else None}  # fmt: skip
