"""Reasons to stop a run: a signal, its time budget, or a launcher or a reader of its output that is gone."""

import signal
import sys
import time
from pathlib import Path

import torch.distributed as dist

from ddp_course.distributed import torchrun
from ddp_course.distributed.process_group import World
from ddp_course.distributed.rendezvous import launcher_is_gone
from ddp_course.training.settings import RunSettings

TIME_IS_UP = "the time budget is spent"


class StopRequest:
    """Turns SIGTERM and SIGINT into a flag that the training loop reads in every step, several times in a long one.

    A handler that saved or exited by itself would leave the other ranks in the middle of a collective. So the
    handler notes the request; the loop sums `asked()` over the ranks, and all of them stop at the same step.
    """

    def __init__(self, world: World, config: RunSettings) -> None:
        """Take the time budget, measured by rank 0 because clocks disagree, and the exit code from `config`."""
        self.reason, self._signalled = "", False
        budgeted = config.max_seconds is not None and world.is_main
        self._deadline = time.monotonic() + config.max_seconds if budgeted else float("inf")
        self._world, self._exit_code = world, config.exit_code_when_stopped
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._note)

    def _note(self, number: int, _frame: object) -> None:
        self.reason = f"received {signal.Signals(number).name}"
        self._signalled = True

    def asked(self) -> bool:
        """Whether this rank wants to stop; `reason` then says why."""
        if time.monotonic() > self._deadline:
            self.reason = TIME_IS_UP
        elif launcher_is_gone(self._world.launcher):
            self.reason = "the launcher is gone"
        elif problem := getattr(sys.stdout, "problem", ""):
            self.reason = f"what it prints can no longer be written: {problem}"
        return bool(self.reason)

    def leave(self, step: int, run_dir: Path) -> int:
        """Say where the run has stopped, why, and how it goes on; returns the exit code of all ranks (collective).

        torchrun takes an exit code that is not 0 for a failure. With --max-restarts it would start the ranks anew: a
        stop that was asked of a rank, or by the clock, would become a loop. So one rank per machine passes it on. On
        the other machines of a job of which one was asked, torchrun restarts as it does when a machine is lost.
        """
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_IGN)  # torchrun sends it to all when the first has left
        reasons = [("", "")] * self._world.size
        dist.all_gather_object(reasons, (torchrun.node(), self.reason))
        reason = next(reason for _, reason in reasons if reason)
        sentence = f"stopped after step {step}: {reason}; go on with --run-dir {run_dir} --resume auto"
        self._world.say(sentence)
        torchrun.put_into_report(sentence)
        here = any(reason and (reason == TIME_IS_UP or node == torchrun.node()) for node, reason in reasons)
        if here and self._exit_code and self._world.local_rank == 0 and torchrun.would_restart():
            # A signal in a job that nodes may join came from torchrun, which wants to start a larger group.
            if not (self._signalled and torchrun.may_regroup(self._world.launcher)):
                torchrun.stop(self._world.launcher)
        dist.barrier()  # nobody leaves before that
        return self._exit_code
