"""parallel_ddp.py trains as minigpt_ddp.py does: on every mesh, and after a resume from and to any mesh."""

import itertools
import math
import os
from types import SimpleNamespace
from unittest import mock

import pytest
import torch
from trainer_runs import run_jobs
from training_runs import RECORDED_LOG, checkpoint, in_this_process, largest_gap, merged, metrics, same, train_here

from ddp_course import parallel_ddp
from ddp_course.base.errors import InputError
from ddp_course.distributed.context_parallel import zigzag
from ddp_course.distributed.dropout_masks import Masks, window_keys
from ddp_course.distributed.mesh import Axis
from ddp_course.distributed.tensor_parallel import Placement
from ddp_course.models.minigpt import MiniGPT, MiniGPTConfig
from ddp_course.trainers.minigpt_stage import Stage
from ddp_course.training.command_line import parse

AXES = "pp", "dp", "shard", "cp", "tp"
STEPS, EQUAL = 4, 1e-10  # a larger gap in float64 is no rounding: test_a_mistake_on_any_axis_shows
SIZES = "--precision float64 --layers 4 --heads 4 --width 32 --context 16 --tokens-per-update 128 --micro-batch-size 2"
SAVES = "--validation-windows 11 --validate-every 2 --checkpoint-every 2 --keep-checkpoints 0"
FLAGS = ("--data", RECORDED_LOG, "--steps", STEPS, *SIZES.split(), *SAVES.split())
GROUPED = ("--kv-heads", 2)
PACKED = ("--pack", "--activation-checkpointing", "--gradient-clip", 0)
DROPOUT = (*GROUPED, "--dropout", 0.2)
MIXED = ("--precision", "float32", "--param-dtype", "bfloat16")
ONE_STEP = ("--steps", 1)
# Each axis by itself, and the meshes whose checkpoints are resumed from; the others weekly.
MESHES_OF_FOUR = (4, 1, 1, 1, 1), (1, 1, 4, 1, 1), (1, 1, 1, 4, 1), (1, 1, 1, 1, 4)
MESHES_OF_FOUR += (2, 1, 2, 1, 1), (1, 1, 1, 2, 2), (2, 1, 1, 1, 2)
SETTINGS = {"packed": PACKED, "grouped": GROUPED, "dropout": DROPOUT}
SETTINGS_ON = [  # one of SETTINGS, a mesh, and flags that change no number
    ("packed", (2, 1, 1, 2, 1), ("--schedule", "gpipe")),
    ("packed", (1, 2, 1, 1, 2), ()),
    ("packed", (1, 1, 2, 2, 1), ()),
    ("grouped", (1, 1, 1, 2, 2), ()),
    ("grouped", (1, 1, 2, 1, 2), ()),
    ("dropout", (1, 1, 1, 2, 2), ()),
    ("dropout", (1, 2, 2, 1, 1), ()),
    ("dropout", (2, 1, 1, 1, 2), ("--activation-checkpointing",)),
]
MIXED_ON = (1, 2, 2, 1, 1), (2, 1, 1, 1, 2), (1, 1, 1, 2, 2)
BAD_MASKS = {"dropout: another mask on each rank": (1, 2, 1, 1, 2), "dropout: one mask for all shares": (1, 2, 2, 1, 1)}
BROKEN = {
    "tp: gradients of the input are not summed": (1, 2, 1, 1, 2),
    "tp: queries, keys and values are cut as one": (1, 2, 1, 1, 2),
    "tp: gradients of the norms are not added": (1, 2, 1, 1, 2),
    "tp: the softmax is over the own vocabulary": (1, 2, 1, 1, 2),
    "cp: attention over the own tokens": (1, 2, 1, 2, 1),
    "pp: ends of the tied table apart": (2, 2, 1, 1, 1),
    "pp: gradients divided by the micro-batches": (4, 1, 1, 1, 1),
    "dp: windows by rank, not by place": (1, 2, 1, 1, 2),
    "own norm": (1, 1, 4, 1, 1),
}
RESUMED = {  # a mesh: whose checkpoint
    (2, 1, 2, 1, 1): "2_1_2_1_1",
    (1, 1, 1, 2, 2): "1_1_1_2_2",
    (1, 1, 4, 1, 1): "2_1_1_1_2",
    (4, 1, 1, 1, 1): "minigpt",
}
STOPPED = (2, 1, 1, 1, 2)
REFUSED = {  # message: a mesh and flags
    "--pp 1 x --dp 3 x --shard 1 x --cp 1 x --tp 1 = 3 rank(s), but 4 were started": ((1, 3, 1, 1, 1), ""),
    "--heads 2 is not a multiple of --tp 4": ((1, 1, 1, 1, 4), "--heads 2"),
    "--kv-heads 2 is not a multiple of --tp 4": ((1, 1, 1, 1, 4), "--kv-heads 2"),
    "--layers 6 is not a multiple of --pp 4": ((4, 1, 1, 1, 1), "--layers 6"),
    "--context 12 is not a multiple of 2 x --cp 4": ((1, 1, 1, 4, 1), "--context 12 --tokens-per-update 96"),
    "--pp 4 stages need as many micro-batches or more, a step has 2": ((4, 1, 1, 1, 1), "--micro-batch-size 4"),
    "--tokens-per-update 128 is not a multiple of --dp x --shard = 4 x 4 windows x 16 tokens = 256; nearest that are: "
    "256": ((1, 2, 2, 1, 1), "--micro-batch-size 4"),
}


def factorisations(ranks):
    """Every mesh of so many ranks: a size for each axis, whose product is `ranks`."""
    divisors = [n for n in range(1, ranks + 1) if ranks % n == 0]
    return [sizes for sizes in itertools.product(divisors, repeat=len(AXES)) if math.prod(sizes) == ranks]


def mesh_flags(*sizes):
    """The flags of a mesh, given the size of each of AXES."""
    return [word for axis, size in zip(AXES, sizes, strict=True) for word in (f"--{axis}", size)]


def flags(run_dir, *more):
    return merged("--preset", "tiny", "--run-dir", run_dir, *FLAGS, *more)


def train_on_one_process(run_dir, *more):
    """Train as one process, in this one; returns what it printed."""
    return in_this_process(parallel_ddp.train, parse(parallel_ddp.PRESETS, flags(run_dir, *more)))


def mesh_name(sizes):
    return "_".join(map(str, sizes))


def job_on(sizes, *more, **further):
    """A job of trainer_runs.py on a mesh."""
    return {"flags": [*mesh_flags(*sizes), *more], **further}


def outcomes_of(folder, jobs, nproc):
    """{title: outcome} of the jobs, run one after the other on `nproc` ranks, each into its own folder."""
    runs = {
        title: {"script": "parallel", **job, "flags": flags(folder / title, *job["flags"])}
        for title, job in jobs.items()
    }
    return run_jobs(folder, runs, nproc).outcomes


@pytest.fixture(scope="module")
def one_process(tmp_path_factory):
    """Runs on one process, to compare with: of minigpt_ddp.py, and where it has other masks or no such format, ours."""
    folder = tmp_path_factory.mktemp("one")
    for title, more in {"plain": (), "packed": PACKED, "grouped": GROUPED}.items():
        train_here(folder / title, *FLAGS, *more)
    for title, more in {"dropout": DROPOUT, "mixed": MIXED, "float32": MIXED[:2]}.items():
        train_on_one_process(folder / title, *more)
    return folder


@pytest.fixture(scope="module")
def other_meshes_of_four(tmp_path_factory):
    folder = tmp_path_factory.mktemp("others")
    others = [sizes for sizes in factorisations(4) if sizes not in MESHES_OF_FOUR]
    return folder, outcomes_of(folder, {mesh_name(sizes): job_on(sizes) for sizes in others}, 4)


@pytest.fixture(scope="module")
def four(tmp_path_factory, one_process):
    """The folder of all runs of four ranks, made in one launch, and their {title: outcome}."""
    folder = tmp_path_factory.mktemp("four")
    jobs = {mesh_name(sizes): job_on(sizes) for sizes in MESHES_OF_FOUR}
    for settings, sizes, more in SETTINGS_ON:
        jobs[f"{settings} {mesh_name(sizes)}"] = job_on(sizes, *SETTINGS[settings], *more)
    jobs |= {fault: job_on(sizes, *ONE_STEP, fault=fault) for fault, sizes in BROKEN.items()}
    jobs |= {fault: job_on(sizes, *DROPOUT, *ONE_STEP, fault=fault) for fault, sizes in BAD_MASKS.items()}
    jobs |= {f"mixed {mesh_name(sizes)}": job_on(sizes, *MIXED) for sizes in MIXED_ON}
    jobs["gradients in bfloat16"] = job_on((1, 2, 2, 1, 1), *MIXED, *ONE_STEP, "--reduce-dtype", "bfloat16")
    source = folder / "dropout 2_1_1_1_2/checkpoints/step_000002"
    jobs["dropout resumed"] = job_on((1, 1, 4, 1, 1), *DROPOUT, "--resume", source)
    for sizes, source in RESUMED.items():
        title = f"resumed {mesh_name(sizes)} from {source}"
        if source == "minigpt":
            jobs[title] = job_on(sizes, "--resume", one_process / "plain/checkpoints/step_000002")
        else:
            jobs[title] = job_on(sizes, "--resume", "auto", copy=[folder / source, 2, folder / title])
    jobs["stopped"] = job_on(STOPPED, fault="stopped mesh")
    jobs["resumed after the stop"] = job_on(STOPPED, "--resume", folder / "stopped/checkpoints/step_000002")
    jobs |= {refusal: job_on(sizes, *more.split()) for refusal, (sizes, more) in REFUSED.items()}
    return folder, outcomes_of(folder, jobs, 4)


def gap(run_dir, reference, keys=("loss", "grad_norm", "val_loss"), last_step=STEPS):
    """The largest distance of a logged number to the same one of the reference."""
    distances = []
    for key in keys:
        ours, theirs = metrics(run_dir, key), metrics(reference, key)
        assert ours.keys() <= theirs.keys() and max(ours) == last_step
        distances += [abs(value - theirs[step]) for step, value in ours.items()]
    return max(distances)


def gap_of_all(run_dir, reference):
    """The largest distance of a logged number, a weight, an average of a gradient, or a router's bias."""
    ours, theirs = checkpoint(run_dir, STEPS), checkpoint(reference, STEPS)
    logged = ["loss", "grad_norm", "val_loss", *(["busiest"] if "router_biases" in theirs else [])]
    gaps = [largest_gap(ours[part], theirs[part]) for part in ("model", "router_biases") if part in theirs]
    for number, averages in theirs["optimizer"]["state"].items():
        gaps.append(largest_gap(ours["optimizer"]["state"][number], averages))
    return torch.tensor([gap(run_dir, reference, logged), *gaps], dtype=torch.float64).max().item()  # NaN if one is


def gap_of_first_step(run_dir, reference):
    """The same for a run of ONE_STEP: its loss, and its gradient norm, in which a wrong gradient shows at once."""
    return gap(run_dir, reference, ("loss", "grad_norm"), last_step=1)


def weekly_but(chosen, sizes):
    return [pytest.param(mesh, marks=() if mesh in chosen else pytest.mark.weekly) for mesh in sizes]


@pytest.mark.parametrize("sizes", weekly_but(MESHES_OF_FOUR, factorisations(4)), ids=mesh_name)
def test_every_factorisation_of_four_ranks_is_minigpt_ddp(request, one_process, sizes):
    folder, outcomes = request.getfixturevalue("four" if sizes in MESHES_OF_FOUR else "other_meshes_of_four")
    assert outcomes[mesh_name(sizes)] == "0"
    assert gap_of_all(folder / mesh_name(sizes), one_process / "plain") < EQUAL


@pytest.mark.parametrize(
    "title", [*(f"{settings} {mesh_name(sizes)}" for settings, sizes, _ in SETTINGS_ON), "dropout resumed"]
)
def test_a_mesh_with_other_settings_is_one_process(four, one_process, title):
    """Packed windows, recomputed activations and another schedule; key-value heads that query heads share; dropout.

    Of two key-value heads for four query heads each rank of tp has one; the ring sends them unrepeated. Dropout drops
    the same units on any mesh, recomputed too, and after a resume on another mesh.
    """
    folder, outcomes = four
    reference = one_process / title.split()[0]
    assert outcomes[title] == "0"
    assert gap_of_all(folder / title, reference) < EQUAL
    assert gap(reference, one_process / "plain") > 1e-4


@pytest.mark.parametrize("fault", BAD_MASKS)
def test_masks_that_agree_or_differ_on_the_wrong_ranks_show(four, one_process, fault):
    folder, outcomes = four
    if outcomes[fault] == "0":
        assert gap_of_first_step(folder / fault, one_process / "dropout") > 1e-4
    else:
        assert outcomes[fault].startswith("ReplicasDiffer: copies differ")
    assert gap(one_process / "dropout", one_process / "grouped") > 1e-4


def test_one_process_drops_where_minigpt_does():
    """Loss and gradients of MiniGPT, whose calls of torch's dropout get these masks, in turn."""
    config = MiniGPTConfig(61, 8, layers=2, heads=4, width=16, dropout=0.3, kv_heads=2)
    torch.manual_seed(1)
    model, tokens, keys = MiniGPT(config, "math").double(), torch.randint(61, (2, 3, 8)), window_keys(1, 0, 3)
    masks, sites = Masks(0.3, keys, torch.arange(8)), iter(range(-1, 6))

    def dropout(x, rate, training=True):
        heads = torch.arange(4) if len(x) == 12 else None  # weights are (windows x heads, queries, keys)
        site = next(sites)
        if heads is None:
            return masks.drop(x, site)
        return masks.drop_weights(x.view(3, 4, 8, 8), site, heads, torch.arange(8)).view_as(x)

    with mock.patch.object(torch.nn.functional, "dropout", dropout):
        loss = model(*tokens)
    loss.backward()
    assert next(sites, None) is None
    gradients = {name: parameter.grad.clone() for name, parameter in model.named_parameters()}
    model.zero_grad()
    axis = Axis(1, 0, None)
    world = SimpleNamespace(device=torch.device("cpu"))
    mesh = SimpleNamespace(pp=axis, cp=axis, tp=axis, gradient_ranks=1, world=world)
    stage = Stage(model, mesh)
    ours = stage(*tokens, keys)
    ours.backward()
    assert abs(ours - loss) < EQUAL
    assert largest_gap({name: parameter.grad for name, parameter in stage.named_parameters()}, gradients) < EQUAL


@pytest.mark.parametrize("sizes", MIXED_ON, ids=mesh_name)
def test_weights_in_bfloat16_are_one_process_up_to_its_own_rounding(four, one_process, sizes):
    """One process and the mesh round the same float32 run. The mesh may err as much as one process errs, and by the
    triangle inequality they are then within twice that error. Here a single rank shards over itself: pp x tp, too."""
    folder, outcomes = four
    assert outcomes[f"mixed {mesh_name(sizes)}"] == "0"
    for key in ("loss", "grad_norm"):
        error = gap(one_process / "mixed", one_process / "float32", [key])
        assert 1e-5 < error and gap(folder / f"mixed {mesh_name(sizes)}", one_process / "mixed", [key]) <= 2 * error
    weights = checkpoint(folder / f"mixed {mesh_name(sizes)}", STEPS)["model"]
    assert {weight.dtype for weight in weights.values()} == {torch.float32}
    table = weights["token_embedding.weight"]
    assert (table != table.bfloat16()).double().mean() > 0.9, "the main weights were rounded"


@pytest.mark.skipif(
    torch.__version__ >= (2, 15), reason="FSDP2 of 2.15 adds a tied weight's gradients in the one or the other format"
)
def test_gradients_of_weights_in_bfloat16_are_added_in_float32(four, one_process):
    """The same micro-batches on other ranks: the first gradients differ by sums in another order, by one roundoff of
    float32 per micro-batch. Added in bfloat16 they differ by more.

    In torch 2.15 the two gradients of the tied table are added in float32 in a backward pass without a reduction, in
    bfloat16 in one that reduces; so runs that accumulate differ from runs that do not, by a roundoff of bfloat16.
    """
    folder, _ = four
    bound = 4 * torch.finfo(torch.float32).eps / 2
    expected = metrics(one_process / "mixed", "grad_norm")[1]
    norms = [metrics(folder / run, "grad_norm")[1] for run in ("mixed 1_2_2_1_1", "gradients in bfloat16")]
    assert abs(norms[0] / expected - 1) <= bound < abs(norms[1] / expected - 1) / 10


@pytest.mark.smoke
def test_a_tensor_rank_has_half_of_each_matrix():
    config = MiniGPTConfig(64, 8, layers=2, heads=4, width=16)
    with torch.device("meta"):
        whole = MiniGPT(config)
        sizes = {name: parameter.numel() for name, parameter in whole.named_parameters()}
        own, two = Axis(1, 0, None), Axis(2, 1, None)
        world = SimpleNamespace(device=torch.device("meta"))
        stage = Stage(whole, SimpleNamespace(pp=own, cp=own, tp=two, gradient_ranks=1, world=world))
    matrices = {name: p.numel() for name, p in stage.named_parameters() if p.dim() == 2 and "position" not in name}
    assert matrices == {name: sizes[name] / 2 for name in matrices} and "token_embedding.weight" in matrices
    assert len(stage.own_positions) == config.context / 2


def test_masks_are_chance():
    """The share that is kept is 1 - rate, and of two numbers, wherever they are, both are kept in its square.

    Within 5 standard deviations of so many independent draws.
    """
    rate, keys = 0.3, window_keys(1, 0, 32)
    masks = Masks(rate, keys, torch.arange(64))
    kept = masks.drop(torch.ones(32, 64, 128), 5) > 0
    others = [kept.roll(1, dim) for dim in range(3)] + [
        masks.drop(torch.ones(32, 64, 128), site) > 0 for site in (4, 6)
    ]
    others += [
        Masks(rate, window_keys(*other, 32), masks.positions).drop(torch.ones(32, 64, 128), 5) > 0
        for other in ((1, 1), (2, 0))
    ]
    for both, expected in [(kept, 1 - rate)] + [(kept & other, (1 - rate) ** 2) for other in others]:
        deviation = (expected * (1 - expected) / kept.numel()) ** 0.5
        assert abs(both.double().mean() - expected) < 5 * deviation
    assert torch.equal(window_keys(1, 0, 64)[:32], keys) and len(window_keys(2**64 - 1, 3, 2)) == 2


@pytest.mark.parametrize("fault", BROKEN)
def test_a_mistake_on_any_axis_shows(four, one_process, fault):
    folder, outcomes = four
    if outcomes[fault] == "0":
        assert gap_of_first_step(folder / fault, one_process / "plain") > 1e3 * EQUAL
    else:
        assert outcomes[fault].startswith("ReplicasDiffer: copies differ")


@pytest.mark.parametrize("sizes", RESUMED, ids=mesh_name)
def test_a_run_resumes_on_any_mesh(four, one_process, sizes):
    folder, outcomes = four
    source = RESUMED[sizes]
    title = f"resumed {mesh_name(sizes)} from {source}"
    assert outcomes[title] == "0"
    assert gap_of_all(folder / title, one_process / "plain") < EQUAL
    if source == mesh_name(sizes):  # the same mesh: the same bits
        ours, theirs = checkpoint(folder / title, STEPS), checkpoint(folder / source, STEPS)
        assert same(ours["model"], theirs["model"]) and same(ours["optimizer"], theirs["optimizer"])
        assert metrics(folder / title) == metrics(folder / source)


def test_minigpt_ddp_resumes_from_a_mesh(four, one_process, tmp_path):
    folder, _ = four
    train_here(tmp_path / "run", *FLAGS, "--resume", folder / "1_1_1_2_2/checkpoints/step_000002")
    assert gap_of_all(tmp_path / "run", one_process / "plain") < EQUAL


def test_sigterm_to_one_rank_saves_on_all_and_the_run_resumes(four, one_process):
    folder, outcomes = four
    assert outcomes["stopped"] == "75" and outcomes["resumed after the stop"] == "0"
    assert sorted(os.listdir(folder / "stopped/checkpoints"))[-1] == "step_000002"
    assert gap_of_all(folder / "resumed after the stop", one_process / "plain") < EQUAL


@pytest.mark.parametrize("refusal", REFUSED)
def test_what_does_not_divide_is_refused(four, refusal):
    _, outcomes = four
    assert outcomes[refusal].startswith(f"InputError: {refusal}")


MESHES_OF_EIGHT = (2, 1, 2, 1, 2), (1, 2, 2, 2, 1)  # in every run
DEEP = ("--layers", 8, "--heads", 8, "--tokens-per-update", 256, "--micro-batch-size", 1, "--steps", 2)


@pytest.fixture(scope="module")
def eight(tmp_path_factory):
    """The folder of MESHES_OF_EIGHT's runs, made in one launch, and of one process, "deep"; and a function for more."""
    folder = tmp_path_factory.mktemp("eight")
    train_here(folder / "deep", *FLAGS, *DEEP)

    def run(*meshes):
        outcomes = outcomes_of(folder, {mesh_name(sizes): job_on(sizes, *DEEP) for sizes in meshes}, 8)
        assert set(outcomes.values()) == {"0"}

    run(*MESHES_OF_EIGHT)
    return folder, run


@pytest.mark.parametrize("sizes", weekly_but(MESHES_OF_EIGHT, factorisations(8)), ids=mesh_name)
def test_factorisations_of_eight_ranks_are_minigpt_ddp(eight, sizes):
    folder, run = eight
    if sizes not in MESHES_OF_EIGHT:
        run(sizes)
    for key in ("loss", "grad_norm", "val_loss"):
        assert metrics(folder / mesh_name(sizes), key) == pytest.approx(metrics(folder / "deep", key), abs=EQUAL)


def test_one_process_is_a_mesh_too(tmp_path, one_process):
    assert "mesh: one process" in train_on_one_process(tmp_path / "run")
    assert gap_of_all(tmp_path / "run", one_process / "plain") < EQUAL


def test_a_checkpoint_of_another_model_is_refused(tmp_path, one_process):
    source = one_process / "plain/checkpoints/step_000002"
    for more, message in (
        (("--width", 64), "it has width 32, this run has 64"),
        (GROUPED, "it has kv_heads 4, this run has 2"),
    ):
        with pytest.raises(InputError, match=message):
            train_on_one_process(tmp_path / "run", *more, "--resume", source)


@pytest.mark.parametrize("dim, groups", [(0, 1), (0, 3), (1, 1), (0, (16, 4, 4))])
def test_parts_of_a_cut_join_to_the_whole(dim, groups):
    whole, placement = torch.randn(24, 8), Placement(dim, groups)
    parts = [placement.shard(whole, rank, 4) for rank in range(4)]
    assert torch.equal(placement.join(parts), whole)
    assert all(part.numel() == whole.numel() // 4 for part in parts)


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_zigzag_shares_out_positions_and_pairs(ranks):
    positions = zigzag(16, ranks)
    assert sorted(positions.flatten().tolist()) == list(range(16))
    assert len({sum(own.tolist()) for own in positions}) == 1, "the pairs of a causal mask are not shared out"
