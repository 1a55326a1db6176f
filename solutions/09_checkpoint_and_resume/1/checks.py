"""09.1: a save that loses checkpoints, a check that does not see it, and both repaired."""

from ddp_course.grader.answer_record import Call, Job, cases
from ddp_course.grader.verdict import Wrong

RIGHT = {
    "step_names": "rank 0 writes, named by the step, all wait",
    "slow_disk": "rank 0 writes on a slow disk, all wait",
    "random_names": "rank 0 writes, with a random name, all wait",
}
BROKEN = {
    "given": "the given one",
    "by_the_second": "rank 0 alone writes, named by the second",
    "every_rank": "every rank writes, named by the step",
    "nobody_waits": "rank 0 writes, the others return at once",
    "one_name": "rank 0 writes, always the same name",
    "torn": "rank 0 writes only half of the file",
    "copies": "rank 0 writes, and copies the files that are there already",
    "keeps_two": "rank 0 writes, and removes all files but the two newest",
    "no_tensors": "rank 0 writes the numbers of its state without the tensors",
    "of_the_last_rank": "rank 0 writes the state of the last rank",
    "rewrites": "rank 0 writes, and puts the new state into the files of the steps before",
}


def call(name, world):
    return Call([(name,) for _ in range(world)], (RIGHT | BROKEN).get(name, "your own save"))


def job(world, *names):
    calls = tuple(call(name, world) for name in names)
    # A check may call `save` as often as it likes, slowly, and is tried on fifteen of them.
    return Job(world, function="check_save", calls=calls, seconds=24.0, driver=True)


JOBS = [job(2, "own", *RIGHT, *BROKEN), job(3, "own", "step_names", "every_rank", "of_the_last_rank")]


def rank_0_writes_and_nobody_else(records):
    """Given a folder of its own for each rank, `save` writes into that of rank 0 only."""
    for where, ranks in examined(records):
        writers = [rank for rank, seen in enumerate(ranks) if seen["wrote"]]
        if writers != [0]:
            who = " and ".join(f"rank {rank}" for rank in writers) or "no rank"
            raise Wrong(f"{where}{who} wrote in one call of `save`", "which ranks get to the line that writes")
    return "rank 0 writes, and nobody else"


def every_save_leaves_a_file(records):
    """Three saves, as quick as can be, leave three files in the folder."""
    for where, ranks in examined(records):
        if folders := ranks[0]["folders"]:
            raise Wrong(
                f"{where}when all saves were done, there lay {folders} folder{'s' * (folders > 1)} in the folder",
                "the contract: after a save there is one more file in the folder, and nothing else",
            )
        *left, after_removal = [len(steps) for steps in ranks[0]["content"][:4]]
        if left != [1, 2, 3]:
            raise Wrong(
                f"{where}after 1, 2 and 3 saves of different steps there were {left[0]}, {left[1]} and {left[2]} files",
                "what a file's name is made of, and what else may lie in the folder when `save` is done",
            )
        if ranks[0]["content"][2] == [1, 2, 3] and after_removal != 3:
            raise Wrong(
                f"{where}of the files of steps 1, 2 and 3 somebody removed that of step 1; after the save of step 4 "
                f"there were {after_removal}, of steps {steps_text(ranks[0]['content'][3])}",
                "what a file's name is made of: which name does `save` give when one file is gone?",
            )
        if ranks[0]["content"][2] == [1, 2, 3] and (last := ranks[0]["content"][-1]) != list(range(2, 11)):
            raise Wrong(
                f"{where}after the save of step 10 there were the files of steps {steps_text(last)}; none but that of "
                "step 1 was removed by somebody else",
                "what `save` removes",
            )
    return "three saves within a second leave three files, and so does one more after a file was removed"


def they_hold_what_was_saved(records):
    """Each file is what torch.load makes the saved state of rank 0 of, and nothing more or less."""
    for where, ranks in examined(records):
        steps, found, given = ranks[0]["content"][2], ranks[0]["found"], ranks[0]["given"]
        if steps != [1, 2, 3]:
            entries = f"; they have the entries {', '.join(found)}, given were {', '.join(given)}"
            if found == given:
                entries = "; they have the given entries, but not the given values or types" if max(steps) < 0 else ""
            raise Wrong(
                f"{where}the files after the saves of steps 1, 2 and 3 hold the states of steps "
                f"{[step if step > 0 else 'none' for step in steps]}{entries if found else ''}",
                "what is given to torch.save, and where to",
            )
    return "torch.load finds in them what was saved"


def every_rank_finds_it(records):
    """On every rank the file is there when `save` returns."""
    for where, ranks in examined(records):
        for rank, seen in enumerate(ranks):
            for step, steps in enumerate(seen["after"], start=1):
                if step not in steps:
                    whole = sum(step > 0 for step in steps)
                    raise Wrong(
                        f"{where}when `save` of step {step} returned on rank {rank}, there were {whole} files that "
                        f"can be loaded, and {len(steps) - whole} others; rank 0 was still writing",
                        "what the other ranks do while rank 0 writes",
                    )
    return "no rank returns before the file is there"


def the_check_passes_what_is_right(records):
    """check_save tries the save it is given, and returns True on every rank for each that is right."""
    for case, _ in verdicts_on([*RIGHT, "own"], records):
        if any(result["calls"] == 0 for result in case.results):
            raise Wrong(
                f"{place(case)}check_save never called the `save` it was given",
                "the first argument of check_save: that is the save to be tried, on every rank",
            )
        for rank, result in enumerate(case.results):
            if result["elsewhere"]:
                raise Wrong(
                    f"{place(case)}check_save was given the folder {result['folder']}, and had `save` write into "
                    f"{result['elsewhere'][0]} on rank {rank}",
                    "the second argument of check_save: whatever it tries belongs below that folder",
                )
        if not all(result["verdict"] is True for result in case.results):
            raise Wrong(
                f"{place(case)}check_save returned {returned(case)}; this save is right",
                "what it asks for that nobody promised: a name, an ending, a second file of one step, a look while "
                "rank 0 writes the next one",
            )
    return f"check_save passes {len(RIGHT)} right ways to save, and yours"


def the_check_fails_what_is_broken(records):
    """check_save returns False on every rank for each save that is broken."""
    for case, name in verdicts_on(BROKEN, records):
        if not all(result["verdict"] is False for result in case.results):
            raise Wrong(f"{place(case)}check_save returned {returned(case)}; this save is broken", LOOK[name])
    return f"check_save fails {len(BROKEN)} broken ones, the given one among them"


CHECKS = [
    rank_0_writes_and_nobody_else,
    every_save_leaves_a_file,
    they_hold_what_was_saved,
    every_rank_finds_it,
    the_check_passes_what_is_right,
    the_check_fails_what_is_broken,
]
LOOK = {
    "given": "what one save shows, and what three within a second would",
    "by_the_second": "what one save shows, and what three within a second would",
    "every_rank": "how a file that two ranks have written differs from one that rank 0 has written, in your check",
    "nobody_waits": "when the other ranks look, and whether something in your check makes them wait first",
    "one_name": "what becomes of the first file when the second is saved",
    "torn": "whether a file that is there can be loaded",
    "copies": "how many files there are after each save, of whatever kind",
    "keeps_two": "what becomes of the first file when the third is saved",
    "rewrites": "whether the files of the steps before are still as they were",
    "no_tensors": "what of the saved state your check looks for in the file",
    "of_the_last_rank": "in what the states differ that your check passes on different ranks",
}


def verdicts_on(names, records):
    """The calls for these saves, each with its name."""
    named = {description: name for name, description in (RIGHT | BROKEN | {"own": "your own save"}).items()}
    return [(case, named[case.given]) for case in cases(records) if named[case.given] in names]


def examined(records):
    """(how a sentence begins, what each rank saw of the answer's own save), for each number of ranks."""
    own = [case for case in cases(records) if case.given == "your own save"]
    return [(f"with {case.world} ranks: ", [result["seen"] for result in case.results]) for case in own]


def steps_text(steps):
    return " and ".join(str(step) if step > 0 else "none" for step in steps)


def place(case):
    return f"with {case.world} ranks, {case.given}: "


def returned(case):
    found = [result["verdict"] for result in case.results]
    if all(verdict == found[0] for verdict in found):
        return repr(found[0])
    return " and ".join(f"{verdict!r} on rank {rank}" for rank, verdict in enumerate(found))
