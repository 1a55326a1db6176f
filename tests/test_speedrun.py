"""The speedrun: each stage finds the one before it by name, goes on where it stopped, and the report is true."""

import json

import pytest

from ddp_course.errors import InputError
from ddp_course.lab import speedrun
from ddp_course.lab.speedrun import PRESETS, main, open_record, stages
from ddp_course.lab.speedrun_report import values, write_report


@pytest.fixture(scope="module")
def finished_run(tmp_path_factory):
    """A run that was left after pre-training on 1 process, and went on with 2."""
    run_dir = tmp_path_factory.mktemp("speedrun") / "run"
    first = speedrun.speedrun(run_dir, "tiny", nproc=1, stop_after="pretrain")
    assert list(first["stages"]) == ["tokenizer", "pretrain"]
    return run_dir, speedrun.speedrun(run_dir, "tiny", nproc=2)


def test_all_stages_finish_and_the_finished_ones_are_not_run_again(finished_run, monkeypatch):
    run_dir, record = finished_run
    assert list(record["stages"]) == ["tokenizer", "pretrain", "reward", "grpo"]
    assert all(stage["finished"] and stage["seconds"] >= 0 for stage in record["stages"].values())
    monkeypatch.setattr(speedrun, "torchrun", lambda *_, **__: pytest.fail("a finished stage was launched"))
    assert speedrun.speedrun(run_dir, "tiny", nproc=2) == record


def test_the_report_says_what_the_stages_have_written(finished_run):
    run_dir, _ = finished_run
    page = write_report(run_dir).read_text()
    for name in ("pretrain", "reward", "grpo"):
        assert (run_dir / f"{name}.png").stat().st_size > 1000 and f"({name}.png)" in page
    records = [json.loads(line) for line in (run_dir / "grpo" / "metrics.jsonl").read_text().splitlines()]
    assert f"{sum(values(records, 'tokens').values()):,.0f} sampled tokens" in page
    assert "# the reference" in page and "# the policy" in page


def test_a_stage_that_only_stopped_is_not_finished(finished_run):
    run_dir, _ = finished_run
    assert speedrun.finished(run_dir, "reward", "tiny")
    assert not speedrun.finished(run_dir, "reward", "laptop")  # which has more steps
    assert not speedrun.finished(run_dir / "nowhere", "reward", "tiny")


def test_another_runs_choices_are_refused(tmp_path, capsys):
    open_record(tmp_path, {"preset": "tiny", "data": "stdlib", "seed": 1})
    with pytest.raises(InputError, match="holds a speedrun with seed 1, not 2"):
        speedrun.speedrun(tmp_path, "tiny", seed=2)
    assert main(["--preset", "laptop", "--run-dir", str(tmp_path)]) == 2
    assert "preset 'tiny', not 'laptop'" in capsys.readouterr().err
    assert main(["--preset", "tiny", "--run-dir", str(tmp_path / "speedrun.json")]) == 2  # a file, not a folder


def test_a_stage_that_fails_is_an_error_and_not_finished(tmp_path, capsys):
    text = tmp_path / "short.txt"
    text.write_text("one line\n" * 4)
    run_dir = tmp_path / "run"
    assert main(["--preset", "tiny", "--run-dir", str(run_dir), "--data", str(text), "--nproc", "1"]) == 1
    assert "goes on from there" in capsys.readouterr().err
    assert not json.loads((run_dir / "speedrun.json").read_text())["stages"]["pretrain"]["finished"]


def test_presets_differ_in_sizes_only(tmp_path):
    shapes = {name: {stage: list(flags) for stage, flags in sizes.items()} for name, sizes in PRESETS.items()}
    assert all(shape == shapes["laptop"] for shape in shapes.values())
    for preset in PRESETS:
        wired = [[word for word in stage.flags if str(tmp_path) in word] for stage in stages(tmp_path, preset)]
        assert wired == [
            [f"{tmp_path}/pretrain"],
            [f"minigpt:{tmp_path}/pretrain", f"{tmp_path}/reward"],
            [f"{tmp_path}/pretrain", f"{tmp_path}/reward", f"{tmp_path}/grpo"],
        ]
