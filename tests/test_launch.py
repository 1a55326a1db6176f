"""The launcher: what it shows and returns, which rank it names as failed, and that it leaves no process behind."""

import contextlib
import io
import itertools
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path
from types import SimpleNamespace

import nbformat
import papermill
import psutil
import pytest
from ddp_doctor.launch import rank_output, supervised
from ddp_doctor.launch.first_failure import first_failure
from ddp_doctor.launch.supervise import RUN_VARIABLE, environment_of, sweep
from disturbance import processes_of_this_test, wait_until
from jupyter_client.manager import start_new_kernel

from ddp_course.base.errors import InputError
from ddp_course.lab.figures import style
from ddp_course.launcher import Run, RunFailed, RunTimedOut, launch, torchrun
from ddp_course.launcher.cores import threads_per_process

PRINTS = """
import json, os, sys, time
rank = os.environ["RANK"]
if rank == "0":
    with open("rank_0.json", "w") as file:
        json.dump({"env": dict(os.environ), "path": sys.path}, file)
print("first of", rank)
print(f'{{"rank": {rank}, "omp": "{os.environ["OMP_NUM_THREADS"]}"}}')
print("[1, 2]")
print('loss {"a": 1}')
for step in range(1, 26):
    print(f"step {step}  loss 1.5")
while not os.path.exists("shown"):
    time.sleep(0.05)
print("{'a': 1}", file=sys.stderr)
print('{"in": "stderr"}', file=sys.stderr)
print('{"later": true, "rank": 7}')
print(sys.argv[1:], os.environ["GREETING"])
print("step 1\\rstep 2\\r", file=sys.stderr)
print("no newline", end="")
"""
FAILS_IN_A_COLLECTIVE = """
import os, signal, sys
import torch, torch.distributed as dist
dist.init_process_group("gloo")
dist.all_reduce(torch.ones(2))
if dist.get_rank() == 1:
    match sys.argv[1]:
        case "raise": raise ValueError("injected at step 2")
        case "exit": os._exit(0)
        case "kill": os.kill(os.getpid(), signal.SIGKILL)
        case "sleep": print("rank 1 does something else"); signal.pause()
print("all-reduce begins")
dist.all_reduce(torch.ones(2))
"""
SLEEPS = """
import os, signal, sys, time
from pathlib import Path

def save(*_):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # a sweep sends one, and torchrun, which gets one, another
    time.sleep(0.5)
    print("saved")
    sys.exit(0)

signal.signal(signal.SIGTERM, save)
print("ready")
pids = Path(sys.argv[1], "rank_" + os.environ["RANK"])
pids.with_suffix(".new").write_text(f"{os.getpid()} {os.getppid()}")
pids.with_suffix(".new").rename(pids)
time.sleep(3000)
"""
# Here a rank may take long to save; in the product the graces are some seconds.
LAUNCHES = """
import functools, sys
from ddp_doctor.launch import supervised
from ddp_course.launcher import RunFailed, torchrun
supervised.INTERRUPT_GRACE = 600
supervised.sweep = functools.partial(supervised.sweep, grace=600)
supervised.__file__ = "supervised.py"  # beside supervise.py with a longer grace
try:
    torchrun(sys.argv[1], sys.argv[2], nproc=2, timeout=600)
except RunFailed as error:
    print("FAILED:", error)
"""
TIME_LIMIT = 600  # seconds, also on a slow machine


@pytest.fixture(autouse=True)
def no_folder_is_left(working_folder):
    yield
    assert not list(Path("tmp").glob("ddp_course_run_*"))


def script(text, name="script.py"):
    Path(name).write_text(text)
    return name


def in_a_shell(command):
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path}
    return subprocess.run(["bash", "-c", command], env=environment, capture_output=True, text=True, timeout=600)


def test_a_launch_shows_and_returns_what_the_printed_command_prints(monkeypatch):
    """The launcher adds its tag and variables of the output, and changes nothing else that a script sees."""

    class Release(io.StringIO):
        """Lets the ranks go on when the first line of each was shown."""

        def write(self, text):
            written = super().write(text)
            if self.getvalue().count("first of") == 2:
                Path("shown").touch()
            return written

    monkeypatch.setenv("PYTHONPATH", "of_the_user")
    monkeypatch.delenv("PYTHONUNBUFFERED", raising=False)
    with contextlib.redirect_stdout(Release()) as shown:  # live: else the ranks would wait for the timeout
        run = torchrun(script(PRINTS), "a b", 3, nproc=2, env={"GREETING": "it's"}, show_every=10, timeout=600)
    from_cell = json.loads(Path("rank_0.json").read_text())

    assert re.fullmatch(r"2 ranks, exit code 0, \d+\.\d s", repr(run))
    assert (run.exit_code, run.exit_codes, run.failure, run.timed_out) == (0, {0: 0, 1: 0}, None, False)
    threads, shown_lines = str(threads_per_process(2)), shown.getvalue().splitlines()
    for rank in 0, 1:
        assert run.results[rank] == {"rank": 7, "omp": threads, "later": True}
        assert sorted(run.lines[rank]) == sorted(
            [f"first of {rank}", "[1, 2]", 'loss {"a": 1}', "{'a': 1}", '{"in": "stderr"}', "['a b', '3'] it's"]
            + [*(f"step {step}  loss 1.5" for step in range(1, 26)), "step 2", "no newline"]
        )
        start = f"\x1b[38;5;{rank_output.ANSI_COLOURS[rank]}m[rank {rank}]\x1b[0m "
        assert {f"{start}first of {rank}", f"{start}no newline"} < set(shown_lines)
        steps = [line for line in shown_lines if line.startswith(f"{start}step")]
        assert steps == [f"{start}step {step}  loss 1.5" for step in (1, 10, 20)]
    assert '"omp"' not in shown.getvalue()

    assert shown_lines[0] == run.command
    assert run.command.startswith(f"OMP_NUM_THREADS={threads} ")
    assert "torchrun --standalone --nproc-per-node=2 script.py 'a b' 3" in run.command
    pasted = in_a_shell(run.command)
    assert pasted.returncode == 0
    assert pasted.stdout.count("['a b', '3'] it's") == 2
    by_hand = json.loads(Path("rank_0.json").read_text())
    of_each = {"PATH", "MASTER_PORT", "_", "SHLVL", "PWD", "OLDPWD"}  # a shell's, and new in each launch
    changed = {
        name
        for name in from_cell["env"].keys() | by_hand["env"].keys()
        if from_cell["env"].get(name) != by_hand["env"].get(name) and not name.startswith("TORCHELASTIC")
    }
    assert changed - of_each == {RUN_VARIABLE, "PYTHONUNBUFFERED", "PYTHON_COLORS", "RES_OPTIONS"}
    assert from_cell["path"] == by_hand["path"]


@pytest.mark.usefixtures("warm_launches")
def test_quiet_check_false_and_restarts(capsys):
    fails = script("import os; print('attempt', os.environ['TORCHELASTIC_RESTART_COUNT']); exit(3)")
    run = torchrun(fails, nproc=1, quiet=True, check=False, timeout=600, torchrun_args=["--max-restarts=1"])
    assert capsys.readouterr().out == ""
    assert run.lines == {0: ["attempt 0", "attempt 1"]}
    assert (run.exit_code, run.exit_codes) == (1, {0: 3})
    assert (run.failure.rank, run.failure.exit_code) == (0, 3)
    assert "ChildFailedError" in "\n".join(run.launcher_lines)


def test_files_that_torchrun_writes_again_are_read(tmp_path):
    """When a node joins or leaves, torchrun removes the folder of the attempt and writes one of the same name."""
    run = Run("", {0: []}, {0: {}})
    output = rank_output.RankOutput(tmp_path, run, quiet=True)
    folder = tmp_path / "ranks" / "job" / "attempt_0" / "0"
    for words in ("one rank\nsaved", "two ranks, and more\n"):
        folder.mkdir(parents=True)
        (folder / "stdout.log").write_text(words)
        (folder / "stderr.log").touch()
        output.pass_on()
        shutil.rmtree(folder.parent)
    output.finish()
    assert run.lines[0] == ["one rank", "saved", "two ranks, and more"]


def test_a_folder_that_torchrun_removes_while_its_files_are_listed_has_none(tmp_path, monkeypatch):
    folder = tmp_path / "ranks" / "job" / "attempt_0" / "0"
    folder.mkdir(parents=True)

    def removed_just_before(list_folder):
        def call(path="."):
            if str(path) == str(folder):
                folder.rmdir()
            return list_folder(path)

        return call

    for name in ("listdir", "scandir"):
        monkeypatch.setattr(os, name, removed_just_before(getattr(os, name)))
    assert list(rank_output.RankOutput(tmp_path, Run("", {}, {}), quiet=True).files()) == []
    assert not folder.exists()


@pytest.mark.skipif(sys.platform != "linux", reason="reads the names of threads in /proc")
@pytest.mark.usefixtures("warm_launches")
@pytest.mark.parametrize("remedy", ["", "import torch.distributed.nn"])
def test_the_threads_of_gloo_end_with_a_plain_script(remedy):
    """A thread that outlives the group can abort Python as it ends. torch keeps the group and its threads if
    torch.distributed.nn is imported late. The ranks are not forked: their script looks into /proc/self.
    """
    plain = script(f"""
import json, os, torch
import torch.distributed as dist
{remedy}

def train():
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 2))
    optimizer = torch.optim.SGD(model.parameters())
    model(torch.ones(2)).sum().backward()
    optimizer.step()

dist.init_process_group("gloo")
train()
dist.destroy_process_group()
names = [open(f"/proc/self/task/{{thread}}/comm").read().strip() for thread in os.listdir("/proc/self/task")]
print(json.dumps({{"left": [name for name in names if "gloo" in name]}}))
""")
    run = torchrun(plain, nproc=2, quiet=True, timeout=600, check=bool(remedy))
    left = [result["left"] for result in run.results.values()]
    if remedy:
        assert left == [[], []]
    else:
        assert all(left), "torch no longer keeps the group: remove the remedy"


@pytest.mark.parametrize("how", ["raise", "exit", "kill"])
def test_names_the_rank_that_failed_first(how, capsys, request):
    if how != "exit":  # torchrun would learn later of a forked rank's end than rank 0
        request.getfixturevalue("warm_launches")
    with pytest.raises(RunFailed) as caught:
        torchrun(script(FAILS_IN_A_COLLECTIVE), how, nproc=2, timeout=600)
    run, message = caught.value.run, str(caught.value)
    assert run.failure.rank == 1
    assert run.exit_code == 1
    # A process that ends with an error has not left the group, and gloo can abort it at its very end (-6).
    assert run.failure.exit_code == run.exit_codes[1]
    assert run.exit_codes[1] in {"raise": (1, -6), "exit": (0,), "kill": (-9,)}[how]
    if how == "raise":
        assert message.startswith("rank 1 failed")
        assert 'Traceback (most recent call last):\n  File "script.py", line 8' in message
        assert "ValueError: injected at step 2" in message
    if how == "exit":
        assert message.startswith("rank 1 left with exit code 0 while others were still working")
        # torchrun itself names the victim, and not rank 1.
        assert re.findall(r"rank +: (\d)", "\n".join(run.launcher_lines)) == ["0"]
    if how == "kill":
        assert message.startswith("rank 1 was killed by SIGKILL")
    if "rank 0 lost contact" not in message:  # torchrun was quicker than its traceback
        assert run.exit_codes[0] == -15
    shown = capsys.readouterr().out
    assert "ChildFailedError" not in shown + message
    assert "Root Cause" in "\n".join(run.launcher_lines)


def test_timeout_names_the_ranks_still_running(monkeypatch):
    """The launcher's clock reaches the timeout as soon as each rank has printed its last line."""

    def monotonic(lines=("all-reduce begins", "rank 1 does something else")):
        return time.monotonic() + TIME_LIMIT * all(line in shown.getvalue() for line in lines)

    monkeypatch.setattr(supervised, "time", SimpleNamespace(monotonic=monotonic))
    with pytest.raises(RunTimedOut) as caught, contextlib.redirect_stdout(io.StringIO()) as shown:
        torchrun(script(FAILS_IN_A_COLLECTIVE), "sleep", nproc=2, timeout=TIME_LIMIT, env={"OMP_NUM_THREADS": 7})
    message = str(caught.value)
    assert message.startswith(f"no end after {TIME_LIMIT} s: rank 0 and rank 1 were still running")
    assert "last line of rank 0: all-reduce begins" in message
    assert "last line of rank 1: rank 1 does something else" in message
    assert caught.value.run.timed_out and caught.value.run.failure is None
    assert caught.value.run.command.startswith("OMP_NUM_THREADS=7 torchrun")
    assert not processes_of_this_test()


def test_timeout_without_check_returns_the_run():
    run = torchrun(script("import time; time.sleep(600)"), nproc=1, timeout=0.5, check=False, quiet=True)
    assert run.timed_out and run.seconds < 500, "the rank slept to its end"
    assert "timed out" in repr(run)


@contextlib.contextmanager
def launched(text=SLEEPS):
    """A process that calls torchrun(), and the pids: of itself, its supervisor, torchrun and rank 1."""
    supervise = Path(supervised.__file__).with_name("supervise.py").read_text()
    script(supervise.replace("ORPHAN_GRACE = 3.0", "ORPHAN_GRACE = 600.0"), "supervise.py")
    command = [sys.executable, script(LAUNCHES, "launches.py"), script(text), "."]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True)
    try:
        ranks = [Path("rank_0"), Path("rank_1")]
        assert wait_until(lambda: all(path.exists() for path in ranks), TIME_LIMIT)
        rank_pids = [int(path.read_text().split()[0]) for path in ranks]
        launcher = int(ranks[0].read_text().split()[1])
        supervisor = psutil.Process(launcher).ppid()
        yield process, {"kernel": process.pid, "supervisor": supervisor, "torchrun": launcher, "rank 1": rank_pids[1]}
    finally:
        process.kill()
        process.communicate()
        sweep(os.environ["DDP_COURSE_TEST"], grace=0, variable="DDP_COURSE_TEST")


@pytest.mark.parametrize(
    ("victim", "message"),
    [
        ("kernel", None),
        ("supervisor", "FAILED: the process that watched over torchrun was killed"),
        ("torchrun", "FAILED: torchrun was killed by SIGKILL"),
        ("rank 1", "FAILED: rank 1 was killed by SIGKILL (exit code -9)\n\nlast line of rank 1: ready"),
    ],
)
def test_nothing_survives_kill_9(victim, message):
    with launched() as (process, pids):
        os.kill(pids[victim], signal.SIGKILL)
        output, _ = process.communicate(timeout=TIME_LIMIT)  # until no process has its stdout open
        assert wait_until(lambda: not processes_of_this_test(), TIME_LIMIT), processes_of_this_test()
        assert wait_until(lambda: not list(Path("tmp").glob("ddp_course_run_*")), TIME_LIMIT)
        if message:
            assert process.returncode == 0
            assert message in output
            assert output.count("saved") == (1 if victim == "rank 1" else 2)


def test_second_interrupt_ends_at_once():
    with launched(SLEEPS.replace("time.sleep(0.5)", "Path('asked').touch(); time.sleep(3000)")) as (process, _):
        process.send_signal(signal.SIGINT)
        assert wait_until(Path("asked").exists, TIME_LIMIT) and process.poll() is None  # it waits for the ranks
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=TIME_LIMIT)
        assert not processes_of_this_test()


@pytest.mark.usefixtures("warm_launches")
def test_in_a_notebook_output_is_kept_and_errors_are_short():
    assert "PYTEST_CURRENT_TEST" in os.environ  # with it ipykernel drops the direct output of child processes
    # Only rank 1 raises: of two that do, torchrun can end one with SIGTERM before it has exited with its code.
    script(
        "import os, sys; print('out', os.environ['RANK']); print('err', file=sys.stderr)\n"
        "os.environ['RANK'] == '1' and int(sys.argv[1])"
    )
    cells = ["from ddp_course.launcher.launch import torchrun", "torchrun('script.py', '5', nproc=2, timeout=600)"]
    cells.append("torchrun('script.py', 'five', nproc=2, timeout=600)")
    nbformat.write(nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(text) for text in cells]), "in.ipynb")
    with pytest.raises(papermill.PapermillExecutionError, match="invalid literal"):
        papermill.execute_notebook(
            "in.ipynb", "out.ipynb", kernel_name="python3", progress_bar=False, start_timeout=TIME_LIMIT
        )
    cells = [cell for cell in nbformat.read("out.ipynb", 4).cells if "papermill-error" not in str(cell.metadata)]
    good, bad = [cell for cell in cells if cell.source.startswith("torchrun")]
    text = "".join(output.text for output in good.outputs if output.output_type == "stream")
    assert "torchrun --standalone --nproc-per-node=2 script.py 5" in text
    for rank in 0, 1:
        assert f"[rank {rank}]\x1b[0m out {rank}\n" in text and f"[rank {rank}]\x1b[0m err\n" in text
    assert good.outputs[-1].data["text/plain"].startswith("2 ranks, exit code 0, ")
    error = bad.outputs[-1]
    assert error.ename == "RunFailed"
    traceback = "\n".join(error.traceback)
    assert "rank 1 failed with exit code 1" in traceback
    assert "ValueError: invalid literal for int() with base 10: 'five'" in traceback
    assert "launch.py" not in traceback


def test_interrupting_a_cell_ends_the_ranks():
    script(SLEEPS)
    manager, client = start_new_kernel(kernel_name="python3", startup_timeout=TIME_LIMIT)
    try:
        client.execute("from ddp_course.launcher import torchrun\ntorchrun('script.py', '.', nproc=2, timeout=600)")
        text = ""
        while text.count("ready") < 2:
            message = client.get_iopub_msg(timeout=TIME_LIMIT)
            text += message["content"].get("text", "")
        manager.interrupt_kernel()
        while message["msg_type"] != "error":
            message = client.get_iopub_msg(timeout=TIME_LIMIT)
            text += message["content"].get("text", "")
        assert message["content"]["ename"] == "KeyboardInterrupt"
        assert text.count("saved") == 2
        assert [process.pid for process in processes_of_this_test()] == [manager.provisioner.process.pid]
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)


@pytest.mark.parametrize(("chosen", "threads"), [("2", "2"), ("8", "4"), ("0", "4"), ("all", "4"), ("", "4")])
def test_a_smaller_number_of_threads_in_the_environment_stays(chosen, threads, monkeypatch):
    monkeypatch.setattr(launch, "threads_per_process", lambda processes: 4)
    monkeypatch.setenv("OMP_NUM_THREADS", chosen)
    assert launch.added_variables(1, None, []) == {"OMP_NUM_THREADS": threads}
    assert launch.added_variables(1, {"OMP_NUM_THREADS": 3}, []) == {"OMP_NUM_THREADS": "3"}


def test_bad_input():
    name = script("print('hi')")
    with pytest.raises(InputError, match=r"no script 'scripts/none.py'"):
        torchrun("scripts/none.py")
    with pytest.raises(InputError, match="got 0"):
        torchrun(name, nproc=0)
    for option in "--log-dir=here", "--redirects=3", "--tee=3", "--nproc_per_node=2", "--standalone", "-r", "-t":
        with pytest.raises(InputError, match=f"torchrun_args has {option.partition('=')[0]},"):
            torchrun(name, nproc=1, torchrun_args=[option])


def test_ansi_colours_are_the_figures_colours():
    levels = [0, 95, 135, 175, 215, 255]
    palette = {16 + i: rgb for i, rgb in enumerate(itertools.product(levels, repeat=3))}
    palette |= {232 + i: (8 + 10 * i,) * 3 for i in range(24)}
    for rank, code in enumerate(rank_output.ANSI_COLOURS):
        wanted = bytes.fromhex(style.rank_colour(rank)[1:])
        distance = {i: sum((a - b) ** 2 for a, b in zip(rgb, wanted, strict=True)) for i, rgb in palette.items()}
        assert distance[code] == min(distance.values()), (rank, min(distance, key=distance.get))


# ---- which rank failed first, from recorded output -----------------------------------------------------------------

CLOSED = "RuntimeError: [pair.cc:553] Connection closed by peer [127.0.0.1]:924. GLHF!"
TRACE = ["Traceback (most recent call last):", '  File "a.py", line 1, in <module>', "    step()"]
DURING = ["", "During handling of the above exception, another exception occurred:", ""]
CAUSE = ["", "The above exception was the direct cause of the following exception:", ""]


def failure_of(errors, report, closed=(), ranks_before=0):
    """(exit codes, the failure) of a job, of whose torchrun a log is made up.

    errors         {rank: lines of stderr}
    report         {rank: exit code}
    closed         the ranks to which torchrun sent SIGTERM
    ranks_before   the number of ranks of the job on earlier nodes
    """
    log = [f"W1121 api.py:1028] Sending process {100 + rank} closing signal SIGTERM" for rank in closed]
    log.append("E1121 api.py:1002] failed (exitcode: 1) local_rank: 0 (pid: 100) of binary: python")
    for rank, code in report.items():
        log.append(f"  rank      : {ranks_before + rank} (local_rank: {rank})")
        log.append(f"  exitcode  : {code} (pid: {100 + rank})")
    when = {rank: float(rank) for rank, lines in errors.items() if any("Traceback" in line for line in lines)}
    return first_failure(1, log, errors, errors, when)


VICTIM, GUILTY = [*TRACE, CLOSED], [*TRACE, "KeyError: 'x'"]


@pytest.mark.parametrize(
    ("victim", "guilty", "exit_code", "options"),
    [
        pytest.param(VICTIM, [*GUILTY, *DURING, *VICTIM], 1, {}, id="its clean-up failed, too"),
        pytest.param(
            [*VICTIM, *CAUSE, *TRACE, "TrainingError: step 3"], GUILTY, 1, {}, id="its victim wraps the error"
        ),
        pytest.param(
            ["[rank0]: " + line for line in VICTIM],
            [*GUILTY, "[rank1]:[W1121 10:45:59.1 Store.cpp:1] Connection reset by peer"],
            1,
            {},
            id="a warning of its peer's end after its error",
        ),
        pytest.param(VICTIM, GUILTY, -15, {"closed": [1]}, id="ended by torchrun after its traceback"),
        pytest.param(VICTIM, GUILTY, 1, {"ranks_before": 2}, id="ranks 2 and 3 of the job are 0 and 1 of this node"),
        pytest.param(VICTIM, [*GUILTY, "terminate called without an active exception"], -6, {}, id="it aborted"),
    ],
)
def test_rank_1_failed_first(victim, guilty, exit_code, options):
    codes, failure = failure_of({0: victim, 1: guilty}, {0: 1, 1: exit_code}, **options)
    assert codes == {0: 1, 1: exit_code} and failure.rank == 1
    assert failure.text.startswith("rank 1 failed") and "KeyError: 'x'" in failure.text
    assert "rank 0 lost contact: RuntimeError" in failure.text
    assert "exit code -" not in failure.text, "its error says more than how it ended"


def test_a_rank_that_obeyed_sigterm_did_not_leave_early():
    errors = {0: [*TRACE, "RuntimeError: Timed out waiting 4000ms for recv operation to complete"], 1: []}
    codes, failure = failure_of(errors, {0: 1}, closed=[1])
    assert codes == {0: 1, 1: 0} and failure.rank == 0
    assert failure_of(errors, {0: 1})[1].rank == 1  # no SIGTERM: it was gone before


def test_ranks_that_were_asked_to_stop_have_not_failed():
    codes, failure = failure_of({0: ["stopped after step 7"], 1: []}, {0: 75, 1: 75})
    assert codes == {0: 75, 1: 75} and failure.exit_code == 75
    assert failure.text.startswith("the run stopped before its end: every rank ended with exit code 75")
    assert "stopped after step 7" in failure.text
    assert failure_of({0: [], 1: [*TRACE, "KeyError: 'x'"]}, {0: 75, 1: 1})[1].rank == 1  # one has failed


def test_a_rank_that_torchrun_ended_was_still_running():
    errors = {0: [*TRACE, "RuntimeError: Timed out waiting 4000ms for recv operation to complete"], 1: []}
    _, failure = failure_of(errors, {0: 1, 1: -15}, closed=[1])
    assert failure.rank == 0 and "rank 0 lost contact" in failure.text
    assert "rank 1 was still running and was ended by torchrun" in failure.text


def test_the_environment_of_a_starting_process_is_read():
    """While a process starts, Linux shows an empty environment in every third of these cases."""
    for _ in range(50):
        with subprocess.Popen(["sleep", "99"], env={RUN_VARIABLE: "this one"}) as sleeper:
            variables = environment_of(psutil.Process(sleeper.pid))
            sleeper.kill()
        assert variables == {RUN_VARIABLE: "this one"}


def test_a_leftover_process_fails_the_test_and_is_ended():
    Path("conftest.py").write_text(Path(__file__).with_name("conftest.py").read_text())
    mark = uuid.uuid4().hex
    script("import time; time.sleep(99)", "sleeper.py")
    orphan = f"subprocess.Popen([sys.executable, 'sleeper.py', '{mark}'], start_new_session=True)"
    script(f"import subprocess, sys; {orphan}", "parent.py")
    script(
        "import subprocess, sys, multiprocessing, time\n"
        "def test_orphan(): subprocess.run([sys.executable, 'parent.py'])\n"
        "def test_fork(): multiprocessing.get_context('fork').Process(target=time.sleep, args=(99,)).start()\n"
        "def test_clean():\n"
        "    child = subprocess.Popen([sys.executable, 'sleeper.py'])\n"
        "    child.kill()\n"
        "    child.wait()\n",
        "test_leak.py",
    )
    inner = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-q", "--rootdir=.", "-c", "/dev/null"]
    result = subprocess.run([*inner, "test_leak.py"], capture_output=True, text=True, timeout=600)
    assert result.returncode == 1
    assert "3 passed, 2 errors" in result.stdout
    assert mark in result.stdout and "the test left processes behind" in result.stdout
    assert not [process for process in psutil.process_iter(["cmdline"]) if mark in str(process.info["cmdline"])]
