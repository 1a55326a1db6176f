"""A message that failing jobs print: how it is recognised, what it means, and the first thing to do.

`role` says what a message tells of the rank that prints it:

    cause     it began here
    setup     the start, the environment or the machine is wrong; several ranks may print it
    network   a connection did not come about: the network, or a rank that was not there
    symptom   the rank lost contact, or waited: the fault is somebody else's, or nobody's
    warning   no failure by itself
"""

import functools
from dataclasses import dataclass


@dataclass(frozen=True)
class Message:
    role: str
    name: str
    texts: tuple[str, ...]  # as printed; one of them is enough
    cause: str
    first_step: str
    next_command: str = ""  # a key of report.NEXT_COMMANDS


cause, setup, network, symptom, warning = (
    functools.partial(Message, role) for role in ("cause", "setup", "network", "symptom", "warning")
)
