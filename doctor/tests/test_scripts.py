"""`doctor run` on the example scripts: the right rank and line for the sick, no alarm for the healthy.

Each launch costs about six CPU-seconds, so only a few cases run here; `make doctor-matrix` examines all.
"""

import json
import os
import re
import signal
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import ddp_doctor
import pytest
from cases import CHECK_HEADING, MATRIX, cases, examine, wrong
from ddp_doctor.__main__ import main

SICK, HEALTHY = cases("sick"), cases("healthy")
IN_SUITE = ["metric_on_rank_0", "leaves_with_0", "raises", "last_batch_is_smaller", "init_on_rank_0_only"]
IN_SUITE += ["catches_its_own_error", "loader_worker_crashes", "spawned_rank_skips"]
HEALTHY_IN_SUITE = ["branches_that_meet", "downloads_slowly", "metric_after_join", "spawns_its_own_ranks"]


@pytest.mark.parametrize("name", [*IN_SUITE, *HEALTHY_IN_SUITE])
def test_verdict(name, tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    case = SICK.get(name) or HEALTHY[name]
    job, verdict, text = examine(case)
    assert not wrong(case, verdict), text
    assert text.startswith(f"VERDICT: {verdict.sentence}")
    if case.sick:
        assert str(Path(ddp_doctor.__file__).parent) not in verdict.sentence
        assert all(f"\nrank {rank}: " in text for rank in range(2))


def test_the_matrix_has_all_cases_and_none_is_wrong():
    above = MATRIX.read_text().partition(CHECK_HEADING)[0]
    rows = [line for line in above.splitlines() if line.startswith("| ") and "script" not in line]
    by_name = {row.split(" | ")[0].strip("| "): row.replace("\\|", "|") for row in rows}
    assert by_name.keys() == {*SICK, *HEALTHY}, "run: make doctor-matrix"
    assert not [row for row in rows if "WRONG" in row]
    for name, case in SICK.items():
        if "not examined" not in by_name[name]:
            line = f"{name}.py:{case.line}" if case.line else ""
            assert case.says in by_name[name] and line in by_name[name], f"{name} has changed; run: make doctor-matrix"


def test_every_header_names_ranks_and_words():
    assert not SICK.keys() & HEALTHY.keys()
    for name, case in SICK.items():
        assert case.ranks and case.says, f"{name}.py needs `# rank:` and `# says:`"
        assert "ddp_course" not in case.path.read_text()


def test_the_command_ends_non_zero_keeps_the_users_sitecustomize_and_writes_json(tmp_path, monkeypatch, capsys):
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text("import os; os.environ['OF_THE_USER'] = 'ran'")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "site"))
    script = tmp_path / "script.py"
    script.write_text(
        "import os, signal, sys\nprint(os.environ['OF_THE_USER'], os.environ['PYTHONPATH'], sys.argv[1:])\n"
        "if os.environ['RANK'] == '1':\n    os.kill(os.getpid(), signal.SIGKILL)\nimport time\ntime.sleep(600)\n"
    )
    findings = tmp_path / "findings.json"
    assert main(["run", "--nproc", "2", "--json", str(findings), str(script), "--lr", "0.1"]) == 1
    printed = capsys.readouterr().out
    assert f"ran {tmp_path / 'site'} ['--lr', '0.1']" in printed
    assert "VERDICT: rank 1 was killed by SIGKILL" in printed
    report = json.loads(findings.read_text())
    assert report["verdict"]["ranks"] == [1] and report["ranks"]["1"]["exit_code"] == -9


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["run", "no_such.py"], "no script 'no_such.py'"),
        (["run", "--nproc", "0", __file__], "--nproc"),
        (["attach", "1"], "neither torchrun nor a rank"),
        (["attach", "99999999"], "no process 99999999"),
        (["attach", "--", "-1"], "argument pid: a whole number above 0 is needed, not -1"),
        (["run", "--nproc", "1000000", __file__], "--nproc is from 1 to"),
        (
            ["run", "--end-after", "nan", __file__],
            "argument --end-after: a number of seconds above 0 is needed, not nan",
        ),
        (["run", "--json", "/no/such/folder/x.json", __file__], "--json '/no/such/folder/x.json' cannot be written"),
        (["check", "--seconds", "0", __file__], "argument --seconds: a number of seconds above 0 is needed, not 0"),
        (["check", "--resume-with", '"open', __file__], "--resume-with '\"open' cannot be split into arguments"),
    ],
)
def test_bad_arguments_are_an_error_in_one_line(arguments, message, capsys):
    assert main(arguments) == 2
    error = capsys.readouterr().err
    assert message in error and error.startswith("error: ") and len(error.splitlines()) == 1


@pytest.mark.parametrize("command", ["run", "check"])
def test_a_script_with_a_syntax_error_is_refused_with_its_line(command, tmp_path, capsys):
    script = tmp_path / "script.py"
    script.write_text("lr = 0.1\nbatch size = 3\n")
    assert main([command, str(script)]) == 2
    assert f"{script}, line 2 is no Python: invalid syntax" in capsys.readouterr().err


def test_it_reports_and_watches_on_though_the_working_folder_is_deleted(tmp_path, monkeypatch, capsys):
    """Rank 1 deletes the working folder, waits until the report is written, and goes on; the job ends well."""
    script, folder = tmp_path / "script.py", tmp_path / "folder"
    folder.mkdir()
    script.write_text(
        "import os, pathlib, sys, threading, time\nimport torch.distributed as dist\n"
        "def look_for_the_report():\n"
        "    while 'never joined barrier 2' not in pathlib.Path(sys.argv[1]).read_text():\n        time.sleep(0.2)\n"
        "    reported.set()\n"
        "dist.init_process_group('gloo')\ndist.barrier()\n"
        "if dist.get_rank() == 1:\n    os.rmdir(os.getcwd())\n    reported = threading.Event()\n"
        "    threading.Thread(target=look_for_the_report).start()\n    reported.wait()\ndist.barrier()\n"
        "dist.destroy_process_group()\n"
    )
    monkeypatch.chdir(folder)
    findings = tmp_path / "findings.json"
    findings.touch()
    status = main(["run", "--nproc", "2", "--idle", "1", "--json", str(findings), str(script), str(findings)])
    monkeypatch.chdir(tmp_path)
    printed = capsys.readouterr().out
    verdicts = re.findall(r"^VERDICT: (.*)", printed, re.MULTILINE)  # on a busy machine also of ranks that still start
    assert "rank 1 never joined barrier 2" in verdicts[-2] and "the doctor watches on" in printed
    assert all(first != second for first, second in pairwise(verdicts)), "nothing had changed, and it reported again"
    assert "the job ended well" in verdicts[-1] and status == 0
    assert "\x1b" not in printed, "colours in what is no terminal"
    assert json.loads(findings.read_text())["ended"] == "well"


def test_unwritable_output_and_an_interrupt_are_one_line(tmp_path):
    command = [sys.executable, "-m", "ddp_doctor"]
    with open("/dev/full", "w") as full:
        done = subprocess.run([*command, "meet", "localhost:29500"], stdout=full, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 1 and done.stderr == "error: the output cannot be written: No space left on device\n"
    (tmp_path / "psutil.py").write_text("import os, signal\nos.kill(os.getpid(), signal.SIGINT)\n")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])}
    done = subprocess.run([*command, "attach", "1"], env=environment, capture_output=True, text=True)
    assert done.returncode == 130 and done.stderr == "interrupted\n"


def test_an_interrupt_shows_the_page_and_ends_the_job(tmp_path):
    script = tmp_path / "script.py"
    script.write_text("import threading\nprint('begins', flush=True)\nthreading.Event().wait()\n")
    command = [sys.executable, "-u", "-m", "ddp_doctor", "run", "--nproc", "1", "--idle", "600", str(script)]
    job = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert any("begins" in line for line in job.stdout)
    job.send_signal(signal.SIGINT)
    printed, _ = job.communicate()
    assert job.returncode == 130 and "You interrupted after" in printed and "VERDICT: " in printed
