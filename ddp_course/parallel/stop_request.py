"""Asked to stop: by a signal, by the clock, or by a launcher that is gone."""

import os
import signal
import time

from ddp_course.parallel.process_group import World


class StopRequest:
    """Turns SIGTERM and SIGINT into a question that the training loop asks once a step.

    A handler that saved or exited by itself would leave the other ranks in the middle of a collective. So the
    handler notes the request; the loop sums `asked()` over the ranks, and all of them leave after the same step.
    """

    def __init__(self, world: World, max_seconds: float | None = None) -> None:
        """`max_seconds`: a time budget. It is rank 0's clock that counts, since clocks disagree."""
        self.reason = ""
        budgeted = max_seconds is not None and world.is_main
        self._deadline = time.monotonic() + max_seconds if budgeted else float("inf")
        self._launcher = world.launcher
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._note)

    def _note(self, number: int, _frame: object) -> None:
        self.reason = f"received {signal.Signals(number).name}"

    def asked(self) -> bool:
        """Whether this rank wants to stop; `reason` then says why."""
        if time.monotonic() > self._deadline:
            self.reason = "the time budget is spent"
        elif "LOCAL_RANK" in os.environ and os.getppid() != self._launcher:
            # kill -9 of torchrun sends us nothing: we are handed to another parent and would train on unseen.
            self.reason = "the launcher is gone"
        return bool(self.reason)
