"""Each launchable, from its first import on: Ctrl-C is one line, and closed standard streams do no harm."""

import os
import signal
import subprocess
import sys

import pytest
from training_runs import ROOT
from warm import SCRIPTS

COMMANDS = {name: [str(ROOT / f"ddp_course/{name}_ddp.py")] for name in SCRIPTS} | {
    "speedrun": ["-m", "ddp_course.speedrun"],
    "grader": ["-m", "ddp_course.grader.check", "02.1"],
}


@pytest.mark.parametrize("name", COMMANDS)
def test_ctrl_c_while_torch_is_imported_is_one_line(tmp_path, name):
    (tmp_path / "torch.py").write_text(
        "import os, signal, time\nos.kill(os.getpid(), signal.SIGINT)\ntime.sleep(600)\n"
    )
    environment = os.environ | {"PYTHONPATH": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, *COMMANDS[name]], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=600
    )
    assert (done.returncode, done.stderr, done.stdout) == (130, "interrupted\n", "")


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


def test_an_interrupt_that_is_ignored_stays_so():
    """As for what a shell script starts in the background."""
    script = "import signal; from ddp_course.base.command import begin_command; begin_command(); "
    script += "print(signal.getsignal(signal.SIGINT) is signal.SIG_IGN)"
    ignored = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=600)
    finally:
        signal.signal(signal.SIGINT, ignored)
    assert done.stdout == "True\n", done


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&-", ">&- 2>&-", "<&- >&- 2>&-"])
def test_closed_standard_streams_lead_nowhere(tmp_path, closed):
    """The next file gets no number of theirs, and what a C++ library or a child writes into them does not reach it."""
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
