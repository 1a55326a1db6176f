"""The functions with which exercises write their checks. An example: solutions/05_sharding_data/3/checks.py.

    @check("batches hold samples that exist", RUNS)            what the learner reads if the check passes
    def batches_are_whole(case, rank, result):                 called for each call of the answer and each rank
        for batch in result["batches"]:
            expect(batch, f"rank {rank} trained on an empty batch", "what corpus.build is called with")

Checks run in the order in which they are defined. The name of a check is for authors: wrong.py names the check that
catches an answer.
"""

import inspect
import math
import re
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ddp_course.grader.answer_record import Case, JobRecord, cases, where
from ddp_course.grader.harness.job import Call, Job
from ddp_course.grader.harness.notes import Operation
from ddp_course.grader.verdict import Wrong

Text = str | Callable[..., str]


# ---- jobs and checks ----------------------------------------------------------------------------------------------


def function_job(world: int, function: str, calls: dict[str, tuple] | Iterable[str | tuple], **options) -> Job:
    """A job that calls the answer's function, with the same arguments on all ranks.

    calls     {scenario: arguments}, where the scenario is not an argument; or a list of tuples of arguments whose first
              one, which the function gets as well, is the scenario. A scenario alone stands for the tuple (scenario,).
    options   other fields of Job
    """
    if isinstance(calls, dict):
        job_calls = [Call([arguments] * world, scenario) for scenario, arguments in calls.items()]
    else:
        tuples = [call if isinstance(call, tuple) else (call,) for call in calls]
        job_calls = [Call([arguments] * world, arguments[0]) for arguments in tuples]
    return Job(world, function, tuple(job_calls), **options)


def jobs_of(function: str, calls: Iterable[Call], **options) -> list[Job]:
    """A job for each number of ranks for which `calls` has arguments; options: other fields of Job."""
    by_world: dict[int, list[Call]] = {}
    for call in calls:
        by_world.setdefault(len(call.args), []).append(call)
    return [Job(world, function, tuple(of_world), **options) for world, of_world in by_world.items()]


def driver_job(world: int, function: str, calls: dict[str, tuple] | Iterable[str | tuple], **options) -> Job:
    """A job that hands the answer's function and the arguments to the exercise's driver.py; else as function_job."""
    return function_job(world, function, calls, driver=True, **options)


def expect(condition: Any, observed: Text, look_at: Text) -> None:
    """Raise Wrong unless `condition`: `observed` is what the answer did, with numbers; `look_at` one place to look.

    Either text may be a function without arguments, which is called only if the condition is false. In a check of a
    case, `check` puts the case before `observed`.
    """
    if not condition:
        raise Wrong(*(text() if callable(text) else text for text in (observed, look_at)))


@dataclass(frozen=True)
class Check:
    """A check, called with the records of all jobs: returns what the learner reads, or raises Wrong."""

    name: str
    run: Callable[[list[JobRecord]], str]

    def __call__(self, records: list[JobRecord]) -> str:
        return self.run(records)


def check(
    sentence: Text, jobs: Iterable[Job] | None = None, scenarios: Collection[str] | None = None, begin: str = "{where}"
) -> Callable[[Callable], Check]:
    """A decorator that makes a Check of a function, whose parameters decide how it is called:

    (case, rank, result)   for each call of the answer in these jobs and each rank, with what the rank returned
    (case)                 for each call
    (cases)                for each job, with the list of its calls
    (records)              once, with the list of the records of these jobs

    sentence   what the learner reads if the check passes; or a function that makes it from the list of the values that
               the calls returned, such as lambda left: f"at most {max(left)} are left out"
    jobs       the jobs to check; default: all jobs of the exercise
    scenarios  the scenarios of the calls to check; default: all
    begin      the text before `observed` of a case. The default gives "with 3 ranks (rank 1 has no values): ",
               "{scenario}: " only the scenario, "{ranks}: " only "with 3 ranks: "
    """

    def decorator(function: Callable) -> Check:
        parameters = list(inspect.signature(function).parameters)
        chosen = None if jobs is None else list(jobs)

        def run(records: list[JobRecord]) -> str:
            chosen_records = [record for record in records if chosen is None or record.job in chosen]
            if parameters == ["records"]:
                returned = [function(chosen_records)]
            elif parameters == ["cases"]:
                returned = [function(list(cases([record]))) for record in chosen_records]
            else:
                chosen_cases = (
                    case for case in cases(chosen_records) if scenarios is None or case.scenario in scenarios
                )
                returned = [value for case in chosen_cases for value in _values(function, parameters, case, begin)]
            return sentence(returned) if callable(sentence) else sentence

        return Check(function.__name__, run)

    return decorator


def _values(function, parameters, case, begin):
    """The list of what `function` returns for the case. A Wrong is raised again with the case before its message."""
    try:
        if parameters == ["case"]:
            return [function(case)]
        return [function(case, rank, result) for rank, result in enumerate(case.results)]
    except Wrong as wrong:
        words = {"where": case.where, "scenario": case.scenario, "ranks": where(case.world).removesuffix(": ")}
        raise Wrong(begin.format(**words) + wrong.observed, wrong.look) from None


# ---- what was returned, and how it is shown -----------------------------------------------------------------------


def show(value: Any, digits: int = 6) -> str:
    """`value` as a message shows it: a number with `digits` significant digits, the first six of a list of numbers,
    and the repr of anything else, cut to 60 characters."""
    if torch.is_tensor(value):
        value = value.tolist()
    if isinstance(value, float):
        return f"{value:.{digits}g}"
    if isinstance(value, (list, tuple)) and value and all(isinstance(element, int | float) for element in value):
        return f"[{', '.join(show(element, digits) for element in value[:6])}{', ...' * (len(value) > 6)}]"
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:56]} ..."


def plural(count: int, noun: str) -> str:
    """Such as "1 rank" and "2 ranks"."""
    return f"{count} {noun}{'s' * (count != 1)}"


def expect_keys(result: Any, keys: Sequence[str], function: str) -> None:
    """Raise Wrong unless `result`, returned by the answer's function of this name, is a dict with these keys."""
    expect(
        isinstance(result, dict) and set(result) == set(keys),
        f"{function} returned {result!r}",
        f"the return value: a dict with {', '.join(keys[:-1])} and {keys[-1]}",
    )


def number(value: Any) -> Any:
    """The number in `value` if that is a tensor of one element; `value` itself if not."""
    return value.item() if torch.is_tensor(value) and value.numel() == 1 else value


def numbers(values: Any) -> list[int | float] | None:
    """The numbers in a list or tensor; None for any other value, or if an element is no number."""
    if not isinstance(values, (list, torch.Tensor)):
        return None
    plain = [number(value) for value in (values.flatten() if torch.is_tensor(values) else values)]
    return plain if all(isinstance(value, int | float) for value in plain) else None


def is_close(value: Any, right: float, rel_tol: float = 1e-9, abs_tol: float = 0.0) -> bool:
    """math.isclose for a number; False for any other value, also for a tensor."""
    return isinstance(value, int | float) and math.isclose(value, right, rel_tol=rel_tol, abs_tol=abs_tol)


def are_close(values: Any, right: Sequence[float], rel_tol: float = 1e-9, abs_tol: float = 0.0) -> bool:
    """Whether `values` is a list or tensor of as many numbers as `right`, each close to its own."""
    values = numbers(values)
    if values is None or len(values) != len(right):
        return False
    return all(is_close(value, expected, rel_tol, abs_tol) for value, expected in zip(values, right, strict=True))


# ---- what a wrong result looks like -------------------------------------------------------------------------------


@dataclass(frozen=True)
class Mistake:
    """A known mistake: `gives` is its result, `words` describes it ("the mean of the ranks' means").

    look: where to look if this mistake was recognised. One text for all failures of a check would send a learner who
    made another mistake to a line that is right.
    """

    words: str
    gives: float | Tensor
    look: str


def recognised(
    result: float | Tensor,
    mistakes: Iterable[Mistake],
    otherwise: str,
    rel_tol: float = 1e-6,
    right: float | Tensor | None = None,
) -> tuple[str, str]:
    """(", words", look) of the first mistake that gives `result`, within `rel_tol`; ("", otherwise) if none does.

    right: the result in float64, for which `result`, known to be wrong, may have been rounded. Some mistakes may give
    it too, in a case in which they do no harm.
    """
    rounded = [] if right is None else [Mistake("rounded to float32", right, "which tensor is not float64")]
    for mistake in [*rounded, *mistakes]:
        if _same(result, mistake.gives, rel_tol):
            return f", {mistake.words}", mistake.look
    return "", otherwise


def by_pattern(looks: dict[str, str]) -> Callable[[str], str]:
    """A function of a scenario: the first text in `looks` whose regular expression is found in the scenario.

    The last expression should be "", which is found in any.
    """
    return lambda scenario: next(look for pattern, look in looks.items() if re.search(pattern, scenario))


def _same(result, gives, rel_tol):
    if not torch.is_tensor(gives):
        return math.isclose(result, gives, rel_tol=rel_tol)
    same_shape = torch.is_tensor(result) and result.shape == gives.shape
    return same_shape and torch.allclose(result.double(), gives.double(), rtol=rel_tol, atol=0)


def like_neighbours(order: list, other: list) -> bool:
    """Whether most pairs of neighbours in `order` are neighbours in `other` too, in either direction.

    The last and the first sample of `other` count as neighbours.
    """
    neighbours = {frozenset(pair) for pair in zip(other, other[1:] + other[:1], strict=True)}
    common = sum(frozenset(pair) in neighbours for pair in zip(order, order[1:], strict=False))
    return common > len(order) / 2


# ---- detectors ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Detector:
    """A function of the learner that has to return True for right versions of something and False for broken ones.

    name            of that function
    right, broken   the scenarios of the calls with right and with broken versions
    jobs            the jobs that call it
    """

    name: str
    right: Collection[str]
    broken: Collection[str]
    jobs: Sequence[Job]

    def agrees(self, look_at: str, sentence: str = "all ranks come to the same verdict") -> Check:
        """The check that it returns True or False, the same on every rank."""

        @check(sentence, self.jobs)
        def all_ranks_agree(case):
            expect_one_verdict(case, self.name, look_at)

        return all_ranks_agree

    def passes(self, but: Text, look_at: Text, sentence: str) -> Check:
        """The check that it returns True for right versions.

        but: continues the sentence "is_right returned False", such as ", but all ranks hold the same weights".
        but, look_at: may be functions of the scenario for which the detector was wrong.
        """

        @check(sentence, self.jobs, self.right)
        def right_versions_pass(case):
            self._expect_verdict(True, case, but, look_at)

        return right_versions_pass

    def catches(self, but: Text, look_at: Text, sentence: str) -> Check:
        """The check that it returns False for broken versions; parameters as in `passes`."""

        @check(sentence, self.jobs, self.broken)
        def broken_versions_are_caught(case):
            self._expect_verdict(False, case, but, look_at)

        return broken_versions_are_caught

    def _expect_verdict(self, right, case, but, look_at):
        if number(case.results[0]) is not right:
            reason, look = (text(case.scenario) if callable(text) else text for text in (but, look_at))
            raise Wrong(f"{self.name} returned {not right}{reason}", look)


def expect_one_verdict(case: Case, detector: str, look_at: str) -> None:
    """Raise Wrong unless `detector` returned True or False in this case, the same on every rank; also as a tensor.

    look_at: where to look if the ranks returned different values.
    """
    first, *others = verdicts_of(case, detector)
    for rank, verdict in enumerate(others, start=1):
        expect(verdict == first, f"{detector} returned {verdict} on rank {rank} and {first} on rank 0", look_at)


def verdicts_of(case: Case, detector: str) -> list[bool]:
    """The answer of `detector` on each rank, also as a tensor. Raises Wrong unless each is True or False."""
    verdicts = [number(result) for result in case.results]
    for rank, verdict in enumerate(verdicts):
        expect(
            isinstance(verdict, bool),
            f"{detector} returned {verdict!r} on rank {rank}; it should be True or False",
            "the line that returns",
        )
    return verdicts


def called_once(detector: str, argument: str, jobs: Sequence[Job], look_at: str) -> Check:
    """The check that `detector` calls the function that is its argument once on each rank.

    argument: the name of that function in the text of the exercise. The drivers of these jobs count its calls in the
    last tensor among the arguments: see harness/versions.py.
    """

    def it_is_called_once(case):
        for rank, tensors in enumerate(case.tensors_after):
            count = int(tensors[-1])
            times = f"{count} times" if count else "never"
            expect(count == 1, f"{detector} called {argument} {times} on rank {rank}; it should call it once", look_at)

    return check(f"it calls {argument} once on each rank", jobs)(it_is_called_once)


# ---- messages -----------------------------------------------------------------------------------------------------


def total_bytes(operations: Iterable[Operation]) -> int:
    """The bytes of these operations. A recv counts with its buffer."""
    return sum(operation.bytes for operation in operations)


def expect_few_bytes(
    rank: int, operations: Iterable[Operation], limit: int, purpose: str, look_at: Text, without: Collection[str] = ()
) -> int:
    """Raise Wrong if a rank hands more than `limit` bytes to these operations; return how many it hands to them.

    purpose   the end of the message "rank 1 handed 80 bytes to all_reduce", such as " for 3 values"
    without   names that do not count, such as recv where only what a rank sends is of interest
    """
    counted = [operation for operation in operations if operation.op not in without]
    sent = total_bytes(counted)
    names = " and ".join(dict.fromkeys(operation.op for operation in counted if operation.bytes))
    expect(sent <= limit, f"rank {rank} handed {sent:,} bytes to {names}{purpose}; {limit:,} are allowed", look_at)
    return sent


def expect_sent_once(case: Case, rank: int, steps: int) -> None:
    """Raise Wrong if a rank sends more than its gradients once per step. Its result is the vector of its weights.

    Allowed besides: 64 bytes per step, and broadcasts of twice the weights in all. DDP broadcasts the weights when
    it is built, and the order of its buckets after the first backward.
    """
    size, operations = case.results[rank].nbytes, case.operations[rank]
    purpose = f" in {plural(steps, 'step')}; the gradients have {size:,}"
    look_at = "which micro-batches communicate, and how often? Once is enough, in the last of a step"
    expect_few_bytes(rank, operations, steps * (size + 64), purpose, look_at, without=("broadcast",))
    broadcasts = [operation for operation in operations if operation.op == "broadcast"]
    look_at = "what is broadcast in each step: ranks that agree and get the same gradient take the same step"
    expect_few_bytes(rank, broadcasts, 2 * size, f"; the weights have {size:,}", look_at)


def expect_no_operations(rank: int, operations: Sequence[Operation], look_at: str) -> None:
    """Raise Wrong if there are any of these collectives, sends and receives."""
    if operations:
        raise Wrong(f"rank {rank} started {plural(len(operations), 'operation')}, {operations[0].op} first", look_at)


def expect_few_operations(case: Case, max_operations: int, max_bytes: int, look_at: str) -> int:
    """Raise Wrong if a rank starts more than max_operations, or gives them more than max_bytes in all.

    Collectives, sends and receives count, each with its bytes. Returns the most operations that a rank started.
    """
    for rank, operations in enumerate(case.operations):
        total = total_bytes(operations)
        expect(
            len(operations) <= max_operations and total <= max_bytes,
            f"rank {rank} started {plural(len(operations), 'operation')} with {total:,} bytes in all; the limits "
            f"are {max_operations} and {max_bytes:,}",
            look_at,
        )
    return max(map(len, case.operations))


# ---- a loss, gradients and weights -----------------------------------------------------------------------------------


def expect_shapes(rank: int, gradients: Sequence[Tensor], right: Sequence[Tensor], items: str) -> None:
    """Raise Wrong unless `gradients` has as many tensors as `right`, of the same shapes.

    items: the word for what a rank may have none of, such as "pairs". Such a rank has to return gradients as well.
    """
    shapes = [tuple(gradient.shape) if torch.is_tensor(gradient) else gradient for gradient in gradients]
    expect(
        shapes == [tuple(gradient.shape) for gradient in right],
        f"rank {rank} returned gradients of shapes {str(shapes)[:100]}, not one for each of the {len(right)} "
        "parameters, shaped like it",
        f"the list that is returned, also on a rank that has no {items}",
    )


def expect_small_gap(gap: float, limit: float, subject: str, look_at: Text, reference: str = "one process") -> None:
    """Raise Wrong unless `gap` is below `limit`: "`subject` is 1.0e-03 away from `reference`"."""
    expect(gap < limit, f"{subject} is {gap:.1e} away from {reference}", look_at)


def expect_loss(rank: int, loss: Any, right: float, rel_tol: float, explain: Callable[[float], tuple]) -> None:
    """Raise Wrong unless `loss` is `right`, within a relative error of `rel_tol` or an absolute one of 1e-12.

    explain: a function of a wrong loss that returns (the end of the message, where to look), as `recognised` does.
    """
    loss = number(loss)
    expect(isinstance(loss, int | float), f"the loss on rank {rank} is {str(loss)[:60]!r}", "the value returned")
    if not math.isclose(loss, right, rel_tol=rel_tol, abs_tol=1e-12):
        words, look_at = explain(loss)
        raise Wrong(f"the loss on rank {rank} is {loss:.12g}; one process has {right:.12g}{words}", look_at)


def norm(gradients: Iterable[Tensor]) -> float:
    """The norm of all gradients together."""
    return math.sqrt(sum(gradient.square().sum().item() for gradient in gradients))


def expect_own_completions(case: Case, rank: int, scored: int, own: int, gradient_bytes: int, other_bytes: int) -> None:
    """Raise Wrong if a rank scores more completions than its `own`, or sends more than its gradient once.

    gradient_bytes, other_bytes: those of the gradient, and the most that it may send besides. Broadcasts do not count.
    """
    expect(
        scored <= own,
        f"the model of rank {rank} scored {scored} completions; this rank has {own}",
        "which completions a rank has to score, and how often",
    )
    if case.world > 1:
        expect_few_bytes(
            rank,
            case.operations[rank],
            gradient_bytes + other_bytes,
            f"; the gradients have {gradient_bytes:,}",
            "how often the gradients are sent, and what else is",
            without=("broadcast",),
        )


def bit_equal_on_all_ranks() -> Check:
    """The check that each rank returned the same loss and gradients, bit for bit: results are (loss, gradients, _)."""

    @check("the same on all ranks, to the last bit")
    def the_ranks_agree_to_the_last_bit(case, rank, result):
        (loss, gradients, _), (first_loss, first, _) = result, case.results[0]
        expect(
            float(loss) == float(first_loss) and all(map(torch.equal, gradients, first)),
            f"rank {rank} holds another loss or gradient than rank 0, by a rounding",
            "the order in which each rank adds up what it received: it has to be the same one everywhere",
        )

    return the_ranks_agree_to_the_last_bit
