"""Every command and launchable: Ctrl-C prints one line from the first import on, and unwritable output is an error."""

import os
import re
import signal
import subprocess
import sys
import time

import pytest
from training_runs import ROOT, merged
from warm import SCRIPTS

from ddp_course.base.json_file import read_object
from ddp_course.cluster.__main__ import main as cluster
from ddp_course.plan import __main__ as plan
from ddp_course.plan.flags import plan_parser, predict_parser
from ddp_course.predict import __main__ as predict

# (a command, the module during whose import Ctrl-C arrives: torch, or the first slow one)
LOADING = [(f"{ROOT}/ddp_course/{name}_ddp.py", "torch") for name in SCRIPTS] + [
    ("ddp_course.plan", "argparse"),
    ("ddp_course.predict", "argparse"),
    ("ddp_course.grader.check", "shutil"),
    ("ddp_course.grader.check", "torch"),
    ("ddp_course.cluster", "psutil"),
    ("ddp_course.lab.start_page", "IPython"),
    ("ddp_course.lab.figures", "ddp_course.lab.figures.charts"),
    ("ddp_course.speedrun", "argparse"),
    ("ddp_course.speedrun", "torch"),
    ("ddp_course.authoring", "nbformat"),
]
INTERRUPTED_IMPORT = """
import os, runpy, signal, sys
command, loading = sys.argv[1:]
sys.modules.pop(loading, None)

class Finder:
    def find_spec(name, path=None, target=None):
        if name == loading:
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Finder)
if command.endswith(".py"):
    sys.argv = [command]
    runpy.run_path(command, run_name="__main__")
else:
    sys.argv = ["-m"]  # as it is while Python imports the package of a module given by -m
    runpy._run_module_as_main(command)
"""


@pytest.mark.parametrize(("command", "loading"), LOADING, ids=lambda value: value.rpartition("/")[2])
def test_ctrl_c_while_modules_load_is_one_line(command, loading):
    words = [sys.executable, "-c", INTERRUPTED_IMPORT, command, loading]
    done = subprocess.run(words, capture_output=True, text=True, timeout=600)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "interrupted\n")


@pytest.mark.parametrize("where", ["begin_command", "run_command"])
def test_ctrl_c_after_the_imports_is_one_line(where):
    script = f"""
import os, signal
from ddp_course.base.command import begin_command, run_command
def main():
    try:
        os.kill(os.getpid(), signal.SIGINT)
        signal.pause()
    finally:
        print("cleaned up", flush=True)
begin_command()
main() if {where!r} == "begin_command" else run_command(main)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=600)
    assert (done.returncode, done.stderr) == (130, "interrupted\n")
    assert done.stdout == "cleaned up\n" * (where == "run_command")


def test_an_ignored_interrupt_stays_ignored():
    """As in a command that a shell script starts in the background."""
    script = "import signal; from ddp_course.base.command import begin_command; begin_command(); "
    script += "print(signal.getsignal(signal.SIGINT) is signal.SIG_IGN)"
    ignored = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=600)
    finally:
        signal.signal(signal.SIGINT, ignored)
    assert done.stdout == "True\n", done


PLAN = "ddp_course.plan --params 1e9 --gpus 8 --memory 80GB --link 400Gb".split()
PREDICT = "ddp_course.predict --gpus 8 --link 400Gb".split()
PRINTING = {
    "plan": PLAN,
    "plan --help": ["ddp_course.plan", "--help"],
    "predict": PREDICT,
    "a hint": ["ddp_course.grader.check", "02.1", "--hint"],
    "cluster status": ["ddp_course.cluster", "status"],
    "start page": ["ddp_course.lab.start_page", "{tmp}"],
    "speedrun --help": ["ddp_course.speedrun", "--help"],
    "figures --help": ["ddp_course.lab.figures", "--help"],
    "authoring --help": ["ddp_course.authoring", "--help"],
}


@pytest.mark.parametrize("name", PRINTING)
@pytest.mark.parametrize("output", [">/dev/full", ">&-"])
def test_output_that_cannot_be_written_is_an_error_of_one_line(name, output, tmp_path):
    if output == ">/dev/full" and not os.path.exists("/dev/full"):
        pytest.skip("no /dev/full here")
    words = [word.format(tmp=tmp_path) for word in PRINTING[name]]
    command = ["sh", "-c", f'"$0" -m "$@" {output}', sys.executable, *words]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == os.EX_IOERR, done.stderr
    assert done.stderr.startswith("error: cannot write to the standard output: "), done.stderr
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize("words", [PLAN, PREDICT], ids=["plan", "predict"])
def test_a_pipe_whose_reader_has_ended_is_no_error(words):
    """As with `| head`, when it ends before the plan is ready."""
    read, write = os.pipe()
    os.close(read)
    try:
        done = subprocess.run([sys.executable, "-m", *words], stdout=write, stderr=subprocess.PIPE, text=True)
    finally:
        os.close(write)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&-", ">&- 2>&-", "<&- >&- 2>&-"])
def test_closed_standard_streams_become_dev_null(tmp_path, closed):
    """The next file gets none of their descriptors, so output of a C++ library or a child process does not reach it."""
    script = f"""
import os, subprocess, sys
from ddp_course.base.command import begin_command
begin_command()
with open({str(tmp_path / "file")!r}, "w") as file:
    assert file.fileno() > 2
    os.write(1, b"x"), os.write(2, b"x"), os.read(0, 1)
    print("x", flush=True), print("x", file=sys.stderr, flush=True), sys.stdin.read(), sys.stderr.isatty()
    subprocess.run([sys.executable, "-c", "import os; [os.fstat(n) for n in range(3)]"], check=True)
    file.write("whole")
"""
    done = subprocess.run(["sh", "-c", f'exec "$@" {closed}', "sh", sys.executable, "-c", script], timeout=600)
    assert done.returncode == 0 and (tmp_path / "file").read_text() == "whole"


def test_the_doctors_old_command_names_the_new_one():
    command = [sys.executable, "-m", "ddp_course.doctor", "run", "--nproc-per-node", "2", "train it.py"]
    done = subprocess.run(command, capture_output=True, text=True)
    sentence = "error: the doctor is a package of its own: python -m ddp_doctor run --nproc-per-node 2 'train it.py'\n"
    assert (done.returncode, done.stdout, done.stderr) == (2, "", sentence)


STATES = {"a file": None, "a list": "[]", "a number": "5", "empty": "{}", "a text for a pid": '{"pid": "x"}'}


@pytest.mark.parametrize("name", STATES)
@pytest.mark.parametrize("command", [["status"], ["down"], ["up"], ["run", "all", "true"]], ids="-".join)
def test_a_broken_state_of_a_cluster_is_refused_in_one_sentence(name, command, tmp_path, capsys):
    folder, content = tmp_path / "state", STATES[name]
    if content is None:
        folder.write_text("a file")
    else:
        folder.mkdir()
        (folder / "cluster.json").write_text(content)
    assert cluster(["--folder", str(folder), *command]) == 2
    out, err = capsys.readouterr()
    assert not out and err.startswith("error: ") and str(folder) in err and len(err.splitlines()) == 1, err
    assert content is None or (folder / "cluster.json").read_text() == content


def test_a_state_that_is_removed_while_it_is_read_is_none(tmp_path, monkeypatch, capsys):
    """`down` reads it while `up` ends."""
    (tmp_path / "cluster.json").write_text("{}")
    monkeypatch.setattr("ddp_course.cluster.__main__.read_object", lambda path: path.unlink() or read_object(path))
    assert cluster(["--folder", str(tmp_path), "status"]) == 1 and "no cluster is up" in capsys.readouterr().out


ABSURD = ["1000000000000", "1" + 400 * "0", "1e400", "5e-324", "-1", "0", "nan", "inf", "9" * 5000]
UNITS = {"--memory": "GB", "--link": "Gb", "--inside": "GB"}
FLAGS = [
    (module, action.option_strings[-1])
    for module, parser in ((plan, plan_parser()), (predict, predict_parser()))
    for action in parser._actions
    if action.nargs != 0 and not action.choices
]


@pytest.mark.parametrize(("module", "flag"), FLAGS, ids=lambda value: getattr(value, "__name__", value))
def test_an_absurd_number_is_refused_in_one_sentence_or_makes_sense(module, flag, capsys):
    """The time limit is in CPU seconds, which hardly depend on other programs."""
    words = (PLAN if module is plan else PREDICT)[1:]
    for value in ABSURD:
        start = time.process_time()
        code = module.main(merged(*words, f"{flag}={value}{UNITS.get(flag, '')}"))
        out, err = capsys.readouterr()
        assert time.process_time() - start < 20, value
        if code == 0:
            assert not re.search(r"\b(inf|nan)\b", out) and not err, value
        else:
            assert code == 2 and err.startswith("error: ") and err.count("\n") == 1 and len(err) < 600, value
