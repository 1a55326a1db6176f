"""The speedrun: each stage finds the one before it by name and resumes where it stopped, and the report is true."""

import json
import re
import shutil
from pathlib import Path

import pytest
import warm
from huggingface_folder import make_model
from reward_files import make_backbone
from training_runs import merged

from ddp_course.base.errors import InputError
from ddp_course.launcher import Run, RunStopped
from ddp_course.speedrun import stages as speedrun
from ddp_course.speedrun.__main__ import main
from ddp_course.speedrun.curves import draw_reward, values
from ddp_course.speedrun.report import of_the_judge, of_the_policy, product_of_settings, write_report
from ddp_course.speedrun.stages import PRESETS, open_record, stages

pytestmark = pytest.mark.usefixtures("module_launches_warm")


@pytest.fixture(scope="module")
def finished_run(tmp_path_factory, module_launches_warm):
    """A run that was stopped after pre-training on 1 process, and resumed with 2."""
    run_dir = tmp_path_factory.mktemp("speedrun") / "run"
    first = speedrun.speedrun(run_dir, "tiny", nproc=1, stop_after="pretrain")
    assert list(first["stages"]) == ["tokenizer", "pretrain"]
    return run_dir, speedrun.speedrun(run_dir, "tiny", nproc=2)


def test_all_stages_finish_and_the_finished_ones_are_not_run_again(finished_run, monkeypatch):
    run_dir, record = finished_run
    assert list(record["stages"]) == ["tokenizer", "pretrain", "reward", "grpo"]
    assert all(stage["finished"] and stage["seconds"] > 0 for stage in record["stages"].values())
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
    judged = [json.loads(line) for line in (run_dir / "reward" / "metrics.jsonl").read_text().splitlines()]
    assert of_the_judge(judged) in page and of_the_policy(records) in page


@pytest.mark.parametrize(
    ("gain", "low", "high", "verdict"),
    [(0.04, 0.023, 0.057, "better"), (-0.04, -0.057, -0.023, "worse"), (0.01, -0.022, 0.042, "not told apart")],
)
def test_the_judge_is_compared_with_the_untrained_baseline_at_its_lowest_loss(gain, low, high, verdict):
    """The accuracy of another step may be higher."""

    def record(step, loss, accuracy):
        named = {"loss": loss, "accuracy": accuracy, "baseline": 0.7, "gain_low": low, "gain_high": high, "pairs": 1e3}
        return {"step": step, **{f"val_{name}": value for name, value in named.items()}}

    page = of_the_judge([record(8, 0.6, 0.9), record(16, 0.5, 0.7 + gain), record(24, 0.55, 0.8)])
    interval = f"{100 * gain:+.1f} percentage points (95 % interval over files {100 * low:+.1f} to {100 * high:+.1f})"
    assert f"{interval}: **{verdict}**" in page and "of step 16" in page


def test_the_judges_figure_has_the_interval_over_files_of_its_verdict():
    named = {"loss": 0.5, "accuracy": 0.8, "baseline": 0.75, "gain_low": 0.01, "gain_high": 0.07, "pairs": 1e3}
    right = draw_reward([{"step": 8} | {f"val_{name}": value for name, value in named.items()}]).axes[1]
    [interval] = right.containers[0].lines[2][0].get_segments()
    assert interval[:, 1] == pytest.approx([0.76, 0.82]), "the baseline and the ends of the gain, not Wilson over pairs"


@pytest.mark.parametrize(
    ("first", "last", "parses", "verdict"),
    [
        (1.0, 11.0, 0.1, "over-optimised**"),  # below real code at first, above it in the end, and less parses
        (1.0, 11.0, 0.3, "neither"),
        (1.0, 11.0, 0.9, "neither"),
        (1.0, 1.5, 0.1, "neither"),
        (2.5, 11.0, 0.1, "invalid on such texts before the first step**"),  # whatever came of it
        (2.5, 1.5, 0.9, "invalid on such texts before the first step**"),
    ],
)
def test_a_judge_is_invalid_from_the_start_over_optimised_or_neither(first, last, parses, verdict):
    same = {"val_real": 2.0, "val_real_parses": 0.8}
    steps = {"step": 0, "val_reward": first, "val_parses": 0.2}, {"step": 6, "val_reward": last, "val_parses": parses}
    page = of_the_policy([step | same for step in steps])
    assert verdict in page and f"to {last:.2f}; real code" in page


def test_grpo_refuses_to_resume_with_another_judge(finished_run, tmp_path):
    """The run directory of the reward model is the same; which of its checkpoints is the best is not."""
    run_dir = shutil.copytree(finished_run[0], tmp_path / "run")
    best = (run_dir / "reward" / "best").read_text()
    (run_dir / "reward" / "best").write_text("step_000010\n" if best == "step_000005\n" else "step_000005\n")
    grpo = stages(run_dir, "tiny")[-1]
    done = warm.single_process(grpo.script, *merged(*grpo.flags, "--steps", 3))
    assert done.returncode == 1 and re.search(r"it has reward model \w{16}, this run has \w{16}", done.stderr), done


def test_from_a_backbone_nothing_is_pretrained_and_the_report_says_so(transformers, tmp_path):
    (tmp_path / "gpt2").mkdir()
    backbone = f"hf:{make_model(tmp_path / 'gpt2', context=64)}"
    code = str(Path(speedrun.__file__).parent.parent)
    record = speedrun.speedrun(tmp_path / "run", "tiny", nproc=1, data=code, backbone=backbone)
    assert list(record["stages"]) == ["reward", "grpo"] and not (tmp_path / "run" / "pretrain").exists()
    settings = {name: json.loads((tmp_path / "run" / name / "config.json").read_text()) for name in record["stages"]}
    assert settings["reward"]["backbone"] == settings["grpo"]["pretrained"] == speedrun.full_name(backbone)
    page = write_report(tmp_path / "run").read_text()
    assert f"It began with the backbone `{backbone}`" in page and "from a backbone to a post-trained model" in page
    assert "| reward |" in page and "| grpo |" in page and "pretrain" not in page and "| tokenizer |" not in page
    with pytest.raises(InputError, match="holds a speedrun with backbone '.*', not ''"):
        speedrun.speedrun(tmp_path / "run", "tiny", nproc=1, data=code)


def test_a_checkpoint_of_ours_is_a_backbone_by_its_path_alone(tmp_path):
    saved = make_backbone(tmp_path / "ours")
    for spelling in (tmp_path / "ours", saved, f"minigpt:{saved}"):
        assert speedrun.full_name(str(spelling)) == f"minigpt:{saved}"
    reward, grpo = stages(tmp_path / "run", "tiny", backbone=f"minigpt:{saved}")
    assert reward.flags[reward.flags.index("--backbone") + 1] == f"minigpt:{saved}"
    assert grpo.flags[grpo.flags.index("--pretrained") + 1] == f"minigpt:{saved}"


@pytest.mark.parametrize(
    ("backbone", "message"),
    [
        ("nowhere", "cannot load the backbone minigpt:.*nowhere: there is no such checkpoint folder"),
        ("gguf:model", "no backbone 'gguf:model': a name has the form"),
    ],
)
def test_a_backbone_that_is_not_there_is_refused_before_anything_is_written(tmp_path, capsys, backbone, message):
    with pytest.raises(InputError, match=message):
        speedrun.speedrun(tmp_path / "run", "tiny", backbone=backbone)
    assert main(["--preset", "tiny", "--run-dir", str(tmp_path / "run"), "--backbone", backbone]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1 and not (tmp_path / "run").exists()


def test_a_stage_that_only_stopped_is_not_finished(finished_run):
    run_dir, _ = finished_run
    assert speedrun.is_finished(run_dir, "reward", "tiny")
    assert not speedrun.is_finished(run_dir, "reward", "laptop")  # which has more steps
    assert not speedrun.is_finished(run_dir / "nowhere", "reward", "tiny")


def test_a_stage_that_was_asked_to_stop_ends_the_speedrun_with_the_exit_code_of_the_trainers(
    tmp_path, monkeypatch, capsys
):
    launched = []

    def stopped(*_, quiet, **__):
        launched.append(quiet)
        raise RunStopped("stopped", Run("", {}, {}))

    monkeypatch.setattr(speedrun, "torchrun", stopped)
    assert main(["--preset", "tiny", "--run-dir", str(tmp_path / "run"), "--nproc", "1"]) == 75
    assert "goes on" in capsys.readouterr().out
    stages = json.loads((tmp_path / "run" / "speedrun.json").read_text())["stages"]
    assert list(stages) == ["tokenizer", "pretrain"] and not stages["pretrain"]["finished"]
    speedrun.speedrun(tmp_path / "run", "tiny", nproc=1, quiet=True)
    assert launched == [False, True], "quiet is the launcher's to keep"


def test_another_runs_choices_are_refused(tmp_path, capsys):
    open_record(tmp_path, {"preset": "tiny", "data": "stdlib", "seed": 1})
    with pytest.raises(InputError, match="holds a speedrun with seed 1, not 2"):
        speedrun.speedrun(tmp_path, "tiny", seed=2)
    assert main(["--preset", "laptop", "--run-dir", str(tmp_path)]) == 2
    assert "preset 'tiny', not 'laptop'" in capsys.readouterr().err
    assert main(["--preset", "tiny", "--run-dir", str(tmp_path / "speedrun.json")]) == 2  # a file, not a folder


@pytest.mark.parametrize("name", ["speedrun.json", "report.md"])
@pytest.mark.parametrize("spelled", [".", "nowhere/.."])
def test_foreign_files_are_not_overwritten(tmp_path, monkeypatch, capsys, name, spelled):
    monkeypatch.chdir(tmp_path)
    Path(name).write_text('{"size": 1}')
    assert main(["--preset", "tiny", "--run-dir", spelled]) == 2
    assert "give another --run-dir" in capsys.readouterr().err and Path(name).read_text() == '{"size": 1}'


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


@pytest.mark.parametrize("latest", [b"step_000010\xff", b"\0" * 10_000, None])
def test_a_latest_that_names_no_step_is_of_no_finished_stage(tmp_path, latest):
    path = tmp_path / "reward" / "latest"
    path.parent.mkdir()
    path.mkdir() if latest is None else path.write_bytes(latest)
    assert not speedrun.is_finished(tmp_path, "reward", "tiny")


def test_metrics_with_null_make_a_report_and_none_at_all_an_error(finished_run, tmp_path):
    shutil.copytree(finished_run[0], tmp_path / "run")
    metrics = tmp_path / "run" / "pretrain" / "metrics.jsonl"
    with open(metrics, "a") as file:
        file.write('{"step": 41, "loss": null, "val_loss": null, "tokens": null}\n')
    assert "at step 40" in write_report(tmp_path / "run").read_text()
    metrics.write_text('{"step": 1, "loss": null}\n')
    with pytest.raises(InputError, match="hold no loss that is a number"):
        write_report(tmp_path / "run")
    (tmp_path / "run" / "pretrain" / "config.json").write_text("{}")
    with pytest.raises(InputError, match="'steps'"):
        product_of_settings(tmp_path / "run" / "pretrain", "steps")


def test_a_wrong_flag_is_one_line(capsys):
    assert main(["--preset", "enormous"]) == 2
    printed = capsys.readouterr().err
    assert printed.startswith("error: argument --preset: invalid choice") and len(printed.splitlines()) == 1


def test_no_process_is_refused(tmp_path, capsys):
    assert main(["--preset", "tiny", "--run-dir", str(tmp_path / "run"), "--nproc", "0"]) == 2
    assert "a whole number from 1 up; got 0" in capsys.readouterr().err


@pytest.mark.parametrize(
    "record",
    [
        '{"preset": "ti',
        "[]",
        '{"preset": "tiny"}',
        "[" * 100_000,
        '{"stages": {"grpo": 7}}',
        '{"stages": {"grpo": {"seconds": "x", "finished": true}}}',
        '{"stages": {"grpo": {"seconds": 1.0}}}',
    ],
)
def test_a_record_that_is_none_is_refused_and_kept(tmp_path, record):
    (tmp_path / "speedrun.json").write_text(record)
    with pytest.raises(InputError, match=r"speedrun\.json"):
        open_record(tmp_path, {"preset": "tiny", "data": "stdlib", "seed": 1})
    assert (tmp_path / "speedrun.json").read_text() == record
