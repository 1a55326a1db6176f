"""Several machines on this one: each with its own network, host name and processes, joined by cables of a chosen speed.

with Cluster(nodes=2, rate="200mbit") as cluster:
    run = cluster.torchrun("scripts/train.py", timeout=60)
    run.results[1]["loss"], run.nodes[1]
"""

from ddp_course.cluster.available import unavailable
from ddp_course.cluster.machines import Cluster
from ddp_course.cluster.slurm import Slurm, slurm_unavailable

__all__ = ["Cluster", "Slurm", "slurm_unavailable", "unavailable"]
