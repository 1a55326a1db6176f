"""A portfolio: what a student's script shows on one process and several, and what the doctor says of it."""

import json
import os

import pytest

from ddp_course.lab import portfolio

SCRIPT = """
import os, torch, torch.distributed as dist, torch.distributed.nn
from datetime import timedelta
dist.init_process_group("gloo", timeout=timedelta(seconds=60))
rank, world = dist.get_rank(), dist.get_world_size()
def train():
    torch.manual_seed(1)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(1, 4):
        batch = torch.randn(12, 4, generator=torch.Generator().manual_seed(step))
        loss = (model(batch[rank::world]) - 1).square().mean() * SCALE
        optimizer.zero_grad(); loss.backward(); optimizer.step()
        loss = loss.detach() / world
        dist.all_reduce(loss)
        if rank == 0:
            print(f"step {step}  loss {loss.item():.6f}", flush=True)
train()
dist.destroy_process_group()
"""


@pytest.mark.weekly
def test_it_shows_the_gap_and_the_findings(tmp_path, monkeypatch):
    monkeypatch.setenv("DDP_COURSE_PROGRESS", str(tmp_path))
    (tmp_path / "progress.jsonl").write_text(
        '{"kind": "checked", "notebook": "", "question": "04.0", "state": "passed"}\n'
    )
    gaps = {}
    for name, scale in (("right", "1.0"), ("wrong", "world")):
        script = tmp_path / f"{name}.py"
        script.write_text(SCRIPT.replace("SCALE", scale))
        assert portfolio.main(["--out", str(tmp_path / name / "folder"), str(script)]) == 0
        proof = json.loads((tmp_path / name / "folder/portfolio.json").read_text())
        gaps[name] = max(abs(proof["losses"]["2"][step] - loss) for step, loss in proof["losses"]["1"].items())
        assert proof["exercises passed"] == ["04.0"] and len(proof["doctor"]["findings"]) > 20
        text = (tmp_path / name / "folder/portfolio.md").read_text()
        assert f"| 2 | 3 | {proof['losses']['2']['3']:.6f} | {gaps[name]:.1e} |" in text and "1 passed: 04.0." in text
    assert gaps["right"] < 1e-5 < 1e-2 < gaps["wrong"]


def test_the_page_names_a_run_that_cannot_be_compared():
    runs = {1: {1: 2.5, 2: 2.0}, 2: {2: 2.25}, 3: "rank 2 failed first: ValueError"}
    doctor = {"failed": None, "findings": [{"status": "wrong", "check": "scale", "text": "twice"}]}
    proof = {"made": "now", "machine": "a machine", "script": "a.py", "sha256": "ab", "arguments": ["--steps", "2"]}
    text = portfolio.page(proof | {"losses": runs, "doctor": doctor, "exercises passed": []})
    assert "| 1 | 2 | 2.000000 | 0.0e+00 |" in text and "| 2 | 1 | 2.250000 | 2.5e-01 |" in text
    assert "| 3 | none | rank 2 failed first: ValueError |  |" in text and "- **wrong** scale: twice" in text


@pytest.mark.parametrize(
    "words, message",
    [
        (["no.py"], "there is no script no.py"),
        (["--out", os.curdir, __file__], ". is there already"),
        ([], "required: script"),
    ],
)
def test_bad_input_is_one_line(words, message, capsys):
    assert portfolio.main(words) == 2 and message in capsys.readouterr().err
