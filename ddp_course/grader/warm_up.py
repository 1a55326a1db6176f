"""The warm-ups in front of the exercises: three lines to fill in, judged by the asserts of the next cell.

with warm_up("02.a"):
    assert place(rank=5, per_node=4) == (1, 1), "rank 5 is the second process of the second node"
"""

import os
import traceback
from collections.abc import Iterator
from contextlib import contextmanager

from ddp_course.grader.progress import note
from ddp_course.grader.verdict import NOT_ATTEMPTED, PASSED, WRONG

STRICT_VARIABLE = "DDP_COURSE_STRICT"


@contextmanager
def warm_up(name: str) -> Iterator[None]:
    """Print what the asserts inside say of warm-up `name`: passed, wrong (and what was asserted) or not attempted.

    An answer that raises something else shows its traceback, as any cell. With the variable DDP_COURSE_STRICT set,
    "wrong" and "not attempted" raise, too: a solution has to pass.
    """
    state, message = PASSED, ""
    try:
        yield
    except (NotImplementedError, AssertionError) as error:
        if os.environ.get(STRICT_VARIABLE):
            raise
        state = WRONG if isinstance(error, AssertionError) else NOT_ATTEMPTED
        message = str(error) or traceback.extract_tb(error.__traceback__)[-1].line if state == WRONG else ""
    note("checked", question=name, state=state)
    print(f"warm-up {name} {state}" + (f": {message}" if message else ""))
