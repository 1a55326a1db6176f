"""The best configurations that nanotron's authors measured for the Ultra-Scale Playbook: 26 of several thousand, for
models of 1 to 80 billion parameters on 1 to 64 nodes of 8 H100, a million tokens per update in windows of 4,096.

The Playbook shows them as a picture (what_we_learnt_heatmap.svg), nanotron's repository the same with memory; the
numbers below are the texts in that file. 80B was not run on one and two nodes. The shapes are those of the script that
wrote the configurations; each gives the number of parameters in the picture, with 131,072 tokens in its vocabulary.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

from ddp_course.plan.job import Cluster, Job, Model
from ddp_course.plan.memory import Layout
from ddp_course.plan.published import GIB, Published
from ddp_course.plan.search import SearchResult, search

PICTURE = "https://github.com/huggingface/nanotron/blob/main/docs/benchmark_summary.svg"
SCRIPT = "https://github.com/huggingface/nanotron/blob/main/scripts/scaling_benchmarks.py"
TOKENS, WINDOW, VOCABULARY = 2**20, 4096, 131_072
SHAPES = {
    "1.34B": (16, 2048, 32, 8192),
    "3.57B": (28, 3072, 32, 8192),
    "8.86B": (32, 4096, 32, 14336),
    "80B": (80, 8192, 64, 28672),
}
NOT_RUN = [("80B", 1), ("80B", 2)]
# nodes, model, dp, tp, pp, micro-batches per update, windows per micro-batch, ZeRO's stage, MFU in percent, GB
MEASURED = """
64 1.34B 128  2  2   1 2 1  5.25  8.40
64 3.57B 128  4  1   1 2 1 10.49 16.42
64 8.86B 128  4  1   1 2 0 18.69 57.76
64 80B    32 16  1   4 2 1 17.79 53.46
32 1.34B  64  4  1   1 4 0 23.20 19.57
32 3.57B  64  4  1   1 4 0 26.77 38.98
32 8.86B  32  8  1   1 8 0 32.71 63.39
32 80B     4  4 16  64 1 1 30.75 64.21
16 1.34B  64  2  1   1 4 0 29.46 38.84
16 3.57B  32  4  1   1 8 0 34.59 66.20
16 8.86B  16  8  1   2 8 0 36.33 66.88
16 80B     1  4 32 256 1 0 34.29 61.18
 8 1.34B  32  1  2   8 1 1 32.47 16.27
 8 3.57B  32  1  2   8 1 1 35.53 36.73
 8 8.86B  32  1  2   8 1 1 39.50 59.09
 8 80B     1  4 16 256 1 0 30.65 63.07
 4 1.34B  16  1  2  16 1 1 38.38 16.39
 4 3.57B  16  1  2   8 2 1 40.39 53.33
 4 8.86B  16  1  2  16 1 1 43.31 61.10
 4 80B     1  8  4 256 1 0 14.76 65.97
 2 1.34B   8  1  2  32 1 1 41.59 19.45
 2 3.57B   8  1  2  16 2 1 43.77 54.31
 2 8.86B   4  4  1  16 4 1 43.94 58.34
 1 1.34B   4  1  2  16 4 1 44.32 41.76
 1 3.57B   4  1  2  32 2 1 46.68 56.87
 1 8.86B   2  1  4 128 1 1 45.22 63.07
"""


@dataclass(frozen=True)
class Measured:
    """run: the configuration as the other published runs. memory: bytes that a GPU held."""

    size: str
    nodes: int
    micro_batches: int
    memory: float
    run: Published


def model(size: str) -> Model:
    """As many heads of keys as of queries; below 4B one table at both ends."""
    layers, width, heads, mlp = SHAPES[size]
    tables = 1 if mlp < 10_000 else 2
    parameters = tables * VOCABULARY * width + layers * (4 * width**2 + 3 * width * mlp)
    return Model(parameters, layers, width, heads, WINDOW, VOCABULARY, tables, mlp=mlp / width, keeps="gated")


def job(size: str, nodes: int) -> Job:
    return Job(model(size), Cluster(8 * nodes, 80 * GIB, 50e9), TOKENS)


def nanotron(layout: Layout) -> bool:
    """Whether it was tried there: neither cp, nor ZeRO-2 and 3, nor checkpointing, nor chunks."""
    return layout.cp == 1 and layout.zero < 2 and not layout.recompute and layout.chunks == 1


@cache
def best(size: str, nodes: int) -> SearchResult:
    """The plan's own choice among what was tried."""
    return search(job(size, nodes), nanotron)


def _read(line: str) -> Measured:
    nodes, size, *numbers = line.split()
    dp, tp, pp, count, micro_batch, zero = map(int, numbers[:6])
    replicas, shard = (1, dp) if zero else (dp, 1)
    layout = Layout(pp, replicas, shard, tp=tp, zero=zero, micro_batch=micro_batch)
    run = Published(f"{size} on {8 * int(nodes)} H100", PICTURE, job(size, int(nodes)), layout, float(numbers[6]) / 100)
    return Measured(size, int(nodes), count, float(numbers[7]) * 1e9, run)


RUNS = [_read(line) for line in MEASURED.strip().splitlines()]


def pair(layout: Layout) -> tuple[int, int]:
    return layout.pp, layout.tp


def winners_among(pairs: Callable[[SearchResult], list[tuple[int, int]]]) -> int:
    """Measured configurations whose (pp, tp) is among those that `pairs` takes of a search."""
    return sum(pair(run.run.layout) in pairs(best(run.size, run.nodes)) for run in RUNS)


def winners_among_first(count: int) -> int:
    """Measured configurations whose (pp, tp) is among the plan's first `count` distinct ones."""
    return winners_among(lambda result: [pair(plan.layout) for plan in result.distinct()[:count]])


def winners_among_fewest(count: int) -> int:
    """The control without seconds: of the pairs that fit, those with the fewest ranks in pp x tp, then in pp."""
    return winners_among(lambda r: sorted({pair(p.layout) for p in r.fits}, key=lambda x: (x[0] * x[1], x))[:count])


def winners_among_fixed(count: int) -> int:
    """The null model: the same pairs for all, chosen when the winners are known."""
    fixed = [most for most, _ in Counter(pair(run.run.layout) for run in RUNS).most_common(count)]
    return winners_among(lambda _: fixed)
