"""20.1: a sign that is taken too early, and sent twice; a detector that compares with one process."""

import torch

from ddp_course.grader.vocabulary import Detector, Wrong, called_once, check, driver_job, expect

from . import driver
from .driver import SOUND, UNSOUND

DETECTOR, REPAIRED = "is_joint_step", "sparse_step"
CLOSE = 1e-10  # float64; a move is a multiple of the learning rate
DETECT = [driver_job(3, DETECTOR, [(version, torch.zeros(1)) for version in driver.VERSIONS], seconds=4.0)]
STEP_CALLS = {scenario: ("own", scenario) for scenario in driver.CASES}
STEP = [driver_job(world, REPAIRED, STEP_CALLS, seconds=4.0) for world in (2, 4)]
JOBS = [*DETECT, *STEP]


LOOK = {
    "the last gradient of a row wins": "do rows occur twice in your detector's batch, and on several ranks?",
    "lets the signs vote": "gradients of unlike size: when do a sum and a vote differ?",
    "moves by the gradient and not by its sign": "gradients of unlike size: 1 and its sign are equal",
    "the last rank moves a row that no rank used, by 1e-6": "all rows, also unused ones, to 1e-10 on all ranks",
}
detector = Detector(DETECTOR, SOUND, UNSOUND, DETECT)
DETECTOR_CHECKS = [
    detector.agrees("a rank sees only its own table: how does it learn that another rank's is wrong?"),
    detector.passes(
        ", but all ranks hold the table of one process",
        "what your detector expects: over the batches of all ranks, one sum for each row and one sign of it",
        f"the detector lets {len(SOUND)} sound steps pass, however they communicate",
    ),
    detector.catches(
        ", but some rank does not hold the table of one process",
        lambda scenario: LOOK.get(scenario, "what is compared with what, and on which ranks"),
        f"and sees {len(UNSOUND)} others, the given one among them",
    ),
]


it_is_called_once = called_once(DETECTOR, "step", DETECT, "the table after one call: the detector needs no other")


@check(
    "your step equals one process on the global batch, on 2 and 4 ranks",
    STEP,
    scenarios=driver.CASES.keys() - {driver.ROUNDS},
)
def equals_one_process(case):
    start, right = driver.start(), driver.one_process(case.scenario, case.world)
    for rank, table in enumerate(case.results):
        for row, column in (~((table - right).abs() < CLOSE)).nonzero().tolist():
            move, right_move = (((rows - start)[row, column] / driver.LR).item() for rows in (table, right))
            raise Wrong(
                f"row {row} on rank {rank} has moved by {move:+.4g} learning rates, not by {right_move:+.4g}",
                "the dtype of the sum: the gradients are float64"
                if case.scenario == driver.SMALL_SUM
                else "the order: gather, sum the gradients of each row, take the sign of each sum, move the row once",
            )


@check("and leaves the same bits on all ranks", STEP)
def replicas_stay_equal(case, rank, table):
    expect(
        torch.equal(table, case.results[0]),
        f"rank {rank} and rank 0 are {(table - case.results[0]).abs().max() / driver.LR:g} learning rates apart after "
        "one step",
        "a sum of floats depends on its order: every rank has to add in the same one",
    )
