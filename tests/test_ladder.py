"""The equivalence ladder: N processes are one process on the global batch, rung by rung.

Why equality is not bit-equality: N ranks add the same gradients in another order. One reordered sum of n terms
moves by about n times the unit roundoff (1e-16 in float64, 6e-8 in float32); a few steps amplify that. The
tolerances of 1e-10 and 1e-5 leave room for it and for nothing else: leaving one window out moves the loss by 1e-2.

First the trainer itself; then every rung of ladder_ddp.py, and that it notices mistakes.
"""

import functools
import os
from types import SimpleNamespace

import pytest
import shared_groups
import torch
import warm
from trainer_runs import train_in_turn
from training_runs import ROOT, arguments, checkpoint, largest_gap, metrics, train_here

from ddp_course import ladder_ddp
from ddp_course.base.errors import InputError
from ddp_course.data.token_file import open_tokens, prepare
from ddp_course.data.windows import window_starts
from ddp_course.distributed import process_group
from ddp_course.lab.figures import ladder_figure
from ddp_course.ladder import pipeline_rungs
from ddp_course.ladder.axes import with_tokens
from ddp_course.ladder.comparison import DIFFERENT
from ddp_course.ladder.setting import Setting
from ddp_course.ladder_ddp import LadderConfig, all_rungs, choose
from ddp_course.launcher import torchrun
from ddp_course.minigpt_ddp import PRESETS
from ddp_course.models.minigpt import MiniGPT, MiniGPTConfig
from ddp_course.training import memory

STEPS = 6
TOLERANCE = {"float64": 1e-10, "float32": 1e-5}
# 2,048 tokens per step, 64 per window: 32 windows. That is 4, 2, 1 micro-batches of 8 on 1, 2, 4 ranks; 16, 8, 4 of 2.
MICRO_BATCH, WHOLE_BATCH = {"some accumulation": 8, "more accumulation": 2}, 32


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """A function: (precision, micro-batch size, ranks) -> the folder of the run. As many ranks have one launch."""

    @functools.cache
    def folder_of(nproc):
        folder = tmp_path_factory.mktemp(f"ranks_{nproc}")
        sizes = [*MICRO_BATCH.values(), *([WHOLE_BATCH] if nproc == 1 else [])]
        flags = [(name, size) for name in TOLERANCE for size in sizes]
        train_in_turn([flags_of(folder / f"{name}_{size}", name, size) for name, size in flags], nproc, folder)
        return folder

    return lambda precision, micro_batch_size, nproc: folder_of(nproc) / f"{precision}_{micro_batch_size}"


def flags_of(run_dir, precision, micro_batch_size):
    return arguments(run_dir, "--steps", STEPS, "--precision", precision, "--micro-batch-size", micro_batch_size)


@pytest.mark.parametrize("nproc", [2, 4])
@pytest.mark.parametrize("accumulation", MICRO_BATCH)
@pytest.mark.parametrize("precision", TOLERANCE)
def test_n_processes_equal_one(runs, precision, accumulation, nproc):
    single = runs(precision, MICRO_BATCH[accumulation], 1)
    several = runs(precision, MICRO_BATCH[accumulation], nproc)
    tolerance = TOLERANCE[precision]
    for key in ("loss", "grad_norm", "val_loss"):
        assert metrics(several, key) == pytest.approx(metrics(single, key), abs=tolerance, rel=tolerance)
    assert len(metrics(single)) == STEPS
    assert largest_gap(checkpoint(several, STEPS)["model"], checkpoint(single, STEPS)["model"]) <= tolerance


@pytest.mark.parametrize("precision", TOLERANCE)
def test_accumulation_equals_one_large_batch(runs, precision):
    whole, parts = runs(precision, WHOLE_BATCH, 1), runs(precision, 2, 1)
    assert metrics(parts) == pytest.approx(metrics(whole), abs=TOLERANCE[precision])
    assert largest_gap(checkpoint(parts, STEPS)["model"], checkpoint(whole, STEPS)["model"]) <= TOLERANCE[precision]


def test_the_ladder_would_notice_another_seed(runs, tmp_path):
    """Another order of the same data is far outside every tolerance."""
    single = runs("float64", 8, 1)
    train_here(tmp_path, "--steps", STEPS, "--precision", "float64", "--seed", 2)
    assert largest_gap(checkpoint(tmp_path, STEPS)["model"], checkpoint(single, STEPS)["model"]) > 1e-3


def test_the_first_loss_is_that_of_the_data(runs):
    """Not only equal to each other, but correct: the first step's loss, computed without batches or a loss function."""
    config = PRESETS["tiny"]
    tokens = open_tokens(prepare("stdlib", "bytes"))
    torch.manual_seed(config.seed)
    model = MiniGPT(MiniGPTConfig(256, config.context, config.layers, config.heads, config.width)).double()
    total = 0.0
    for start in window_starts(config.seed, 0, 32, len(tokens.train), config.context):
        window = torch.from_numpy(tokens.train[start : start + config.context + 1].astype("int64"))
        log_probabilities = model(window[None, :-1])[0].log_softmax(-1)
        total -= log_probabilities[torch.arange(config.context), window[1:]].sum().item()
    assert metrics(runs("float64", 8, 2))[1] == pytest.approx(total / config.tokens_per_update, abs=1e-10)


# ---- every rung --------------------------------------------------------------------------------------------------

LADDER = ROOT / "ddp_course" / "ladder_ddp.py"
# {rung: the number of ranks from which on it differs}
DIFFERS_FROM = {rung.name: rung.differs_from for rung in all_rungs() if rung.expected == DIFFERENT}
FAULTS = ("no_all_reduce", "sum_for_mean", "same_share")
FOR_FAULTS = (
    "plain,accumulation,ragged token counts,fp16 messages,by hand: overlapped,by hand: bucketed,fully sharded,"
    "FSDP2: accumulation,FSDP2: hybrid,another world size,ring attention: zigzag,experts: balance loss"
).split(",")
ON_A_MESH = ("FSDP2 x tensor", "data x pipeline")  # with an axis for the data from 4 ranks on
BOUNDED = {"bf16", "fp16 and scaler", "fp16 messages", "PowerSGD messages"}


@pytest.fixture(scope="module")
def climb(tmp_path_factory):
    """A function: ranks -> {rung: its record}, from one climb of the whole ladder on as many ranks."""

    @functools.cache
    def records(nproc):
        out = tmp_path_factory.mktemp("ladder") / "records.jsonl"
        warm.ranks(shared_groups.__file__, "--steps", 4, "--out", out, nproc=nproc)
        return {record["rung"]: record for record in ladder_figure.read_ladder(out)}

    return records


@pytest.mark.parametrize("rung", [rung.name for rung in all_rungs()])
@pytest.mark.parametrize("nproc", [1, 2, 4])
def test_rung(climb, nproc, rung):
    record = climb(nproc)[rung]
    assert record["world_size"] == nproc and record["because"]
    assert all(record["facts"].values()), record["facts"]
    if rung in DIFFERS_FROM and nproc >= DIFFERS_FROM[rung]:
        assert record["gap"] > 1e6 * record["tolerance"], "the difference is far larger than rounding"
    else:
        assert record["gap"] <= record["tolerance"]
    assert record["as_expected"]


def test_only_bounded_rungs_have_wide_tolerances(climb):
    """Where equality is claimed, the tolerance leaves room for rounding alone."""
    for nproc in (1, 2, 4):
        wide = {name for name, record in climb(nproc).items() if record["tolerance"] > 1e-8}
        assert wide == BOUNDED
    assert climb(4)["PowerSGD messages"]["gap"] > 1e-6, "an approximation that is exact was not made"


def test_sync_batch_norm_needs_a_gpu(climb):
    assert "SyncBatchNorm expected input tensor to be on GPU" in climb(2)["BatchNorm"]["note"]


@pytest.fixture(scope="module")
def faulty(tmp_path_factory, module_launches_warm):
    """Another model, seed and size on 2 ranks, without a fault and with each: {(fault, rung): record}"""
    out = tmp_path_factory.mktemp("ladder") / "records.jsonl"
    flags = ("--model", "recurrent", "--seed", 29, "--width", 24, "--layers", 1, "--steps", 4)
    flags += ("--fault", ",".join(["none", *FAULTS]), "--rungs", ",".join(FOR_FAULTS))
    run = torchrun(LADDER, *flags, "--out", out, nproc=2, quiet=True, check=False, timeout=600)
    assert run.exit_code == 1, "with a fault, the ladder has to end with exit code 1"
    return {(record["fault"], record["rung"]): record for record in ladder_figure.read_ladder(out)}


@pytest.mark.parametrize("rung", FOR_FAULTS)
def test_rung_of_another_model_seed_and_size(faulty, rung):
    assert faulty["none", rung]["holds"]


@pytest.mark.parametrize("rung", FOR_FAULTS)
@pytest.mark.parametrize("fault", FAULTS)
def test_a_broken_rung_is_caught(faulty, fault, rung):
    """With one mistake in the training loop the gap of the rung is far larger than its tolerance."""
    record = faulty[fault, rung]
    assert not record["holds"] and not record["as_expected"]
    assert record["gap"] > (2 if rung in BOUNDED else 1000) * record["tolerance"]


def test_three_axes_of_two_ranks_each(tmp_path):
    """Eight ranks are the fewest for it. Each mistake of the data's axis is noticed as well."""
    out = tmp_path / "records.jsonl"
    flags = ("--fault", ",".join(["none", *FAULTS]), "--rungs", "data x pipeline x tensor,three axes: own norm")
    warm.ranks(shared_groups.__file__, *flags, "--steps", 2, "--out", out, nproc=8, exit_code=1)
    records = ladder_figure.read_ladder(out)
    assert len(records) == 2 * (1 + len(FAULTS))
    for record in records:
        wrong = record["fault"] != "none" or "own norm" in record["rung"]
        assert (record["gap"] > 1000 * record["tolerance"]) if wrong else record["gap"] <= record["tolerance"], record


@pytest.fixture(scope="module")
def faulty_on_a_mesh(tmp_path_factory):
    """Two axes of two ranks, with each mistake of the data's axis: {(fault, rung): record}"""
    out = tmp_path_factory.mktemp("ladder") / "records.jsonl"
    flags = ("--fault", ",".join([*FAULTS, "global_rank"]), "--rungs", ",".join(ON_A_MESH), "--steps", 2)
    warm.ranks(shared_groups.__file__, *flags, "--layers", 1, "--out", out, nproc=4, exit_code=1)
    return {(record["fault"], record["rung"]): record for record in ladder_figure.read_ladder(out)}


@pytest.mark.parametrize("rung", ON_A_MESH)
@pytest.mark.parametrize("fault", [*FAULTS, "global_rank"])
def test_a_broken_axis_of_the_data_is_caught(faulty_on_a_mesh, fault, rung):
    record = faulty_on_a_mesh[fault, rung]
    assert not record["holds"] and record["gap"] > 1000 * record["tolerance"]


def test_axes_of_three_ranks_and_sizes_that_do_not_divide(tmp_path):
    """Sizes are enlarged until they divide. With experts they are not, and one of three ranks has no window."""
    rungs = (
        "tensor: clipping,tensor: sequence,ZBVZeroBubble,ring attention: zigzag,Ulysses,experts: balance loss,"
        "data x experts,cp x ep,FSDP2 x tensor,data x pipeline,data x pipeline x tensor"
    )
    out = tmp_path / "records.jsonl"
    sizes = ("--seed", 31, "--width", 22, "--context", 5, "--windows", 2, "--steps", 2)
    warm.ranks(LADDER, "--rungs", rungs, *sizes, "--out", out, nproc=3)
    assert sorted(rungs.split(",")) == sorted(record["rung"] for record in ladder_figure.read_ladder(out))


@pytest.mark.parametrize("ranks", range(1, 13))
def test_sizes_are_enlarged_until_they_divide(ranks):
    """Sizes that divide are kept."""
    for setting in (Setting(), Setting(width=22, context=5, windows=3, layers=3)):
        fitted = with_tokens(setting, ranks)
        assert fitted.heads % ranks == 0 == fitted.width % fitted.heads and fitted.context % (2 * ranks) == 0
        assert fitted.width >= setting.width and fitted.context >= setting.context
        for per_rank in (1, 2):
            fitted = pipeline_rungs.fits(setting, ranks, per_rank, replicas=2)
            assert fitted.layers % (ranks * per_rank) == 0 and fitted.layers >= setting.layers
            micro_batches = pipeline_rungs.micro_batch_count(ranks)
            assert fitted.windows % (2 * micro_batches) == 0 and fitted.windows >= setting.windows
    assert with_tokens(Setting(), 4) == Setting(heads=4)


@pytest.mark.parametrize("out", ["file/records.jsonl", ".", "x" * 300, "/dev/full"])
def test_an_unwritable_out_is_refused_before_the_climb(tmp_path, monkeypatch, out):
    if out == "/dev/full" and not os.path.exists(out):
        pytest.skip("this system has no /dev/full")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("")
    done = warm.single_process(LADDER, "--out", out, "--steps", 1)
    assert done.returncode == 1 and done.stderr.startswith("error: cannot write --out "), done.stderr
    assert len(done.stderr.splitlines()) == 1 and len(done.stdout.splitlines()) <= 1, "a rung more was climbed"


def test_only_records_of_the_ladder_are_overwritten(tmp_path):
    out, flags = tmp_path / "out", ("--rungs", "plain", "--steps", 1)
    for content in (b"a note\n", b'{"rung": "plain"}\n', b"[1]\n", b"\xff\0"):
        out.write_bytes(content)
        path = tmp_path / "nowhere" / ".." / "out" if content == b"[1]\n" else out
        done = warm.single_process(LADDER, "--out", path, *flags)
        assert done.returncode == 1 and done.stderr == (
            f"error: --out {path} is there already and holds no records of the ladder; give another file\n"
        )
        assert out.read_bytes() == content
    out.write_bytes(b"")
    for _ in range(2):
        assert warm.single_process(LADDER, "--out", out, *flags).returncode == 0
        assert len(ladder_figure.read_ladder(out)) == 1


@pytest.mark.parametrize("flag", ["--width", "--windows", "--context"])
def test_a_size_that_no_machine_holds_is_refused_before_the_climb(flag):
    done = warm.single_process(LADDER, flag, 10**12, "--rungs", "plain")
    assert done.returncode == 1 and done.stderr.startswith("error: this climb needs at least"), done.stderr


def test_the_memory_of_all_layers_is_required(monkeypatch):
    """18 x 1000^2 float64 weights, their gradients and the optimizer's two averages take 0.58 GB; one layer, 0.19."""
    monkeypatch.setattr(memory.psutil, "virtual_memory", lambda: SimpleNamespace(available=int(0.5e9)))
    try:
        with pytest.raises(InputError, match="this climb needs at least 0.5 GiB of memory"):
            ladder_ddp.climb(LadderConfig(width=1000, layers=3, rungs="plain"))
    finally:
        process_group.stop()


def test_a_rung_that_does_not_exist_is_named():
    with pytest.raises(InputError, match="'plane' is no rung and no topic of the ladder; there are: plain, AdamW"):
        choose("AdamW,plane")
    assert [rung.name for rung in choose("by hand, resume")][-1] == "resume" and len(choose("by hand, resume")) == 4
    assert choose("data parallel,beyond data parallel") == choose("all") == all_rungs()
    names = [rung.name for rung in all_rungs()]
    assert len(set(names)) == len(names) and not any("," in name for name in names), "or --rungs could not choose it"
