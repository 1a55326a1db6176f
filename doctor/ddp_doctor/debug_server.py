"""Reads torch's flight recorder from outside, through torch's own debug server, if the script has started one.

    from torch.distributed.debug import start_debug_server
    start_debug_server(25999)  # on every rank, below `if __name__ == "__main__":`; rank 0 answers for all

In torch 2.13 its records have no stacks.
"""

import html
import json
import re
from urllib.request import urlopen

from ddp_doctor.errors import InputError
from ddp_doctor.history import parse
from ddp_doctor.job import Rank

# One page per recorder, as a job may have groups of several backends: gloo, nccl2 (which is "nccl" in torch 2.15), and
# ProcessGroupNCCL. Before 2.15 the server ignores the query, and the second page is the first one again.
PAGES = ("fr_trace_json", "fr_trace_json?backend=nccl2", "fr_trace_nccl_json")
TIMEOUT = 60  # seconds: torch's own limit for a rank that does not answer


def read(ranks: dict[int, Rank], url: str) -> None:
    """Sets `history` and `progress` of each rank that has a dump. Raises InputError if no server answers at `url`."""
    for page in PAGES:
        for number, dump in _dumps(f"{url.rstrip('/')}/{page}").items():
            if number in ranks and dump.get("entries"):
                ranks[number].history = parse(dump)
                ranks[number].progress = {
                    group: (int(status["last_enqueued_collective"]), int(status["last_completed_collective"]))
                    for group, status in dump.get("pg_status", {}).items()
                }


def _dumps(address: str) -> dict[int, dict]:
    """{rank: dump} of the ranks that have one on this page."""
    try:
        with urlopen(address, timeout=TIMEOUT) as answer:
            text = answer.read().decode()
        parts = re.findall(r"<h2>Rank (\d+):.*?<pre>(.*?)</pre>", text, re.DOTALL)
        dumps = {int(rank): html.unescape(dump) for rank, dump in parts}
        # Instead of a dump the text may be that torch has no NCCL.
        return {rank: json.loads(dump) for rank, dump in dumps.items() if dump.startswith("{")}
    except (OSError, ValueError) as error:
        raise InputError(
            f"{address} does not answer as torch's debug server does ({error}); the address is needed that rank 0 "
            "printed, such as http://localhost:25999."
        ) from error
