"""Data parallel that overlaps communication with backward: each gradient is sent as soon as it is computed."""

import torch
import torch.distributed as dist
from torch import nn
from torch.autograd import Variable

from ddp_course.distributed.by_hand.message import GradientMessage
from ddp_course.distributed.by_hand.replica import Replica


class OverlappedDataParallel(Replica):
    """One asynchronous all-reduce per parameter, started by a hook during backward.

    Ranks pair messages by their order, because messages have no names. So all ranks send in the *same* order, and a
    message waits until all earlier ones have been sent. At first this is the reversed order of registration, because
    backward runs from the last layer to the first; after the first round it is the order in which rank 0's gradients
    were ready (broadcast to all, once), as in torch's DDP.

    A parameter without a gradient on this rank delays all later messages until backward ends: the result is correct,
    but their overlap is lost on every rank. A parameter that no rank uses causes this only in the first round; later
    its message of zeros is the last one.

    A callback of the autograd engine, which torch's own wrappers use too, ends the round when backward ends.
    `finish_gradient_synchronization()` has work left only on a rank whose loss depended on no parameter, and after
    `no_sync()`. On such a rank it must follow *every* backward outside `no_sync`.
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
        self._round_is_done = False  # gradients accumulated from here on have not been sent
        return super().no_sync()

    def group_into_messages(self, parameters: list[nn.Parameter]) -> list[list[nn.Parameter]]:
        """The parameters of each message, in the order of sending: here, one parameter per message."""
        return [[parameter] for parameter in parameters]

    def _new_messages(self, parameters: list[nn.Parameter]) -> None:
        self._messages = []  # frees the old messages before new ones are made
        self._messages = [GradientMessage(group) for group in self.group_into_messages(parameters)]
        self._number = {p: i for i, message in enumerate(self._messages) for p in message.parameters}

    def _reset(self) -> None:
        self._in_backward = False
        self._arrived: dict[nn.Parameter, None] = {}  # an ordered set
        self._missing = [len(message.parameters) for message in self._messages]
        self._sent = 0  # messages started in this round

    def _gradient_is_ready(self, parameter: nn.Parameter) -> None:
        """The hook: `parameter.grad` is complete for this backward."""
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
        """At the end of backward: start the remaining messages and wait for all."""
        for message in self._messages[self._sent :]:
            message.start()
        for message in self._messages:
            message.finish()
        if not self._order_is_final:
            self._agree_on_order()
        self._reset()
        self._round_is_done = True

    def _agree_on_order(self) -> None:
        """Adopt the order in which rank 0's gradients were ready; parameters without a gradient go last."""
        self._order_is_final = True
        last_order = [parameter for message in self._messages for parameter in message.parameters]
        index = {parameter: number for number, parameter in enumerate(last_order)}
        ready = [*self._arrived, *(parameter for parameter in last_order if parameter not in self._arrived)]
        order = torch.tensor([index[parameter] for parameter in ready], device=self._trainable[0].device)
        dist.broadcast(order, src=0)
        self._new_messages([last_order[number] for number in order.tolist()])
