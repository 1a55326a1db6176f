"""20.1: a sign that is taken too early, and sent twice; a detector that knows what one process would do."""

import torch

from ddp_course.grader.answer_record import Call, Job, cases
from ddp_course.grader.verdict import Wrong
from ddp_course.grader.vocabulary import Detector, called_once

from . import driver

DETECTOR, REPAIRED = "is_joint_step", "sparse_step"
SOUND = tuple(driver.VERSIONS)[:4]
UNSOUND = tuple(driver.VERSIONS)[4:]
CLOSE = 1e-10  # float64; a move is a multiple of the learning rate


def job(world, function, *arguments):
    calls = tuple(Call([one] * world, one[one[0] == "own"]) for one in arguments)
    return Job(world, function, calls, seconds=4.0, driver=True)


DETECT = [job(3, DETECTOR, *((what, torch.zeros(1)) for what in SOUND + UNSOUND))]
STEP = [job(world, REPAIRED, *(("own", what) for what in driver.CASES)) for world in (2, 4)]
JOBS = [*DETECT, *STEP]


LOOK = {
    "the last gradient of a row wins": "do rows occur twice in your detector's batch, and on several ranks?",
    "lets the signs vote": "gradients of unlike size: when do a sum and a vote differ?",
    "moves by the gradient and not by its sign": "gradients of unlike size: 1 and its sign are equal",
    "the last rank moves a row that nobody used, by 1e-6": "all rows, to 1e-10, on all ranks; are some unused?",
}
detector = Detector(DETECTOR, SOUND, UNSOUND, DETECT)
DETECTED = [
    detector.agrees("a rank sees its own table; how does it hear that another rank's is wrong?"),
    detector.passes(
        "sound_steps_pass",
        ", but all ranks hold the table of one process",
        "what your detector expects: the batches of all ranks together, one sum for each row, one sign of it",
        f"the detector lets {len(SOUND)} sound steps pass, by whatever way they talk",
    ),
    detector.catches(
        "unsound_steps_are_seen",
        ", but some rank does not hold the table of one process",
        lambda given: LOOK.get(given, "what is compared with what, and on which ranks"),
        f"and sees {len(UNSOUND)} others, the given one among them",
    ),
]


def equals_one_process(records):
    """After each step every rank holds the table of one process that takes the global batch."""
    for case in cases(records[len(DETECT) :]):
        what = case.args[0][1]
        if what == driver.ROUNDS:
            continue
        right, begin = driver.alone(what, case.world), driver.start()
        for rank, table in enumerate(case.results):
            wrong = (~((table - right).abs() < CLOSE)).nonzero().tolist()
            if wrong:
                row, column = wrong[0]
                moved, wanted = (((one - begin)[row, column] / driver.LR).item() for one in (table, right))
                raise Wrong(
                    f"{case.where}row {row} on rank {rank} has moved by {moved:+.4g} learning rates, not "
                    f"by {wanted:+.4g}",
                    "the dtype of the sum: the gradients are float64"
                    if what == driver.FINE
                    else "the order: gather, sum what belongs to the same row, one sign of each sum, one update",
                )
    return "your step equals one process on the global batch, on 2 and 4 ranks"


def replicas_stay_equal(records):
    """After each step all ranks hold the same bits, also where a sum of floats depends on its order."""
    for case in cases(records[len(DETECT) :]):
        for rank, table in enumerate(case.results):
            if not torch.equal(table, case.results[0]):
                gap = (table - case.results[0]).abs().max() / driver.LR
                raise Wrong(
                    f"{case.where}rank {rank} and rank 0 are {gap:g} learning rates apart after one step",
                    "a sum of floats depends on its order: every rank has to add in the same one",
                )
    return "and leaves the same bits on all ranks"


it_is_called_once = called_once(
    "it_is_called_once",
    DETECTOR,
    "step",
    DETECT,
    "what it leaves behind when it has run: one call is enough to look at that",
)


CHECKS = [*DETECTED, it_is_called_once, equals_one_process, replicas_stay_equal]
