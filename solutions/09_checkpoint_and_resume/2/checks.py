"""09.2: a checkpoint that survives kills and damage, and from which the run goes on bit for bit."""

import signal

from ddp_course.grader.answer_record import Call, Job, cases
from ddp_course.grader.verdict import Wrong


def start(given, name, seed, until, damage=None, kill=None, slow=None):
    """One start of a run, on two ranks; driver.py says what its arguments mean."""
    return Call([(name, seed, until, damage, kill, slow) for _ in range(2)], given)


def job(*calls, may_fail=False):
    return Job(2, function="train", calls=calls, may_fail=may_fail, driver=True)


# Beyond step 9, where names without leading zeros sort wrongly.
WHOLE = start("a run of 16 steps without a stop", "whole", 1, 16)
FIRST = start("a run of 10 steps", "stopped", 1, 10, slow=2)
RESUMED = start("started again after step 10", "stopped", 2, 12)
TRUNCATED = start("started again, the checkpoint of step 12 cut short", "stopped", 3, 13, damage="truncated")
FLIPPED = start("started again, one bit of the checkpoint of step 13 wrong", "stopped", 4, 14, damage="flipped")
FOREIGN = start("started again, foreign files in the folder", "stopped", 5, 15, damage="foreign")
BESIDE = start("started again, foreign files beside its own", "stopped", 6, 16)
NOTHING_WHOLE = start("a folder without a whole checkpoint", "nothing_whole", 7, 0)
LARGE_NUMBERS = start("saves of steps 99, 100, 999 and 1000", "large_numbers", 8, 0)
AFTER_KILLS = start("started again after two kills", "killed", 3, 8)
JOBS = [
    job(WHOLE, FIRST, RESUMED, TRUNCATED, FLIPPED, FOREIGN, BESIDE, NOTHING_WHOLE, LARGE_NUMBERS),
    job(start("killed while saving step 3", "killed", 1, 4, kill=("byte", 3)), may_fail=True),
    job(start("killed at a rename", "killed", 2, 7, kill=("rename", 5)), may_fail=True),
    job(AFTER_KILLS),
]
SHARED = {"weights": "the weights", "optimizer": "the optimizer's state", "random": "the random state"}


def only_rank_0_writes_the_weights(records):
    """No rank but rank 0 writes a file of the size of the weights."""
    if records[1].ranks[1].exit_code == -signal.SIGXFSZ:
        raise Wrong(
            "with 2 ranks: rank 1 wrote a file of more than 64 kB while saving; the weights are the same everywhere, "
            "and two writers of one file are a race",
            "which lines of `save` concern rank 0 alone?",
        )
    return "rank 0 writes the weights, and nobody else"


def a_stopped_run_goes_on_bit_for_bit(records):
    """Started again, the run takes the newest checkpoint and repeats every loss of the run without a stop."""
    by_name = reports(records)
    whole, resumed = by_name[WHOLE.given], by_name[RESUMED.given]
    starts_at(RESUMED.given, resumed, 10, "what `load` returns, and in which order it goes through the files")
    equal_losses(RESUMED.given, resumed, whole)
    for rank, loads in enumerate(by_name[LARGE_NUMBERS.given]):
        for saved, loaded in loads:
            if loaded != saved:
                raise Wrong(
                    f"{LARGE_NUMBERS.given}, one after the other: after that of step {saved}, `load` returned {loaded} "
                    f"on rank {rank}",
                    "in which order `load` goes through the files, where numbers get one more digit",
                )
    return "started again after step 10, both ranks go on with the very losses of a run without a stop"


def damage_is_passed_over(records):
    """A newest checkpoint that is cut short, or has one wrong bit, is not used; the one before it is."""
    by_name = reports(records)
    for call, expected in ((TRUNCATED, 11), (FLIPPED, 12)):
        starts_at(call.given, by_name[call.given], expected, "how `load` finds out that a file is whole")
        equal_losses(call.given, by_name[call.given], by_name[WHOLE.given])
    return "a truncated file and a flipped bit are noticed, and the checkpoint before is taken"


def without_a_whole_one_nothing_changes(records):
    """Where no checkpoint is whole, load returns 0 and leaves weights, optimizer and random state alone."""
    for rank, looks in enumerate(reports(records)[NOTHING_WHOLE.given]):
        for given, step, changed in looks:
            if step != 0 or changed:
                parts = " and ".join(SHARED[part] for part in changed) or "nothing"
                raise Wrong(
                    f"with 2 ranks, {given}: `load` returned {step!r} on rank {rank} and changed {parts}; it should "
                    "return 0 and change nothing",
                    "what `load` has done by the time it knows whether there is a whole checkpoint, and which bytes "
                    "it looks at for that",
                )
    return "where no checkpoint is whole, load returns 0 and changes nothing"


def foreign_files_are_left_alone(records):
    """Files that are not its own are neither taken for checkpoints nor run."""
    by_name = reports(records)
    if any(one["code_was_run"] for one in by_name[FOREIGN.given]):
        raise Wrong(
            f"{FOREIGN.given}: `load` ran code that a foreign file brought along",
            "what torch.load does with weights_only=False, and what comes first: the checksum or the load",
        )
    for call, expected in ((FOREIGN, 14), (BESIDE, 15)):
        starts_at(call.given, by_name[call.given], expected, "what your functions take for a checkpoint of yours")
        equal_losses(call.given, by_name[call.given], by_name[WHOLE.given])
    return "foreign files in the folder do no harm, not even those named like its own"


def kills_cost_nothing_that_was_saved(records):
    """After a kill in the middle of a file, and one at a rename, nothing that `save` had finished is lost."""
    history = reports(records)[AFTER_KILLS.given][0]["history"]
    finished = 0
    for entry in history:
        if "start" in entry and entry["start"] < finished:
            kill = "in the middle of its file" if finished == 2 else "at a rename"
            raise Wrong(
                f"with 2 ranks: rank 0 was killed {kill}; `save` of step {finished} had returned before, but the next "
                f"start began at step {entry['start']}",
                "what lies in the folder at each moment of a save, and what `load` makes of it",
            )
        finished = entry.get("saved", finished)
    equal_losses(AFTER_KILLS.given, reports(records)[AFTER_KILLS.given], reports(records)[WHOLE.given])
    return "killed in the middle of a file and at a rename, it loses nothing that had been saved"


def every_rank_waits_until_it_is_there(records):
    """No rank returns from `save` before the checkpoint is complete."""
    reporters = reports(records)[FIRST.given]
    early = reporters[0]["disk_done"] - (reporters[1]["left_slow_save"] or 0.0)
    if early > 0:
        raise Wrong(
            f"with 2 ranks, on a slow disk: rank 1 returned from `save` {early:.2f} s before rank 0 had it on the disk",
            "what rank 1 does while rank 0 writes",
        )
    return "nobody returns from save before the checkpoint is there, also on a slow disk"


def it_is_on_the_disk(records):
    """When `save` returns, what it wrote has been flushed to the disk."""
    reporters = reports(records)[WHOLE.given]
    flushed = {tuple(one) for report in reporters for one in report["flushed"]}
    for path, *state in reporters[0]["large"]:
        if tuple(state) not in flushed:
            raise Wrong(
                f"with 2 ranks: `save` returned, and {path} ({state[2]:,} bytes) had not been flushed to the disk",
                "where the bytes are after file.write(), and after file.close(): os.fsync",
            )
    if not reporters[0]["large"]:
        raise Wrong("with 2 ranks: `save` left no file of the size of the weights", "what `save` writes, and where")
    return "what save wrote is flushed to the disk when it returns"


CHECKS = [
    only_rank_0_writes_the_weights,
    a_stopped_run_goes_on_bit_for_bit,
    damage_is_passed_over,
    foreign_files_are_left_alone,
    kills_cost_nothing_that_was_saved,
    every_rank_waits_until_it_is_there,
    it_is_on_the_disk,
    without_a_whole_one_nothing_changes,
]


def reports(records):
    """By call: what was seen on its ranks; of the jobs that ran to their end."""
    return {case.given: case.results for case in cases([records[0], records[3]])}


def starts_at(given, report, expected, look):
    """The first step of a start, on every rank."""
    for rank, one in enumerate(report):
        if one["start"] != expected:
            began = "did no step" if one["start"] is None else f"began at step {one['start']}"
            raise Wrong(f"{given}: rank {rank} {began}; the newest whole checkpoint is that of step {expected}", look)


def equal_losses(given, report, whole):
    """Every loss of a start is, to the last bit, that of the run without a stop on the same rank."""
    for step in sorted(report[0]["losses"], key=int):
        for rank, (one, other) in enumerate(zip(report, whole, strict=True)):
            if one["losses"].get(step) != other["losses"][step]:
                differ = [
                    name
                    for part, name in SHARED.items()
                    if one["states"][str(one["start"])][part] != other["states"][str(one["start"])][part]
                ]
                part = " and ".join(differ) or "nothing that was looked at"
                raise Wrong(
                    f"{given}: rank {rank} has loss {one['losses'].get(step)!r} at step {step}; without a stop it is "
                    f"{other['losses'][step]!r}. Not as they were at step {one['start']} on this rank: {part}",
                    "what of this rank `save` keeps and `load` puts back, and on which rank it was taken",
                )
