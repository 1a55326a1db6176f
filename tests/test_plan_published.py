"""The table of published runs: its numbers agree with each other, and the plan's formulas with its runs."""

from dataclasses import replace

import pytest
from test_plan import SEVEN

from ddp_course.plan import null_model, playbook
from ddp_course.plan.__main__ import main
from ddp_course.plan.assumptions import ASSUMED, COUNTED_SHARE
from ddp_course.plan.ddp_step import DDP
from ddp_course.plan.job import Cluster, Job
from ddp_course.plan.memory import STATE, Layout, memory
from ddp_course.plan.models import MODELS
from ddp_course.plan.published import RUNS, run
from ddp_course.plan.search import best_way, search
from ddp_course.plan.traffic import step, traffic

pytestmark = pytest.mark.smoke

# bytes per parameter on d data ranks, https://github.com/NVIDIA/Megatron-LM#distributed-optimizer:
# precision -> (nothing is sharded, the optimizer is)
MEGATRON_PER_PARAMETER = {"bf16": (lambda d: 18, lambda d: 6 + 12 / d), "fp32": (lambda d: 16, lambda d: 8 + 8 / d)}
# https://huggingface.co/spaces/nanotron/ultrascale-playbook, memory for weights, gradients and optimizer:
# parameters -> GB in fp32, and in bf16 with fp32 gradients
PLAYBOOK_GB = {1e9: (16, 20), 7e9: (112, 140), 70e9: (1120, 1400), 405e9: (6480, 8100)}


# ---- the reports' own numbers ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("published", RUNS, ids=lambda published: published.name)
def test_a_run_has_as_many_gpus_as_its_axes_make(published):
    assert published.layout.gpus == published.job.cluster.gpus and published.source.startswith("https://")
    assert published.chunks is None or published.chunks.low <= published.layout.chunks <= published.chunks.high


def test_numbers_of_a_report_agree_with_each_other():
    palm, deepseek, olmo = run("PaLM"), run("DeepSeek"), run("OLMo")
    for published, rate, within in (
        (palm, palm.reported["tokens per s"], 0.002),
        (deepseek, deepseek.job.tokens / deepseek.reported["step"], 0.02),
        (olmo, olmo.reported["tokens per s per GPU"] * 512, 0.01),
    ):
        cluster = published.job.cluster
        mfu = rate * published.job.model.flops_per_token / cluster.gpus / cluster.gpu.flops
        assert mfu == pytest.approx(published.mfu, rel=within), published.name
    assert palm.mfu * (1 + palm.layout.recompute_share) == pytest.approx(
        palm.reported["MFU and recomputation"], rel=0.002
    )
    assert palm.reported["bits per s between pods"] / palm.reported["hosts"] / 8 == pytest.approx(6.6e9, rel=0.01)
    assert palm.job.cluster.gpus == 4 * palm.reported["hosts"]
    facts = deepseek.reported
    assert 86400 * deepseek.job.tokens / facts["step"] == pytest.approx(facts["tokens per day"], rel=1e-4)
    hours = facts["GPU hours per 10^12 tokens"]
    assert 1e12 / hours / 3600 * 2048 == pytest.approx(deepseek.job.tokens / facts["step"], rel=0.01)
    assert hours * facts["tokens"] / 1e12 == pytest.approx(facts["GPU hours"])
    llama = run("Llama")
    assert 6 * 405e9 * llama.reported["tokens"] == pytest.approx(llama.reported["FLOP"], rel=0.01)
    for published in (published for published in RUNS if "Llama" in published.name):
        assert published.reported["FLOP/s per GPU"] / 989e12 == pytest.approx(published.mfu, abs=0.006)


@pytest.mark.parametrize(
    "published",
    [published for published in RUNS if "DeepSeek" not in published.name],
    ids=lambda published: published.name,
)
def test_a_models_shape_has_its_parameters(published):
    model = published.job.model
    heads = (model.attention_width or model.width) / model.width
    attention = heads * (2 + 2 * model.key_value_ratio) * model.width**2
    mlp = (2 if model.keeps == "plain" else 3) * model.mlp_ratio * model.width**2
    count = model.layers * (attention + mlp) + model.tables * model.table_parameters
    assert count == pytest.approx(model.parameters, rel=0.04)  # 1.65 is called 1.7
    named = MODELS["llama3-405b"].parameters
    assert "Llama" not in published.name or model.parameters == pytest.approx(named, rel=0.01)


@pytest.mark.parametrize("precision", MEGATRON_PER_PARAMETER)
def test_bytes_per_parameter_are_megatrons(precision):
    replicated, sharded = MEGATRON_PER_PARAMETER[precision]
    for ranks in (2, 8, 64):
        for layout, expected in ((Layout(dp=ranks), replicated), (Layout(shard=ranks, zero=1), sharded)):
            parts = memory(SEVEN, layout, 1, precision)
            each = (parts.weights + parts.gradients + parts.optimizer) / SEVEN.parameters
            assert each == pytest.approx(expected(ranks))


def test_bytes_per_parameter_lie_in_the_playbooks_table():
    for parameters, (least, most) in PLAYBOOK_GB.items():
        assert parameters * sum(STATE["fp32"]) == least * 1e9
        assert least * 1e9 <= parameters * sum(STATE["bf16"]) <= most * 1e9


# ---- training runs, by the formulas ----------------------------------------------------------------------------------


@pytest.mark.parametrize("published", RUNS, ids=lambda published: published.name)
def test_a_published_mesh_fits_and_its_mfu_is_near(published):
    planned = published.plan()
    assert not planned.refused and planned.memory.total <= published.job.limit
    assert 0.8 < planned.step.mfu / published.mfu < 1.3
    no_overlap, full_overlap = published.step(exposed=1).mfu, published.step(exposed=0).mfu
    assert no_overlap < full_overlap and no_overlap - 1e-9 <= planned.step.mfu <= full_overlap + 1e-9


def test_the_other_program_assumes_an_mfu_that_dense_runs_reported():
    for published in RUNS:
        assert published.job.model.expert_parameters or ASSUMED["mfu"].low < published.mfu < ASSUMED["mfu"].high


def test_published_meshes_would_not_fit_without_their_axes():
    llama, olmo = run("Llama"), run("OLMo")
    for layout in (Layout(dp=8192), Layout(tp=8, dp=1024), Layout(pp=16, dp=512)):
        assert best_way(llama.job, layout).refused or best_way(llama.job, layout).memory.total > llama.job.limit
    assert best_way(olmo.job, Layout(dp=512)).memory.total > olmo.job.limit


def test_the_plan_finds_llamas_mesh_and_no_mesh_is_a_quarter_faster():
    llama = run("Llama")
    by_axes = {(plan.layout.pp, plan.layout.tp): plan for plan in search(llama.job).fits}
    assert (16, 8) in by_axes and llama.plan().step.total < 1.25 * next(iter(by_axes.values())).step.total


def test_a_step_under_other_assumptions():
    llama = run("Llama")
    assert llama.step(kernels=0.6).mfu > llama.step(kernels=0.5).mfu
    assert llama.step(chunks=2).bubble == 4 * llama.step(chunks=8).bubble == pytest.approx(15 / 64)
    assert llama.step(link_share=0.9, exposed=1).total < llama.step(link_share=0.6, exposed=1).total
    half = llama.step(exposed=0.5)
    assert half.waiting == pytest.approx(0.5 * sum(message.seconds for message in half.sent))


def test_reported_details_of_experts_lower_the_bytes_sent():
    deepseek = run("DeepSeek")
    usual = replace(deepseek.job.model, experts_per_token=8, expert_layers=None, expert_bytes=None)
    sent, whole = (
        next(message.bytes for message in traffic(job, deepseek.layout) if message.axis == "ep")
        for job in (deepseek.job, replace(deepseek.job, model=usual))
    )
    assert whole == pytest.approx(sent * 8 / 4 * 61 / 58 * 2 / 1.5)
    per_token = sent * 2048 / deepseek.job.tokens
    assert per_token == pytest.approx(58 * 4 * 7168 * (1 + 2) * 2, rel=0.1)  # one byte there, two back, twice


def test_a_constant_predicts_mfu_as_well_as_the_formulas():
    """The constant has the smaller mean error; the formulas have a correlation, the constant has none."""
    formulas, constant = null_model.of_formulas(RUNS), null_model.of_constant(RUNS)
    assert constant.mean < formulas.mean < 0.1 and constant.largest < formulas.largest < 0.25
    measured = [published.mfu for published in RUNS]
    assert null_model.best_constant(measured) == 0.38
    assert formulas.mean < null_model.errors([0.4] * len(RUNS), measured).mean
    assert constant.correlation is None


def test_llama_fits_by_two_assumptions():
    llama = run("Llama")
    gated = replace(llama, job=replace(llama.job, model=replace(llama.job.model, keeps="gated")))
    for changed, gigabytes in ((gated, 89.9), (replace(llama, in_flight=False), 83.9)):
        total = changed.plan().memory.total
        assert total > llama.job.limit and total / 1e9 == pytest.approx(gigabytes, abs=0.05)
        assert str(gigabytes) in llama.note


# ---- the Playbook's measurements -------------------------------------------------------------------------------------


def test_the_playbooks_shapes_have_its_parameters():
    for size in playbook.SHAPES:
        assert playbook.model(size).parameters / 1e9 == pytest.approx(float(size[:-1]), abs=0.01)


def test_every_cell_of_the_playbooks_picture_is_there():
    cells = [(cell.size, cell.nodes) for cell in playbook.RUNS] + playbook.NOT_RUN
    assert sorted(cells) == sorted((size, 2**power) for size in playbook.SHAPES for power in range(7))
    for cell in playbook.RUNS:
        assert cell.run.layout.gpus == 8 * cell.nodes and cell.run.plan().micro_batches == cell.micro_batches


@pytest.mark.parametrize(("size", "nodes"), playbook.NOT_RUN)
def test_a_mesh_that_the_playbook_could_not_run_does_not_fit(size, nodes):
    assert not playbook.best(size, nodes).fits and not search(playbook.job(size, nodes)).fits


def test_memory_is_counted_to_no_less_than_the_share_that_is_assumed():
    shares = [cell.run.plan().memory.total / cell.memory for cell in playbook.RUNS]
    assert COUNTED_SHARE <= min(shares) < COUNTED_SHARE + 0.01
    assert all(cell.run.plan().memory.highest >= cell.memory for cell in playbook.RUNS)


def test_most_measured_winners_are_among_the_first_distinct_meshes():
    """By (pp, tp). The first three rows of all fits are often one mesh, and hardly any winner is among them."""
    among_all_fits = 0
    for cell in playbook.RUNS:
        ranking = playbook.best(cell.size, cell.nodes)
        pairs = [(plan.layout.pp, plan.layout.tp) for plan in ranking.distinct()]
        assert len(set(pairs)) == len(pairs) and set(pairs) == {
            (plan.layout.pp, plan.layout.tp) for plan in ranking.fits
        }
        among_all_fits += cell.run.layout.axes in [plan.layout.axes for plan in ranking.fits[:3]]
    assert playbook.winners_among_first(1) < playbook.winners_among_first(3)
    assert 17 <= playbook.winners_among_first(3) <= 21 and among_all_fits <= 6
    assert 6 < playbook.winners_among_fewest(3) < playbook.winners_among_fixed(3) < playbook.winners_among_first(3)


def test_the_plan_refuses_two_of_the_slowest_that_were_measured():
    refused = {(cell.size, cell.nodes) for cell in playbook.RUNS if cell.run.plan().refused}
    assert refused == {("1.34B", 64), ("80B", 64)}


def test_more_nodes_have_a_lower_mfu():
    """At a fixed batch the measured MFU falls with nodes, and so does the formulas'."""
    for size in ("1.34B", "3.57B", "8.86B"):
        rows = sorted((cell for cell in playbook.RUNS if cell.size == size), key=lambda cell: cell.nodes)
        measured, planned = [cell.run.mfu for cell in rows], [cell.run.plan().step.mfu for cell in rows]
        assert measured == sorted(measured, reverse=True)
        assert planned[0] > planned[-1] and planned[0] == pytest.approx(max(planned), rel=0.03)


# ---- both programs ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("gpus", [8, 64, 1024])
@pytest.mark.parametrize("link", [50e9, 1.25e9])
def test_plain_ddp_takes_as_long_by_both_programs(gpus, link):
    """The plan's formula against the simulation of DDP's buckets."""
    assumptions = {"mfu": 0.55, "link_share": 0.76, "latency": 17.5e-6, "spread": 0.0}
    model = MODELS["gpt2-xl"]
    job = Job(model, Cluster(gpus, 80e9, link), gpus * 16 * model.context)
    planned = step(job, Layout(dp=gpus, micro_batch=4))
    assert planned.total == pytest.approx(DDP(job, micro_batch=4).step(assumptions).seconds, rel=0.1)


def few_ways(layout):
    """Every mesh, but few of the ways in which a step runs on it."""
    return layout.zero < 2 and layout.micro_batch == layout.chunks == 1


def test_the_command_prints_the_runs_and_how_far_to_trust_it(capsys, monkeypatch):
    # the search through every layout takes four times as long, and only changes which mesh is the best
    monkeypatch.setattr("ddp_course.plan.published.search", lambda job: search(job, few_ways))
    assert main(["--published"]) == 0
    text = capsys.readouterr().out
    assert all(run.name in text and run.source in text and run.measured in text for run in RUNS)
    assert playbook.PICTURE in text and "the constant 38%" in text
    assert text.count("may not") == 3 and len(text.splitlines()) < 40
    assert max(len(line) for line in text.splitlines()) <= 120
