"""What every question with a detector asks of it first: a verdict, and the same one on all ranks."""

from ddp_course.lab.answer_record import Case
from ddp_course.lab.verdict import Wrong


def assert_one_verdict(case: Case, detector: str, look: str) -> None:
    """Raise Wrong unless `detector` returned True or False in this case, and every rank what rank 0 did.

    look: where to look if the ranks come to different verdicts.
    """
    for rank, result in enumerate(case.results):
        if not isinstance(result, bool):
            raise Wrong(
                f"{case.where}{detector} returned {result!r} on rank {rank}; it should be True or False",
                "the line that returns; a tensor of one truth value has .item()",
            )
        if result != case.results[0]:
            raise Wrong(
                f"{case.where}{detector} returned {result} on rank {rank} and {case.results[0]} on rank 0", look
            )
