"""plan --measured: one measured step says how fast the kernels are, and the plan uses that for all meshes."""

from dataclasses import replace

import pytest
from test_plan import ASKED, job_for

from ddp_course.base.errors import InputError
from ddp_course.plan.__main__ import main
from ddp_course.plan.memory import Layout
from ddp_course.plan.search import best_way, search, step_interval
from ddp_course.plan.traffic import step

pytestmark = pytest.mark.smoke


def seconds(kernels, layout, *words):
    """The step that a machine would have measured whose kernels reach this share."""
    return step(job_for(*words, "--kernels", kernels), layout).total


FULLY = Layout(shard=64, zero=3, micro_batch=2, recompute=True)
HALVED = Layout(tp=8, dp=8, micro_batch=2)
MEASURED = [
    (0.42, FULLY, "shard 64, ZeRO-3, 2 windows, checkpointing"),
    (0.3, HALVED, "tp 8 dp 8, 2 windows, no checkpointing"),
    (0.7, Layout(pp=2, shard=32, zero=1, chunks=1), "pp 2 shard 32, ZeRO-1, 1 window, no checkpointing, 1 chunk"),
]


@pytest.mark.parametrize(("kernels", "layout", "mesh"), MEASURED)
@pytest.mark.parametrize("unit", ["s", "ms", "tokens/s"])
def test_the_measured_step_gives_the_speed_of_the_kernels(kernels, layout, mesh, unit):
    took = seconds(kernels, layout)
    number = {"s": took, "ms": 1000 * took, "tokens/s": job_for().tokens / took}[unit]
    calibrated = job_for("--measured", f"{mesh}: {number!r} {unit}")
    assert calibrated.cluster.kernels == pytest.approx(kernels, rel=1e-6)
    assert step(calibrated, layout).total == pytest.approx(took, rel=1e-6)
    likely = step_interval(calibrated, layout)
    assert likely.low < took < likely.high


def test_a_step_on_fewer_gpus_of_the_same_kind_is_enough():
    eight = Layout(shard=8, zero=3)
    took = seconds(0.42, eight, "--gpus", 8, "--tokens-per-update", 2**22)
    assert job_for(
        "--measured", f"shard 8, ZeRO-3, 1 window, no checkpointing: {took!r} s"
    ).cluster.kernels == pytest.approx(0.42)


def test_a_slow_measurement_slows_all_meshes_and_a_file_may_hold_it(tmp_path, capsys):
    took = seconds(0.2, FULLY)
    file = tmp_path / "measured.txt"
    file.write_text(f"shard 64, ZeRO-3, 2 windows, checkpointing: {took!r} s\n")
    calibrated = job_for("--measured", file)
    for layout in (HALVED, Layout(shard=64, zero=1), Layout(pp=2, dp=32)):
        assert step(calibrated, layout).mfu < step(job_for(), layout).mfu
    assert search(calibrated).fits[0].step.total > 2 * search(job_for()).fits[0].step.total
    assert main([*ASKED, "--measured", str(file)]) == 0
    text = capsys.readouterr().out
    assert "calibrated by one measured step" in text and "kernels at 0.2 of the peak (--measured)" in text
    assert main(ASKED) == 0
    text = capsys.readouterr().out
    assert "calibrated" not in text and "kernels at 0.55 of the peak (--kernels)" in text


def test_choices_that_are_not_given_are_the_plans():
    asked = job_for()
    layouts = [best_way(asked, Layout(tp=8, dp=8)).layout, replace(HALVED, micro_batch=8)]
    for layout, mesh in zip(layouts, ("tp 8 dp 8", "tp 8 dp 8, 8 windows"), strict=True):
        took = seconds(0.4, layout)
        assert job_for("--measured", f"{mesh}: {took!r} s").cluster.kernels == pytest.approx(0.4, rel=1e-3)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("7.3", "a mesh and its step"),
        ("shard 64: fast", "a mesh and its step"),
        ("shard 64: 0 s", "a mesh and its step"),
        ("shards 64: 7 s", "names a mesh by its axes"),
        ("shard: 7 s", "names a mesh by its axes"),
        ("shard 64, quickly: 7 s", "knows ZeRO-1 to 3"),
        ("shard 64: 1 s", "with kernels at the whole peak"),
        ("shard 64: 1e9 s", "at 0.1% of it"),
        ("tp 64: 7 s", "cannot have run: tp would cross nodes"),
        ("dp 12: 7 s", "do not fill nodes"),
    ],
)
def test_a_measurement_that_makes_no_sense_is_one_sentence(text, sentence):
    with pytest.raises(InputError, match=sentence):
        job_for("--measured", text)


def test_kernels_are_given_once():
    with pytest.raises(InputError, match="give one of them"):
        job_for("--measured", "shard 64: 7 s", "--kernels", 0.4)
