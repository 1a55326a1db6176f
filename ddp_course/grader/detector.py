"""What every question with a detector asks of it: one verdict on all ranks, True for what is right, False otherwise."""

from collections.abc import Callable, Collection
from dataclasses import dataclass

from ddp_course.grader.answer_record import Case, JobRecord, cases
from ddp_course.grader.verdict import Wrong

Check = Callable[[list[JobRecord]], str]
Text = str | Callable[[str], str]  # or what makes it of the version that the detector was wrong about


@dataclass(frozen=True)
class Detector:
    """The learner's function `name`, which the first `jobs` jobs hand one version after the other.

    right, broken   the versions, each the `given` of a call
    """

    name: str
    right: Collection[str]
    broken: Collection[str]
    jobs: int = 1

    def agrees(self, look: str, fact: str = "all ranks come to the same verdict") -> Check:
        """The check that it returns True or False, the same on every rank. look: where to look if it does not."""

        def all_ranks_say_the_same(records):
            """The detector returns True or False, the same on every rank."""
            for case in cases(records[: self.jobs]):
                assert_one_verdict(case, self.name, look)
            return fact

        return all_ranks_say_the_same

    def passes(self, check: str, demand: str, but: Text, look: Text, fact: str) -> Check:
        """The check named `check` that it returns True for what is right; `demand` says so in a sentence.

        but: why False was wrong
        """
        return self._says(True, check, demand, but, look, fact)

    def catches(self, check: str, demand: str, but: Text, look: Text, fact: str) -> Check:
        """The check named `check` that it returns False for what is broken; the rest as in `passes`."""
        return self._says(False, check, demand, but, look, fact)

    def _says(self, right, check, demand, but, look, fact):
        def says(records):
            for case in cases(records[: self.jobs]):
                if case.given in (self.right if right else self.broken) and case.results[0] is not right:
                    observed = f"{case.where}{self.name} returned {not right}{_made(but, case.given)}"
                    raise Wrong(observed, _made(look, case.given))
            return fact

        says.__name__, says.__doc__ = check, demand
        return says


def called_once(check: str, detector: str, handed: str, jobs: int, look: str) -> Check:
    """The check named `check` that `detector` calls the function that it is handed once on each rank, in the first
    `jobs` jobs. Their drivers count in the last tensor among the arguments: see harness/counted.py.

    handed: what the text of the question calls that function
    """

    def calls_it_once(records):
        for case in cases(records[:jobs]):
            for rank, tensors in enumerate(case.after):
                if (count := int(tensors[-1])) != 1:
                    times = f"{count} times" if count else "never"
                    raise Wrong(
                        f"{case.where}{detector} called {handed} {times} on rank {rank}; it should call it once", look
                    )
        return f"it calls {handed} once on each rank"

    calls_it_once.__name__ = check
    calls_it_once.__doc__ = f"The detector calls {handed}, which it is handed, once on each rank."
    return calls_it_once


def _made(text, given):
    return text if isinstance(text, str) else text(given)


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
