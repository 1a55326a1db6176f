"""16.3: a data set that each machine downloads once, that is whole when it is read; an error is raised on all ranks."""

from ddp_course.grader.vocabulary import Call, Wrong, check, expect, expect_few_bytes, jobs_of

from .driver import SIZE

FUNCTION = "prepare"
MAX_BYTES = 16_384  # that a rank may send
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
CALLS = [Call([(number, *run)] * len(run[0]), scenario) for number, (scenario, run) in enumerate(RUNS.items())]
JOBS = jobs_of(FUNCTION, CALLS, driver=True)


@check("every rank gets the whole file of its machine")
def every_rank_gets_the_whole_file(case, rank, result):
    for number, attempt in enumerate(result):
        if number in expected_failures(case) or attempt["raised"]:
            continue
        expect(
            attempt["path"] == "data.bin",
            f"rank {rank} returned {attempt['path']}, not data.bin in its folder",
            "what is returned",
        )
        state = f"{attempt['bytes']:,} of {SIZE:,} bytes" if attempt["bytes"] else "not there"
        look_at = "when may a rank return: what has to be done by then, and on which machine?"
        if number:
            look_at = "what the attempt that failed has left, and what the next one makes of it"
        elif not downloads(case, RUNS[case.scenario][0][rank], 0):
            look_at = "which rank downloads: RANK is 0 once per job, LOCAL_RANK once per machine"
        expect(attempt["bytes"] == SIZE, f"rank {rank} returned, and the file on its machine is {state}", look_at)


@check("each machine downloads once, and not what it has")
def each_machine_downloads_once(case):
    machines, present, fails, shared = RUNS[case.scenario]
    for number in range(len(case.results[0])):
        for machine in sorted(set(machines)) if not shared else ():
            count, right = downloads(case, machine, number), int(machine in fails if number else machine not in present)
            expect(
                count == right,
                f"{'after the error ' if number else ''}machine {machine} downloaded {count} times, not {right}",
                "which of its ranks downloads, and is the file there already?",
            )


@check("data.bin is whole whenever it is there")
def the_file_is_always_whole(case, rank, result):
    _, _, _, shared = RUNS[case.scenario]
    for attempt in result:
        expect(
            not attempt["incomplete"],
            f"while rank {rank} downloaded, data.bin was there and not whole",
            "download under another name, of this machine's own, and rename what is whole",
        )
        expect(
            not attempt["written"],
            f"rank {rank} opened data.bin and wrote into it: it was there before it was whole",
            "a rename makes the whole file appear at once; a copy does not",
        )
        if attempt["raised"] and shared:
            raise Wrong(
                f"rank {rank} raised {attempt['raised'].partition(' -> ')[0]}",
                "under which name does each machine download, if they share the disk?",
            )


@check("each download is written into the folder")
def downloads_stay_in_the_folder(case, rank, result):
    for attempt in result:
        expect(
            not attempt["outside"],
            f"rank {rank} downloaded to a file outside the folder",
            "a rename is atomic on one disk: where must the file lie that is renamed?",
        )


@check("an error of one download is raised on every rank")
def an_error_reaches_every_rank(case, rank, result):
    for number in expected_failures(case):
        raised = result[number]["raised"]
        expect(raised, f"rank {rank} raised nothing", "every rank has to receive the error: in which collective?")
        expect(
            "No space left" in raised,
            f"rank {rank} raised {raised[:300]!r}, without the download's error",
            "one rank has the error, the others need it: send its text",
        )


@check(lambda sent: f"{max(sent)} bytes at most are sent between ranks")
def the_file_is_not_sent(case, rank, result):
    purpose = " for a file that each machine downloads"
    look_at = "what does a rank have to send the others? An error, or that there is none"
    return expect_few_bytes(rank, case.operations[rank], MAX_BYTES, purpose, look_at, without=("recv",))


def downloads(case, machine, number):
    """How often the ranks of a machine downloaded in attempt `number`."""
    ranks = zip(case.results, RUNS[case.scenario][0], strict=True)
    return sum(result[number]["downloads"] for result, its_machine in ranks if its_machine == machine)


def expected_failures(case):
    """The numbers of the attempts in which a download fails."""
    return [0] if RUNS[case.scenario][2] else []
