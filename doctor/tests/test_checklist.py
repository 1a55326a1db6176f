"""`doctor check` on scripts that end well: a silently wrong one gets the right finding, at its line, and no other.

Ranks are forked, so that a case is cheap. Healthy scripts that wait or import much run in `make doctor-matrix` only.
"""

import json
from pathlib import Path

import ddp_doctor
import pytest
from cases import CHECK_HEADING, FOLDER, MATRIX
from check_cases import audited_cases, examine, wrong
from ddp_doctor import audited
from ddp_doctor.__main__ import main
from ddp_doctor.audited import AuditedRun
from ddp_doctor.check import Checked, checklist
from ddp_doctor.checks import CHECKS, findings
from ddp_doctor.checks.finding import CATALOGUE
from forked_ranks import run_ranks

SILENT, SOUND, HEALTHY = map(audited_cases, ("silent", "sound", "healthy"))
HEALTHY_IN_SUITE = ["accumulates", "by_hand", "checkpoint_and_metric", "ddp", "join", "messages_and_groups"]


@pytest.mark.parametrize("name", [*SILENT, *SOUND, *HEALTHY_IN_SUITE])
def test_checklist(name):
    case = {**SILENT, **SOUND, **HEALTHY}[name]
    all_findings = examine(case)
    assert not wrong(case, all_findings), checklist(Checked(all_findings))


SHUFFLES_AND_DROPS = """
import sys, torch
import torch.distributed as dist
import torch.distributed.nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

def train():
    torch.manual_seed(int(sys.argv[1]) + dist.get_rank())
    net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8), torch.nn.Dropout(), torch.nn.Linear(8, 1))
    model = DistributedDataParallel(net)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for epoch in range(2):
        for (batch,) in DataLoader(TensorDataset(torch.randn(24, 4)), batch_size=4, shuffle=True):
            optimizer.zero_grad()
            loss = model(batch).square().mean()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            optimizer.step()
            print(repr(loss.item()))
    print([tensor.tolist() for tensor in model.state_dict().values()])

dist.init_process_group("gloo")
train()
dist.destroy_process_group()
"""


def test_an_audited_run_computes_the_same_bits(tmp_path):
    script, folder = tmp_path / "script.py", tmp_path / "audits"
    script.write_text(SHUFFLES_AND_DROPS)
    folder.mkdir()
    plain = run_ranks(script, 7, nproc=2)
    assert run_ranks(FOLDER / "audited_script.py", folder, script, 7, nproc=2).lines == plain.lines
    events = audited.read(folder)[0].events
    assert {"step", "batch", "dropout", "clip", "call"} <= {event["event"] for event in events}
    assert not [event for event in events if event["event"] == "audit failed"]


def test_the_matrix_has_all_cases_and_none_is_wrong():
    rows = [line for line in MATRIX.read_text().partition(CHECK_HEADING)[2].splitlines() if line.startswith("| ")]
    rows = [row for row in rows if not row.startswith("| script ")]
    assert {row.split(" | ")[0].strip("| ") for row in rows} == {*SILENT, *SOUND, *HEALTHY}, "run: make doctor-matrix"
    assert not [row for row in rows if "WRONG" in row]


def test_every_header_has_a_check_and_a_line():
    assert not SILENT.keys() & (SOUND.keys() | HEALTHY.keys())
    for name, case in SILENT.items():
        assert case.check in CHECKS and case.line, f"{name}.py needs `# check:` and `# HERE`"
        assert "ddp_course" not in case.path.read_text()
    assert {case.check for case in SILENT.values()} >= CHECKS.keys() - {"timeout"}


def test_an_audit_that_is_cut_off_or_empty_gives_no_finding(tmp_path):
    (tmp_path / "1.audit").write_text('{"event": "start", "rank": 0, "world": 2}\n{"event": "group beg')
    run = AuditedRun(audited.read(tmp_path))
    assert len(run.audits[0].events) == 1
    all_findings = findings(run)
    assert {finding.status for finding in all_findings} <= {"unknown", "ok"}
    assert {finding.check for finding in all_findings} == CHECKS.keys()
    assert {finding.status for finding in findings(AuditedRun({}))} <= {"unknown", "ok"}


RESUMES = """
import os, random, sys, torch
import torch.distributed as dist
import torch.distributed.nn
from torch.nn.parallel import DistributedDataParallel

def train(path):
    model = DistributedDataParallel(torch.nn.Linear(4, 1))
    if "--resume" in sys.argv:
        model.module.load_state_dict(torch.load(path))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _step in range(3):
        optimizer.zero_grad()
        model(torch.randn(8, 4)).square().mean().backward()
        optimizer.step()
    dist.barrier()
    torch.save(model.module.state_dict(), path)

dist.init_process_group("gloo")
train(sys.argv[1])
dist.destroy_process_group()
"""


def test_the_command_runs_twice_ends_non_zero_and_writes_json(tmp_path, capsys):
    script, saved, report = tmp_path / "script.py", tmp_path / "model.pt", tmp_path / "findings.json"
    script.write_text(RESUMES)
    options = ["--seconds", "600", "--resume-with=--resume", "--json", str(report)]
    assert main(["check", *options, str(script), str(saved)]) == 1
    printed = capsys.readouterr().out
    by_check = {finding["check"]: finding for finding in json.loads(report.read_text())["findings"]}
    assert by_check.keys() == CHECKS.keys()
    assert [name for name, finding in by_check.items() if finding["status"] == "wrong"] == ["writers"]
    assert by_check["writers"]["line"] == RESUMES[: RESUMES.index("torch.save")].count("\n") + 1
    assert by_check["writers"]["catalogue"] in CATALOGUE
    assert {by_check[name]["status"] for name in ("replicas", "averaged", "scale")} == {"ok"}  # scale: by a third run
    assert by_check["samples"]["status"] == "unknown"  # drawn at random: shares may overlap
    assert by_check["writers"]["known_as"] in printed and str(Path(ddp_doctor.__file__).parent) not in printed
    assert "begins with the weights with which the first ended" in by_check["resume"]["text"]
    assert f"WRONG  {CHECKS['writers'][0]}" in printed and "1 wrong, " in printed


def test_a_script_that_fails_is_explained(tmp_path, capsys):
    script = tmp_path / "script.py"
    script.write_text("import os\nif os.environ['RANK'] == '1':\n    raise ValueError('a label of -1')\n")
    assert main(["check", "--seconds", "600", str(script)]) == 1
    printed = capsys.readouterr().out
    assert "VERDICT: rank 1 raised ValueError: a label of -1" in printed and "what was seen until then" in printed
