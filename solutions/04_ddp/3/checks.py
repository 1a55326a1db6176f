"""04.3: the loss falls on every rank, and nobody averages gradients: a detector for replicas that part, and the fix."""

import re
from dataclasses import replace

from ddp_course.grader.answer_record import Call, Job, cases
from ddp_course.grader.verdict import Wrong

DETECTOR, REPAIRED = "assert_replicas_equal", "train"
# given: the first tensor that differs and the first rank that differs from rank 0, if there are as many
FOUND = {
    2: {
        "all equal": None,
        "the head of each rank trained alone": ("head.weight", 1),
        "one element of head.bias, by 1e-12, on the last rank": ("head.bias", 1),
        "head.weight is NaN on the last rank": ("head.weight", 1),
    },
    3: {
        "all equal": None,
        "all equal, head.weight a NaN on every rank": None,
        "the head of each rank trained alone": ("head.weight", 1),
        "one element of head.bias, by 1e-12, on the last rank": ("head.bias", 2),
        "two elements of head.weight swapped on rank 1": ("head.weight", 1),
        "head.weight and head.bias on rank 1": ("head.weight", 1),
        "the frozen backbone.weight on rank 1": ("backbone.weight", 1),
        "head.weight is NaN on the last rank": ("head.weight", 2),
        "head.weight: rank 1 above, rank 2 as far below": ("head.weight", 1),
        "head.weight of rank 0, the others agree": ("head.weight", 1),
        "head.bias on rank 1, head.weight on rank 2": ("head.weight", 2),
        "head.bias is 0.0 on ranks 0 and 2, -0.0 on rank 1": ("head.bias", 1),
    },
    1: {"all equal": None},
}
NAMES = ("backbone.weight", "backbone.bias", "head.weight", "head.bias")
UPDATES = (1, 6)
SAME = 1e-9  # float64 sums in another order


def detection(world):
    return Job(world, DETECTOR, tuple(Call([(given,)] * world, given) for given in FOUND[world]), driver=True)


def training(world):
    calls = tuple(Call([(count,)] * world, f"{count} update{'s' * (count > 1)}") for count in UPDATES)
    return Job(world, REPAIRED, calls, driver=True, loads=("torch._dynamo",))  # for DDP and torch.optim


DETECTIONS = 3
JOBS = [detection(2), detection(3), detection(1), training(2), training(3)]


def equal_replicas_pass(records):
    """assert_replicas_equal raises nothing where all ranks hold the same."""
    for case, right in detections(records):
        for rank, raised in enumerate(case.results):
            if right is None and raised:
                raise Wrong(
                    f"{case.where}{DETECTOR} raised on rank {rank}: {raised[0]}: {raised[1][:150]}",
                    "what your detector takes for a difference"
                    + (": a NaN is unequal to itself as a number; its bits are equal" if "NaN" in case.given else ""),
                )
    return "equal replicas pass, on 1, 2 and 3 ranks"


def different_replicas_raise_everywhere(records):
    """assert_replicas_equal raises on every rank as soon as one bit of one parameter differs on one rank."""
    for case, right in detections(records):
        quiet = [rank for rank, raised in enumerate(case.results) if not raised]
        if right and quiet:
            everybody = len(quiet) == case.world
            raise Wrong(
                f"different: {case.given}; with {case.world} ranks {DETECTOR} raised on "
                f"{'no rank' if everybody else f'{case.world - len(quiet)} of them, not on rank {quiet[0]}'}",
                missed(case.given)
                if everybody
                else "a rank that does not raise goes on, and waits for one that has: how do all learn what one found?",
            )
    return f"{sum(right is not None for case, right in detections(records))} kinds of difference raise, on every rank"


def the_first_difference_is_named(records):
    """The message names the first parameter that differs and the first rank whose values are not rank 0's."""
    for case, right in detections(records):
        for rank, raised in enumerate(case.results):
            if not right:
                continue
            name, other = right
            named = [one for one in NAMES if re.search(rf"\b{one}\b", raised[1])]
            if name not in named or not re.search(rf"\branks?[ =:\[]*{other}\b", raised[1], re.IGNORECASE):
                raise Wrong(
                    f"different: {case.given}; rank {rank} was told {raised[0]}: {raised[1][:150]!r}; it should name "
                    f"{name} and rank {other}",
                    "the order: parameter by parameter as named_parameters gives them, and in each rank by rank",
                )
            bystanders = [one for one in named if one not in case.given]
            if bystanders and "alone" not in case.given:
                raise Wrong(
                    f"different: {case.given}; the message on rank {rank} also names {bystanders[0]}, which is equal",
                    "what belongs into the message",
                )
    return "the message names the first tensor and the first rank that differ"


def looking_changes_nothing(records):
    """assert_replicas_equal leaves every parameter as it was, on every rank."""
    for case in cases(records[:DETECTIONS]):
        for rank, result in enumerate(case.results):
            if result["changed"]:
                raise Wrong(
                    f"different: {case.given}; after {DETECTOR} {result['changed'][0]} on rank {rank} is another than "
                    "before",
                    "what is broadcast or reduced: the model's own tensors, or copies",
                )
    return "it leaves the replicas as they are"


def replicas_stay_equal(records):
    """After train all ranks hold the same bits."""
    for case in cases(records[DETECTIONS:]):
        for rank, result in enumerate(case.results):
            for name, bits in result["bits"].items():
                if bits != case.results[0]["bits"][name]:
                    raise Wrong(
                        f"{case.where}after your {REPAIRED} {name} on rank {rank} is not rank 0's",
                        "which line makes a rank hear of another rank's gradient, and is it reached in every update?",
                    )
    return "after your train all replicas are equal to the last bit"


def equals_one_process(records):
    """After train the weights are those of one process on the global batch; it returns the loss before each update."""
    worst = 0.0
    for case in cases(records[DETECTIONS:]):
        for rank, result in enumerate(case.results):
            for name, gap in result["gaps"].items():
                if not gap < SAME:
                    raise Wrong(
                        f"{case.where}after your {REPAIRED} {name} is {gap:.2g} from that of one process on the joint "
                        f"batches, on rank {rank}",
                        "replicas can be equal and wrong: does each update hold the mean of all ranks' gradients?",
                    )
                worst = max(worst, gap)
        for rank, result in enumerate(case.results):
            if not any(near(result["losses"], right) for right in (result["own"], result["joint"])):
                raise Wrong(
                    f"{case.where}your {REPAIRED} returned {rounded(result['losses'])} on rank {rank}; before each "
                    f"update the loss of this rank's batch was {rounded(result['own'])}",
                    "the docstring of train: how many losses, and of which moment?",
                )
    return f"2 and 3 ranks equal one process on the global batches after 1 and 6 updates, largest gap {worst:.0e}"


CHECKS = [
    equal_replicas_pass,
    different_replicas_raise_everywhere,
    the_first_difference_is_named,
    looking_changes_nothing,
    replicas_stay_equal,
    equals_one_process,
]


def detections(records):
    """(a case whose results are what was raised on each rank, what should be named there) for each detection."""
    return [
        (replace(case, results=[result["raised"] for result in case.results]), FOUND[case.world][case.given])
        for case in cases(records[:DETECTIONS])
    ]


def near(losses, right):
    """Whether these are the same losses, in the same order."""
    numbers = isinstance(losses, list) and len(losses) == len(right) and all(isinstance(x, float) for x in losses)
    return numbers and all(abs(x - y) < SAME for x, y in zip(losses, right, strict=True))


def rounded(losses):
    if not isinstance(losses, list):
        return f"{losses:.6f}" if isinstance(losses, float) else str(losses)[:60]
    return "[" + ", ".join(map(rounded, losses)) + "]"


def missed(given):
    if "NaN" in given:
        return "comparisons with NaN are false, also the one that asks whether a gap is too large"
    if "swapped" in given or "below" in given:
        return "can two unlike tensors have the same sum, or the ranks the same mean?"
    if "-0.0" in given:
        return "which two unlike floats does `==` call equal? Their bits are not"
    if "1e-12" in given:
        return "how large a gap is allowed: replicas of one training are equal to the last bit"
    return "which parameters are compared, of which ranks"
