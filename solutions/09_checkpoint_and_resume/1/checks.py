"""09.1: a save that loses checkpoints, a check that does not see it, and both repaired."""

from ddp_course.grader.vocabulary import Wrong, check, driver_job, expect, plural

OWN = "your own save"
RIGHT = {  # name of the method of driver.Save: what the learner reads
    "step_names": "rank 0 writes, named by the step, all wait",
    "slow_disk": "rank 0 writes on a slow disk, all wait",
    "random_names": "rank 0 writes, with a random name, all wait",
}
BROKEN = {
    "given": "the given one",
    "by_the_second": "rank 0 alone writes, named by the second",
    "every_rank": "every rank writes, named by the step",
    "early_return": "rank 0 writes, the others return at once",
    "one_name": "rank 0 writes, always the same name",
    "torn": "rank 0 writes only half of the file",
    "copies": "rank 0 writes, and copies the files that are there already",
    "keeps_two": "rank 0 writes, and removes all files but the two newest",
    "no_tensors": "rank 0 writes the numbers of its state without the tensors",
    "of_the_last_rank": "rank 0 writes the state of the last rank",
    "rewrites": "rank 0 writes, and puts the new state into the files of the steps before",
    "adds_the_step": "rank 0 writes its state, and the step as one more entry",
    "as_double": "rank 0 writes its state, with every tensor as float64",
    "numbered": "rank 0 writes, named by how many files there are",
}
LOOK = {
    "given": "what one save shows, and what three within a second would",
    "by_the_second": "what one save shows, and what three within a second would",
    "every_rank": "how a file that two ranks have written differs from one that rank 0 has written, in your check",
    "early_return": "when the other ranks look, and whether something in your check makes them wait first",
    "one_name": "what happens to the first file when the second is saved",
    "torn": "whether a file that is there can be loaded",
    "copies": "how many files there are after each save, of whatever kind",
    "keeps_two": "what happens to the first file when the third is saved",
    "rewrites": "whether the files of the steps before are still as they were",
    "no_tensors": "what of the saved state your check looks for in the file",
    "of_the_last_rank": "how the states that your check saves differ from rank to rank",
    "adds_the_step": "whether a file holds an entry that was not in the state",
    "as_double": "dtypes: a 1 in float64 equals one in float32 and an integer 1",
    "numbered": "what becomes of the other files if one is removed before the next save",
}


def job(world, *names):
    calls = {(RIGHT | BROKEN).get(name, OWN): (name,) for name in names}
    # One job tries the answer's check on 18 ways to save, some of them slow, and it may call each as often as it likes
    # and sleep, to see who waits: that is no standstill.
    return driver_job(world, "check_save", calls, seconds=30.0, patience=30.0)


JOBS = [job(2, "own", *RIGHT, *BROKEN), job(3, "own", "step_names", "every_rank", "of_the_last_rank")]


@check("only rank 0 writes", scenarios=[OWN], begin="{ranks}: ")
def only_rank_0_writes(case):
    writers = [rank for rank, result in enumerate(case.results) if result["own"]["wrote"]]
    who = " and ".join(f"rank {rank}" for rank in writers) or "no rank"
    expect(writers == [0], f"{who} wrote in one call of `save`", "which ranks get to the line that writes")


@check(
    "three saves within a second leave three files, and so does one more after a file was removed",
    scenarios=[OWN],
    begin="{ranks}: ",
)
def every_save_leaves_a_file(case):
    folders, steps_after = (case.results[0]["own"][name] for name in ("folders", "steps_after"))
    expect(
        not folders,
        f"when all saves were done, there lay {plural(folders, 'folder')} in the folder",
        "the contract: after a save there is one more file in the folder, and nothing else",
    )
    first, second, third, after_removal = map(len, steps_after[:4])
    expect(
        [first, second, third] == [1, 2, 3],
        f"after 1, 2 and 3 saves of different steps there were {first}, {second} and {third} files",
        "what a file's name is made of, and what else may lie in the folder when `save` is done",
    )
    if steps_after[2] != [1, 2, 3]:
        return  # the next check reports the contents of the files
    expect(
        after_removal == 3,
        f"of the files of steps 1, 2 and 3 the grader removed that of step 1; after the save of step 4 there were "
        f"{after_removal}, of steps {show_steps(steps_after[3])}",
        "what a file's name is made of: which name does `save` give when one file is gone?",
    )
    expect(
        steps_after[-1] == list(range(2, 11)),
        f"after the save of step 10 there were the files of steps {show_steps(steps_after[-1])}; the grader had "
        "removed only that of step 1",
        "what `save` removes",
    )


@check("torch.load finds in them what was saved", scenarios=[OWN], begin="{ranks}: ")
def the_files_hold_what_was_saved(case):
    own = case.results[0]["own"]
    steps, entries, state_entries = own["steps_after"][2], own["entries"], own["state_entries"]
    words = f"; they have the entries {', '.join(entries)}, given were {', '.join(state_entries)}" if entries else ""
    if entries == state_entries:
        words = "; they have the given entries, but not the given values or types" if max(steps) < 0 else ""
    expect(
        steps == [1, 2, 3],
        f"the files after the saves of steps 1, 2 and 3 hold the states of steps "
        f"{[step if step > 0 else 'none' for step in steps]}{words}",
        "what is given to torch.save, and where to",
    )


@check("no rank returns before the file is there", scenarios=[OWN], begin="{ranks}: ")
def every_rank_finds_the_file(case, rank, result):
    for step, steps in enumerate(result["own"]["steps_at_return"], start=1):
        complete = sum(file_step > 0 for file_step in steps)
        expect(
            step in steps,
            f"when `save` of step {step} returned on rank {rank}, there were {complete} files with a saved state, and "
            f"{len(steps) - complete} others; rank 0 was still writing",
            "what the other ranks do while rank 0 writes",
        )


@check(
    f"check_save passes {len(RIGHT)} right ways to save, and yours",
    scenarios=[*RIGHT.values(), OWN],
    begin="{ranks}, {scenario}: ",
)
def the_check_passes_what_is_right(case):
    expect(
        all(result["calls"] for result in case.results),
        "check_save never called the `save` it was given",
        "the first argument of check_save: that is the save to be tried, on every rank",
    )
    for rank, result in enumerate(case.results):
        if result["elsewhere"]:
            raise Wrong(
                f"check_save was given the folder {result['folder']}, and had `save` write into "
                f"{result['elsewhere'][0]} on rank {rank}",
                "the second argument of check_save: whatever it tries belongs below that folder",
            )
    expect(
        all(result["verdict"] is True for result in case.results),
        f"check_save returned {show_verdicts(case)}; this save is right",
        "what your check requires beyond the contract: a name, an ending, a second file of one step, a look while "
        "rank 0 writes the next one",
    )


@check(
    f"check_save fails {len(BROKEN)} broken ones, the given one among them",
    scenarios=BROKEN.values(),
    begin="{ranks}, {scenario}: ",
)
def the_check_fails_what_is_broken(case):
    expect(
        all(result["verdict"] is False for result in case.results),
        f"check_save returned {show_verdicts(case)}; this save is broken",
        LOOK[case.args[0][0]],
    )


def show_steps(steps):
    """The steps of files; "none" for a file that does not hold what rank 0 saved."""
    return " and ".join(str(step) if step > 0 else "none" for step in steps)


def show_verdicts(case):
    """The verdict of check_save; that of each rank where they differ."""
    verdicts = [result["verdict"] for result in case.results]
    if all(verdict == verdicts[0] for verdict in verdicts):
        return repr(verdicts[0])
    return " and ".join(f"{verdict!r} on rank {rank}" for rank, verdict in enumerate(verdicts))
