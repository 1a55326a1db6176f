"""Data parallel with buckets: few messages, and all but the last overlap with backward."""

from torch import nn

from ddp_course.base.errors import InputError
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
        full, filling = [], {}
        for position, parameter in enumerate(parameters):
            key, size = (parameter.dtype, parameter.device), parameter.numel() * parameter.element_size()
            bucket = filling.setdefault(key, {"parameters": [], "bytes": 0})
            if bucket["parameters"] and bucket["bytes"] + size > self.bucket_bytes:
                full.append(bucket)
                bucket = filling[key] = {"parameters": [], "bytes": 0}
            bucket["parameters"].append(parameter)
            bucket["bytes"] += size
            bucket["complete_at"] = position
        buckets = sorted([*full, *filling.values()], key=lambda bucket: bucket["complete_at"])
        return [bucket["parameters"] for bucket in buckets]
