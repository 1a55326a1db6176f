"""Data parallel with buckets: few messages, and all but the last overlap with backward."""

from torch import nn

from ddp_course.base.errors import InputError
from ddp_course.distributed.by_hand.message import by_type
from ddp_course.distributed.by_hand.overlapped import OverlappedDataParallel

MEBIBYTE = 2**20  # what torch's DDP calls a megabyte


class BucketedDataParallel(OverlappedDataParallel):
    """The overlapped wrapper with gradients packed into buckets: one all-reduce when a bucket's last gradient is ready.

    bucket_megabytes: the capacity of a bucket, in units of 2**20 bytes; a larger tensor gets a bucket of its own.
        Small buckets are sent early and pay the latency of many messages, large ones are sent late.
    A bucket holds gradients of one dtype and device. Li et al., "PyTorch Distributed: Experiences on Accelerating
    Data Parallel Training" (2020), section 3.2. Raises InputError for a size that is not positive.
    """

    def __init__(self, module: nn.Module, bucket_megabytes: float = 25.0) -> None:
        if not bucket_megabytes > 0:
            raise InputError(f"A bucket needs a positive size in megabytes, got {bucket_megabytes!r}; 25 is usual.")
        self.bucket_bytes = bucket_megabytes * MEBIBYTE  # super().__init__() fills the buckets
        super().__init__(module)

    def group_into_messages(self, parameters: list[nn.Parameter]) -> list[list[nn.Parameter]]:
        """Fill buckets in the order of `parameters`, per dtype and device; return them in the order of completion."""
        buckets: list[list[nn.Parameter]] = []
        for group in by_type(parameters):
            buckets.append([])
            for parameter in group:
                if buckets[-1] and _bytes([*buckets[-1], parameter]) > self.bucket_bytes:
                    buckets.append([])
                buckets[-1].append(parameter)
        position = {parameter: number for number, parameter in enumerate(parameters)}
        return sorted(buckets, key=lambda bucket: position[bucket[-1]])


def _bytes(parameters: list[nn.Parameter]) -> int:
    return sum(parameter.nbytes for parameter in parameters)
