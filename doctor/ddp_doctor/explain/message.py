"""A message that failing jobs print: how it is recognised, what it means, and the first thing to do.

`role` is what a message implies about the rank that prints it:

    cause     the failure began on this rank
    setup     the start, the environment or the machine is wrong; several ranks may print it
    network   a connection failed: because of the network, or of a rank that did not run
    symptom   the rank lost contact, or waited: another rank is at fault, or none
    warning   no failure by itself
"""

import functools
from dataclasses import dataclass


@dataclass(frozen=True)
class Message:
    role: str
    name: str
    texts: tuple[str, ...]  # as printed; a line with one of them has the message
    cause: str
    first_step: str
    next_command: str = ""  # a key of report.NEXT_COMMANDS


cause, setup, network, symptom, warning = (
    functools.partial(Message, role) for role in ("cause", "setup", "network", "symptom", "warning")
)
