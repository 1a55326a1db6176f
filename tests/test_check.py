"""The grader with any answer: five states, exit codes, hints; it ends in time and leaves nothing behind."""

import contextlib
import json
import re
import shutil
import subprocess
import sys
import textwrap
import time
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from disturbance import processes_of_this_test, wait_until

from ddp_course.authoring.answers import answer_cells, graded
from ddp_course.authoring.commands import ROOT
from ddp_course.authoring.notebook_run import output_texts, read_notebook
from ddp_course.base.errors import InputError
from ddp_course.grader import answer_run
from ddp_course.grader import check as checking
from ddp_course.grader.answer_record import JobRecord, cases
from ddp_course.grader.answer_run import collective_logs, run_answers
from ddp_course.grader.check import check, given_script, hint, load, main
from ddp_course.grader.exercises import names
from ddp_course.grader.harness import start
from ddp_course.grader.harness.job import Call, Ending, Job
from ddp_course.grader.harness.notes import RankRecord
from ddp_course.grader.judge import grade, run_failure
from ddp_course.grader.verdict import NotPassed, Verdict

RIGHT = """
import torch
import torch.distributed as dist

def global_mean(values):
    total = torch.tensor([sum(values), len(values)], dtype=torch.float64)
    dist.all_reduce(total)
    return (total[0] / total[1]).item()
"""
WRONG = "def global_mean(values):\n    print('values', len(values))\n    return sum(values) / max(1, len(values))\n"
STUB = 'def global_mean(values):\n    raise NotImplementedError("your turn")\n'
RAISES = "def global_mean(values):\n    return values[100]\n"


@pytest.fixture(autouse=True)
def no_file_is_left(working_folder):
    Path("answers").mkdir()
    yield
    assert not list(Path("tmp").iterdir()), "the grading left files behind"
    assert not list(Path(".").rglob("*.pyc")), "the grading compiled the answer to a file beside it"


def write(text, name="answers/02_1.py"):
    Path(name).write_text(textwrap.dedent(text))
    return name


# ---- states, strictness, exit codes ------------------------------------------------------------------------------


STATES = {  # state: (answer, exit code, message)
    "passed": (RIGHT, 0, "02.1 passed\n  ✓ every rank returns one number"),
    "wrong": (WRONG, 1, "02.1 wrong: with 3 ranks (4, 1 and 2 values): rank 0 returned 2.5, the mean of its own"),
    "not attempted": (STUB, 2, "02.1 not attempted: not attempted.py, line 2 still raises NotImplementedError"),
    "crashed": (RAISES, 3, "02.1 crashed: with 3 ranks (4, 1 and 2 values): rank 0 raised IndexError: list index out"),
}


def test_the_command_line_itself():
    command = [sys.executable, "-W", "error::RuntimeWarning", "-m", "ddp_course.grader.check", "02.1", write(WRONG)]
    run = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert run.returncode == 1, run.stderr
    assert run.stdout.startswith("02.1 wrong: ") and "\n  look at: " in run.stdout


def test_what_the_command_line_refuses_and_hints(capsys):
    assert main(["02.1", "answers/none.py"]) == 2, "a file that is not there has not been attempted"
    assert "there is no file answers/none.py" in capsys.readouterr().out
    for wrong, message in (
        (["02.9"], "there is no question '02.9'; there are 02.1, 02.2, 02.3"),
        (["02.1; ls"], "there is no question '02.1; ls'"),
        (["02.1", "--hint", "9"], "question 02.1 has hints 1 to 3, not 9"),
    ):
        assert main(wrong) == 64
        assert message in capsys.readouterr().err
    assert main([]) == 64
    capsys.readouterr()
    assert main(["02.1", "--hint"]) == 0
    assert main(["02.1", "--hint", "2"]) == 0
    first, second = capsys.readouterr().out.splitlines()
    assert first.startswith("Hint 1 of 3: ") and second.startswith("Hint 2 of 3: ")


@pytest.mark.parametrize("state", STATES)
def test_strict_raises_unless_passed_and_a_shell_gets_the_exit_code(state, monkeypatch, capsys):
    verdict = Verdict("02.1", state)
    monkeypatch.setattr(checking, "grade", lambda questions: [verdict])
    assert check("02.1") is verdict
    for options, variable in (({"strict": True}, ""), ({}, "1")):
        monkeypatch.setenv(checking.STRICT_VARIABLE, variable)
        if verdict.passed:
            assert check("02.1", **options) is verdict
        else:
            with pytest.raises(NotPassed, match=f"02.1 {state}") as caught:
                check("02.1", **options)
            assert caught.value.verdict is verdict
    assert main(["02.1"]) == STATES[state][1]
    assert capsys.readouterr().out.startswith(f"02.1 {state}")


def test_a_verdict_as_text_and_as_html():
    verdict = Verdict("02.1", "wrong", "rank 1 sent <3 B>", "the `if`", "little travels", printed={1: "a\nb"})
    assert repr(verdict).splitlines() == [
        "02.1 wrong: rank 1 sent <3 B>",
        "  look at: the `if`",
        "  rank 1 printed: a",
        "                  b",
        '  more: hint("02.1")',
    ]
    page = verdict._repr_html_()
    assert "&lt;3 B&gt;" in page and "<3 B>" not in page and "look at" in page
    passed = Verdict("02.1", "passed", facts=["every rank agrees"])
    assert repr(passed) == "02.1 passed\n  ✓ every rank agrees"
    assert "every rank agrees" in passed._repr_html_() and "hint" not in repr(passed)
    not_graded = Verdict("02.1", "not graded", "the ranks had no cores", "what else runs")  # no hint frees a core
    assert repr(not_graded) == "02.1 not graded: the ranks had no cores\n  look at: what else runs"


def test_one_more_hint_at_each_call(monkeypatch):
    monkeypatch.setattr(checking, "_hints_given", {})
    hints = load("02.1").hints
    shown = [hint("02.1") for _ in range(len(hints) + 1)]
    assert [shown_hint.number for shown_hint in shown] == [1, 2, 3, 3]
    assert [shown_hint.text for shown_hint in shown[:3]] == hints
    assert repr(shown[0]).startswith("Hint 1 of 3: ") and "<b>Hint 1 of 3.</b>" in shown[0]._repr_html_()
    names_the_solution = ["solutions/02_ranks_and_collectives.ipynb" in repr(shown_hint) for shown_hint in shown]
    assert names_the_solution == [False, False, True, True]
    assert 'href="../solutions/02_ranks_and_collectives.ipynb"' in shown[2]._repr_html_()
    with pytest.raises(InputError, match="no question '09.9'"):
        hint("09.9")


# ---- hostile and broken answers ----------------------------------------------------------------------------------

HOSTILE = {  # name: (answer, state, message)
    "raises_on_one_rank": (
        "import torch.distributed as dist\ndef global_mean(values):\n    if dist.get_rank() == 1:\n"
        "        raise ValueError('boom')\n    dist.barrier()",
        "crashed",
        "rank 1 raised ValueError: boom",
    ),
    "raises_at_import": ("import nothing_of_that_name", "crashed", "raised ModuleNotFoundError: No module named"),
    "syntax_error": ("def global_mean(values):\n    return (", "crashed", "raised SyntaxError"),
    "exits": ("import sys\ndef global_mean(values):\n    sys.exit(0)", "crashed", "left with exit code 0 before"),
    "exits_with_3": ("import sys\ndef global_mean(values):\n    sys.exit(3)", "crashed", "left with exit code 3"),
    "exits_at_once": ("import os\ndef global_mean(values):\n    os._exit(0)", "crashed", "left with exit code 0"),
    "one_leaves": (
        "import os\nimport torch.distributed as dist\ndef global_mean(values):\n"
        "    if dist.get_rank() == 1:\n        os._exit(0)\n    dist.barrier()",
        "crashed",
        "rank 1 left with exit code 0 before it was done",
    ),
    "dies": ("import os\ndef global_mean(values):\n    os.kill(os.getpid(), 11)", "crashed", "was killed by SIGSEGV"),
    "other_name": ("def mean(values):\n    return 1.0", "wrong", "defines no function global_mean; it defines mean"),
    "no_number": ("def global_mean(values):\n    return object()", "wrong", "rank 0 returned '<object object at"),
    "prints_megabytes": ("def f():\n    print('x' * 20_000_000)\n" + RIGHT + "    f()", "passed", ""),
    "prints_without_end": (
        "def global_mean(values):\n    while True:\n        print('x' * 1_000_000)",
        "crashed",
        "raised OSError: [Errno 27] File too large (a rank may print or write 64 MB)",
    ),
    "writes_a_file": ("open('litter', 'w').write('x')\nimport tempfile\ntempfile.mkstemp()\n" + RIGHT, "passed", ""),
    "kills_the_store": (
        "import os\nimport psutil\nimport torch.distributed as dist\ndef global_mean(values):\n"
        "    dist.barrier()\n"  # until all are in the group: a rank that is still joining would wait forever
        "    store = min(psutil.Process(os.getppid()).children(), key=lambda child: child.create_time())\n"
        "    os.kill(store.pid, 9)",
        "wrong",
        "lost contact",
    ),
    "outlives_a_contact": (
        "import os\nimport torch.distributed as dist\ndef global_mean(values):\n    dist.barrier()\n"
        "    if dist.get_rank() == 0:\n        raise RuntimeError('Connection closed by peer')\n"
        "    while True:\n        pass",
        "wrong",
        "no end, until rank 0 would wait no longer: rank 0 was in line 6, rank 1 was in line ",
    ),
    "forks": ("import os\nimport time\n" + RIGHT + "\nif os.fork() == 0:\n    time.sleep(60)", "passed", ""),
    "forks_and_continues": (
        RIGHT.replace("def global_mean(values):", "import os\ndef global_mean(values):\n    os.fork()"),
        "passed",
        "",
    ),
    "leaves_the_stub_above": (STUB + RIGHT, "passed", ""),
    "overwrites_the_stub": (STUB + RIGHT.replace("global_mean", "own") + "\nglobal_mean = own\n", "passed", ""),
    "prints_and_raises": (WRONG.replace("return", "return 1 / 0 +"), "crashed", "raised ZeroDivisionError"),
}


@pytest.mark.usefixtures("warm_launches")
def test_each_answer_gets_its_state_and_message():
    results = graded({"02.1": {name: text for name, (text, _, _) in (STATES | HOSTILE).items()}})["02.1"]
    for state, (_, code, message) in STATES.items():
        verdict = results[state]
        assert (verdict.state, verdict.exit_code, verdict.passed) == (state, code, state == "passed")
        assert message in repr(verdict)
    for name, (_, state, observed) in HOSTILE.items():
        assert results[name].state == state and observed in results[name].observed, f"{name}: {results[name]}"
    assert results["syntax_error"].look == "syntax_error.py, line 2: return ("
    assert results["raises_on_one_rank"].look == "raises_on_one_rank.py, line 4: raise ValueError('boom')"
    crashed = results["prints_and_raises"]
    rank = int(crashed.observed.partition("): rank ")[2][0])
    line = f"values {[4, 1, 2][rank]}"
    assert crashed.printed[rank] == line and f"rank {rank} printed: {line}" in repr(crashed)


def test_a_lane_that_dies_affects_no_answer_of_another(monkeypatch):
    job, limits = Job(1, script=Path(write(RIGHT)), may_fail=True), []

    @contextlib.contextmanager
    def harness(command, environment, folder):  # its second lane ran nothing
        (folder / "0").mkdir()
        (folder / "0" / "ended.json").write_text(json.dumps(asdict(Ending([0], [], False, False))))
        yield
        shutil.rmtree(folder)

    def until_the_end(process, timeout, stop_when):
        limits.append(timeout / answer_run.MOST_WAITING)
        return {"timed_out": False}

    monkeypatch.setattr(answer_run, "supervisor", harness)
    monkeypatch.setattr(answer_run, "until_the_end", until_the_end)
    records = run_answers([(job.script, [job], "")] * 4, lanes=2)
    assert [record.finished for [record] in records] == [True, False, True, False]
    assert limits == [answer_run.LONGEST_RUN + answer_run.LONGEST_ANSWER]  # two answers, one after the other
    lost = run_failure(records[1][0], job.script)
    assert (lost.state, lost.observed) == ("not graded", "the process that runs the ranks ended before it began")


def run_of_a_broken_harness(monkeypatch, fair_seconds):
    """The RunFailure of an answer whose harness does nothing for ever; `fair_seconds`: the clock at its end."""
    job = Job(1, "global_mean", (Call([()], ""),))

    class Clock:
        def __init__(self, sample_interval):
            self.seconds = 0.0

        def update(self):
            self.seconds = fair_seconds

    @contextlib.contextmanager
    def harness(command, environment, folder):
        (folder / "0").mkdir()
        yield
        shutil.rmtree(folder)

    def until_the_end(process, timeout, stop_when):
        assert stop_when() == (fair_seconds > answer_run.LONGEST_RUN)
        return {"timed_out": True}

    monkeypatch.setattr(answer_run, "supervisor", harness)
    monkeypatch.setattr(answer_run, "until_the_end", until_the_end)
    monkeypatch.setattr(answer_run, "FairClock", Clock)
    [[record]] = run_answers([(Path(write(RIGHT)), [job], "")])
    return run_failure(record, Path("answers/02_1.py"))


def test_an_answer_that_waits_for_a_core_for_ever_is_not_called_wrong(monkeypatch):
    failure = run_of_a_broken_harness(monkeypatch, fair_seconds=20.0)
    words = "other programs kept the machine so busy that it had no end after 15 minutes"
    assert (failure.state, failure.check, failure.observed) == ("not graded", "not graded", words)
    assert Verdict("02.1", failure.state).exit_code == 4 and "check again" in failure.look


def test_an_answer_that_halts_its_harness_on_an_idle_machine_is_to_blame(monkeypatch):
    failure = run_of_a_broken_harness(monkeypatch, fair_seconds=answer_run.LONGEST_RUN + 1)
    assert (failure.state, failure.observed) == ("crashed", "with 1 rank: the process that runs the ranks was killed")


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere processes are not forked, and load what is not patched")
def test_the_store_of_the_ranks_may_wait_for_a_core(monkeypatch):
    class Clock:  # on a busy machine
        seconds, updates = 0.0, 0

        def update(self):
            Clock.updates += 1

    def serve(connection):
        connection.recv()
        time.sleep(1.5 * (start.LOAD_SECONDS + start.CONNECT_SECONDS))
        connection.send(4321)

    monkeypatch.setattr(start, "FairClock", Clock)
    monkeypatch.setattr(start, "_serve_stores", serve)
    stores = start.Stores()
    assert stores.fresh_port() == 4321 and Clock.updates
    stores.close()


ENDLESS = {  # name: (answer, message)
    "loops": ("def global_mean(values):\n    while True:\n        pass", r"rank 0 was in line [23], rank"),
    "cannot_be_asked": (
        "import signal\ndef global_mean(values):\n    signal.pthread_sigmask(signal.SIG_BLOCK, range(1, 32))\n"
        "    sum(range(10**12))",
        "rank 0 did not say in which line it was",
    ),
}


@pytest.mark.usefixtures("warm_launches")
def test_answers_that_have_to_be_ended(monkeypatch):
    question = load("02.1")
    monkeypatch.setattr(question, "jobs", [replace(job, seconds=2.0) for job in question.jobs])
    verdicts = graded({"02.1": {name: text for name, (text, _) in ENDLESS.items()}})["02.1"]
    for name, verdict in verdicts.items():
        message = f"no end after 2 s, in case 1 of 8: {ENDLESS[name][1]}"
        assert not verdict.passed and re.search(message, verdict.observed), verdict


def test_an_answer_that_takes_too_long_is_told_how_far_it_came(tmp_path):
    """It may be slow, and its ranks may meet in every collective."""
    answer = tmp_path / "answer.py"
    answer.write_text(ENDLESS["loops"][0])
    calls = tuple(Call([(1,), (2,)], f"case {number}") for number in (1, 2, 3))
    ranks = [RankRecord([1], operations=[[], []], stuck=True, line=line) for line in (2, 3)]
    job = Job(2, "global_mean", calls, seconds=8.0)
    record = JobRecord(job, ranks, started=True, finished=True, time_was_up=True)
    failure = run_failure(record, answer)
    assert failure.observed.startswith("with 2 ranks (case 2): no end after 8 s, in case 2 of 3: rank 0 was in line 2,")
    assert failure.look == "is it slow, or does it loop without end? The 8 s are for all 3 cases"
    assert "is it slow" not in run_failure(replace(record, stood_still=True), answer).look


def test_an_answer_that_kills_the_harness():
    text = "import os\nimport time\ndef global_mean(values):\n    if os.environ['RANK'] == '0':\n"
    text += "        os.kill(os.getppid(), 9)\n    time.sleep(60)"  # rank 1 would find another parent
    verdict = check("02.1", write(text))
    assert not verdict.passed and "the process that runs the ranks was killed" in verdict.observed, verdict


HANGS_ONCE = """
import os
import time
import torch
import torch.distributed as dist

def global_mean(values):
    total = torch.tensor([sum(values), len(values)], dtype=torch.float64)
    dist.all_reduce(total)
    if not os.path.exists(MARK):
        dist.barrier()
        open(MARK, "w").close()
        time.sleep(60)
    return (total[0] / total[1]).item()
"""


@pytest.mark.usefixtures("warm_launches")
@pytest.mark.parametrize(("tries", "state"), [(1, "wrong"), (2, "passed")])
def test_a_job_that_hangs_once_runs_as_often_as_its_tries(tries, state, monkeypatch, tmp_path):
    question = load("02.1")
    monkeypatch.setattr(question, "jobs", [replace(job, patience=1.0, tries=tries) for job in question.jobs])
    verdict = check("02.1", write(HANGS_ONCE.replace("MARK", repr(str(tmp_path / "hung_before")))))
    assert verdict.state == state, verdict


# ---- the recorder ------------------------------------------------------------------------------------------------

COMMUNICATES = """
import threading
import torch
import torch.distributed as dist
from torch.distributed import all_reduce as renamed

def communicate(values):
    rank, x = dist.get_rank(), torch.ones(4)
    renamed(x)
    dist.distributed_c10d._get_default_group().allreduce([x]).wait()
    dist.all_gather_object([None, None], "text")
    group = dist.new_group([1, 0])
    (dist.send if rank == 1 else dist.recv)(x[:1], 1 - rank, group=group)
    thread = threading.Thread(target=dist.broadcast, args=(x.double(), 0))
    thread.start()
    thread.join()
    dist.barrier()
    y = torch.ones(3, requires_grad=True)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(3, 1, bias=False))
    model(y).backward()
    return x
"""


@pytest.mark.usefixtures("warm_launches")
def test_operations_are_recorded_in_every_way_of_calling_them():
    job = Job(2, function="communicate", calls=(Call([(None,), (None,)], ""),))
    [[record]] = run_answers([(Path(write(COMMUNICATES)).resolve(), [job], "")])
    [case] = cases([record])
    by_rank = [
        [(operation.op, operation.bytes, operation.peer) for operation in operations] for operations in case.operations
    ]
    first = by_rank[0]
    assert first[:3] == [("all_reduce", 16, None), ("all_reduce", 16, None), ("all_gather", 8, None)]
    assert [operation[0] for operation in first[3:5]] == ["all_gather", "recv"]
    assert first[4] == ("recv", 4, 1) and by_rank[1][4] == ("send", 4, 0), "a peer is a rank of the world"
    assert ("broadcast", 32, None) in first and ("barrier", 0, None) in first
    assert first[-1] == ("all_reduce", 12, None), "the gradients of DDP"
    assert case.operations[0][0].line == 9
    assert case.results[0].tolist() == [4.0] * 4


@pytest.mark.usefixtures("warm_launches")
def test_logs_of_a_script_that_hangs():
    script = given_script("02.2")
    assert script == Path("scripts/02_2_given.py") and script.read_text() == load("02.2").given_script.read_text()
    lines = script.read_text().splitlines()
    logs = collective_logs(script, nproc=3, seconds=3)
    assert [[entry.partition(",")[0] for entry in log] for log in logs] == [
        ["barrier", "all_reduce"],
        ["barrier", "barrier"],
        ["barrier", "barrier"],
    ]
    assert "all_reduce" in lines[int(logs[0][1].split()[-1]) - 1]
    with pytest.raises(InputError, match="02.1 comes without a script"):
        given_script("02.1")


# ---- the course's own notebooks ----------------------------------------------------------------------------------


def test_an_exercise_is_not_attempted_yet():
    stubs = []
    for question in names():
        [text] = answer_cells("exercises", question)
        stubs.append((load(question), Path(write(text, f"answers/{question.replace('.', '_')}.py"))))
    assert [verdict.state for verdict in grade(stubs)] == ["not attempted"] * len(stubs)


def test_a_stub_is_recognised_without_running_it(monkeypatch):
    monkeypatch.setattr("ddp_course.grader.judge.run_answers", lambda *_: pytest.fail("a process was started"))
    verdict = check("02.1", write(STUB))
    assert (verdict.state, verdict.check) == ("not attempted", "stub")
    assert verdict.observed.endswith("line 2 still raises NotImplementedError")


@pytest.mark.parametrize("path", sorted((ROOT / "solutions").glob("*.ipynb")), ids=lambda path: path.stem)
def test_a_solution_shows_that_all_of_it_passed(path):
    nb = read_notebook(path)
    for cell in nb.cells:
        if cell.cell_type == "code" and cell.source.startswith("check("):
            name = cell.source.split('"')[1]
            assert f"{name} passed" in "\n".join(output_texts(cell)), f"{path.name}: {cell.source}"


def test_nothing_is_left_when_the_process_that_checks_is_killed():
    write("import time\ndef global_mean(values):\n    time.sleep(60)")
    code = "from ddp_course.grader.check import check; check('02.1')"
    process = subprocess.Popen([sys.executable, "-c", code], start_new_session=True)
    try:
        assert wait_until(lambda: any(list(folder.rglob("rank_*.jsonl")) for folder in Path("tmp").iterdir()), 300)
        assert processes_of_this_test()
    finally:
        process.kill()
        process.wait()
    assert wait_until(lambda: not processes_of_this_test() and not list(Path("tmp").iterdir()), 300)
