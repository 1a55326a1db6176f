"""What a GPU can do by its data sheet, and which share of that training reaches: ranges, until you have measured."""

from dataclasses import dataclass

from ddp_course.base.errors import InputError


@dataclass(frozen=True)
class GPU:
    """Dense bfloat16 FLOP/s (T4, V100: float16), bytes of memory and per second to and from it, and bytes per second to
    its neighbours in a node, one way."""

    flops: float
    memory: float
    memory_speed: float
    inside: float


MOST_GPUS = 2**17  # of one job; more have not trained together so far
GPUS = {  # data sheets: https://www.nvidia.com/en-us/data-center/
    "t4": GPU(65e12, 16e9, 320e9, 12e9),
    "v100": GPU(125e12, 32e9, 900e9, 150e9),
    "a100": GPU(312e12, 80e9, 2.0e12, 300e9),
    "h100": GPU(989e12, 80e9, 3.35e12, 450e9),
    "h800": GPU(989e12, 80e9, 3.35e12, 200e9),
    "h200": GPU(989e12, 141e9, 4.8e12, 450e9),
    "b200": GPU(2250e12, 180e9, 8.0e12, 900e9),
}


@dataclass(frozen=True)
class Range:
    """What is known of a number: it lies between `low` and `high`. Equal once it is measured."""

    low: float
    high: float

    def __post_init__(self):
        if not 0 <= self.low <= self.high < float("inf"):
            raise InputError(f"a range goes from its low to its high end, both from 0 up, got {self.low}-{self.high}")

    @property
    def middle(self) -> float:
        return (self.low + self.high) / 2

    @property
    def known(self) -> bool:
        return self.low == self.high

    def at(self, share: float) -> float:
        return self.low + share * (self.high - self.low)


# Assumed where nothing is given. MFU: published runs of dense models lie in it (notebook 15b). Share of a link: what
# all-reduces of large messages reach of the stated speed, as nccl-tests show. Seconds per message: from a node with
# fast cards to cloud instances. Spread: standard deviation of one GPU's computation from step to step.
ASSUMED = {
    "mfu": Range(0.30, 0.55),
    "link_share": Range(0.60, 0.92),
    "latency": Range(5e-6, 30e-6),
    "spread": Range(0.0, 0.02),
}


def check_gpus(gpus: int, per_node: int) -> None:
    """Raise InputError unless so many GPUs are a job that can be: one node or a part of it, or whole nodes."""
    if not 1 <= gpus <= MOST_GPUS:
        raise InputError(f"--gpus is from 1 to {MOST_GPUS:,}, got {gpus:,}")
    if per_node < 1:
        raise InputError(f"GPUs per node are at least 1, got {per_node:,}")
    if gpus > per_node and gpus % per_node:
        below = gpus // per_node * per_node
        raise InputError(
            f"{gpus} GPUs do not fill nodes of {per_node}; take {below} or {below + per_node}, or another "
            "--gpus-per-node"
        )


def gpu(name: str) -> GPU:
    if name.lower() not in GPUS:
        raise InputError(f"no GPU {name!r}; there are {', '.join(GPUS)}. For another one, give --peak-tflops")
    return GPUS[name.lower()]


def number_or_range(text: str, what: str, most: float = float("inf")) -> Range:
    """ "0.4" (measured) or "0.3-0.5"."""
    try:
        ends = [float(part) for part in text.split("-")] if not text.lower().count("e-") else [float(text)]
        found = Range(ends[0], ends[-1])
        if len(ends) > 2 or found.high > most:
            raise ValueError
    except (ValueError, InputError):
        limit = f" of at most {most:g}" if most < float("inf") else ""
        raise InputError(f"{what} is a number{limit} such as 0.4, or a range such as 0.3-0.5, got {text!r}") from None
    return found
