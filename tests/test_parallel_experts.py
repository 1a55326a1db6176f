"""Experts on a mesh are one process with all of them, on every axis; and one process is experts_ddp.py without a loss.

In float64, where a gap below EQUAL is rounding: each comparison is shown to fail, by far, on a run with a mistake.
"""

from types import SimpleNamespace

import pytest
import torch
from test_parallel import (
    EQUAL,
    GROUPED,
    MIXED,
    ONE_STEP,
    STEPS,
    flags,
    gap,
    gap_of_all,
    gap_of_first_step,
    mesh_flags,
    mesh_name,
    outcomes_of,
    train_on_one_process,
    weekly_but,
)
from training_runs import checkpoint, in_this_process, largest_gap, merged, metrics

from ddp_course import experts_ddp
from ddp_course.base.errors import InputError
from ddp_course.distributed import process_group
from ddp_course.distributed.expert_parallel import Mixture, step_router_biases
from ddp_course.training.command_line import parse

EXPERTS = ("--experts", 4, "--bias-rate", 0.01, "--gradient-clip", 0.5)
DEEP = ("--tokens-per-update", 256, "--micro-batch-size", 1)
REFERENCES = {
    "plain": EXPERTS,
    "no bias": (*EXPERTS, "--bias-rate", 0),
    "dropout": (*EXPERTS, "--dropout", 0.2, "--activation-checkpointing"),
    "packed": (*EXPERTS, "--pack", "--activation-checkpointing", "--experts-per-token", 1),
    "mixed": (*EXPERTS, *MIXED),
    "float32": (*EXPERTS, *MIXED[:2]),
    "uneven": (*EXPERTS, "--experts", 3),
    "deep": (*EXPERTS, *DEEP),
}
# (ep, sizes of pp, dp, shard, cp, tp). Where ep is smaller than shard x cp, the remaining ranks shard each expert.
MESHES_OF_FOUR = (2, (1, 2, 2, 1, 1)), (2, (1, 1, 2, 2, 1)), (4, (1, 1, 2, 2, 1)), (2, (2, 1, 2, 1, 1))
MESHES_OF_FOUR += ((2, (1, 1, 1, 2, 2)),)
MORE_OF_FOUR = (1, (1, 1, 4, 1, 1)), (4, (1, 1, 1, 4, 1)), (2, (2, 1, 1, 2, 1)), (1, (1, 2, 1, 1, 2))
MORE_OF_FOUR += (1, (4, 1, 1, 1, 1)), (2, (1, 1, 4, 1, 1)), (1, (1, 1, 2, 2, 1)), (2, (1, 1, 2, 1, 2))
MESHES_OF_TWO = (2, (1, 1, 2, 1, 1)), (2, (1, 1, 1, 2, 1)), (1, (2, 1, 1, 1, 1)), (1, (1, 1, 1, 1, 2))
MESHES_OF_EIGHT = (2, (2, 1, 2, 1, 2)), (4, (1, 2, 2, 2, 1))
OTHER_SETTINGS = {  # one of REFERENCES: the mesh that repeats it
    "dropout": (4, (1, 1, 2, 2, 1)),
    "packed": (2, (2, 1, 1, 2, 1)),
    "mixed": (2, (1, 1, 4, 1, 1)),
    "uneven": (1, (1, 1, 4, 1, 1)),
}
BROKEN = {
    "ep: gradients of experts not divided": (2, (1, 1, 4, 1, 1)),
    "ep: gradients of experts averaged over its ranks": (2, (1, 1, 2, 2, 1)),
    "ep: biases by the own load": (2, (1, 1, 2, 2, 1)),
    "ep: a copy of an expert apart": (2, (1, 2, 2, 1, 1)),
    "own norm": (4, (1, 1, 2, 2, 1)),
}
COPIES_DIFFER = {
    "ep: a copy of an expert apart": "blocks.0.mixture.experts.up (tp 0 shard 0 cp 0)",
    "ep: biases by the own load": "blocks.0.mixture.bias (whole)",
}
RESUMED = {(4, (1, 1, 2, 2, 1)): (2, (1, 2, 2, 1, 1)), (2, (1, 1, 1, 2, 2)): (2, (2, 1, 2, 1, 1))}
REFUSED = {
    "--ep 3 does not divide --shard 2 x --cp 2 = 4 rank(s)": ((3, (1, 1, 2, 2, 1)), ("--experts", 6)),
    "--ep 2 does not divide --shard 1 x --cp 1 = 1 rank(s)": ((2, (1, 4, 1, 1, 1)), ()),
}


def title(mesh):
    return f"ep {mesh[0]} {mesh_name(mesh[1])}"


def job_on(mesh, *more):
    return {"flags": merged(*EXPERTS, "--ep", mesh[0], *mesh_flags(*mesh[1]), *more)}


@pytest.fixture(scope="module")
def one_process(tmp_path_factory):
    folder = tmp_path_factory.mktemp("one")
    for run, more in REFERENCES.items():
        train_on_one_process(folder / run, *more)
    return folder


@pytest.fixture(scope="module")
def four(tmp_path_factory, one_process):
    """Runs of four ranks, in one launch: the folder, and the outcome of each by title."""
    folder = tmp_path_factory.mktemp("four")
    jobs = {title(mesh): job_on(mesh) for mesh in MESHES_OF_FOUR}
    jobs |= {run: job_on(mesh, *REFERENCES[run]) for run, mesh in OTHER_SETTINGS.items()}
    jobs |= {fault: job_on(mesh, *ONE_STEP) | {"fault": fault} for fault, mesh in BROKEN.items()}
    for mesh, source in RESUMED.items():
        jobs[f"resumed {title(mesh)}"] = job_on(mesh, "--resume", folder / title(source) / "checkpoints/step_000002")
    jobs["from one"] = job_on(MESHES_OF_FOUR[0], "--resume", one_process / "plain/checkpoints/step_000002")
    jobs |= {refusal: job_on(mesh, *more) for refusal, (mesh, more) in REFUSED.items()}
    return folder, outcomes_of(folder, jobs, 4)


@pytest.fixture(scope="module")
def more_of_four(tmp_path_factory):
    folder = tmp_path_factory.mktemp("more")
    return folder, outcomes_of(folder, {title(mesh): job_on(mesh) for mesh in MORE_OF_FOUR}, 4)


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    folder = tmp_path_factory.mktemp("two")
    return folder, outcomes_of(folder, {title(mesh): job_on(mesh) for mesh in MESHES_OF_TWO}, 2)


@pytest.fixture(scope="module")
def eight(tmp_path_factory):
    folder = tmp_path_factory.mktemp("eight")
    return folder, outcomes_of(folder, {title(mesh): job_on(mesh, *DEEP) for mesh in MESHES_OF_EIGHT}, 8)


@pytest.mark.parametrize(
    "mesh", weekly_but(MESHES_OF_TWO + MESHES_OF_FOUR, MESHES_OF_TWO + MESHES_OF_FOUR + MORE_OF_FOUR), ids=title
)
def test_experts_on_a_mesh_are_one_process(request, one_process, mesh):
    runs = "two" if mesh in MESHES_OF_TWO else "four" if mesh in MESHES_OF_FOUR else "more_of_four"
    folder, outcomes = request.getfixturevalue(runs)
    assert outcomes[title(mesh)] == "0"
    assert gap_of_all(folder / title(mesh), one_process / "plain") < EQUAL


@pytest.mark.parametrize("mesh", MESHES_OF_EIGHT, ids=title)
def test_experts_on_eight_ranks_are_one_process(eight, one_process, mesh):
    """ep with pp and tp: a pipeline's trial run gives tp's ranks different tokens, and all rows must match."""
    folder, outcomes = eight
    assert outcomes[title(mesh)] == "0"
    assert gap_of_all(folder / title(mesh), one_process / "deep") < EQUAL


@pytest.mark.parametrize("run", ["dropout", "packed", "uneven"])
def test_other_settings_are_one_process(four, one_process, run):
    """Dropout with recomputed activations; packed windows with one expert per token; three experts on four ranks."""
    folder, outcomes = four
    assert outcomes[run] == "0"
    assert gap_of_all(folder / run, one_process / run) < EQUAL
    assert gap(one_process / run, one_process / "plain") > 1e-4


def test_experts_in_bfloat16_are_one_process_up_to_its_own_rounding(four, one_process):
    folder, outcomes = four
    assert outcomes["mixed"] == "0"
    error = gap(one_process / "mixed", one_process / "float32", ["loss"])
    assert 1e-5 < error and gap(folder / "mixed", one_process / "mixed", ["loss"]) <= 2 * error
    assert {weight.dtype for weight in checkpoint(folder / "mixed", STEPS)["model"].values()} == {torch.float32}


@pytest.mark.parametrize("fault", BROKEN)
def test_a_mistake_shows(four, one_process, fault):
    folder, outcomes = four
    if fault in COPIES_DIFFER:
        assert outcomes[fault].startswith(f"ReplicasDiffer: copies differ: {COPIES_DIFFER[fault]}")
    else:
        assert outcomes[fault] == "0" and gap_of_first_step(folder / fault, one_process / "plain") > 1e3 * EQUAL


@pytest.mark.parametrize("run", [*(f"resumed {title(mesh)}" for mesh in RESUMED), "from one"])
def test_a_run_resumes_on_another_mesh(four, one_process, run):
    folder, outcomes = four
    assert outcomes[run] == "0"
    assert gap_of_all(folder / run, one_process / "plain") < EQUAL


def test_one_process_resumes_from_a_mesh(four, one_process, tmp_path):
    folder, _ = four
    source = folder / title(MESHES_OF_FOUR[2]) / "checkpoints/step_000002"
    train_on_one_process(tmp_path / "run", *EXPERTS, "--resume", source)
    assert gap_of_all(tmp_path / "run", one_process / "plain") < EQUAL


@pytest.mark.parametrize("refusal", REFUSED)
def test_what_does_not_divide_is_refused(four, refusal):
    assert four[1][refusal].startswith(f"InputError: {refusal}")


def test_one_process_without_bias_is_experts_ddp_without_balance_loss(one_process, tmp_path):
    """Whose losses, gradients and weights are tested against the definition in test_experts.py."""
    words = flags(tmp_path / "run", "--experts", 4, "--gradient-clip", 0.5, "--balance", 0)
    in_this_process(experts_ddp.train, parse(experts_ddp.PRESETS, words))
    assert gap(tmp_path / "run", one_process / "no bias", ("loss", "grad_norm", "val_loss", "busiest")) < EQUAL
    ours, theirs = (checkpoint(run, STEPS)["model"] for run in (tmp_path / "run", one_process / "no bias"))
    assert largest_gap(ours, theirs) < EQUAL
    assert gap(one_process / "plain", one_process / "no bias") > 1e-4


def test_biases_move_by_the_rate_and_against_the_load():
    """Down for experts above the mean load, up for those below; the largest load of any layer is returned."""
    layers = [SimpleNamespace(load=torch.tensor(load), bias=torch.zeros(4)) for load in ([7, 1, 4, 4], [4, 4, 4, 4])]
    process_group.start(device="cpu")
    try:
        assert step_router_biases(layers, (), rate=0.5) == 7 / 4
    finally:
        process_group.stop()
    assert torch.stack([layer.bias for layer in layers]).tolist() == [[-0.5, 0.5, 0, 0], [0, 0, 0, 0]]
    assert [layer.load for layer in layers] == [0, 0], "the next step counts anew"


def test_the_trainer_moves_biases_by_the_rate_at_each_step_and_saves_them(one_process, tmp_path):
    train_on_one_process(tmp_path, *EXPERTS, "--steps", 1, "--checkpoint-every", 1)
    saved = {1: tmp_path, 2: one_process / "plain", 4: one_process / "plain"}
    biases = {step: checkpoint(run_dir, step)["router_biases"] for step, run_dir in saved.items()}
    unequal = {}
    for step, of_layers in biases.items():
        steps = torch.stack(list(of_layers.values())) / 0.01
        assert torch.allclose(steps, steps.round()) and steps.abs().max() <= step
        unequal[step] = steps.amax(1) > steps.amin(1)
    assert unequal[1].all() and unequal[2].any() and unequal[4].any()  # later a layer can be back where it was
    assert len(biases[2]) == 4 and largest_gap(biases[2], biases[4]) > 0
    assert all(1 < ratio <= 4 for ratio in metrics(one_process / "plain", "busiest").values())


def test_a_bias_changes_the_chosen_experts_and_not_their_weights():
    torch.manual_seed(0)
    mixture, tokens = Mixture(8, 16, 4, 2, std=1.0).double(), torch.randn(50, 8, dtype=torch.float64)
    chosen, probabilities = [], mixture.router(tokens).softmax(-1)
    mixture.expert_outputs = lambda tokens, experts: chosen.append(experts) or torch.ones(50, 2, 8, dtype=torch.float64)
    for expert in (None, *range(4)):
        mixture.bias.zero_()
        if expert is not None:
            mixture.bias[expert] = 1
        weights = mixture(tokens)[:, 0]
        assert expert is None or (chosen[-1] == expert).any(1).all()
        assert torch.allclose(weights, probabilities.gather(1, chosen[-1]).sum(1))
    assert torch.equal(chosen[0], probabilities.topk(2).indices)


@pytest.mark.parametrize(
    "more, message",
    [
        (GROUPED, "it has kv_heads 4, this run has 2"),
        (("--experts", 8), "it has experts 4, this run has 8"),
        (("--experts-per-token", 1), "it has experts_per_token 2, this run has 1"),
    ],
)
def test_a_checkpoint_of_another_model_is_refused(tmp_path, one_process, more, message):
    source = one_process / "plain/checkpoints/step_000002"
    with pytest.raises(InputError, match=message):
        train_on_one_process(tmp_path / "run", *EXPERTS, *more, "--resume", source)
