"""The predictor: fits find what was put in, costs are counted, buckets are those of DDP, answers are intervals."""

import random
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.parallel import DistributedDataParallel
from training_runs import merged, one_process_group

from ddp_course.base.errors import InputError
from ddp_course.models.minigpt import MiniGPT, MiniGPTConfig
from ddp_course.plan import all_reduce, measurements
from ddp_course.plan.assumptions import ASSUMED, Range
from ddp_course.plan.ddp_step import DDP, expected_maximum, predict_step, worth_measuring
from ddp_course.plan.flags import bytes_per_second, read_range
from ddp_course.plan.job import Cluster, Job
from ddp_course.plan.link import Link, fit, fit_all_sizes
from ddp_course.plan.models import MODELS, gradients, named_model, tensors, transformer
from ddp_course.plan.schedule import MIB, Compute, Gradient, buckets, simulate
from ddp_course.predict.__main__ import main

KNOWN = {"mfu": Range(0.4, 0.4), "link_share": Range(0.8, 0.8), "latency": Range(1e-5, 1e-5), "spread": Range(0, 0)}
SIZES = [2**power for power in range(6, 25, 2)]

# ---- a link ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "speed"),
    [
        ("400Gb", 50e9),
        ("100 Mbit/s", 12.5e6),
        ("450GB", 450e9),
        ("10gbit", 1.25e9),
        ("1.5TB/s", 1.5e12),
        ("25Gbps", 3.125e9),
        ("800kbit", 1e5),
        ("8b", 1),
    ],
)
def test_a_speed_is_read_as_bits_or_bytes(text, speed):
    assert bytes_per_second(text) == pytest.approx(speed)


@pytest.mark.parametrize("text", ["", "fast", "400", "400G", "-1Gb", "0Gb", "4 00Gb", "1e9b", "Gb"])
def test_a_text_that_is_no_speed_is_refused(text):
    with pytest.raises(InputError, match="400Gb"):
        bytes_per_second(text)


def measured(link, ranks, burst=0, noise=0.05):
    """Nine times per size, on a link on which the first `burst` bytes of a message take no time."""
    chance = random.Random(1)
    return {
        size: [all_reduce.ring(max(0, size - burst), ranks, link) * (1 + noise * chance.random()) for _ in range(9)]
        for size in SIZES
    }


@pytest.mark.parametrize("ranks", [2, 3, 8])
def test_a_fit_finds_what_was_put_in(ranks):
    link = Link(2e-4, 11e6)
    fitted = fit(measured(link, ranks), ranks)
    assert fitted.alpha == pytest.approx(link.alpha, rel=0.2) and fitted.beta == pytest.approx(link.beta, rel=0.06)
    low, high = fitted.beta_interval
    assert low <= fitted.beta <= high and high / low < 1.06


def test_one_fit_over_all_sizes_is_led_astray_by_a_burst():
    link = Link(2e-4, 11e6)
    times = measured(link, 2, burst=40_000, noise=0)
    errors = {
        name: [abs(all_reduce.ring(size, 2, fitted) / times[size][0] - 1) for size in SIZES]
        for name, fitted in (("two", fit(times, 2)), ("one", fit_all_sizes(times, 2)))
    }
    large = slice(SIZES.index(2**18), None)
    assert max(errors["two"][large]) < 0.2 and max(errors["two"][large][1:]) < 0.05
    assert max(errors["one"]) > 0.4 > 0.1 > abs(fit(times, 2).alpha / link.alpha - 1)
    clean = fit_all_sizes(measured(link, 2, noise=0), 2)
    assert (clean.alpha, clean.beta) == pytest.approx((link.alpha, link.beta))


def test_an_interval_is_as_wide_as_the_noise():
    narrow, wide = (fit(measured(Link(1e-4, 1e7), 2, noise=noise), 2).beta_interval for noise in (0.01, 0.3))
    assert narrow[1] - narrow[0] < wide[1] - wide[0]


@pytest.mark.parametrize(
    ("seconds", "ranks", "message"),
    [
        ({1024: [1e-3], 2**20: [1e-2]}, 1, "at least 2 ranks"),
        ({1024: [1e-3]}, 2, "at least 262,144"),
        ({2**20: [1e-3]}, 2, "at most 4,096"),
        ({1024: [1e-2], 2**20: [1e-3]}, 2, "no longer than small"),
    ],
)
def test_missing_measurements_of_a_fit_are_named(seconds, ranks, message):
    with pytest.raises(InputError, match=message):
        fit(seconds, ranks)


# ---- all-reduces -----------------------------------------------------------------------------------------------------

SLOW, FAST = Link(1e-5, 1e9), Link(1e-6, 1e11)


def test_a_ring_sends_what_notebook_02b_counts():
    assert all_reduce.ring(4e9, 4, Link(0, 1e9)) == pytest.approx(6)  # 1.5 times its bytes
    assert all_reduce.ring(0, 4, Link(1, 1e9)) == 6  # six messages
    assert all_reduce.ring(4e9, 1, SLOW) == 0


def test_a_library_takes_the_tree_for_small_messages_and_the_ring_for_large_ones():
    assert all_reduce.library(8, 1024, SLOW) == all_reduce.tree(8, 1024, SLOW) < all_reduce.ring(8, 1024, SLOW)
    assert all_reduce.library(1e9, 4, SLOW) == all_reduce.ring(1e9, 4, SLOW) < all_reduce.tree(1e9, 4, SLOW)
    assert all_reduce.tree(1e9, 1, SLOW) == 0


def test_nodes_of_one_gpu_and_a_single_node_are_plain_cases():
    for both in (all_reduce.hierarchical, all_reduce.pipelined):
        assert both(1e8, 1, 8, FAST, SLOW) == pytest.approx(all_reduce.ring(1e8, 8, FAST))
        assert both(1e8, 6, 1, FAST, SLOW) == pytest.approx(all_reduce.library(1e8, 6, SLOW))


def test_rails_share_the_work_and_phases_side_by_side_save_time():
    rails = [all_reduce.hierarchical(1e9, 8, 8, FAST, SLOW, rails) for rails in (1, 2, 8)]
    assert rails[0] > rails[1] > rails[2]
    assert rails[0] == pytest.approx(8 * rails[2], rel=0.2)
    assert all_reduce.pipelined(1e9, 8, 8, FAST, SLOW) < rails[2] < all_reduce.ring(1e9, 64, SLOW)
    with pytest.raises(InputError, match="1 to 8 network cards, got 9"):
        all_reduce.hierarchical(1e9, 8, 8, FAST, SLOW, 9)


# ---- DDP's schedule --------------------------------------------------------------------------------------------------


def bucket_sizes(cap):
    """Bytes of the buckets that DDP sends."""
    model = DistributedDataParallel(MiniGPT(MiniGPTConfig(256, 128, 4, 4, 192)), bucket_cap_mb=cap)
    sizes, tokens = [], torch.zeros(1, 16, dtype=torch.long)

    def hook(group, bucket):
        sizes.append(bucket.buffer().nbytes)
        return allreduce_hook(group, bucket)

    model.register_comm_hook(None, hook)
    for _ in range(3):  # DDP forms its buckets after the first backward
        sizes.clear()
        model(tokens, tokens).backward()
    return sizes


def test_the_buckets_are_those_of_ddp():
    small = gradients(transformer(4, 192, 4, 256, 128))
    with one_process_group():
        sizes_by_cap = {cap: bucket_sizes(cap) for cap in (None, 0.25, 1, 4, 100)}
    for cap, sizes in sizes_by_cap.items():
        assert [bucket.bytes for bucket in buckets(small, cap)] == sizes, cap
    default, *counts = (len(sizes) for sizes in sizes_by_cap.values())
    assert default > 1 == counts[-1] and counts == sorted(set(counts), reverse=True)


FOUR = [Gradient(MIB, 1)] * 4


def run(**how):
    """Forward 1 s, backward 4 s, optimizer 0.5 s, four gradients of 1 MiB, a message takes 2 s per MiB."""
    settings = {"all_reduce": lambda size: 2.0 * size / MIB, "bucket_mib": 1, **how}
    return simulate(Compute(1, 4, 0.5), FOUR, **settings)


def spans(step, kind):
    return [(event["start"], event["end"]) for event in step.events if event["kind"] == kind]


def test_a_schedule_worked_out_by_hand():
    step = run()
    # complete at 2, 3, 4, 5; the link is busy from 2 to 10
    assert spans(step, "communication") == [(2, 4), (4, 6), (6, 8), (8, 10)]
    assert [event["ready"] for event in step.events if event["kind"] == "communication"] == [2, 3, 4, 5]
    assert (step.seconds, step.exposed) == (10.5, 5)
    assert spans(step, "compute") == [(0, 1), (1, 5), (10, 10.5)] and spans(step, "idle") == [(5, 10)]


@pytest.mark.parametrize(
    ("how", "seconds", "why"),
    [
        ({"all_reduce": lambda size: 0.0}, 5.5, "one rank computes only"),
        ({"overlap": False}, 13.5, "all messages after backward"),
        ({"bucket_mib": 4}, 13.5, "one bucket leaves when backward is over"),
        ({"bucket_mib": 2}, 11.5, "the first of two leaves at 3"),
        ({"all_reduce": lambda size: 0.5}, 6.0, "a quick link hides all but the last message"),
        ({"accumulation": 3}, 20.5, "two micro-batches without messages, then as before"),
        ({"accumulation": 3, "no_sync": False}, 30.5, "messages in every micro-batch"),
    ],
)
def test_each_rule_changes_the_step_as_worked_out_by_hand(how, seconds, why):
    assert run(**how).seconds == pytest.approx(seconds), why


def test_costs_say_when_a_gradient_is_complete():
    late = [Gradient(MIB, 0), Gradient(MIB, 0), Gradient(MIB, 3), Gradient(MIB, 1)]
    step = simulate(Compute(1, 4), late, lambda size: 0.1, bucket_mib=1)
    assert [start for start, _ in spans(step, "communication")] == pytest.approx([1, 1.1, 4, 5])


def test_the_first_bucket_is_small_by_default_only():
    gradients = [Gradient(MIB // 2, 1)] * 80
    assert [bucket.bytes / MIB for bucket in buckets(gradients)] == [1, 25, 14]
    assert [bucket.bytes / MIB for bucket in buckets(gradients, 25)] == [25, 15]


def test_bad_schedules_are_named():
    for how, message in (({"bucket_mib": 0}, "above 0 MiB"), ({"accumulation": 0}, "at least one micro-batch")):
        with pytest.raises(InputError, match=message):
            run(**how)
    with pytest.raises(InputError, match="at least one gradient"):
        buckets([])


# ---- models and machines ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["tiny", "laptop", "gpt2", "gpt2-xl"])
def test_a_model_has_the_tensors_of_the_real_one(name):
    named = MODELS[name]
    with torch.device("meta"):
        real = MiniGPT(MiniGPTConfig(named.vocabulary, named.context, named.layers, named.heads, named.width))
    assert tensors(named) == [parameter.numel() for parameter in real.parameters()][::-1]
    assert [gradient.bytes for gradient in gradients(named, 2)] == [2 * size for size in tensors(named)]


def test_models_have_the_published_numbers_of_parameters():
    assert MODELS["llama3-8b"].parameters == 8_030_261_248
    assert MODELS["llama3-405b"].parameters == pytest.approx(405.85e9, rel=1e-4)
    assert named_model("1.3B").parameters == pytest.approx(1.3e9, rel=0.1)
    assert named_model("1.3e9") == named_model("1.3B")
    for name in ("gpt5", "", "B", "-3B", "nanB", "1", "9000B"):  # the largest GPT-2 that is tried has 3T
        with pytest.raises(InputError, match="there are tiny, laptop, gpt2"):
            named_model(name)


def test_flops_count_looked_up_rows_as_nothing_and_the_output_once():
    llama, gpt2 = MODELS["llama3-8b"], MODELS["gpt2"]
    matrices = llama.parameters - llama.vocabulary * llama.width
    assert replace(llama, context=1).flops_per_token == pytest.approx(6 * matrices + 12 * llama.layers * llama.width)
    assert sum(gradient.cost for gradient in gradients(gpt2)) == pytest.approx(gpt2.parameters - 1024 * 768)


def test_the_usual_computation_is_neither_lucky_nor_disturbed():
    records = [(factor / 2, factor, 0.1) for factor in (0.5, 1.0, 1.0, 1.1, 30)]
    assert measurements.usual_compute(records) == Compute(0.5, 1.0, 0.1)


# ---- a planned job ---------------------------------------------------------------------------------------------------


def ddp(gpus=64, link="400Gb", cards=None, windows=8, **changes):
    """windows: per GPU and optimizer step."""
    cluster = Cluster(gpus, 80e9, bytes_per_second(link), cards=cards)
    return DDP(Job(MODELS["gpt2"], cluster, gpus * windows * 1024), **{"ranges": KNOWN, **changes})


def efficiency(**changes):
    return predict_step(ddp(**changes)).efficiency.middle


def test_one_gpu_has_a_speed_up_of_one_and_known_numbers_no_interval():
    single = predict_step(ddp(gpus=1))
    assert single.speed_up.middle == pytest.approx(1) and single.step.low == single.step.high
    many = predict_step(ddp())
    assert 32 < many.speed_up.middle < 64 and many.efficiency.middle == pytest.approx(many.speed_up.middle / 64)


def test_what_slows_a_cluster_down_lowers_its_efficiency():
    usual = efficiency()
    for change in (
        {"link": "10Gb"},
        {"cards": 1, "link": "100Gb"},
        {"ranges": {**KNOWN, "spread": Range(0.05, 0.05)}},
        {"ranges": {**KNOWN, "latency": Range(1e-3, 1e-3)}},
        {"micro_batch": 1, "windows": 1},
    ):
        assert efficiency(**change) < usual - 0.01, change
    slow = {"link": "10Gb"}
    for change in ({"windows": 64}, {"gradient_bytes": 2}, {"micro_batch": 32, "windows": 32}):
        assert efficiency(**slow, **change) > efficiency(**slow) + 0.01, change


def test_strong_scaling_keeps_the_global_batch():
    strong = ddp(strong=True)
    assert {strong.on(count).job.tokens for count in (1, 8, 64, 256)} == {512 * 1024}
    assert strong.on(8).micro_batches() == (8, 8) and strong.on(256).micro_batches() == (2, 1)
    assert {ddp().on(count).micro_batches() for count in (1, 8, 64, 256)} == {(8, 1)}
    assert predict_step(strong.on(256)).efficiency.middle < efficiency(gpus=256)
    with pytest.raises(InputError, match="512 windows does not divide into 24 GPUs"):
        strong.on(24).micro_batches()


def test_an_interval_holds_what_would_be_measured_and_narrows_with_knowledge():
    unknown = ddp(ranges=ASSUMED)
    wide = predict_step(unknown)
    truth = predict_step(ddp())
    assert wide.step.low < truth.step.middle < wide.step.high
    worth = worth_measuring(unknown)
    assert set(worth) == set(ASSUMED) and max(worth, key=lambda name: worth[name]["step"]) == "mfu"
    slow = worth_measuring(ddp(ranges=ASSUMED, link="10Gb"))
    assert max(slow, key=lambda name: slow[name]["step"]) == "link_share"
    narrower = predict_step(replace(unknown, ranges={**ASSUMED, "mfu": Range(0.4, 0.4)}))
    assert narrower.step.high / narrower.step.low < wide.step.high / wide.step.low
    assert worth_measuring(ddp()) == {}


def test_a_step_waits_for_the_slowest_of_many():
    for count in (2, 16, 256):
        drawn = np.random.default_rng(0).normal(size=(2000, count)).max(axis=1).mean()
        assert expected_maximum(count) == pytest.approx(drawn, abs=0.08)
    assert expected_maximum(1) == 0


# ---- from a shell ----------------------------------------------------------------------------------------------------


def test_the_program_answers(capsys):
    assert main(["--model", "gpt2", "--gpus", "64", "--link", "400Gb", "--tokens", "300e9", "--price", "2"]) == 0
    out = capsys.readouterr().out
    assert "524,288 tokens per update, weak scaling" in out and "3e+11 tokens:" in out and "a million tokens" in out
    assert [line.split()[0] for line in out.splitlines() if line[:6].strip().isdigit()] == "2 4 8 16 32 64".split()
    assert "of the step: measure the time of a micro-batch" in out and "--micro-batch-seconds" in out


def test_measured_numbers_are_not_asked_for(capsys):
    words = "--gpus 16 --link 100Gb --micro-batch-seconds 0.05 --link-share 0.8 --latency-us 10 --spread 0.01"
    assert main(words.split()) == 0
    assert capsys.readouterr().out.count("nothing is left to measure") == 2


def test_a_model_that_does_not_fit_is_noted(capsys):
    assumptions = "--link 400Gb --mfu 0.4 --link-share 0.8 --latency-us 10 --spread 0"
    assert main(f"--model 7B --gpus 8 {assumptions}".split()) == 0
    text = capsys.readouterr().out
    assert "DDP does not fit" in text and "python -m ddp_course.plan" in text
    assert main(f"--model gpt2 --gpus 8 {assumptions}".split()) == 0
    assert "does not fit" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ("--gpus many", "invalid int value"),
        ("--gpus 0", "--gpus is from 1 to 131,072, got 0"),
        ("--gpus 1000000000000000", "--gpus is from 1 to 131,072"),
        ("--gpus 65", "take 64 or 72"),
        ("--link fast", "cannot read the speed 'fast'"),
        ("--gpu tpu", "no GPU 'tpu'"),
        ("--model bert", "no model 'bert'"),
        ("--mfu 1.5", "at most 1"),
        ("--mfu 0.5-0.3", "--mfu is a number"),
        ("--mfu x", "--mfu is a number"),
        ("--mfu 0", "above 0"),
        ("--mfu 0.4 --micro-batch-seconds 1", "say the same twice"),
        ("--micro-batch-seconds 1e-6", "of the GPU's peak"),
        ("--micro-batch-seconds 0", "above 0"),
        ("--global-batch 100", "does not divide"),
        ("--context 0", "--context is at least 1, got 0"),
        ("--micro-batch 0", "at least 1"),
        ("--accumulation -1", "at least 1"),
        ("--bucket-mib 0", "above 0 MiB"),
        ("--cards-per-node 9", "1 to 8 network cards"),
        ("--gradient-bytes 0", "above 0"),
        ("--price -1", "above 0"),
        ("--tokens 0", "above 0"),
        ("--peak-tflops nan", "above 0"),
        ("--inside 3", "cannot read the speed"),
        ("--gpus-per-node 0", "at least 1"),
        ("--global-batch 0", "--global-batch is at least 1, got 0"),
        ("--latency-us -3", "--latency-us"),
        ("--spread nan", "--spread is a number"),
    ],
)
def test_bad_input_is_one_line(flags, message, capsys):
    assert main(merged("--gpus", "64", "--link", "400Gb", *flags.split())) == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1


def test_ranges_are_read():
    assert read_range("0.4", "x") == Range(0.4, 0.4) and read_range("0.3-0.5", "x") == Range(0.3, 0.5)
    assert read_range("1e-2", "x") == Range(0.01, 0.01)


# ---- runs that were measured -----------------------------------------------------------------------------------------


def test_stored_runs_come_back(tmp_path):
    runs = {2: {0: {"100mbit": {"compute": [[0.123456789, 1.0]], "steps": [[None, 1, [0.5]]]}}, 1: {}}}
    measurements.save(runs, tmp_path / "kept" / "steps.json")
    assert measurements.load(tmp_path / "kept" / "steps.json") == {
        2: {0: {"100mbit": {"compute": [[0.1235, 1.0]], "steps": [[None, 1, [0.5]]]}}, 1: {}}
    }


def test_the_stored_runs_have_what_the_notebook_shows():
    kept = measurements.load()
    assert {nodes: sorted(ranks) for nodes, ranks in kept.items()} == {n: list(range(n)) for n in (1, 2, 3, 4)}
    for nodes, ranks in kept.items():
        assert len({tuple(record) for record in ranks.values()}) == 1 and len(ranks[0]) == (3 if nodes > 1 else 1)
        for record in ranks[0].values():
            assert set(record) == {"all_reduce", "compute", "steps"}
            assert len(record["steps"]) == 4 and all(times for _, _, times in record["steps"])
