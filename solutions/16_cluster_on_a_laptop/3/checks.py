"""16.3: a data set that each machine downloads once, that is whole when it is read, and errors that all hear of."""

from ddp_course.grader.answer_record import Call, Job, cases
from ddp_course.grader.messages import assert_little_is_sent
from ddp_course.grader.verdict import Wrong

from .driver import SIZE

FUNCTION = "prepare"
FEW = 16_384  # bytes that a rank may send
RUNS = {  # the machine of each rank, which of them have the file, whose first download fails, one disk for all
    "two machines": ([0, 1], [], [], False),
    "one machine": ([0, 0], [], [], False),
    "two machines that have it": ([0, 1], [0, 1], [], False),
    "machine 0 has it": ([0, 1], [0], [], False),
    "machine 1 has it": ([0, 1], [1], [], False),
    "a disk that both machines share": ([0, 1], [], [], True),
    "the download fails on machine 1": ([0, 1], [], [1], False),
    "the download fails on machine 0": ([0, 1], [], [0], False),
    "one machine, and the download fails": ([0, 0], [], [0], False),
    "three ranks on two machines": ([0, 1, 1], [], [], False),
    "three ranks on two machines, the other way": ([0, 0, 1], [], [], False),
    "three ranks, and the download fails on machine 1": ([0, 1, 1], [], [1], False),
}


def job(world):
    named = list(enumerate(RUNS.items()))
    calls = [Call([(number, *how)] * world, given) for number, (given, how) in named if len(how[0]) == world]
    return Job(world, FUNCTION, tuple(calls), driver=True)


JOBS = [job(world) for world in (2, 3)]


def every_rank_gets_the_whole_file(records):
    """On every rank prepare returns the path of the file on its machine, which is whole by then."""
    for case, number, rank, one in attempts(records):
        if number in expected_failures(case) or one["raised"]:
            continue
        if one["path"] != "data.bin":
            look = "what is returned"
            raise Wrong(f"{case.where}rank {rank} returned {one['path']}, not data.bin in its folder", look)
        if one["bytes"] != SIZE:
            state = f"{one['bytes']:,} of {SIZE:,} bytes" if one["bytes"] else "not there"
            look = "when may a rank return: what has to be done by then, and on which machine?"
            if number:
                look = "what the attempt that failed has left, and what the next one makes of it"
            elif not any(result[0]["downloads"] for result, on in on_machines(case) if on == RUNS[case.given][0][rank]):
                look = "which rank downloads: RANK is 0 once per job, LOCAL_RANK once per machine"
            raise Wrong(f"{case.where}rank {rank} returned, and the file on its machine is {state}", look)
    return "every rank gets the whole file of its machine"


def each_machine_downloads_once(records):
    """A machine that has the file downloads nothing, any other one once."""
    for case, number, rank, _ in attempts(records):
        machines, there, fails, shared = RUNS[case.given]
        if rank or shared:
            continue
        for machine in sorted(set(machines)):
            downloads = sum(result[number]["downloads"] for result, on in on_machines(case) if on == machine)
            right = int(machine in fails if number else machine not in there)
            if downloads != right:
                again = "after the error " if number else ""
                look = "which of its ranks downloads, and is the file there already?"
                raise Wrong(f"{case.where}{again}machine {machine} downloaded {downloads} times, not {right}", look)
    return "each machine downloads once, and not what it has"


def nobody_sees_a_part(records):
    """Under the name that prepare returns there is never a file that is not whole."""
    for case, _, rank, one in attempts(records):
        if one["parts_seen"]:
            look = "download under another name, of this machine's own, and rename what is whole"
            raise Wrong(f"{case.where}while rank {rank} downloaded, data.bin was there and not whole", look)
        if one["raised"] and RUNS[case.given][3]:
            look = "under which name does each machine download, if they share the disk?"
            raise Wrong(f"{case.where}rank {rank} raised {one['raised'].partition(' -> ')[0]}", look)
    return "data.bin is whole whenever it is there"


def an_error_reaches_every_rank(records):
    """If a download raises, every rank raises an error with its text, and the next call downloads what is missing."""
    for case, number, rank, one in attempts(records):
        if number not in expected_failures(case):
            continue
        if not one["raised"]:
            look = "every rank has to hear of it: from whom, and in which collective?"
            raise Wrong(f"{case.where}rank {rank} raised nothing", look)
        if "No space left" not in one["raised"]:
            look = "what went wrong, and where, is known on one rank: send its text"
            raise Wrong(f"{case.where}rank {rank} raised {one['raised']!r}, without the download's error", look)
    return "an error of one download is raised on every rank"


def the_file_is_not_sent(records):
    """A rank sends at most 16 KB: the file comes from the download, not from another rank."""
    look = "what does a rank have to tell the others? An error, or that there is none"
    few = assert_little_is_sent(cases(records), FEW, lambda *_: "for a file that each machine downloads", look)
    return f"{few} bytes at most are sent between ranks"


CHECKS = [
    every_rank_gets_the_whole_file,
    each_machine_downloads_once,
    nobody_sees_a_part,
    an_error_reaches_every_rank,
    the_file_is_not_sent,
]


def attempts(records):
    """(case, number of the attempt, rank, what happened there)"""
    for case in cases(records):
        for rank, result in enumerate(case.results):
            for number, one in enumerate(result):
                yield case, number, rank, one


def on_machines(case):
    """(what happened on a rank, its machine), by rank"""
    return zip(case.results, RUNS[case.given][0], strict=True)


def expected_failures(case):
    return [0] if RUNS[case.given][2] else []
