"""The plan: bytes and messages against what is measured small and published large, refusals, one-sentence errors."""

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from training_runs import ROOT, merged

from ddp_course.authoring.notebook_run import read_notebook
from ddp_course.base.errors import InputError
from ddp_course.models.minigpt import MiniGPT, MiniGPTConfig
from ddp_course.plan.__main__ import main
from ddp_course.plan.derived import job_from
from ddp_course.plan.flags import plan_parser, read_memory
from ddp_course.plan.job import Cluster, Job, Model
from ddp_course.plan.memory import Layout, memory, stage_parameters
from ddp_course.plan.models import read_parameters
from ddp_course.plan.report import NOTHING, overview
from ddp_course.plan.search import best_way, divisors, evaluate, meshes, refusal_reason, search, step_interval
from ddp_course.plan.traffic import bubble, micro_batches, step, traffic

pytestmark = pytest.mark.smoke

GB = 2**30
SEVEN = Model(7e9, 32, 4096, 32, 4096)  # 7e9 parameters
SIXTY_FOUR = Cluster(64, 80 * GB, 50e9)
JOB = Job(SEVEN, SIXTY_FOUR, 2**22)
ASKED = ["--params", "7e9", "--gpus", "64", "--memory", "80GB", "--link", "400Gb"]


def job_for(*more):
    """The job of ASKED and these flags."""
    return job_from(plan_parser().parse_args(merged(*ASKED, *more)))[0]


# ---- memory ----------------------------------------------------------------------------------------------------------


def small() -> tuple[MiniGPT, Model]:
    whole = MiniGPT(MiniGPTConfig(vocab_size=64, context=32, layers=4, heads=4, width=64))
    parameters = sum(parameter.numel() for parameter in whole.parameters())
    return whole, Model(parameters, 4, 64, 4, 32, vocabulary=64, tables=1)


def bytes_for_backward(weights, forward):
    """Bytes of the floating-point storages that autograd keeps of `forward()` for backward, `weights` left out."""
    own, kept = {weight.untyped_storage().data_ptr() for weight in weights}, {}

    def note(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own and tensor.is_floating_point():
            kept[storage.data_ptr()] = storage
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        forward()
    return sum(storage.nbytes() for storage in kept.values())


def test_one_gpu_holds_what_adamw_holds_of_a_real_model():
    whole, model = small()
    optimizer = torch.optim.AdamW(whole.parameters())
    tokens = torch.randint(64, (2, 32))
    whole(tokens).float().logsumexp(-1).mean().backward()
    optimizer.step()
    estimate = memory(model, Layout(), 1, "fp32")
    assert estimate.weights == sum(parameter.nbytes for parameter in whole.parameters())
    assert estimate.gradients == sum(parameter.grad.nbytes for parameter in whole.parameters())
    averages = [tensor for state in optimizer.state.values() for tensor in state.values() if tensor.numel() > 1]
    assert estimate.optimizer == pytest.approx(sum(tensor.nbytes for tensor in averages))


def test_activations_are_those_that_autograd_keeps():
    """As notebook 7b.1 counts them, to within a tenth: storages that backward needs, weights left out."""
    whole, model = small()
    tokens, targets = torch.randint(64, (2, 8, 32))
    measured = bytes_for_backward(
        whole.parameters(), lambda: F.cross_entropy(whole(tokens).flatten(0, 1), targets.flatten())
    )
    assert memory(model, Layout(micro_batch=8), 1, "fp32").activations == pytest.approx(measured, rel=0.1)


@pytest.mark.parametrize("ranks", [1, 2, 64])
def test_fully_sharded_holds_a_part_of_everything(ranks):
    """Notebook 17.4: (1 + 1 + 2) / n."""
    estimate = memory(SEVEN, Layout(shard=ranks, zero=3), 1, "fp32")
    assert estimate.weights + estimate.gradients + estimate.optimizer == pytest.approx(4 * 4 * SEVEN.parameters / ranks)


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_each_stage_of_zero_holds_what_notebook_17_says(stage):
    [cell] = [cell for cell in read_notebook(ROOT / "notebooks/17_fully_sharded.ipynb").cells if cell.id == "units"]
    scope = {}
    exec(cell.source, scope)
    for ranks in (2, 64):
        per_gpu = memory(SEVEN, Layout(shard=ranks, zero=stage), 1, "fp32")
        of_parts = [part / 4 / SEVEN.parameters for part in (per_gpu.weights, per_gpu.gradients, per_gpu.optimizer)]
        assert of_parts == pytest.approx(scope["units"](ranks)[f"ZeRO-{stage}"])


def test_a_gated_block_keeps_what_autograd_keeps():
    """Llama's: two norms, attention with fewer heads of keys than of queries, three matrices in its MLP."""
    width, inner, windows, tokens = 64, 224, 4, 32
    sizes = [(width, width), (width, width // 2), (width, width // 2), (width, width)]
    sizes += [(width, inner), (width, inner), (inner, width)]
    layers = torch.nn.ModuleList(torch.nn.Linear(*size, bias=False) for size in sizes)
    query, key, value, output, gate, up, down = layers
    norms = torch.nn.ModuleList(torch.nn.RMSNorm(width) for _ in range(2))

    def forward():
        x = torch.randn(windows, tokens, width, requires_grad=True)
        normed = norms[0](x)
        heads = [layer(normed).unflatten(2, (-1, width // 4)).transpose(1, 2) for layer in (query, key, value)]
        attended = F.scaled_dot_product_attention(*heads, is_causal=True, enable_gqa=True)
        x = x + output(attended.transpose(1, 2).flatten(2))
        normed = norms[1](x)
        return x + down(F.silu(gate(normed)) * up(normed))

    measured = bytes_for_backward([*layers.parameters(), *norms.parameters()], forward) / (4 * windows * tokens * width)
    block = Model(1e6, 1, width, 4, tokens, 64, tables=1, key_value_ratio=0.5, mlp_ratio=inner / width, keeps="gated")
    assert block.saved_per_token == pytest.approx(measured, rel=0.1)
    assert replace(block, keeps="plain", mlp_ratio=4, key_value_ratio=1).saved_per_token == 16
    assert replace(block, keeps="fused").saved_per_token < measured


def test_parts_of_the_model_add_up_to_it():
    whole = sum(stage_parameters(SEVEN, Layout()))
    assert whole == SEVEN.parameters
    assert sum(stage_parameters(SEVEN, Layout(tp=8))) == pytest.approx(whole / 8)
    assert 2 * sum(stage_parameters(SEVEN, Layout(pp=2))) == pytest.approx(whole)  # each has a table
    experts = replace(SEVEN, active=2e9, expert_parameters=5e9, experts_per_token=2)
    common, each = stage_parameters(experts, Layout(shard=8, ep=8))
    assert common + 8 * each == pytest.approx(whole)


def test_layers_that_are_gathered():
    """Two layers and the tables in two bytes; experts too, unless they are on their rank already."""
    layer = SEVEN.layer_parameters / 32
    assert memory(SEVEN, Layout(shard=64), 1).gathered == pytest.approx(2 * (2 * layer + 2 * SEVEN.table_parameters))
    assert memory(SEVEN, Layout(shard=64, zero=2), 1).gathered == 0
    experts = replace(SEVEN, active=2e9, expert_parameters=5e9, experts_per_token=2)
    whole, spread = (memory(experts, Layout(shard=64, ep=ep), 1).gathered for ep in (1, 64))
    assert whole == pytest.approx(memory(SEVEN, Layout(shard=64), 1).gathered)
    assert whole - spread == pytest.approx(2 * 2 * 5e9 / 32)


def test_cutting_and_recomputing_lower_activations():
    unsharded = memory(SEVEN, Layout(micro_batch=2), 4).activations
    assert memory(SEVEN, Layout(micro_batch=2, cp=2), 4).activations == pytest.approx(unsharded / 2)
    assert memory(SEVEN, Layout(micro_batch=2, tp=4), 4).activations == pytest.approx(unsharded / 4)
    assert memory(SEVEN, Layout(micro_batch=2, recompute=True), 4).activations < unsharded / 4
    in_flight = [memory(SEVEN, Layout(pp=4), count).activations for count in (1, 2, 4, 8)]
    assert in_flight[1] < in_flight[2] == in_flight[3]  # 1F1B holds at most as many as there are stages
    assert memory(SEVEN, Layout(pp=4, chunks=2), 8).activations > in_flight[3]  # interleaved more (23.3)


# ---- traffic ---------------------------------------------------------------------------------------------------------


def sent(layout, tokens=2**22):
    job = Job(SEVEN, Cluster(layout.gpus, 80 * GB, 50e9), tokens)
    return {message.axis: message.bytes for message in traffic(job, layout)}


def test_each_axis_sends_what_its_notebook_counts():
    vectors = 2 * 4096 * 2**22  # bytes of one vector per token
    weights = SEVEN.parameters
    assert sent(Layout(dp=8)) == {"dp": pytest.approx(2 * 7 / 8 * 4 * weights)}  # 04: a ring all-reduce
    assert sent(Layout(tp=8)) == {"tp": pytest.approx(4 * 32 * 2 * 7 / 8 * vectors)}  # 22.4
    assert sent(Layout(pp=8)) == {"pp": pytest.approx(2 * vectors)}  # 23.5
    assert sent(Layout(cp=8))["cp"] == pytest.approx(2 * 2 * 7 * 32 * vectors / 8)  # 24.3
    fully_sharded = Layout(shard=8, micro_batch=8, zero=3)
    assert sent(fully_sharded, 2**18) == {"shard": pytest.approx(7 / 8 * (2 + 2 + 4) * weights)}
    assert sent(fully_sharded, 2**19)["shard"] == pytest.approx(2 * sent(fully_sharded, 2**18)["shard"])
    assert sent(Layout(shard=8, zero=1), 2**19) == sent(Layout(shard=8, zero=1), 2**18)


def test_cp_ranks_sum_their_gradients_too():
    assert sent(Layout(cp=8))["dp"] == pytest.approx(2 * 7 / 8 * 4 * SEVEN.parameters)
    assert "dp" not in sent(Layout(shard=2, cp=4, zero=3)) and "dp" in sent(Layout(dp=2, shard=2, cp=2))


def test_the_bubble_is_that_of_23():
    for stages, many in ((2, 4), (4, 8)):
        idle = bubble(Layout(pp=stages), many)
        assert idle / (1 + idle) == pytest.approx((stages - 1) / (many + stages - 1))
    idle = bubble(Layout(pp=4, chunks=2), 8)
    assert idle / (1 + idle) == pytest.approx(3 / (2 * 8 + 3))


def test_neighbours_use_the_fast_links():
    layout = Layout(pp=2, dp=4, tp=8)
    links = {message.axis: message.link for message in traffic(JOB, layout)}
    assert links == {"tp": "inside", "dp": "between", "pp": "between"}
    wide = replace(JOB, cluster=replace(SIXTY_FOUR, per_node=64))
    assert {message.link for message in traffic(wide, layout)} == {"inside"}


@pytest.mark.parametrize(
    ("axis", "layout", "leaves"),
    [
        ("cp", Layout(cp=64), 1),
        ("pp", Layout(pp=32, dp=2), 1),
        ("shard", Layout(shard=64, zero=1), 1 / 8),
        ("dp", Layout(dp=64), 1 / 8),
        ("ep", Layout(shard=64, ep=64, zero=1), 56 / 63),
    ],
)
def test_traffic_between_nodes_uses_the_cards_of_the_gpus_that_send(axis, layout, leaves):
    """A ring's collective shares a node's cards; a neighbour's block, a stage's and an expert's tokens do not."""
    model = replace(SEVEN, active=2e9, expert_parameters=5e9, experts_per_token=2, heads=64) if axis == "ep" else SEVEN
    slow = replace(SIXTY_FOUR, link=1e6)  # so slow that only the bytes count
    message = next(message for message in traffic(Job(model, slow, 2**22), layout) if message.axis == axis)
    assert message.link == "between"
    assert message.seconds == pytest.approx(leaves * message.bytes / (1e6 * slow.link_share), rel=0.01)


def test_the_optimizers_step_takes_its_time_and_sharding_divides_it():
    whole, shared = (step(JOB, layout) for layout in (Layout(dp=64), Layout(shard=64, zero=1)))
    assert whole.updating == pytest.approx(28 * 7e9 / 3.35e12) and shared.updating == pytest.approx(whole.updating / 64)
    assert whole.total == pytest.approx(whole.computing + whole.waiting + whole.updating)


def test_a_slow_network_makes_steps_longer_and_changes_the_quickest_plan():
    slow, layout = replace(JOB, cluster=replace(SIXTY_FOUR, link=0.1e9)), Layout(dp=8, shard=8, zero=1)
    assert step(slow, layout).total > 1.5 * step(JOB, layout).total
    assert search(slow).fits[0].layout != search(JOB).fits[0].layout


# ---- the search ------------------------------------------------------------------------------------------------------


def test_every_mesh_has_all_gpus_and_every_factorisation_is_there():
    layouts = {(layout.pp, layout.dp, layout.shard, layout.cp, layout.tp) for layout in meshes(JOB)}
    assert all(layout.gpus == 64 for layout in meshes(JOB)) and len(layouts) == 210  # 64 = 2^6 over five axes
    assert divisors(12) == [1, 2, 3, 4, 6, 12]


def test_the_plan_fits_and_nothing_that_fits_is_quicker():
    result = search(JOB)
    steps = [plan.step.total for plan in result.fits]
    assert steps == sorted(steps) and all(plan.memory.total <= JOB.limit for plan in result.fits)
    assert result.simplest().step.total <= 1.05 * steps[0] and result.simplest().axes == 1
    assert result.tried == len(result.fits) + sum(result.refused.values())


def test_a_small_model_gets_plain_ddp_and_a_large_one_does_not():
    small = job_for("--params", "350M")
    assert search(small).simplest().layout.dp == 64
    assert best_way(JOB, Layout(dp=64)).memory.total > JOB.limit
    large = search(job_for("--params", "405e9", "--gpus", "1024"))
    assert large.fits[0].layout.tp > 1 or large.fits[0].layout.pp > 1 or large.fits[0].layout.shard > 64


@pytest.mark.parametrize(
    ("layout", "why"),
    [
        (Layout(tp=16, dp=4), "cross nodes"),
        (Layout(pp=64), "more stages than layers"),
        (Layout(dp=64, micro_batch=32), "windows do not divide"),
        (Layout(pp=32, dp=2, micro_batch=32), "fewer micro-batches"),
        (Layout(pp=16, dp=4, chunks=4), "chunks"),
    ],
)
def test_a_mesh_that_does_not_fit_is_refused(layout, why):
    assert why in refusal_reason(JOB, layout) and evaluate(JOB, layout).refused


def test_heads_and_windows_that_do_not_divide():
    assert "heads" in refusal_reason(replace(JOB, model=replace(SEVEN, heads=31)), Layout(tp=8, dp=8))
    assert "window" in refusal_reason(Job(replace(SEVEN, context=6), SIXTY_FOUR, 6 * 2**10), Layout(cp=2, dp=32))
    with pytest.raises(InputError, match="do not divide"):
        micro_batches(JOB, Layout(dp=3))
    for tokens in (0, SEVEN.context - 1, SEVEN.context + 1):
        with pytest.raises(InputError, match="whole windows"):
            replace(JOB, tokens=tokens)


# ---- the command -----------------------------------------------------------------------------------------------------


@pytest.fixture
def report(capsys):
    """A function that returns what the command prints for ASKED and further flags."""

    def print_plan(*more):
        assert main(merged(*ASKED, *more)) == 0
        return capsys.readouterr().out

    return print_plan


def test_the_command_prints_a_plan(report):
    text = report()
    for expected in ("--layers", "held on a GPU", "[17]", "Meshes refused", "dp alone (DDP)", "does not know"):
        assert expected in text


def test_the_report_marks_what_may_not_fit_and_gives_steps_as_intervals(report):
    rows = {line[:24].strip(): line for line in report().splitlines() if " - " in line}
    assert "may not" in rows["shard 64"] and " yes " in rows["pp 2 shard 32"]
    job = job_for()
    for plan in search(job).distinct()[:3]:
        likely = step_interval(job, plan.layout)
        assert likely.low < plan.step.total < likely.high


def test_given_sizes_are_not_derived():
    words = "--layers 30 --width 4096 --heads 64 --tokens-per-update 2097152 --key-value-heads 8"
    job = job_for(*words.split())
    model = job.model
    assert (model.layers, model.width, model.heads, model.key_value_ratio, job.tokens) == (30, 4096, 64, 1 / 8, 2**21)


@pytest.mark.parametrize(("text", "layers", "width"), [("7e9", 32, 4096), ("70B", 80, 8192), ("405B", 126, 16384)])
def test_a_derived_shape_is_near_llamas(text, layers, width):
    model = job_for("--params", text).model
    assert 0.7 < model.layers / layers < 1.3 and 0.8 < model.width / width < 1.2 and model.heads % 8 == 0


def test_a_mixture_of_experts(report):
    mixture = ["--params", "47B", "--active", "13B", "--expert-params", "45B"]
    model = job_for(*mixture).model
    assert model.flops_per_token < 0.4 * job_for("--params", "47B").model.flops_per_token and model.width < 6144
    assert "ep " in report(*mixture)


def test_the_map_names_the_axes_of_each_cell():
    table = overview(["350M", "30B"], [1, 8, 64])
    assert [table["350M", count] for count in (1, 8, 64)] == ["one GPU", "dp", "dp"]
    assert table["30B", 1] == NOTHING and table["30B", 64] == "shard"


def test_nothing_fits(report):
    text = report("--params", "405B", "--gpus", "8")
    assert "None of" in text and "The smallest is" in text


def test_the_report_names_a_number_of_gpus_that_is_enough(report):
    """Weights, gradients and optimizer alone are too large: a shorter window would not help, twice the GPUs do."""
    asked = ["--params", "13e9", "--memory", "24GB", "--link", "100Gb"]
    text = report(*asked, "--gpus", "8")
    assert "28.1 GB" in text and "More GPUs or more memory; 16 GPUs would be enough." in text
    assert " meshes fit" in report(*asked, "--gpus", "16")
    assert "or a shorter window" in report("--gpus", "8", "--context", "1048576")


def test_one_gpu(report):
    text = report("--params", "350M", "--gpus", "1")
    assert "one GPU" in text and "; 1 GPU, " in text and "The simple ones" not in text


def test_one_node_has_no_axis_between_nodes(report):
    text = report("--params", "350M", "--gpus", "8")
    assert "between" not in text.split("The simple ones:")[1].split("What this")[0]


@pytest.mark.parametrize(
    ("gpus", "tokens"), [(64, 2**22), (96, 960 * 4096), (1000, 1000 * 4096), (4096, 2**22), (3000, 1000 * 4096)]
)
def test_a_steps_windows_divide_over_the_gpus(gpus, tokens):
    job = job_for("--gpus", f"{gpus}")
    assert job.tokens == tokens and search(job).fits


def test_where_nothing_divides_the_report_says_that_nothing_can_run(report):
    assert "can run, for the reasons below" in report("--gpus", "1000", "--tokens-per-update", "4194304")


def test_the_report_names_a_gpu_that_it_assumes(report):
    assert "--gpu h100" in report()
    assert "--gpu" not in report("--gpu", "a100").split("\n\n")[0]


def test_slow_links_inside_a_node_make_tensor_parallel_slower():
    asked = [job_for("--gpus", "8", *more) for more in ([], ["--inside", "32GB"])]
    fast, slow = (best_way(job, Layout(tp=8)).step.total for job in asked)
    assert slow > 2 * fast


def test_a_gated_mlp_is_counted():
    words = "--params 8.03B --layers 32 --width 4096 --heads 32 --key-value-heads 8 --mlp 14336 --gated".split()
    plain, gated = job_for("--params", "8.03B").model, job_for(*words).model
    assert (plain.saved_per_token, gated.saved_per_token) == (16, 6 + 2 / 4 + 4 * 3.5)
    assert job_for("--gated").model.saved_per_token == pytest.approx(8 + 4 * 8 / 3)
    assert job_for("--params", "13e9", "--heads", "40").model.width % 40 == 0


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        (["--gpus", "0"], "--gpus is from 1"),
        (["--gpus", "12"], "do not fill nodes"),
        (["--params", "seven"], "such as 7e9"),
        (["--memory", "lots"], "write it as 80GB"),
        (["--memory", "0GB"], "write it as 80GB"),
        (["--link", "fast"], "400Gb"),
        (["--heads", "7", "--width", "4096"], "does not divide"),
        (["--layers", "0"], "--layers is at least 1"),
        (["--tokens-per-update", "5000"], "whole windows"),
        (["--tokens-per-update", "nan"], "tokens from 1 up"),
        (["--inside", "3"], "read the speed"),
        (["--gpu", "abacus"], "no GPU"),
        (["--peak-tflops", "0"], "--peak-tflops is above 0"),
        (["--kernels", "2"], "share of the peak"),
        (["--active", "1e9"], "both --active"),
        (["--params", "1M", "--width", "4096"], "fewer than"),
        (["--key-value-heads", "64"], "divisor of --heads 32"),
        (["--key-value-heads", "5"], "divisor of --heads 32"),
        (["--mlp", "0"], "--mlp is at least 1"),
        (["--width", "1"], "583,312,000 layers"),
        (["--layers", "200", "--width", "8192"], "not 4.9e+09"),
        (["--layers", "1000000"], "1,000,000 layers"),
        (["--tokens-per-update", "4194304.5"], "4,194,304 or 4,198,400"),
        (["--context", "8192", "--tokens-per-update", "12288"], "take 8,192 or 16,384"),
        (["--gpus", "many"], "invalid int value"),
        (["--cards", "8"], "unrecognized"),
        (["--params"], "expected one"),
        (["--active", "8e9", "--expert-params", "1e9"], "at most as many are active"),
        (["--gpus-per-node", "0"], "at least 1"),
        (["--width", "1000000000"], "fewer than"),
        (["--width", "1000000000000000000"], "--width is at most 1,000,000,000, got 1,000,000,000,000,000,000"),
    ],
)
def test_bad_input_is_one_sentence(wrong, sentence, capsys):
    assert main(merged(*ASKED, *wrong)) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ") and sentence in error and error.count("\n") == 1


def test_without_the_four_flags_it_says_which(capsys):
    assert main(["--params", "7e9"]) == 2
    assert "--gpus, --memory, --link" in capsys.readouterr().err


def test_sizes():
    assert [read_parameters(text, "") for text in ("7B", "350M", "1.3e9")] == [7e9, 350e6, 1.3e9]
    assert read_memory("80GB") == read_memory("80 GiB") == 80 * GB
