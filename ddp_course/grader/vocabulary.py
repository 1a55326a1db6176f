"""The words in which exercises say what they check: see solutions/05_sharding_data/3/checks.py for all of it in use.

    @check("batches hold samples that exist", RUNS)            what the learner reads when it holds
    def batches_are_whole(case, rank, result):                 called for each call of the answer and each rank
        for batch in result["batches"]:
            expect(batch, f"rank {rank} trained on an empty batch", "what corpus.build is called with")

A check is asked in the order in which it is defined. Its name is for authors: wrong.py names the check that catches an
answer.
"""

import inspect
import math
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ddp_course.grader.answer_record import Call, Case, Job, JobRecord, LogsOf, cases, where
from ddp_course.grader.verdict import Wrong

__all__ = ["Call", "Case", "Check", "Detector", "Job", "JobRecord", "LogsOf", "Mistake", "Wrong", "cases", "check"]
__all__ += ["expect", "expect_few_collectives", "expect_little_is_sent", "expect_one_verdict", "called_once"]
__all__ += ["bit_equal_on_all_ranks", "expect_loss", "expect_shapes", "like_neighbours", "number", "numbers"]
__all__ += ["by_pattern", "driver_job", "one_process", "recognised", "show", "where"]

Text = str | Callable[..., str]


# ---- jobs and checks ----------------------------------------------------------------------------------------------


def driver_job(world: int, function: str, calls: dict[str, tuple] | Iterable[str | tuple], **options) -> Job:
    """A job of the exercise's driver in which all ranks make the same calls, {scenario: arguments}.

    A list holds scenarios, which are handed over themselves, or tuples of arguments that begin with the scenario.
    """
    if isinstance(calls, dict):
        same = [Call([arguments] * world, scenario) for scenario, arguments in calls.items()]
    else:
        tuples = [call if isinstance(call, tuple) else (call,) for call in calls]
        same = [Call([arguments] * world, arguments[0]) for arguments in tuples]
    return Job(world, function, tuple(same), driver=True, **options)


def expect(condition: Any, observed: Text, look_at: Text) -> None:
    """Raise Wrong unless `condition`: `observed` is what the answer did, with numbers; `look_at` one place to look.

    Either may be a function without arguments, called only then. A check of a case puts the case before `observed`.
    """
    if not condition:
        raise Wrong(*(text() if callable(text) else text for text in (observed, look_at)))


@dataclass(frozen=True)
class Check:
    """A check, called with the records of all jobs: returns what the learner reads, or raises Wrong."""

    name: str
    ask: Callable[[list[JobRecord]], str]

    def __call__(self, records: list[JobRecord]) -> str:
        return self.ask(records)


def check(
    sentence: Text, jobs: Iterable[Job] | None = None, scenarios: Collection[str] | None = None, begin: str = "{where}"
) -> Callable[[Callable], Check]:
    """Make a check of a function, which is called as its parameters say:

    (case, rank, result)   for each call of the answer in these jobs and each rank, with what the rank returned
    (case)                 for each call
    (cases)                for each job, with all calls of it
    (records)              once, with a record for each of these jobs

    sentence   what the learner reads if nothing was wrong; or a function that makes it of the list of all that was
               returned, such as lambda left: f"at most {max(left)} are left out"
    jobs       default: all jobs of the exercise
    scenarios  the calls that it is about, by what is special in them; default: all
    begin      what stands before `observed` of a case: "with 3 ranks (rank 1 has no values): ". "{scenario}: " leaves
               the ranks out, "{ranks}: " the words of the call
    """

    def made(function: Callable) -> Check:
        parameters = list(inspect.signature(function).parameters)
        chosen = None if jobs is None else list(jobs)

        def ask(records: list[JobRecord]) -> str:
            chosen_records = [record for record in records if chosen is None or record.job in chosen]
            if parameters == ["records"]:
                returned = [function(chosen_records)]
            elif parameters == ["cases"]:
                returned = [function(list(cases([record]))) for record in chosen_records]
            else:
                about = (case for case in cases(chosen_records) if scenarios is None or case.scenario in scenarios)
                returned = [value for case in about for value in _asked(function, parameters, case, begin)]
            return sentence(returned) if callable(sentence) else sentence

        return Check(function.__name__, ask)

    return made


def _asked(function, parameters, case, begin):
    try:
        if parameters == ["case"]:
            return [function(case)]
        return [function(case, rank, result) for rank, result in enumerate(case.results)]
    except Wrong as wrong:
        words = {"where": case.where, "scenario": case.scenario, "ranks": where(case.world).removesuffix(": ")}
        raise Wrong(begin.format(**words) + wrong.observed, wrong.look) from None


# ---- what was returned, and how it is shown -----------------------------------------------------------------------


def show(value: Any, digits: int = 6) -> str:
    """`value` as a message shows it: numbers with so many digits, the first six of many, the rest cut at 60 signs."""
    if torch.is_tensor(value):
        value = value.tolist()
    if isinstance(value, float):
        return f"{value:.{digits}g}"
    if isinstance(value, (list, tuple)) and value and all(isinstance(element, int | float) for element in value):
        return f"[{', '.join(show(element, digits) for element in value[:6])}{', ...' * (len(value) > 6)}]"
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:56]} ..."


def number(value: Any) -> Any:
    """`value`, as a number if it is a tensor of one element."""
    return value.item() if torch.is_tensor(value) and value.numel() == 1 else value


def numbers(values: Any) -> list[int | float] | None:
    """The numbers in a list or tensor; None if it is something else, or holds something else."""
    if not isinstance(values, (list, torch.Tensor)):
        return None
    plain = [number(value) for value in (values.flatten() if torch.is_tensor(values) else values)]
    return plain if all(isinstance(value, int | float) for value in plain) else None


# ---- what a wrong result looks like -------------------------------------------------------------------------------


@dataclass(frozen=True)
class Mistake:
    """A known mistake: `gives` is its result, `words` what is put behind that ("the mean of the ranks' means").

    look: where to look then. It follows from what was observed: a text that follows from the check alone sends whoever
    made another mistake to a line that is right.
    """

    words: str
    gives: float | Tensor
    look: str


def recognised(
    result: float | Tensor, mistakes: Iterable[Mistake], otherwise: str = "", rel_tol: float = 1e-6
) -> tuple[str, str]:
    """(", words", look) of the first of `mistakes` that gives `result`; ("", otherwise) if none does."""
    for mistake in mistakes:
        if _same(result, mistake.gives, rel_tol):
            return f", {mistake.words}", mistake.look
    return "", otherwise


def by_pattern(looks: dict[str, str]) -> Callable[[str], str]:
    """Where to look, by the scenario: the first of `looks` whose regular expression is found in it ("" in any)."""
    return lambda scenario: next(look for pattern, look in looks.items() if re.search(pattern, scenario))


def _same(result, gives, rel_tol):
    if not torch.is_tensor(gives):
        return math.isclose(result, gives, rel_tol=rel_tol)
    alike = torch.is_tensor(result) and result.shape == gives.shape
    return alike and torch.allclose(result.double(), gives.double(), rtol=rel_tol, atol=0)


def like_neighbours(order: list, other: list) -> bool:
    """Whether most samples that follow one another do so in the other order too, there or the other way round."""
    near = {frozenset(pair) for pair in zip(other, other[1:] + other[:1], strict=True)}
    kept = sum(frozenset(pair) in near for pair in zip(order, order[1:], strict=False))
    return kept > len(order) / 2


# ---- what one process computes ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Step:
    """A step of one process: its weights at the start and after it, the gradient, its norm, whether it was left out."""

    start: Tensor
    weights: Tensor
    gradient: Tensor
    norm: float
    skipped: bool


def one_process(
    weights: Tensor,
    loss: Callable[..., Tensor],
    batches: Iterable[Sequence],
    rate: float,
    momentum: float = 0.0,
    limit: float = math.inf,
) -> Iterator[Step]:
    """The steps of one process that has the batches of all ranks: SGD on the mean of the ranks' losses.

    batches   for each step the batch of each rank, for which loss(weights, batch) is a mean
    limit     of the norm of the gradient; a step whose gradient is not finite is left out
    """
    velocity = torch.zeros_like(weights)
    for ranks in batches:
        leaf = weights.clone().requires_grad_()
        [gradient] = torch.autograd.grad(sum(loss(leaf, batch) for batch in ranks) / len(ranks), leaf)
        skipped, norm, start = not bool(gradient.isfinite().all()), gradient.norm().item(), weights
        if not skipped:
            velocity = momentum * velocity + gradient * (min(1.0, limit / norm) if norm else 1.0)
            weights = weights - rate * velocity
        yield Step(start, weights, gradient, norm, skipped)


# ---- detectors ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Detector:
    """The learner's function `name`, which `jobs` hand one version after the other: True for what is right.

    right, broken   the versions, each the `scenario` of a call
    """

    name: str
    right: Collection[str]
    broken: Collection[str]
    jobs: Sequence[Job]

    def agrees(self, look_at: str, sentence: str = "all ranks come to the same verdict") -> Check:
        """The check that it returns True or False, the same on every rank; look_at: where to look if it is not."""

        def all_ranks_say_the_same(case):
            expect_one_verdict(case, self.name, look_at)

        return check(sentence, self.jobs)(all_ranks_say_the_same)

    def passes(self, but: Text, look_at: Text, sentence: str) -> Check:
        """The check that it returns True for what is right. but: why False was wrong.

        A text may be a function that makes it of the version that the detector was wrong about.
        """
        return self._says(True, but, look_at, sentence)

    def catches(self, but: Text, look_at: Text, sentence: str) -> Check:
        """The check that it returns False for what is broken; the rest as in `passes`."""
        return self._says(False, but, look_at, sentence)

    def _says(self, right, but, look_at, sentence):
        def says(case):
            if case.results[0] is not right:
                why, where = (text(case.scenario) if callable(text) else text for text in (but, look_at))
                raise Wrong(f"{self.name} returned {not right}{why}", where)

        says.__name__ = "what_is_right_passes" if right else "what_is_broken_is_seen"
        return check(sentence, self.jobs, self.right if right else self.broken)(says)


def expect_one_verdict(case: Case, detector: str, look_at: str) -> None:
    """Raise Wrong unless `detector` returned True or False in this case, and every rank what rank 0 did.

    look_at: where to look if the ranks come to different verdicts.
    """
    for rank, result in enumerate(case.results):
        expect(
            isinstance(result, bool),
            f"{detector} returned {result!r} on rank {rank}; it should be True or False",
            "the line that returns; a tensor of one truth value has .item()",
        )
        expect(
            result == case.results[0],
            f"{detector} returned {result} on rank {rank} and {case.results[0]} on rank 0",
            look_at,
        )


def called_once(detector: str, handed: str, jobs: Sequence[Job], look_at: str) -> Check:
    """The check that `detector` calls the function that it is handed once on each rank.

    handed: what the text of the exercise calls that function. The drivers of these jobs count in the last tensor among
    the arguments: see harness/counted.py.
    """

    def it_is_called_once(case):
        for rank, after in enumerate(case.after):
            count = int(after[-1])
            times = f"{count} times" if count else "never"
            expect(count == 1, f"{detector} called {handed} {times} on rank {rank}; it should call it once", look_at)

    return check(f"it calls {handed} once on each rank", jobs)(it_is_called_once)


# ---- messages -----------------------------------------------------------------------------------------------------


def expect_little_is_sent(case: Case, limit: int, purpose: Callable[[int], str], look_at: str) -> int:
    """Raise Wrong if a rank hands over more than `limit` bytes; returns the most that one handed over.

    purpose: of a rank, what the bytes were sent for: "for its 3,000 values".
    """
    for rank, operations in enumerate(case.operations):
        sent, names = _sent(operations), " and ".join(dict.fromkeys(each.op for each in operations if each.bytes))
        if sent > limit:
            raise Wrong(f"rank {rank} handed {sent:,} bytes to {names} {purpose(rank)}", look_at)
    return max(map(_sent, case.operations))


def expect_few_collectives(case: Case, most: int, limit: int, look_at: str) -> int:
    """Raise Wrong if a rank starts more than `most` collectives, or hands over more than `limit` bytes.

    Returns the most that a rank started.
    """
    for rank, operations in enumerate(case.operations):
        sent = sum(each.bytes for each in operations)
        expect(
            len(operations) <= most and sent <= limit,
            f"rank {rank} started {len(operations)} operations with {sent:,} bytes in all",
            look_at,
        )
    return max(map(len, case.operations))


def _sent(operations):
    return sum(each.bytes for each in operations if each.op != "recv")


# ---- a loss and its gradients -------------------------------------------------------------------------------------


def expect_shapes(rank: int, gradients: Sequence[Tensor], right: Sequence[Tensor], what: str) -> None:
    """Raise Wrong unless there is one gradient for each in `right`, of its shape.

    what: that a rank may have none of, and then still has to return gradients: "pairs".
    """
    shapes = [tuple(gradient.shape) if torch.is_tensor(gradient) else gradient for gradient in gradients]
    expect(
        shapes == [tuple(gradient.shape) for gradient in right],
        f"rank {rank} returned gradients of shapes {str(shapes)[:100]}, not one for each of the {len(right)} "
        "parameters, shaped like it",
        f"the list that is returned, also on a rank that has no {what}",
    )


def expect_loss(rank: int, loss: Any, right: float, close: float, likeness: Callable, advice: Callable) -> None:
    """Raise Wrong unless `loss` is `right`, within `close` of its size (or 1e-12).

    likeness: of a wrong loss, what it looks like, to be put behind it. advice: of it, what to look at.
    """
    loss = number(loss)
    expect(isinstance(loss, int | float), f"the loss on rank {rank} is {str(loss)[:60]!r}", "the value returned")
    expect(
        math.isclose(loss, right, rel_tol=close, abs_tol=1e-12),
        lambda: f"the loss on rank {rank} is {loss:.9g}; one process has {right:.9g}{likeness(loss)}",
        lambda: advice(loss),
    )


def bit_equal_on_all_ranks() -> Check:
    """The check that loss and gradients are bit-equal on all ranks: replicas that part by a rounding part for good."""

    @check("the same on all ranks, to the last bit")
    def the_ranks_agree_to_the_last_bit(case, rank, result):
        (loss, gradients, _), (first_loss, first, _) = result, case.results[0]
        expect(
            float(loss) == float(first_loss) and all(map(torch.equal, gradients, first)),
            f"rank {rank} holds another loss or gradient than rank 0, by a rounding",
            "the order in which each rank adds up what it received: it has to be the same one everywhere",
        )

    return the_ranks_agree_to_the_last_bit
