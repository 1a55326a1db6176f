# mistake: wraps the model in torch's DistributedDataParallel
# state: wrong
# check: built by hand
# message: built torch's DistributedDataParallel

from torch import nn
from torch.nn.parallel import DistributedDataParallel


class BucketedDataParallel(nn.Module):
    def __init__(self, module, bucket_megabytes=25.0):
        super().__init__()
        self.ddp = DistributedDataParallel(module, bucket_cap_mb=bucket_megabytes)
        self.module = module

    def forward(self, *args, **kwargs):
        return self.ddp(*args, **kwargs)

    def no_sync(self):
        return self.ddp.no_sync()

    def finish_gradient_synchronization(self):
        pass
