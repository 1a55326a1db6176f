def batch_script() -> str:
    """The text of a batch script: two nodes, and one task of `train` on each."""
    return r"""#!/bin/bash
#SBATCH --job-name=train
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --time=01:00:00
#SBATCH --output=%x-%j.out
#SBATCH --signal=B:TERM@30
RUN=runs/$SLURM_JOB_ID-attempt-${SLURM_RESTART_COUNT:-0}
trap 'echo "SIGTERM: the time limit is near"; kill -TERM $!' TERM
srun train --run-dir "$RUN" --resume &
wait $!
code=$?
echo "ended with exit code $code"
if [ "$code" -eq 75 ]; then scontrol requeue "$SLURM_JOB_ID"; fi
exit "$code"
"""
