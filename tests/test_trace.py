"""Ranks' traces on one clock, and where a step's time goes: on traces of which everything is known."""

import gzip
import json

import pytest

from ddp_course.base.errors import InputError
from ddp_course.lab.step_shares import EXPOSED, IDLE, fastest, hidden_share, lane, part_seconds, steps_of
from ddp_course.lab.trace import aligned, clocks, lateness, matched, read_traces, save_merged, transfers

pytestmark = pytest.mark.smoke

TRAINS, GLOO = 11, 12  # threads
# One step from 0 to 100 ms: the message leaves at 50, is exposed from 70 to 90, and 98 to 100 belongs to nothing.
STEP = [("step", 0, 100), ("input", 0, 10), ("forward", 10, 40), ("backward", 40, 92), ("optimizer", 92, 98)]
WORK = [
    ("aten::mm", 12, 38),
    ("MmBackward0", 40, 70),
    ("aten::mm", 41, 69),
    ("aten::copy_", 90, 92),
    ("aten::add_", 93, 97),
]
MESSAGES = [("gloo:all_reduce", 50, 90)]


def event(name, start, end, thread, category, shape="[[8]]"):
    return {
        "ph": "X",
        "name": name,
        "cat": category,
        "ts": 1e3 * start,
        "dur": 1e3 * (end - start),
        "tid": thread,
        "pid": 4000 + thread,
        "args": {"Input Dims": shape},
    }


def write(folder, rank=0, messages=MESSAGES, base=0, shift=0.0, step=STEP, work=WORK):
    """A rank's trace as torch writes it; `shift` (ms) is how far its clock is ahead."""
    events = [event(name, a + shift, b + shift, TRAINS, "user_annotation") for name, a, b in step]
    events += [event(name, a + shift, b + shift, TRAINS, "cpu_op") for name, a, b in work]
    events += [event(name, a + shift, b + shift, GLOO, "user_annotation") for name, a, b in messages]
    events += [
        {"ph": "M", "name": "process_name", "pid": 4, "args": {"name": "python"}},
        {"ph": "s", "name": "fwdbwd", "id": 3, "ts": 5e3, "pid": 4, "tid": TRAINS},
    ]
    path = folder / f"rank{rank}.json"
    path.write_text(json.dumps({"baseTimeNanoseconds": base, "distributedInfo": {"rank": rank}, "traceEvents": events}))
    return path


def twice(spans):
    """The spans, and again 200 ms later."""
    return [*spans, *((name, start + 200, end + 200) for name, start, end in spans)]


def test_the_parts_of_a_step_add_up_to_it_also_as_medians_of_two_steps(tmp_path):
    [trace] = read_traces([write(tmp_path, step=twice(STEP), work=twice(WORK), messages=twice(MESSAGES))]).values()
    results = {part: round(1e3 * seconds, 6) for part, seconds in part_seconds(trace).items()}
    parts = {"input": 10, "forward": 30, "backward": 32, EXPOSED: 20, "optimizer": 6, IDLE: 2}
    assert results == parts | {"messages": 40, "step": 100}
    assert hidden_share(trace) == pytest.approx(0.5)


def test_a_message_outside_backward_counts_where_the_step_waits_for_it(tmp_path):
    [trace] = read_traces([write(tmp_path, messages=[("gloo:all_reduce", 97, 100)])]).values()
    results = part_seconds(trace)
    assert results[EXPOSED] == pytest.approx(0.003) and results["optimizer"] == pytest.approx(0.005)


def test_a_step_without_messages_hides_nothing(tmp_path):
    [trace] = read_traces([write(tmp_path, messages=[])]).values()
    assert part_seconds(trace)[EXPOSED] == 0
    with pytest.raises(InputError, match="nothing to hide"):
        hidden_share(trace)
    [trace] = read_traces([write(tmp_path, step=[])]).values()
    with pytest.raises(InputError, match="no step"):
        part_seconds(trace)


def test_a_lane_has_the_parts_the_waiting_and_the_messages_one_after_the_other(tmp_path):
    two = [("gloo:all_reduce", 50, 70), ("gloo:all_reduce", 55, 90)]
    [trace] = read_traces([write(tmp_path, messages=two)]).values()
    drawn = lane(trace, steps_of(trace)[0])
    parts = [(part["name"], round(1e3 * part["start"]), round(1e3 * part["end"])) for part in drawn]
    assert parts == [
        ("input", 0, 10),
        ("forward", 10, 40),
        ("backward", 40, 70),
        ("backward", 90, 92),
        ("optimizer", 92, 98),
        ("waits", 70, 90),
        ("0", 50, 70),
        ("1", 70, 90),
    ]


def two_ranks(folder, ahead=0.0, **more):
    """Rank 1 starts each all-reduce 2 ms after rank 0 and ends it 0.1 ms after it."""
    messages = (10, 20), (50, 90), (95, 97)
    later = [("gloo:all_reduce", start + 2, end + 0.1) for start, end in messages]
    earlier = [("gloo:all_reduce", *span) for span in messages]
    return read_traces([write(folder, 0, earlier), write(folder, 1, later, shift=ahead, **more)])


@pytest.mark.parametrize("ahead", [0.0, 250.0, -3.0])
def test_clocks_are_aligned_by_the_ends_of_all_reduces(tmp_path, ahead):
    traces = two_ranks(tmp_path, ahead)
    clock = clocks(traces)[1]
    assert clock.low <= ahead / 1e3 <= clock.high
    assert abs(clock.ahead - ahead / 1e3) < 0.2e-3 and clock.high - clock.low < 5e-3
    ends = [spans[1].end - spans[0].end for spans in matched(aligned(traces, clocks(traces)))]
    assert max(map(abs, ends)) < 0.2e-3


def test_the_straggler_is_the_rank_that_starts_last(tmp_path):
    traces = two_ranks(tmp_path, ahead=250.0)
    late = lateness(aligned(traces, clocks(traces)))
    assert late[0] == 0 and late[1] == pytest.approx(2e-3, abs=0.3e-3)
    assert transfers(two_ranks(tmp_path)) == pytest.approx([0.0081, 0.0381, 0.0001], abs=1e-6)
    with pytest.raises(InputError, match="share no all-reduce"):
        lateness(read_traces([write(tmp_path, 0, [("gloo:broadcast", 1, 2)])]))


def test_the_fastest_step_has_the_fastest_slowest_rank(tmp_path):
    times = {0: [(0, 100), (200, 240), (300, 360)], 1: [(0, 110), (200, 290), (300, 365)]}  # ms
    paths = [
        write(
            tmp_path,
            rank,
            [("gloo:all_reduce", a + 1, b - 1) for a, b in several],
            shift=250.0 * rank,
            base=10**9 * rank,
            work=[],
            step=[(name, a, b) for a, b in several for name in ("step", "backward")],
        )
        for rank, several in times.items()
    ]
    results = fastest(read_traces(paths))
    assert {rank: part_seconds(trace)["step"] for rank, trace in results.items()} == pytest.approx({0: 0.06, 1: 0.065})
    assert [len(trace.messages) for trace in results.values()] == [1, 1]
    assert part_seconds(results[1])[EXPOSED] == pytest.approx(0.063)


def test_the_base_time_of_a_file_counts(tmp_path):
    traces = two_ranks(tmp_path, ahead=-2000.0, base=2 * 10**9)
    assert abs(clocks(traces)[1].ahead) < 0.2e-3


def test_the_kth_message_of_one_shape_meets_the_kth(tmp_path):
    path = write(tmp_path, 1)
    raw = json.loads(path.read_text())
    raw["traceEvents"].append(event("gloo:all_reduce", 30, 49, GLOO, "user_annotation", "[[3]]"))
    path.write_text(json.dumps(raw))
    [spans] = matched(read_traces([write(tmp_path, 0), path]))
    assert spans[0].shape == spans[1].shape == "[[8]]"


def test_of_nccl_the_span_on_the_gpu_counts(tmp_path):
    """The CPU queues an all-reduce in a moment, each rank at its own time; the GPU has it under way till all end it."""
    paths = []
    for rank, late in enumerate((0, 6)):
        path = write(tmp_path, rank, messages=[])
        raw = json.loads(path.read_text())
        for start, end in ((10, 20), (50, 90)):
            raw["traceEvents"] += [
                event("nccl:all_reduce", start + late - 5, start + late - 4, TRAINS, "user_annotation"),
                event("nccl:all_reduce", start + late, end, 20, "gpu_user_annotation", shape=""),
                event("ncclDevKernel_AllReduce_Sum_f32_RING_LL(...)", start + late, end, 20, "kernel", shape=""),
            ]
        path.write_text(json.dumps(raw))
        paths.append(path)
    traces = read_traces(paths)
    assert [len(trace.messages) for trace in traces.values()] == [2, 2]
    assert abs(clocks(traces)[1].ahead) < 1e-6
    assert lateness(traces) == pytest.approx({0: 0, 1: 6e-3}) and transfers(traces) == pytest.approx([4e-3, 34e-3])


def test_traces_of_two_runs_and_other_files_are_refused(tmp_path):
    (tmp_path / "a").mkdir()
    ends = {0: 60, 1: 160}  # of an all-reduce, on each rank
    paths = [
        write(tmp_path, rank, [("gloo:all_reduce", 10, 20), ("gloo:all_reduce", end - 10, end)])
        for rank, end in ends.items()
    ]
    with pytest.raises(InputError, match="of one run"):
        clocks(read_traces(paths))
    with pytest.raises(InputError, match="share no all-reduce"):
        clocks(read_traces([write(tmp_path, 0), write(tmp_path, 1, [("gloo:broadcast", 1, 2)])]))
    with pytest.raises(InputError, match="several of rank 0"):
        read_traces([write(tmp_path), write(tmp_path / "a")])
    (tmp_path / "bad.json").write_text("{}")
    (tmp_path / "damaged.json.gz").write_bytes(gzip.compress(b"{}")[:-9])
    with pytest.raises(InputError, match=r"damaged\.json\.gz should be a trace"):
        read_traces([tmp_path / "damaged.json.gz"])
    with pytest.raises(InputError, match=r"bad\.json should be a trace"):
        read_traces([tmp_path / "bad.json"])


def test_the_merged_file_has_a_process_per_rank_on_one_clock(tmp_path):
    traces = two_ranks(tmp_path, ahead=250.0)
    aligned_traces = aligned(traces, clocks(traces))
    count = save_merged(aligned_traces, tmp_path / "merged.json.gz")
    events = json.loads(gzip.decompress((tmp_path / "merged.json.gz").read_bytes()))["traceEvents"]
    assert len(events) == count == sum(len(trace.events) for trace in traces.values())
    assert {e["args"]["name"]: e["pid"] for e in events if e["ph"] == "M"} == {"rank 0": 0, "rank 1": 1}
    assert [e["id"] for e in events if e["ph"] == "s"] == ["0.3", "1.3"]
    starts = [e["ts"] for e in events if e["name"] == "step"]
    assert abs(starts[1] - starts[0]) < 200  # microseconds
    assert traces[0].events == two_ranks(tmp_path, ahead=250.0)[0].events, "merging changed what was read"
