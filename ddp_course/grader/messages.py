"""Checks of how many operations an answer starts, and how many bytes they send."""

from collections.abc import Callable, Iterable

from ddp_course.grader.answer_record import Case
from ddp_course.grader.verdict import Wrong


def assert_little_is_sent(cases: Iterable[Case], limit: int, purpose: Callable[[Case, int], str], look_at: str) -> int:
    """Raise Wrong if a rank hands over more than `limit` bytes in one case; returns the most that one handed over.

    purpose: of a case and a rank, what the bytes were sent for: "for its 3,000 values".
    """
    most = 0
    for case in cases:
        for rank, operations in enumerate(case.operations):
            sent = sum(operation.bytes for operation in operations if operation.op != "recv")
            most = max(most, sent)
            if sent > limit:
                names = " and ".join(dict.fromkeys(operation.op for operation in operations if operation.bytes))
                raise Wrong(f"{case.where}rank {rank} handed {sent:,} bytes to {names} {purpose(case, rank)}", look_at)
    return most


def assert_few_collectives(cases: Iterable[Case], most: int, limit: int, look_at: str) -> str:
    """Raise Wrong if a rank starts more than `most` collectives in one case, or hands over more than `limit` bytes.

    Returns the number that a rank started, as "1 collective".
    """
    started = 0
    for case in cases:
        for rank, operations in enumerate(case.operations):
            sent, started = sum(operation.bytes for operation in operations), max(started, len(operations))
            if len(operations) > most or sent > limit:
                raise Wrong(
                    f"{case.where}rank {rank} started {len(operations)} operations with {sent:,} bytes in all", look_at
                )
    return f"{started} collective{'s' * (started > 1)}"
