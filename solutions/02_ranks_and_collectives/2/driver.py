"""Inside a rank, for 02.2: call the learner's main, and note for which ranks it calls losses."""

import sys

import torch.distributed as dist


def drive(main):
    """The arguments of the calls of losses. main joins a process group of its own, as in a script."""
    answer, measured_ranks = sys.modules["answer"], []
    losses = answer.losses

    def noted_losses(rank):
        measured_ranks.append(rank)
        return losses(rank)

    answer.losses = noted_losses
    dist.destroy_process_group()
    main()
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)  # the harness expects one
    return measured_ranks
