# mistake: calls the collective that it should build
# state: wrong
# check: only send and recv
# message: rank 0 called all_reduce (line 10)

from torch.distributed import all_reduce


def ring_all_reduce(tensor):
    all_reduce(tensor)
