"""GPUs by their data sheets (https://www.nvidia.com/en-us/data-center/): the one table, for trainers and for plans."""

from dataclasses import dataclass


@dataclass(frozen=True)
class GPU:
    """The peak rates of a GPU: dense FLOP/s, and bytes per second."""

    flops: float  # half precision, accumulated in float32
    tf32: float | None = None
    float32: float | None = None
    memory: float | None = None  # bytes
    memory_bandwidth: float | None = None
    inside: float | None = None  # bandwidth to the other GPUs of its node, in one direction


# A trainer takes the first name that occurs, as whole words, in torch's name of the device. Plans need a GPU whose
# memory is listed.
GPUS = {
    "GB200": GPU(2500e12, 1250e12, 80e12),
    "B200": GPU(2250e12, 1125e12, 75e12, 180e9, 8.0e12, 900e9),
    "GH200": GPU(989e12, 494e12, 67e12),
    "H200": GPU(989e12, 494e12, 67e12, 141e9, 4.8e12, 450e9),
    "H800": GPU(989e12, 494e12, 67e12, 80e9, 3.35e12, 200e9),
    "H100 PCIe": GPU(756e12, 378e12, 51e12),
    "H100 NVL": GPU(835e12, 417e12, 60e12),
    "H100": GPU(989e12, 494e12, 67e12, 80e9, 3.35e12, 450e9),
    "A100": GPU(312e12, 156e12, 19.5e12, 80e9, 2.0e12, 300e9),
    "A10G": GPU(70e12, 35e12, 31.2e12),
    "A10": GPU(125e12, 62.5e12, 31.2e12),
    "A40": GPU(150e12, 75e12, 37.4e12),
    "L40S": GPU(362e12, 183e12, 91.6e12),
    "L4": GPU(121e12, 60e12, 30.3e12),
    "V100": GPU(125e12, 15.7e12, 15.7e12, 32e9, 900e9, 150e9),
    "T4": GPU(65e12, 8.1e12, 8.1e12, 16e9, 320e9, 12e9),
    "RTX 4090": GPU(165e12, 82.6e12, 82.6e12),
    "RTX 3090": GPU(71e12, 35.6e12, 35.6e12),
}
