"""The best configurations that nanotron's authors measured for the Ultra-Scale Playbook, and the plan's own choices.

They are the 26 winners of several thousand, for models of 1 to 80 billion parameters on 1 to 64 nodes of 8 H100, with a
million tokens per optimizer step in windows of 4,096. 80B was not run on one and two nodes.

The numbers are the texts of PICTURE, which the Playbook shows without memory (what_we_learnt_heatmap.svg). The shapes
are those of SCRIPT, which wrote the configurations; with a vocabulary of 131,072 tokens each gives the number of
parameters in the picture.
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
SHAPES = {  # layers, width, heads, units of the MLP's inner layer
    "1.34B": (16, 2048, 32, 8192),
    "3.57B": (28, 3072, 32, 8192),
    "8.86B": (32, 4096, 32, 14336),
    "80B": (80, 8192, 64, 28672),
}
NOT_RUN = [("80B", 1), ("80B", 2)]
# nodes, model, dp, tp, pp, micro-batches per step, windows per micro-batch, ZeRO's stage, MFU in percent, GB
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
class Winner:
    """The best measured configuration for a model and a number of nodes.

    micro_batches: per optimizer step. memory: bytes that a GPU held. run: its mesh and MFU.
    """

    size: str
    nodes: int
    micro_batches: int
    memory: float
    run: Published


def model(size: str) -> Model:
    """The model of this size: a gated MLP, as many heads of keys as of queries, and below 4B tied embeddings."""
    layers, width, heads, inner = SHAPES[size]
    tables = 1 if inner < 10_000 else 2
    parameters = tables * VOCABULARY * width + layers * (4 * width**2 + 3 * width * inner)
    return Model(parameters, layers, width, heads, WINDOW, VOCABULARY, tables, mlp_ratio=inner / width, keeps="gated")


def job(size: str, nodes: int) -> Job:
    """The model of this size on nodes of 8 H100, with 80 GB and a card of 400 Gb/s per GPU."""
    return Job(model(size), Cluster(8 * nodes, 80 * GIB, 50e9), TOKENS)


def in_benchmark(layout: Layout) -> bool:
    """Whether the authors tried such layouts: without cp, ZeRO-2 and 3, checkpointing and chunks."""
    return layout.cp == 1 and layout.zero < 2 and not layout.recompute and layout.chunks == 1


@cache
def best(size: str, nodes: int) -> SearchResult:
    """The plan's search among the layouts that the authors tried."""
    return search(job(size, nodes), in_benchmark)


def _read(line: str) -> Winner:
    nodes, size, *numbers = line.split()
    dp, tp, pp, count, micro_batch, zero = map(int, numbers[:6])
    replicas, shard = (1, dp) if zero else (dp, 1)
    layout = Layout(pp, replicas, shard, tp=tp, zero=zero, micro_batch=micro_batch)
    run = Published(f"{size} on {8 * int(nodes)} H100", PICTURE, job(size, int(nodes)), layout, float(numbers[6]) / 100)
    return Winner(size, int(nodes), count, float(numbers[7]) * 1e9, run)


RUNS = [_read(line) for line in MEASURED.strip().splitlines()]


def _pair(layout: Layout) -> tuple[int, int]:
    return layout.pp, layout.tp


def _winners_among(pairs: Callable[[SearchResult], list[tuple[int, int]]]) -> int:
    """The number of winners whose (pp, tp) is among the pairs that `pairs` selects from the plan's search."""
    return sum(_pair(winner.run.layout) in pairs(best(winner.size, winner.nodes)) for winner in RUNS)


def winners_among_first(count: int) -> int:
    """The number of winners whose (pp, tp) is among the plan's first `count` distinct ones."""
    return _winners_among(lambda result: [_pair(plan.layout) for plan in result.distinct()[:count]])


def winners_among_fewest(count: int) -> int:
    """A control without seconds: the number of winners among the `count` pairs that fit with the fewest ranks.

    Pairs are ordered by pp x tp, then by pp.
    """

    def fewest_ranks(result: SearchResult) -> list[tuple[int, int]]:
        pairs = {_pair(plan.layout) for plan in result.fits}
        return sorted(pairs, key=lambda pair: (pair[0] * pair[1], pair))[:count]

    return _winners_among(fewest_ranks)


def winners_among_fixed(count: int) -> int:
    """The null model: the number of winners among the `count` pairs that are most frequent among the winners."""
    pairs = Counter(_pair(winner.run.layout) for winner in RUNS).most_common(count)
    return _winners_among(lambda _: [pair for pair, _ in pairs])
