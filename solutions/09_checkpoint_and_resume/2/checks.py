"""09.2: a checkpoint that survives kills and damage, and from which the run goes on bit for bit."""

import signal

from ddp_course.grader.vocabulary import Call, Job, Wrong, cases, check, expect


def start(scenario, name, seed, until, damage=None, kill=None, slow=None):
    """The call for one start of a run on two ranks. The arguments are those of driver.Training."""
    return Call([(name, seed, until, damage, kill, slow) for _ in range(2)], scenario)


def job(*calls, may_fail=False):
    return Job(2, "train", calls, may_fail=may_fail, driver=True, loads=("torch._dynamo",))  # for torch.optim


# The runs go beyond step 9, where names without leading zeros sort wrongly.
UNINTERRUPTED = start("a run of 16 steps without a stop", "uninterrupted", 1, 16)
FIRST = start("a run of 10 steps", "stopped", 1, 10, slow=2)
RESUMED = start("started again after step 10", "stopped", 2, 12)
TRUNCATED = start("started again, the checkpoint of step 12 cut short", "stopped", 3, 13, damage="truncated")
FLIPPED = start("started again, one bit of the checkpoint of step 13 wrong", "stopped", 4, 14, damage="flipped")
FOREIGN = start("started again, foreign files in the folder", "stopped", 5, 15, damage="foreign")
FOREIGN_AGAIN = start(
    "started again, foreign files beside its own, the checkpoint of step 15 cut short",
    "stopped",
    6,
    16,
    damage="truncated",
)
NOTHING_WHOLE = start("a folder without a whole checkpoint", "nothing_whole", 7, 0)
LARGE_NUMBERS = start("saves of steps 99, 100, 999 and 1000", "large_numbers", 8, 0)
AFTER_KILLS = start("started again after two kills", "killed", 3, 8)
WHILE_SAVING = job(start("killed while saving step 3", "killed", 1, 4, kill=("byte", 3)), may_fail=True)
JOBS = [
    job(UNINTERRUPTED, FIRST, RESUMED, TRUNCATED, FLIPPED, FOREIGN, FOREIGN_AGAIN, NOTHING_WHOLE, LARGE_NUMBERS),
    WHILE_SAVING,
    job(start("killed at a rename", "killed", 2, 7, kill=("rename", 5)), may_fail=True),
    job(AFTER_KILLS),
]
STATES = {"weights": "the weights", "optimizer": "the optimizer's state", "random": "the random state"}


@check("only rank 0 writes the weights", [WHILE_SAVING])
def only_rank_0_writes_the_weights(records):
    expect(
        records[0].ranks[1].exit_code != -signal.SIGXFSZ,
        "with 2 ranks: rank 1 wrote a file of more than 64 kB while saving; the weights are the same everywhere, and "
        "two writers of one file are a race",
        "which lines of `save` concern rank 0 alone?",
    )


@check("started again after step 10, both ranks have the same losses as a run without a stop")
def a_stopped_run_resumes_bit_for_bit(records):
    expect_bit_exact_resume(records, {RESUMED: 10}, "what `load` returns, and in which order it goes through the files")


@check("the newest checkpoint is that of the largest step, whatever the times of the files")
def the_largest_step_is_loaded(records):
    for rank, loads in enumerate(reports(records)[LARGE_NUMBERS.scenario]):
        for saved, loaded in loads:
            expect(
                loaded == saved,
                f"{LARGE_NUMBERS.scenario}, one after the other: after that of step {saved}, `load` returned {loaded} "
                f"on rank {rank}",
                "in which order `load` goes through the files: the numbers get one more digit, and the files have the "
                "times of a copy",
            )


@check("a truncated file and a flipped bit are noticed, and the checkpoint before is taken")
def damaged_files_are_passed_over(records):
    expect_bit_exact_resume(records, {TRUNCATED: 11, FLIPPED: 12}, "how `load` finds out that a file is whole")


@check("foreign files in the folder do no harm, not even those named like its own")
def foreign_files_are_left_alone(records):
    expect(
        not any(report["code_was_run"] for report in reports(records)[FOREIGN.scenario]),
        f"{FOREIGN.scenario}: `load` ran code that a foreign file brought along",
        "what torch.load does with weights_only=False, and what comes first: the checksum or the load",
    )
    look_at = "which files your functions regard as checkpoints of yours"
    expect_bit_exact_resume(records, {FOREIGN: 14, FOREIGN_AGAIN: 14}, look_at)


@check("killed in the middle of a file and at a rename, it loses nothing that had been saved")
def kills_cost_nothing_that_was_saved(records):
    finished = 0
    for entry in reports(records)[AFTER_KILLS.scenario][0]["history"]:
        kill = "in the middle of its file" if finished == 2 else "at a rename"
        first = entry.get("start", finished)
        expect(
            first >= finished,
            f"with 2 ranks: rank 0 was killed {kill}; `save` of step {finished} had returned before, but the next "
            f"start began at step {first}",
            "which files are in the folder at each moment of a save, and which of them `load` takes",
        )
        finished = entry.get("saved", finished)
    expect_equal_losses(AFTER_KILLS.scenario, reports(records))


@check("nobody returns from save before the checkpoint is there, also on a slow disk")
def every_rank_waits_for_the_checkpoint(records):
    rank_0, rank_1 = reports(records)[FIRST.scenario]
    seconds_early = rank_0["disk_done"] - (rank_1["slow_save_returned"] or 0.0)
    expect(
        seconds_early <= 0,
        f"with 2 ranks, on a slow disk: rank 1 returned from `save` {seconds_early:.2f} s before rank 0 had it on the "
        "disk",
        "what rank 1 does while rank 0 writes",
    )


@check("what save wrote is flushed to the disk when it returns")
def saved_files_are_flushed(records):
    ranks = reports(records)[UNINTERRUPTED.scenario]
    flushed = {tuple(status) for report in ranks for status in report["flushed"]}
    for path, *status in ranks[0]["large_files"]:
        expect(
            tuple(status) in flushed,
            f"with 2 ranks: `save` returned, and {path} ({status[2]:,} bytes) had not been flushed to the disk",
            "where the bytes are after file.write(), and after file.close(): os.fsync",
        )
    expect(
        ranks[0]["large_files"],
        "with 2 ranks: `save` left no file of the size of the weights",
        "what `save` writes, and where",
    )


@check("where no checkpoint is whole, load returns 0 and changes nothing")
def without_a_whole_one_nothing_changes(records):
    for rank, loads in enumerate(reports(records)[NOTHING_WHOLE.scenario]):
        for scenario, step, changed in loads:
            parts = " and ".join(STATES[part] for part in changed) or "nothing"
            expect(
                step == 0 and not changed,
                f"with 2 ranks, {scenario}: `load` returned {step!r} on rank {rank} and changed {parts}; it should "
                "return 0 and change nothing",
                "what `load` has done by the time it knows whether there is a whole checkpoint, and which bytes it "
                "looks at for that",
            )


def reports(records):
    """By scenario, the reports of its ranks. Only for the first and the last job: the others are killed."""
    return {case.scenario: case.results for case in cases([records[0], records[3]])}


def expect_bit_exact_resume(records, first_steps, look_at):
    """Raise Wrong unless each start in `first_steps` begins there on every rank, with the losses of UNINTERRUPTED."""
    by_scenario = reports(records)
    for call, first in first_steps.items():
        for rank, report in enumerate(by_scenario[call.scenario]):
            began = "did no step" if report["start"] is None else f"began at step {report['start']}"
            whole = f"the newest whole checkpoint is that of step {first}"
            if first not in report["kept"]:
                whole = f"`save` had deleted or overwritten the checkpoint of step {first}"
                look_at = "how many checkpoints `save` keeps, in which order it deletes them, and whether it counts "
                look_at += "foreign files"
            expect(report["start"] == first, f"{call.scenario}: rank {rank} {began}; {whole}", look_at)
        expect_equal_losses(call.scenario, by_scenario)


def expect_equal_losses(scenario, by_scenario):
    """Raise Wrong unless every loss of a start is, to the last bit, that of UNINTERRUPTED on the same rank."""
    starts, uninterrupted = by_scenario[scenario], by_scenario[UNINTERRUPTED.scenario]
    for step in sorted(starts[0]["losses"]):
        for rank, (report, right) in enumerate(zip(starts, uninterrupted, strict=True)):
            loss, right_loss, start = report["losses"].get(step), right["losses"][step], report["start"]
            if loss != right_loss:
                different = [
                    words
                    for part, words in STATES.items()
                    if report["states"][start][part] != right["states"][start][part]
                ]
                parts = " and ".join(different) or "nothing that the grader compares"
                raise Wrong(
                    f"{scenario}: rank {rank} has loss {loss!r} at step {step}; without a stop it is {right_loss!r}. "
                    f"Not as they were at step {start} on this rank: {parts}",
                    "what of this rank `save` keeps and `load` puts back, and on which rank it was taken",
                )
