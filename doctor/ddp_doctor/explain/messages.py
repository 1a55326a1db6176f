"""The known messages. A line has the first message that fits, so the order of the rows counts.

To add a message, add a row to one of the three tables, and a log that has it to tests/logs.
"""

from ddp_doctor.explain.message import Message
from ddp_doctor.explain.messages_of_contact import CONTACT
from ddp_doctor.explain.messages_of_scripts import SCRIPTS
from ddp_doctor.explain.messages_of_the_start import START

MESSAGES = [*SCRIPTS, *START, *CONTACT]
BY_NAME = {message.name: message for message in MESSAGES}
ABOUT_PEERS = ("monitored barrier", "gloo: no connection", "store: no connection")
SYMPTOMS = tuple(
    text for message in MESSAGES if message.role == "symptom" or message.name in ABOUT_PEERS for text in message.texts
)  # of gloo, the store and NCCL, which a rank prints when another rank is at fault


def recognise(error: str) -> Message | None:
    """The first message that the text of an error, of one line or several, contains."""
    return next((message for message in MESSAGES if any(text in error for text in message.texts)), None)
