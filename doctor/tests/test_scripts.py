"""The doctor on scripts that know nothing of it: the right rank and line for the sick, no alarm for the healthy.

Each launch costs about six CPU-seconds, so a few kinds stand here; `make doctor-matrix` examines all.
"""

import json

import pytest
from cases import MATRIX, OF_CHECK, cases, examine, wrong
from ddp_doctor.__main__ import main

SICK, HEALTHY = cases("sick"), cases("healthy")
IN_SUITE = ["metric_on_rank_0", "leaves_with_0", "raises", "last_batch_is_smaller", "init_on_rank_0_only"]
HEALTHY_IN_SUITE = ["one_slow_rank", "branches_that_meet"]


@pytest.mark.parametrize("name", [*IN_SUITE, *HEALTHY_IN_SUITE])
def test_verdict(name, tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    one = SICK.get(name) or HEALTHY[name]
    job, verdict, text = examine(one)
    assert not wrong(one, verdict), text
    assert text.startswith(f"VERDICT: {verdict.sentence}")
    if one.sick:
        assert all(f"\nrank {rank}: " in text for rank in range(2))


def test_the_matrix_has_all_cases_and_none_is_wrong():
    above = MATRIX.read_text().partition(OF_CHECK)[0]
    rows = [line for line in above.splitlines() if line.startswith("| ") and "script" not in line]
    assert {row.split(" | ")[0].strip("| ") for row in rows} == {*SICK, *HEALTHY}, "run: make doctor-matrix"
    assert not [row for row in rows if "WRONG" in row]


def test_every_case_says_what_is_expected():
    assert not SICK.keys() & HEALTHY.keys()
    for name, one in SICK.items():
        assert one.ranks and one.says, f"{name}.py needs `# rank:` and `# says:`"
        assert "ddp_course" not in one.path.read_text()


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
    found = json.loads(findings.read_text())
    assert found["verdict"]["ranks"] == [1] and found["ranks"]["1"]["exit_code"] == -9


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["run", "no_such.py"], "no script 'no_such.py'"),
        (["run", "--nproc", "0", __file__], "--nproc"),
        (["attach", "1"], "neither torchrun nor a rank"),
        (["attach", "99999999"], "no process 99999999"),
    ],
)
def test_what_cannot_be_done_is_said_in_one_line(arguments, message, capsys):
    assert main(arguments) == 2
    error = capsys.readouterr().err
    assert message in error and error.startswith("error: ") and len(error.splitlines()) == 1
