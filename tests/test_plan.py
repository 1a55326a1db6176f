"""The plan: bytes and messages against what is measured small and published large, refusals, one-sentence errors."""

import os
import subprocess
import sys
from dataclasses import replace

import pytest
import torch

from ddp_course.errors import InputError
from ddp_course.models.minigpt import MiniGPT, MiniGPTConfig
from ddp_course.plan.__main__ import count, job_from, main, parser, size
from ddp_course.plan.memory import STATE, Mesh, Model, memory, stage_parameters
from ddp_course.plan.overview import NOTHING, overview
from ddp_course.plan.published import MEGATRON_PER_PARAMETER, PLAYBOOK_GB, RUNS
from ddp_course.plan.search import Job, best_way, cannot, divisors, evaluate, meshes, search
from ddp_course.plan.traffic import Cluster, bubble, micro_batches, step, traffic

GB = 2**30
SEVEN = Model(7e9, 32, 4096, 32, 4096)
SIXTY_FOUR = Cluster(64, 80 * GB, 50e9)
JOB = Job(SEVEN, SIXTY_FOUR, 2**22)
ASKED = ["--params", "7e9", "--gpus", "64", "--memory", "80GB", "--link", "400Gb"]


def flags(*more):
    return job_from(parser().parse_args([*ASKED, *more]))[0]


# ---- memory ----------------------------------------------------------------------------------------------------------


def small(**changed) -> tuple[MiniGPT, Model]:
    shape = MiniGPTConfig(vocab_size=64, context=32, layers=4, heads=4, width=64, **changed)
    whole = MiniGPT(shape)
    parameters = sum(one.numel() for one in whole.parameters())
    return whole, Model(parameters, 4, 64, 4, 32, vocabulary=64, tables=1)


def test_one_gpu_holds_what_adamw_holds_of_a_real_model():
    whole, model = small()
    optimizer = torch.optim.AdamW(whole.parameters())
    tokens = torch.randint(64, (2, 32))
    whole(tokens).float().logsumexp(-1).mean().backward()
    optimizer.step()
    held = memory(model, Mesh(), 1, "fp32")
    weights = sum(one.nbytes for one in whole.parameters())
    averages = sum(one.nbytes for state in optimizer.state.values() for one in state.values() if one.numel() > 1)
    assert (held.weights, held.gradients) == (weights, sum(one.grad.nbytes for one in whole.parameters()))
    assert held.optimizer == pytest.approx(averages)


def test_activations_are_those_that_autograd_keeps():
    """As notebook 7b.4 counts them, to within a tenth: storages that backward needs, weights left out."""
    whole, model = small()
    weights = {one.untyped_storage().data_ptr() for one in whole.parameters()}
    kept = {}

    def note(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights and tensor.is_floating_point():
            kept[storage.data_ptr()] = storage.nbytes(), tensor
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        loss = torch.nn.functional.cross_entropy(whole(torch.randint(64, (8, 32))).flatten(0, 1),
                                                 torch.randint(64, (8 * 32,)))  # fmt: skip
    found = sum(nbytes for nbytes, _ in kept.values())
    loss.backward()
    assert memory(model, Mesh(micro_batch=8), 1, "fp32").activations == pytest.approx(found, rel=0.1)


@pytest.mark.parametrize("ranks", [1, 2, 64])
def test_fully_sharded_holds_a_part_of_everything(ranks):
    """Notebook 17.4: (1 + 1 + 2) / n."""
    held = memory(SEVEN, Mesh(shard=ranks, zero=3), 1, "fp32")
    assert held.weights + held.gradients + held.optimizer == pytest.approx(4 * 4 * SEVEN.parameters / ranks)


@pytest.mark.parametrize("precision", MEGATRON_PER_PARAMETER)
def test_bytes_per_parameter_are_megatrons(precision):
    whole, shared = MEGATRON_PER_PARAMETER[precision]
    for ranks in (2, 8, 64):
        for mesh, expected in ((Mesh(dp=ranks), whole), (Mesh(shard=ranks, zero=1), shared)):
            held = memory(SEVEN, mesh, 1, precision)
            each = (held.weights + held.gradients + held.optimizer) / SEVEN.parameters
            assert each == pytest.approx(expected(ranks))


def test_bytes_per_parameter_lie_in_the_playbooks_table():
    for parameters, (least, most) in PLAYBOOK_GB.items():
        assert parameters * sum(STATE["fp32"]) == least * 1e9
        assert least * 1e9 <= parameters * sum(STATE["bf16"]) <= most * 1e9


def test_parts_of_the_model_add_up_to_it():
    whole = sum(stage_parameters(SEVEN, Mesh()))
    assert whole == SEVEN.parameters
    assert sum(stage_parameters(SEVEN, Mesh(tp=8))) == pytest.approx(whole / 8)
    assert 2 * sum(stage_parameters(SEVEN, Mesh(pp=2))) == pytest.approx(whole)  # each has a table
    experts = replace(SEVEN, active=2e9, experts=5e9, chosen=2)
    common, each = stage_parameters(experts, Mesh(shard=8, ep=8))
    assert common + 8 * each == pytest.approx(whole)


def test_layers_that_are_gathered():
    """Two layers and the tables in two bytes; experts too, unless they are on their rank already."""
    layer = SEVEN.in_layers / 32
    assert memory(SEVEN, Mesh(shard=64), 1).gathered == pytest.approx(2 * (2 * layer + 2 * SEVEN.table))
    assert memory(SEVEN, Mesh(shard=64, zero=2), 1).gathered == 0
    experts = replace(SEVEN, active=2e9, experts=5e9, chosen=2)
    whole, spread = (memory(experts, Mesh(shard=64, ep=ep), 1).gathered for ep in (1, 64))
    assert whole == pytest.approx(memory(SEVEN, Mesh(shard=64), 1).gathered)
    assert whole - spread == pytest.approx(2 * 2 * 5e9 / 32)


def test_what_makes_activations_fewer():
    one = memory(SEVEN, Mesh(micro_batch=2), 4).activations
    assert memory(SEVEN, Mesh(micro_batch=2, cp=2), 4).activations == pytest.approx(one / 2)
    assert memory(SEVEN, Mesh(micro_batch=2, tp=4), 4).activations == pytest.approx(one / 4)
    assert memory(SEVEN, Mesh(micro_batch=2, recompute=True), 4).activations < one / 4
    in_flight = [memory(SEVEN, Mesh(pp=4), count).activations for count in (1, 2, 4, 8)]
    assert in_flight[1] < in_flight[2] == in_flight[3]  # 1F1B holds at most as many as there are stages
    assert memory(SEVEN, Mesh(pp=4, chunks=2), 8).activations > in_flight[3]  # interleaved more (23.3)


# ---- traffic ---------------------------------------------------------------------------------------------------------


def sent(mesh, tokens=2**22, model=SEVEN):
    return {one.axis: one.bytes for one in traffic(model, mesh, Cluster(mesh.gpus, 80 * GB, 50e9), tokens)}


def test_each_axis_sends_what_its_notebook_counts():
    vectors = 2 * 4096 * 2**22  # bytes of one vector per token
    weights = SEVEN.parameters
    assert sent(Mesh(dp=8)) == {"dp": pytest.approx(2 * 7 / 8 * 4 * weights)}  # 04: a ring all-reduce
    assert sent(Mesh(tp=8)) == {"tp": pytest.approx(4 * 32 * 2 * 7 / 8 * vectors)}  # 22.4
    assert sent(Mesh(pp=8)) == {"pp": pytest.approx(2 * vectors)}  # 23.5
    assert sent(Mesh(cp=8))["cp"] == pytest.approx(2 * 2 * 7 * 32 * vectors / 8)  # 24.3
    assert sent(Mesh(shard=8, micro_batch=8, zero=3), 2**18) == {"shard": pytest.approx(7 / 8 * (2 + 2 + 4) * weights)}
    once, twice = sent(Mesh(shard=8, zero=3), 2**18)["shard"], sent(Mesh(shard=8, zero=3), 2**19)["shard"]
    assert twice == pytest.approx(2 * once) and sent(Mesh(shard=8, zero=1), 2**19) == sent(Mesh(shard=8, zero=1), 2**18)


def test_cp_ranks_sum_their_gradients_too():
    assert sent(Mesh(cp=8))["dp"] == pytest.approx(2 * 7 / 8 * 4 * SEVEN.parameters)
    assert "dp" not in sent(Mesh(shard=2, cp=4, zero=3)) and "dp" in sent(Mesh(dp=2, shard=2, cp=2))


def test_the_bubble_is_that_of_23():
    for stages, many in ((2, 4), (4, 8)):
        idle = bubble(Mesh(pp=stages), many)
        assert idle / (1 + idle) == pytest.approx((stages - 1) / (many + stages - 1))
    idle = bubble(Mesh(pp=4, chunks=2), 8)
    assert idle / (1 + idle) == pytest.approx(3 / (2 * 8 + 3))


def test_neighbours_use_the_fast_links():
    links = {one.axis: one.link for one in traffic(SEVEN, Mesh(pp=2, dp=4, tp=8), SIXTY_FOUR, 2**22)}
    assert links == {"tp": "inside", "dp": "between", "pp": "between"}
    wide = replace(SIXTY_FOUR, per_node=64)
    assert {one.link for one in traffic(SEVEN, Mesh(pp=2, dp=4, tp=8), wide, 2**22)} == {"inside"}


def test_a_slow_network_makes_steps_longer_and_the_quickest_plan_another():
    fast, slow = SIXTY_FOUR, replace(SIXTY_FOUR, link=0.1e9)
    mesh = Mesh(dp=8, shard=8, zero=1)
    assert step(SEVEN, mesh, slow, 2**22).total > 1.5 * step(SEVEN, mesh, fast, 2**22).total
    assert search(Job(SEVEN, slow, 2**22)).fits[0].mesh != search(JOB).fits[0].mesh


# ---- the search ------------------------------------------------------------------------------------------------------


def test_every_mesh_has_all_gpus_and_every_factorisation_is_there():
    found = {(one.pp, one.dp, one.shard, one.cp, one.tp) for one in meshes(JOB)}
    assert all(one.gpus == 64 for one in meshes(JOB)) and len(found) == 210  # 64 = 2^6 over five axes
    assert divisors(12) == [1, 2, 3, 4, 6, 12]


def test_the_plan_fits_and_nothing_that_fits_is_quicker():
    found = search(JOB)
    steps = [plan.step.total for plan in found.fits]
    assert steps == sorted(steps) and all(plan.memory.total <= JOB.limit for plan in found.fits)
    assert found.simplest().step.total <= 1.05 * steps[0] and found.simplest().axes == 1
    assert found.tried == len(found.fits) + sum(found.refused.values())


def test_a_small_model_gets_plain_ddp_and_a_large_one_does_not():
    small = flags("--params", "350M")
    assert search(small).simplest().mesh.dp == 64
    assert best_way(JOB, Mesh(dp=64)).memory.total > JOB.limit
    large = search(flags("--params", "405e9", "--gpus", "1024"))
    assert large.fits[0].mesh.tp > 1 or large.fits[0].mesh.pp > 1 or large.fits[0].mesh.shard > 64


@pytest.mark.parametrize(
    ("mesh", "why"),
    [(Mesh(tp=16, dp=4), "leave the node"), (Mesh(pp=64), "more stages than layers"),
     (Mesh(dp=64, micro_batch=32), "windows do not divide"), (Mesh(pp=32, dp=2, micro_batch=32), "fewer micro-batches"),
     (Mesh(pp=16, dp=4, chunks=4), "chunks")],
)  # fmt: skip
def test_what_cannot_be_cut_is_refused(mesh, why):
    assert why in cannot(JOB, mesh) and evaluate(JOB, mesh).refused


def test_heads_and_windows_that_do_not_divide():
    assert "heads" in cannot(replace(JOB, model=replace(SEVEN, heads=31)), Mesh(tp=8, dp=8))
    assert "window" in cannot(Job(replace(SEVEN, context=6), SIXTY_FOUR, 6 * 2**10), Mesh(cp=2, dp=32))
    with pytest.raises(InputError, match="do not divide"):
        micro_batches(SEVEN, Mesh(dp=3), 2**22)


# ---- published -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("run", RUNS, ids=lambda run: run.name)
def test_a_published_mesh_fits(run):
    seen = run.plan()
    assert not seen.refused and run.mesh.gpus == run.job.cluster.gpus
    assert 0.1 * run.job.limit < seen.memory.total <= run.job.limit
    assert run.mfu is None or 0.6 < seen.step.mfu / run.mfu < 1.4


def test_published_meshes_would_not_fit_without_their_axes():
    llama, olmo = (next(run for run in RUNS if run.name.startswith(name)) for name in ("Llama", "OLMo"))
    for mesh in (Mesh(dp=8192), Mesh(tp=8, dp=1024), Mesh(pp=16, dp=512)):
        assert best_way(llama.job, mesh).refused or best_way(llama.job, mesh).memory.total > llama.job.limit
    assert best_way(olmo.job, Mesh(dp=512)).memory.total > olmo.job.limit


def test_the_plan_finds_llamas_mesh_and_the_table_says_what_it_costs():
    llama = RUNS[0]
    found = {(plan.mesh.pp, plan.mesh.tp): plan for plan in search(llama.job).fits}
    assert (16, 8) in found and llama.plan().step.total < 1.25 * next(iter(found.values())).step.total


# ---- the command -----------------------------------------------------------------------------------------------------


def test_the_command_prints_a_plan(capsys):
    assert main(ASKED) == 0
    text = capsys.readouterr().out
    for expected in ("--layers", "held on a GPU", "[17]", "Meshes refused", "dp alone (DDP)", "does not know"):
        assert expected in text


def test_what_is_given_is_not_derived():
    job = flags(
        "--layers", "30", "--width", "4096", "--heads", "64", "--tokens-per-update", "2097152", "--key-value-heads", "8"
    )
    model = job.model
    assert (model.layers, model.width, model.heads, model.key_values, job.tokens) == (30, 4096, 64, 1 / 8, 2**21)


@pytest.mark.parametrize(("text", "layers", "width"), [("7e9", 32, 4096), ("70B", 80, 8192), ("405B", 126, 16384)])
def test_a_derived_shape_is_near_llamas(text, layers, width):
    model = flags("--params", text).model
    assert 0.7 < model.layers / layers < 1.3 and 0.8 < model.width / width < 1.2 and model.heads % 8 == 0


def test_a_mixture_of_experts(capsys):
    mixture = ["--params", "47B", "--active", "13B", "--expert-params", "45B"]
    model = flags(*mixture).model
    assert model.flops_per_token < 0.4 * flags("--params", "47B").model.flops_per_token and model.width < 6144
    assert main([*ASKED, *mixture]) == 0 and "ep " in capsys.readouterr().out


def test_the_map_names_the_axes_of_each_cell():
    found = overview(["350M", "30B"], [1, 8, 64])
    assert [found["350M", count] for count in (1, 8, 64)] == ["one GPU", "dp", "dp"]
    assert found["30B", 1] == NOTHING and found["30B", 64] == "shard"


def test_nothing_fits(capsys):
    assert main([*ASKED, "--params", "405B", "--gpus", "8"]) == 0
    text = capsys.readouterr().out
    assert "None of" in text and "The smallest is" in text


def test_one_gpu(capsys):
    assert main([*ASKED, "--params", "350M", "--gpus", "1"]) == 0
    assert "one GPU" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [(["--gpus", "0"], "--gpus is from 1"), (["--gpus", "12"], "do not fill nodes"),
     (["--params", "seven"], "such as 7e9"),
     (["--memory", "lots"], "write it as 80GB"), (["--memory", "0GB"], "write it as 80GB"),
     (["--link", "fast"], "400Gb"),
     (["--heads", "7"], "does not divide"), (["--layers", "0"], "--layers is at least 1"),
     (["--tokens-per-update", "5000"], "whole windows"), (["--tokens-per-update", "nan"], "tokens from 1 up"),
     (["--gpu", "abacus"], "no GPU"), (["--kernels", "2"], "share of the peak"), (["--active", "1e9"], "both --active"),
     (["--params", "1M", "--width", "4096"], "fewer than"), (["--key-value-heads", "64"], "at most --heads"),
     (["--active", "8e9", "--expert-params", "1e9"], "at most as many are active"),
     (["--gpus-per-node", "0"], "at least 1")],
)  # fmt: skip
def test_bad_input_is_one_sentence(wrong, sentence, capsys):
    assert main([*ASKED, *wrong]) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ") and sentence in error and error.count("\n") == 1


@pytest.mark.parametrize("program", [["ddp_course.plan", *ASKED], ["ddp_course.predict", *ASKED[2:4], *ASKED[6:]]])
def test_a_reader_that_has_left_is_no_traceback(program):
    """As with `| head`, when it ends before the plan is ready."""
    read, write = os.pipe()
    os.close(read)
    try:
        done = subprocess.run([sys.executable, "-m", *program], stdout=write, stderr=subprocess.PIPE, text=True)
    finally:
        os.close(write)
    assert (done.returncode, done.stderr) == (0, "")


def test_without_the_four_flags_it_says_which(capsys):
    assert main(["--params", "7e9"]) == 2
    assert "--gpus, --memory, --link" in capsys.readouterr().err


def test_sizes():
    assert (count("7B", ""), count("350M", ""), count("1.3e9", "")) == (7e9, 350e6, 1.3e9)
    assert size("80GB") == size("80 GiB") == 80 * GB
