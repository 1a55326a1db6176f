"""Data parallel that communicates while it computes: each gradient leaves as soon as backward has made it."""

import torch
import torch.distributed as dist
from torch import nn
from torch.autograd import Variable

from ddp_course.distributed.by_hand.message import GradientMessage
from ddp_course.distributed.by_hand.replica import Replica


class OverlappedDataParallel(Replica):
    """One asynchronous all-reduce for each parameter, started by a hook in the middle of backward.

    Messages have no names: ranks pair them by their order. So they leave in *one* order on all ranks, and a message
    waits until those before it have left. At first that is the order of registration, reversed, since backward
    runs from the last layer to the first; after the first round it is the order in which rank 0's gradients came
    (broadcast to all, once), as in torch's DDP.

    A parameter without a gradient on this rank holds back the messages behind it until backward ends: nothing is
    mixed up, but their overlap is lost on every rank. One that is unused on all ranks costs that only in the
    first round, and then its (zero) message at the end of each.

    The round ends with backward itself, for which a callback of the autograd engine is needed, the same that
    torch's own wrappers use. `finish_gradient_synchronization()` has work left only on a rank whose loss depended
    on no parameter at all, and after `no_sync()`. On such a rank it must follow *every* backward outside `no_sync`.
    """

    def __init__(self, module: nn.Module) -> None:
        super().__init__(module)
        self._order_is_final = len(self._trainable) < 2
        self._round_is_done = False  # since the last call of finish_gradient_synchronization
        self._new_messages(self._trainable[::-1])
        self._reset()
        for parameter in self._trainable:
            parameter.register_post_accumulate_grad_hook(self._gradient_is_ready)

    def finish_gradient_synchronization(self) -> None:
        if self._synchronizes and not self._round_is_done:
            self._end_round()
        self._round_is_done = False

    def no_sync(self):
        self._round_is_done = False  # what is accumulated from here on has not been sent
        return super().no_sync()

    def share_messages(self, parameters: list[nn.Parameter]) -> list[list[nn.Parameter]]:
        """Which parameters travel together, in the order of sending: here, each alone."""
        return [[parameter] for parameter in parameters]

    def _new_messages(self, parameters: list[nn.Parameter]) -> None:
        self._messages = []  # the old ones give their memory back before there are new ones
        self._messages = [GradientMessage(group) for group in self.share_messages(parameters)]
        self._number = {p: i for i, message in enumerate(self._messages) for p in message.parameters}

    def _reset(self) -> None:
        self._in_backward = False
        self._arrived: dict[nn.Parameter, None] = {}  # a set that keeps the order
        self._missing = [len(message.parameters) for message in self._messages]
        self._sent = 0  # messages that have left in this round

    def _gradient_is_ready(self, parameter: nn.Parameter) -> None:
        """The hook: `parameter.grad` has received all that this backward will add to it."""
        if not self._synchronizes:
            return
        if not self._in_backward:
            self._in_backward = True
            Variable._execution_engine.queue_callback(self._end_round)
        if parameter in self._arrived:
            raise RuntimeError(
                f"A parameter of shape {tuple(parameter.shape)} got its gradient twice in one backward, and the first "
                "is already sent; use checkpoint(..., use_reentrant=False)."
            )
        self._arrived[parameter] = None
        self._missing[self._number[parameter]] -= 1
        while self._sent < len(self._messages) and self._missing[self._sent] == 0:
            self._messages[self._sent].start()
            self._sent += 1

    def _end_round(self) -> None:
        """Backward is over: what has not left by now leaves, and everything is awaited."""
        for message in self._messages[self._sent :]:
            message.start()
        for message in self._messages:
            message.finish()
        if not self._order_is_final:
            self._agree_on_order()
        self._reset()
        self._round_is_done = True

    def _agree_on_order(self) -> None:
        """From now on as the gradients came on rank 0; those that never came go last and hold nobody back."""
        self._order_is_final = True
        last_order = [parameter for message in self._messages for parameter in message.parameters]
        place = {parameter: number for number, parameter in enumerate(last_order)}
        came = [*self._arrived, *(parameter for parameter in last_order if parameter not in self._arrived)]
        order = torch.tensor([place[parameter] for parameter in came], device=self._trainable[0].device)
        dist.broadcast(order, src=0)
        self._new_messages([last_order[number] for number in order.tolist()])
