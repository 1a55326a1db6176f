"""The figures: colours, marks that match the data, clear errors, and shown exactly once in a notebook."""

import io
import json
import math
import os
import subprocess
import sys
from functools import cache
from types import SimpleNamespace

import nbformat
import papermill
import pytest
import torch
from matplotlib import colors
from matplotlib.legend import Legend
from matplotlib.patches import Rectangle
from matplotlib.text import Text
from PIL import Image, ImageChops, ImageStat

from ddp_course.base.errors import InputError
from ddp_course.base.quantity import format_number, quantity, with_prefix
from ddp_course.lab import figures
from ddp_course.lab.figures.labels import spread_out
from ddp_course.lab.figures.style import ink_on

pytestmark = pytest.mark.smoke

TRAINING = [{"step": step, "loss": 5.0 - step / 10, "learning_rate": 0.001} for step in range(20)]

LIFE = [
    {"time": 100.0 + time, "lane": "0", "what": what, "step": step}
    for time, what, step in (
        (0, "start", None),
        (2, "load", None),
        (3, "step", 0),
        (4, "save", None),
        (5, "saved", None),
        (6, "step", 1),
        (7, "killed", None),
        (9, "start", None),
        (11, "step", 1),
        (12, "step", 2),
        (13, "exit", 75),
    )
]


def event(start, end, kind="compute", name="forward"):
    return {"name": name, "start": start, "end": end, "kind": kind}


@cache
def example_figures():
    lanes = {0: [event(5.0, 6.0), event(6.0, 6.5, "communication")], 1: [event(5.5, 6.5)]}
    return {
        "curves": figures.loss_curves({"one": TRAINING, "two": TRAINING}, "They agree"),
        "lanes": figures.rank_lanes({"run": lanes}, "Rank 1 is late"),
        "stacked": figures.stacked_bars({"rank 0": {"input": 1.0, "forward": 2.0}}, "Input takes a third", "ms"),
        "choices": figures.choices({(1, 1): "one GPU", (1, 8): "dp"}, "One axis is enough", "model", "GPUs"),
        "lives": figures.lives(LIFE, "Rank 0 starts again"),
        "collective": figures.collective("all_reduce", {0: [1], 1: [2]}, {0: [3], 1: [3]}, "The sum is everywhere"),
        "bars": figures.bars({"flat": (3.0, 0.1), "bucketed": 2.0}, "Buckets help", "ms"),
        "roofline": figures.roofline(1e11, 1e10, {"matmul": (100.0, 8e10)}, "Near the roof"),
    }


def pixels(figure):
    return Image.open(io.BytesIO(figure._repr_png_()[0]))


def texts(figure):
    """Title, annotations and labels of all axes."""
    shown_texts = [figure._suptitle.get_text()]
    for axes in figure.axes:
        shown_texts += [text.get_text() for text in axes.findobj(Text) if text.get_text()]
    return shown_texts


def patches_by_colour(figure):
    return {colors.to_hex(patch.get_facecolor()).upper() for axes in figure.axes for patch in axes.patches}


# --- all figures ----------------------------------------------------------------------------------------------------


def test_every_figure_is_750_pixels_wide_at_twice_the_resolution_small_and_named_by_its_title():
    for name, figure in example_figures().items():
        data, metadata = figure._repr_png_()
        assert metadata["width"] == 750 and pixels(figure).size == (1500, 2 * metadata["height"]), name
        assert len(data) < 120_000, name
        assert metadata["alt"] == figure.title and figure.title in texts(figure), name
        assert repr(figure) == f"Figure: {figure.title}"


def test_nothing_is_left_behind_in_pyplot():
    example_figures()
    import matplotlib.pyplot as plt

    assert plt.get_fignums() == []


def test_nothing_is_clipped():
    for name, figure in example_figures().items():
        figure.draw_without_rendering()
        box, (width, height) = figure.get_tightbbox(), figure.get_size_inches()
        assert 0 <= box.x0 and box.x1 <= width and 0 <= box.y0 and box.y1 <= height, (name, box)


def test_ranks_have_constant_and_distinct_colours():
    assert len({figures.rank_colour(rank) for rank in range(16)}) == 16
    assert figures.rank_colour(0) == "#0072B2"
    assert figures.rank_colour(3) == figures.rank_colour(19)


def test_text_on_a_rank_colour_is_readable():
    assert ink_on("#0072B2") == "white"
    assert ink_on("#F0E442") != "white"


def test_a_long_title_has_two_lines_and_a_dollar_is_no_formula():
    short, long = figures.bars({"a": 1.0}, "Short", "s"), figures.bars({"a": 1.0}, "$5 and $6 " * 12, "s")
    assert pixels(long).height > pixels(short).height
    assert long._suptitle.get_parse_math() is False
    first, second = figures.bars({"a": 1.0}, "word " * 20, "s")._suptitle.get_text().splitlines()
    assert abs(len(first) - len(second)) < 6  # not one word alone on the second line


def test_labels_are_spread_out_and_the_first_of_two_equals_is_on_top():
    placed = spread_out([0.5, 0.5, 0.9], [0.1, 0.1, 0.1], 1.0)
    assert placed == pytest.approx([0.6, 0.5, 0.9])
    assert spread_out([1.0, 0.99], [0.1, 0.1], 1.0) == pytest.approx([0.95, 0.85])


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (8, "8"),
        (8.0, "8"),
        (1234567, "1,234,567"),
        (9.996, "10"),
        (0.01234, "0.0123"),
        (12345.6, "12,346"),
        (1.5e10, "1.5e10"),
        (-0.5, "-0.5"),
        (0.0, "0"),
        (math.nan, "nan"),
        (True, "True"),
        ("sum", "sum"),
    ],
)
def test_numbers_are_formatted(value, text):
    assert format_number(value) == text


def test_units_and_prefixes():
    assert quantity(1500, "tokens/s") == "1,500 tokens/s"
    assert quantity(3) == "3"
    assert with_prefix(85.3e9, "FLOP/s") == "85.3 GFLOP/s"


# --- loss curves ----------------------------------------------------------------------------------------------------


def write_run(folder, records, ending="\n"):
    folder.mkdir(exist_ok=True)
    (folder / "metrics.jsonl").write_text("\n".join(json.dumps(r) for r in records) + ending)
    return folder


def data_lines(figure):
    axes = figure.axes[0]
    return [line for line in axes.lines if line.get_transform() == axes.transData]


def test_coinciding_curves_stay_visible_the_first_thick_the_later_thin():
    first, second = data_lines(figures.loss_curves({"one": TRAINING, "two": TRAINING}, "They agree"))
    assert first.get_linewidth() > 2 * second.get_linewidth()
    assert first.get_zorder() < second.get_zorder()
    assert list(second.get_ydata()) == [record["loss"] for record in TRAINING]


def test_a_gap_panel_shows_each_later_curve_minus_the_first_at_shared_steps():
    later = [{"step": step, "loss": TRAINING[step]["loss"] + 0.5} for step in (3, 4)] + [{"step": 99, "loss": 1.0}]
    figure = figures.loss_curves({"one": TRAINING, "two": later}, "They differ", gap=True)
    [dots] = figure.axes[1].lines
    assert list(dots.get_xdata()) == [3, 4] and list(dots.get_ydata()) == pytest.approx([0.5, 0.5])
    assert figure.axes[1].get_xlabel() == "optimizer step" and not figure.axes[0].get_xlabel()
    assert figure.axes[1].get_title(loc="left") == "minus one"


def test_a_run_directory_is_read_with_its_validation_losses(tmp_path):
    run = write_run(tmp_path / "run", [*TRAINING, {"step": 10, "val_loss": 4.5}])
    for source in (run, str(run)):
        line, marks = data_lines(figures.loss_curves({"run": source}, "It learns"))
        assert line.get_linestyle() == "-" and len(line.get_xdata()) == 20
        assert marks.get_linestyle() == "None" and list(marks.get_xdata()) == [10]


def test_a_step_logged_again_after_a_resume_counts_once_with_its_later_value(tmp_path):
    run = write_run(tmp_path / "run", [*TRAINING, {"step": 5, "loss": 9.0}])
    line = data_lines(figures.loss_curves({"run": run}, "It resumed"))[0]
    assert list(line.get_xdata()) == list(range(20)) and line.get_ydata()[5] == 9.0


def test_another_key_can_be_drawn():
    figure = figures.loss_curves({"run": [*TRAINING, {"step": 1, "val_loss": 3.0}]}, "The rate", key="learning_rate")
    assert len(data_lines(figure)) == 1 and figure.axes[0].get_ylabel() == "learning rate"


@pytest.mark.parametrize("ending", ["", "\n", '\n{"step": 20, "lo'])
def test_a_run_killed_in_mid_write_loses_only_the_unfinished_line(tmp_path, ending):
    assert figures.read_metrics(write_run(tmp_path / "run", TRAINING, ending)) == TRAINING


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "not a run directory"),
        ("", "no finished record"),
        ("not json\n", "line 1"),
        ("[1]\n", "line 1"),
        (b"\xff\xfe\n", "line 1"),
        ('{"loss": 1}\n', "'loss'"),
        ('{"step": "x", "loss": 1}\n', "'loss'"),
        ('{"step": 1, "val_loss": 2}\n', "'loss'"),
    ],
)
def test_a_run_without_metrics_is_refused_by_name(tmp_path, content, message):
    if content is not None:
        (tmp_path / "metrics.jsonl").write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(InputError, match=message):
        figures.loss_curves({"run": tmp_path}, "Nothing")


def test_a_loss_that_was_no_number_leaves_a_gap(tmp_path):
    """The metrics have null for NaN."""
    run = write_run(tmp_path / "run", [*TRAINING[:3], {"step": 3, "loss": None, "val_loss": None}, *TRAINING[4:]])
    [line] = data_lines(figures.loss_curves({"run": run}, "It diverged for a step"))
    assert list(line.get_xdata()) == [0, 1, 2, *range(4, 20)]


# --- timelines ------------------------------------------------------------------------------------------------------


def bar_spans(axes):
    """(left, right) in axis units of every drawn event, rounded, sorted."""
    boxes = [path.get_extents() for collection in axes.collections for path in collection.get_paths()]
    return sorted((round(box.x0, 3), round(box.x1, 3), round(box.y0, 2), round(box.y1, 2)) for box in boxes)


def test_each_group_starts_at_zero_and_groups_share_the_axis():
    early, late = {0: [event(100.0, 104.0)]}, {0: [event(7.0, 8.0)], 1: [event(7.5, 9.0)]}
    figure = figures.rank_lanes({"early": early, "late": late}, "Two groups")
    upper, lower = figure.axes
    assert [span[:2] for span in bar_spans(upper)] == [(0, 4)]
    assert [span[:2] for span in bar_spans(lower)] == [(0, 1), (0.5, 2)]
    assert upper.get_xlim() == lower.get_xlim() == (0, 4)
    assert [axes.get_title(loc="left") for axes in figure.axes] == ["early", "late"]


def test_the_parts_of_a_bar_stand_side_by_side_with_their_numbers():
    rows = {"rank 0": {"input": 3.0, "idle": 0.001}, "rank 1": {"input": 1.0, "idle": 4.0}}
    figure = figures.stacked_bars(rows, "Rank 1 waits", "ms")
    bars = [pytest.approx((bar.get_x(), bar.get_width())) for bar in figure.axes[0].patches]
    assert bars == [(0, 3), (0, 1), (3, 0.001), (1, 4)]
    assert {"3", "1", "4"} <= set(texts(figure)) and "0.001" not in texts(figure)
    assert [text.get_text() for text in figure.findobj(Legend)[0].get_texts()] == ["input", "idle"]


def test_each_cell_of_a_map_of_choices_has_its_word_and_its_colour():
    cells = {("7B", 1): "none", ("7B", 8): "shard", ("70B", 1): "none", ("70B", 8): "shard"}
    figure = figures.choices(cells, "Sharded", "model", "GPUs", nothing="none")
    boxes = {(bar.get_x(), bar.get_y()): bar.get_facecolor() for bar in figure.axes[0].patches}
    assert len(boxes) == 4 and boxes[0.5, -0.5] == boxes[0.5, 0.5] != boxes[-0.5, 0.5] == boxes[-0.5, -0.5]
    assert texts(figure).count("shard") == texts(figure).count("none") == 2 and {"7B", "70B", "8"} <= set(texts(figure))
    assert (figure.axes[0].get_ylabel(), figure.axes[0].get_xlabel()) == ("model", "GPUs")


def test_a_run_and_its_events_draw_the_same_picture():
    lanes = {0: [event(1.0, 2.0)], 1: [event(1.0, 3.0)]}
    run = SimpleNamespace(results={rank: {"events": events} for rank, events in lanes.items()})
    pictures = [figures.rank_lanes({"run": source}, "Same")._repr_png_()[0] for source in (lanes, run)]
    assert pictures[0] == pictures[1]


def test_compute_has_the_colour_of_its_rank_and_communication_is_dark():
    lanes = {2: [event(0.0, 1.0), event(1.0, 2.0, "communication"), event(2.0, 3.0, "idle")]}
    figure = figures.rank_lanes({"run": lanes}, "Kinds")
    faces = [colors.to_hex(c.get_facecolor()[0]).upper() for c in figure.axes[0].collections]
    assert faces == ["#EFEFEF", figures.rank_colour(2), "#2B2B2B"]
    assert [text.get_text() for text in figure.findobj(Legend)[0].get_texts()] == ["compute", "communication", "waits"]


def test_overlapping_communication_gets_its_own_half_of_the_lane():
    apart = {0: [event(0.0, 1.0), event(1.0, 2.0, "communication")]}
    over = {0: [event(0.0, 1.0), event(0.5, 1.5, "communication")]}
    heights = {}
    for name, lanes in (("apart", apart), ("over", over)):
        compute, communication = bar_spans(figures.rank_lanes({"run": lanes}, name).axes[0])
        heights[name] = (compute[2:], communication[2:])
    assert heights["apart"][0] == heights["apart"][1]
    assert heights["over"][0][1] <= heights["over"][1][0]  # rows grow downwards: computation ends above


def test_a_label_is_drawn_only_where_it_fits():
    lanes = {0: [event(0.0, 10.0, name="long one"), event(10.0, 10.01, name="short one")]}
    shown_texts = texts(figures.rank_lanes({"run": lanes}, "Labels"))
    assert "long one" in shown_texts and "short one" not in shown_texts


def test_a_rare_short_event_is_a_pixel_wide_but_many_are_not_widened():
    rare = {0: [event(0.0, 1.0), event(1.0, 1.0, "communication")]}
    spans = bar_spans(figures.rank_lanes({"run": rare}, "Rare").axes[0])
    assert spans[1][1] > spans[1][0]
    dense = {0: [event(i, i + 0.001, "communication") for i in range(1000)]}
    spans = bar_spans(figures.rank_lanes({"run": dense}, "Dense").axes[0])
    assert spans[10][1] - spans[10][0] == pytest.approx(0.001, abs=1e-3)


def test_short_runs_are_measured_in_milliseconds():
    figure = figures.rank_lanes({"run": {0: [event(1.0, 1.25)]}}, "Quick")
    assert figure.axes[0].get_xlabel().startswith("milliseconds")
    assert figure.axes[0].get_xlim()[1] == pytest.approx(250)


def test_lives_shows_the_pause_between_two_processes_and_which_steps_were_done_again():
    figure = figures.lives(LIFE, "Rank 0 starts again")
    [axes] = figure.axes
    spans = [(box.x0, box.x1) for part in axes.collections for path in part.get_paths() for box in [path.get_extents()]]
    assert spans == [(0, 2), (2, 3), (3, 4), (4, 5), (5, 6), (6, 7), (9, 11), (11, 12), (12, 13)]
    drawn = [colors.to_hex(part.get_facecolor()[0]).upper() for part in axes.collections]
    assert drawn[-2] == "#D55E00" and drawn[-1] == drawn[5] == "#9CCBEB"  # no rank's colour
    assert "killed" in texts(figure) and "rank 0" in texts(figure)


# --- collectives ----------------------------------------------------------------------------------------------------


def test_gathered_cells_keep_the_colours_of_their_owners():
    before, after = {0: [1], 1: [2]}, {0: [1, 2], 1: [1, 2]}
    figure = figures.collective("all_gather", before, after, "Everything is everywhere")
    cells = [colors.to_hex(p.get_facecolor()).upper() for p in figure.axes[0].patches if isinstance(p, Rectangle)]
    blue, orange = figures.rank_colour(0), figures.rank_colour(1)
    assert cells == [blue, orange, blue, orange, blue, orange]
    assert "all_gather" in texts(figure) and not any("combination" in text for text in texts(figure))


def test_sums_and_numbers_of_two_ranks_are_grey():
    summed = figures.collective("all_reduce", {0: [1], 1: [2]}, {0: [3], 1: [3]}, "A sum")
    assert "#DEDEDE" in patches_by_colour(summed) and any("combination" in text for text in texts(summed))
    shared = figures.collective("broadcast", {0: [7], 1: [7]}, {0: [7], 1: [7]}, "Whose?")
    assert "#DEDEDE" in patches_by_colour(shared)


def test_ranks_and_cells_without_data_are_drawn_empty():
    figure = figures.collective("scatter", {0: [5, 6], 1: None}, {0: [5, None], 1: [6]}, "Scattered")
    assert "nothing" in texts(figure)
    assert texts(figure).count("5") == 2 and "None" not in texts(figure)


def test_collective_takes_tensors():
    figure = figures.collective("broadcast", {0: torch.tensor([7, 8]), 1: None}, {0: [7, 8], 1: [7, 8]}, "Tensors")
    assert texts(figure).count("7") == 3
    assert "#DEDEDE" not in patches_by_colour(figure)


# --- bars and roofline ----------------------------------------------------------------------------------------------


def test_bars_carry_their_values_their_spread_and_the_colours_of_ranks():
    values = {"flat": (41.24, 1.3), "rank 1": 25, "loss": -3.0}
    figure = figures.bars(values, "Three bars", "ms", highlight=["flat"])
    assert {"41.2 ± 1.3 ms", "25 ms", "-3 ms"} <= set(texts(figure))
    assert patches_by_colour(figure) == {"#D55E00", figures.rank_colour(1), "#7A8794"}
    assert [bar.get_width() for bar in figure.axes[0].patches] == [41.24, 25, -3.0]


def test_the_roofline_says_what_share_of_its_roof_a_point_reaches():
    # At 1 FLOP a byte memory allows 1e10 FLOP/s; at 100 the peak allows 1e11.
    points = {"copy": (1.0, 5e9), "matmul": (100.0, 8e10)}
    shown_texts = texts(figures.roofline(1e11, 1e10, points, "Two points"))
    assert {"copy: 50 % of its roof", "matmul: 80 % of its roof", "peak 100 GFLOP/s", "memory 10 GB/s"} <= set(
        shown_texts
    )


def test_labels_of_crowded_points_do_not_overlap():
    points = {f"point {i}": (0.5 * 1.1**i, 4e9) for i in range(4)}
    figure = figures.roofline(1e11, 1e10, points, "Crowded")
    figure.draw_without_rendering()
    boxes = [Text.get_window_extent(text) for text in figure.axes[0].texts if text.get_text().startswith("point")]
    assert len(boxes) == 4
    assert not any(a.overlaps(b) for i, a in enumerate(boxes) for b in boxes[:i])


# --- command line and notebook --------------------------------------------------------------------------------------


def command_line(*arguments):
    environment = {key: value for key, value in os.environ.items() if key not in ("DISPLAY", "MPLBACKEND")}
    command = [sys.executable, "-m", "ddp_course.lab.figures", *map(str, arguments)]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600)


def test_the_command_line_writes_the_picture_and_prints_its_path(tmp_path):
    run = write_run(tmp_path / "run", TRAINING)
    finished = command_line(run)
    assert finished.returncode == 0, finished.stderr
    assert finished.stdout.strip() == str(run / "loss.png")
    assert Image.open(run / "loss.png").width == 750


def test_the_command_line_refuses_in_one_line(tmp_path):
    finished = command_line(tmp_path)
    assert finished.returncode == 1 and finished.stdout == ""
    assert len(finished.stderr.strip().splitlines()) == 1 and "metrics.jsonl" in finished.stderr


def test_a_notebook_shows_each_figure_exactly_once(tmp_path):
    """Also after the reader has drawn something with pyplot, which registers IPython's own formatter."""
    cells = [
        "from ddp_course.lab import figures",
        "figures.bars({'a': 1.0}, 'Only one', 's')",
        "kept = figures.bars({'a': 1.0}, 'Not shown', 's')",
        "import matplotlib.pyplot as plt\nplt.plot([1, 2])",
        "figures.bars({'a': 1.0}, 'Still one', 's')",
    ]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source) for source in cells])
    nbformat.write(notebook, tmp_path / "in.ipynb")
    papermill.execute_notebook(
        tmp_path / "in.ipynb", tmp_path / "out.ipynb", kernel_name="python3", progress_bar=False, log_output=False
    )
    executed = nbformat.read(tmp_path / "out.ipynb", as_version=4)
    images = [[output for output in cell.outputs if "image/png" in output.get("data", {})] for cell in executed.cells]
    assert [len(outputs) for outputs in images] == [0, 1, 0, 1, 1]
    assert images[1][0].metadata["image/png"]["alt"] == "Only one"
    assert images[1][0].data["text/plain"] == "Figure: Only one"


# --- animation ------------------------------------------------------------------------------------------------------


def animation(*titles_and_ranks):
    pictures = [
        figures.collective("send", {0: [n]}, {rank: [n + 1] for rank in range(ranks)}, title)
        for n, (title, ranks) in enumerate(titles_and_ranks)
    ]
    return figures.animation(pictures, seconds=0.5), pictures


def test_an_animation_is_one_png_that_holds_every_picture():
    animated, pictures = animation(*[("One more", 1)] * 3)
    shown, metadata = animated._repr_png_()
    image = Image.open(io.BytesIO(shown))
    assert image.n_frames == 3 and image.info["loop"] == 0 and metadata["alt"] == "One more"
    durations = []
    for number, picture in enumerate(pictures):
        image.seek(number)
        durations.append(image.info["duration"])
        difference = ImageChops.difference(image.convert("RGB"), picture.drawn())  # of 256 colours
        assert max(ImageStat.Stat(difference).mean) < 0.5, f"picture {number}"
    assert durations == [500, 500, 4000]
    assert len(shown) < sum(len(picture._repr_png_()[0]) for picture in pictures), "only what changes is stored again"


# --- what each rank has started -------------------------------------------------------------------------------------


def test_the_first_difference_between_ranks_is_framed_and_a_gap_is_labelled():
    started = {0: ["step"] * 6 + ["metric"], 1: ["step"] * 6}
    figure = figures.collectives_started(started, {0: "stands at line 9"}, "Rank 1 did not come")
    framed = [patch for patch in figure.axes[0].patches if patch.get_linewidth() > 0]
    assert len(framed) == 1 and colors.to_hex(framed[0].get_facecolor()).upper() == figures.rank_colour(0)
    shown_texts = texts(figure)
    assert shown_texts.count("step") == 8 and {"3", "6", "7", "metric", "not started", "stands at line 9"} <= set(
        shown_texts
    )
    assert "2" not in shown_texts  # the last five numbers only


# --- what cannot be drawn -------------------------------------------------------------------------------------------


def draw_lanes(lanes):
    return figures.rank_lanes(lanes, "Nothing")


def draw_rows(rows):
    return figures.stacked_bars(rows, "Nothing", "ms")


def draw_choices(cells):
    return figures.choices(cells, "Nothing", "a", "b")


def draw_collective(before):
    return figures.collective("all_reduce", before, {0: [1]}, "Nothing")


def draw_bars(values):
    return figures.bars(values, "Nothing", "s")


REFUSED = [  # the function, its message, and the data that it refuses
    (figures.rank_colour, "whole number", [-1, 1.0, True, "0"]),
    (lambda title: figures.bars({"a": 1.0}, title, "s"), "title", ["", "  ", None]),
    (lambda events: figures.lives(events, "Nothing"), "at least one event", [[]]),
    (lambda curves: figures.loss_curves(curves, "Nothing"), "at least one", [{}]),
    (lambda started: figures.collectives_started(started, {}, "Nothing"), "at least one rank", [{}]),
    (draw_lanes, "at least one group", [{}]),
    (draw_lanes, "no events", [{"run": {0: []}}]),
    (draw_lanes, "no list of events", [{"run": {0: None}}]),
    (draw_lanes, "start <= end", [{"run": {0: [event(2.0, 1.0)]}}]),
    (draw_lanes, "idle", [{"run": {0: [event(1.0, 2.0, "sleep")]}}]),
    (draw_lanes, "Rank 0", [{"run": {0: [{"name": "forward"}]}}]),
    (draw_lanes, "Rank 1", [{"run": SimpleNamespace(results={1: {}})}]),
    (draw_rows, "at least one row", [{}]),
    (draw_rows, "'x' of 'a' needs a number from 0 up", [{"a": {"x": -1.0}}, {"a": {"x": "1"}}]),
    (draw_rows, "the same parts", [{"a": {"x": 1.0}, "b": {"y": 1.0}}]),
    (draw_choices, "at least one cell", [{}]),
    (draw_choices, r"no cell for \('7B', 8\)", [{("7B", 1): "dp", ("70B", 8): "dp"}]),
    (draw_collective, "at least one rank in 'before'", [{}]),
    (draw_collective, "a list of numbers or None", [{0: 3}]),
    (draw_collective, "whole number", [{"a": [1]}]),
    (draw_bars, "at least one value", [{}]),
    (draw_bars, "The bar 'a' needs a number", [{"a": "fast"}, {"a": (1, 2, 3)}, {"a": None}, {"a": True}]),
    (
        lambda roofs: figures.roofline(*roofs, "Nothing"),
        "positive",
        [(0, 1e10, {}), (1e11, -1, {}), (1e11, 1e10, {"a": (0.0, 1e9)})],
    ),
    (
        lambda pictures: animation(*pictures),
        "two pictures or more, of one title and one size",
        [[("One", 1)], [("One", 1), ("Two", 1)], [("One", 1), ("One", 3)], []],
    ),
]


@pytest.mark.parametrize(
    ("draw", "message", "data"), [(draw, message, data) for draw, message, refused in REFUSED for data in refused]
)
def test_data_that_cannot_be_drawn_is_refused(draw, message, data):
    with pytest.raises(InputError, match=message):
        draw(data)


def test_a_missing_key_is_refused_with_those_that_are_there():
    with pytest.raises(InputError, match=r"'grad_norm'.*\['learning_rate', 'loss', 'step'\]"):
        figures.loss_curves({"run": TRAINING}, "Norms", key="grad_norm")
