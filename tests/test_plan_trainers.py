"""plan --trainer lists meshes that the trainer can run, with its flags; commands of parallel_ddp.py are run here."""

import re
import shlex
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
from test_plan import bytes_for_backward
from torch.testing._internal.distributed.fake_pg import FakeStore
from trainer_runs import run_jobs
from training_runs import RECORDED_LOG, merged, metrics

from ddp_course import parallel_ddp
from ddp_course.base.errors import InputError
from ddp_course.distributed.mesh import Mesh
from ddp_course.distributed.process_group import World
from ddp_course.models.minigpt import MiniGPT, MiniGPTConfig
from ddp_course.plan.__main__ import main
from ddp_course.plan.derived import job_from
from ddp_course.plan.flags import plan_parser
from ddp_course.plan.memory import Layout
from ddp_course.plan.search import best_way, evaluate, meshes, search
from ddp_course.plan.trainers import TRAINERS
from ddp_course.trainers.minigpt_stage import Stage, check_cuts
from ddp_course.training.command_line import parse

SMALL = "--params 900K --layers 4 --width 128 --heads 4 --context 64 --vocabulary 256 --tokens-per-update 1024".split()
SMALL += ["--memory", "80GB", "--link", "400Gb", "--precision", "fp32"]
EXPERTS = "--params 2.37M --active 1.32M --expert-params 2097152".split()  # 4 experts per layer, 2 per token
LARGE = "--params 7e9 --layers 32 --gpus 64 --memory 80GB --link 400Gb".split()
AXES = "pp", "dp", "shard", "cp", "tp"


def job(*words):
    return job_from(plan_parser().parse_args(merged(*words)))[0]


def small(*words):
    return job(*SMALL, "--trainer", "parallel_ddp", *words)


def words_of(command):
    """The words that a shell would read."""
    return shlex.split("\n".join(command).replace("\\\n", " "))


def command_of(plan_job, layout):
    """The words of the trainer's command for a layout."""
    return words_of(plan_job.trainer.command(plan_job, layout))


def printed(capsys, *flags):
    """The words of the command in the report."""
    assert main(merged(*flags)) == 0
    text = capsys.readouterr().out
    start = re.search(r"^\S+, .*:\n(?=torchrun|-m |pretrain)", text, re.MULTILINE).end()
    return words_of(text[start:].split("\n\n")[0].splitlines())


@pytest.mark.smoke
@pytest.mark.parametrize(("gpus", "experts"), [(4, []), (8, []), (4, EXPERTS), (8, EXPERTS)])
def test_parallel_ddp_accepts_every_mesh_that_the_plan_allows(gpus, experts):
    plan_job = small("--gpus", gpus, "--key-value-heads", 2, *experts)
    allowed = [layout for layout in meshes(plan_job) if not evaluate(plan_job, layout).refused]
    assert {layout.axes for layout in allowed} < {layout.axes for layout in meshes(plan_job)}
    for layout in allowed:
        words = command_of(plan_job, layout)
        config = parse(parallel_ddp.PRESETS, words[words.index("ddp_course/parallel_ddp.py") + 1 :])
        sizes = {axis: getattr(layout, axis) for axis in AXES}
        assert {axis: getattr(config, axis) for axis in AXES} == sizes
        mesh = SimpleNamespace(**{axis: SimpleNamespace(size=size) for axis, size in sizes.items()})
        mesh.replicas = layout.dp * layout.shard
        assert config.ep == layout.ep and layout.shard * layout.cp % layout.ep == 0
        assert config.experts == (4 if experts else None)
        check_cuts(config, mesh)
        assert parallel_ddp.micro_batches_per_step(config, mesh) == evaluate(plan_job, layout).micro_batches
        assert layout.zero in (0, 3 if layout.pp == 1 else 1) and layout.chunks == 1
    assert max(layout.ep for layout in allowed) == (4 if experts else 1)


def test_the_command_runs_as_it_is_printed(capsys, tmp_path):
    """The plan's choice, each axis alone, recomputation, experts; the test adds data, run directory, steps and seed."""
    words = printed(capsys, *SMALL, "--gpus", "2", "--trainer", "parallel_ddp")
    assert words[:3] == ["torchrun", "--standalone", "--nproc-per-node=2"]
    commands = {"printed": words}
    plan_job = small("--gpus", "2")
    for axis in AXES:
        commands[axis] = command_of(plan_job, best_way(plan_job, Layout(**{axis: 2})).layout)
    bf16_job = replace(plan_job, precision="bf16")
    commands["bf16"] = command_of(bf16_job, best_way(bf16_job, Layout(shard=2)).layout)
    assert commands["bf16"][-4:-2] == ["--param-dtype", "bfloat16"]
    commands["recompute"] = command_of(plan_job, Layout(dp=2, recompute=True))
    assert "--activation-checkpointing" in commands["recompute"]
    expert_job = small("--gpus", "2", *EXPERTS)
    for name, ep in {"experts": 1, "ep": 2}.items():
        commands[name] = command_of(expert_job, best_way(expert_job, Layout(shard=2, ep=ep)).layout)
    assert commands["ep"][-2:] == ["--ep", "2"]
    jobs = {}
    for name, command in commands.items():
        flags = command[command.index("ddp_course/parallel_ddp.py") + 1 :]
        more = ["--run-dir", tmp_path / name, "--data", RECORDED_LOG, "--steps", 1, "--seed", 3]
        jobs[name] = {"script": "parallel", "flags": [*flags, *map(str, more)]}
    assert set(run_jobs(tmp_path, jobs, 2).outcomes.values()) == {"0"}
    losses = {name: metrics(tmp_path / name)[1] for name in jobs}
    in_bf16, with_experts = losses.pop("bf16"), losses.pop("experts")
    assert losses.pop("ep") == pytest.approx(with_experts, rel=1e-5)
    losses = list(losses.values())
    assert losses == pytest.approx([losses[0]] * len(losses), rel=1e-5)
    assert in_bf16 == pytest.approx(losses[0], rel=1e-3) and in_bf16 != pytest.approx(losses[0], rel=1e-6)


@pytest.mark.smoke
@pytest.mark.parametrize(
    ("trainer", "flags"),
    [
        ("torchtitan", "--parallelism.data_parallel_shard_degree 64 --parallelism.tensor_parallel_degree 1"),
        ("torchtitan", "--training.num_tokens_per_train_step 4194304 activation-checkpoint:none"),
        ("megatron", "--tensor-model-parallel-size 1 --pipeline-model-parallel-size 1 --context-parallel-size 1"),
        ("megatron", "--use-distributed-optimizer --global-batch-size 1024 --bf16"),
    ],
)
def test_the_flags_of_other_trainers(capsys, trainer, flags):
    words = printed(capsys, *LARGE, "--trainer", trainer)
    assert set(flags.split()) <= set(words)


@pytest.mark.smoke
def test_a_pipeline_with_chunks_in_other_trainers():
    layout = Layout(pp=4, shard=8, tp=2, zero=1, chunks=4, recompute=True)
    for trainer, expected in {
        "torchtitan": "--parallelism.pipeline_parallel_schedule Interleaved1F1B --parallelism.num_pp_microbatches 128 "
        "--parallelism.pipeline_parallel_layers_per_stage 2 --parallelism.fsdp_reshard_after_forward never "
        "activation-checkpoint:full",
        "megatron": "--num-virtual-stages-per-pipeline-rank 4 --sequence-parallel --recompute-granularity full",
    }.items():
        plan_job = job(*LARGE, "--trainer", trainer)
        assert not evaluate(plan_job, layout).refused
        words = " ".join(command_of(plan_job, layout))
        assert all(flag in words for flag in re.findall(r"\S+(?: [^-a]\S*)?", expected)), words


REFUSED = [
    ("parallel_ddp", Layout(pp=2, dp=32, chunks=2), "no chunks"),
    ("parallel_ddp", Layout(pp=2, shard=32, zero=3), "no ZeRO-3"),
    ("parallel_ddp", Layout(shard=64, zero=1), "no ZeRO-1"),
    ("parallel_ddp", Layout(tp=8, dp=8), "4 heads of keys and values"),
    ("torchtitan", Layout(shard=64, zero=1), "no ZeRO-1"),
    ("torchtitan", Layout(tp=8, dp=8), "4 heads of keys and values"),
    ("megatron", Layout(shard=64, zero=3), "no ZeRO-3"),
    ("megatron", Layout(pp=3, dp=64), "same number of layers"),
]


@pytest.mark.smoke
@pytest.mark.parametrize(("trainer", "layout", "why"), REFUSED)
def test_a_mesh_that_a_trainer_cannot_run_is_refused(trainer, layout, why):
    gpus = layout.gpus
    words = [*LARGE, "--heads", 32, "--key-value-heads", 4, "--gpus", gpus, "--tokens-per-update", 4096 * 16 * gpus]
    plan_job = job(*words, "--trainer", trainer)
    assert why in evaluate(plan_job, layout).refused
    assert not evaluate(replace(plan_job, trainer=None), layout).refused
    assert all(plan.layout != layout for plan in search(plan_job).fits)


@pytest.mark.smoke
def test_megatron_repeats_heads_of_keys_and_torchtitan_divides_layers_unevenly():
    shared = [*LARGE, "--heads", 32, "--key-value-heads", 4, "--trainer"]
    assert not evaluate(job(*shared, "megatron"), Layout(tp=8, dp=8)).refused
    uneven = merged(*LARGE, "--layers", 30)
    assert not evaluate(job(*uneven, "--trainer", "torchtitan"), Layout(pp=4, dp=16)).refused


@pytest.mark.smoke
@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--trainer", "parallel_ddp", "--gated"], "4 times as wide"),
        (["--trainer", "megatron", "--active", "2B", "--expert-params", "5B"], "dense models"),
        (["--trainer", "parallel_ddp", "--active", "2B", "--expert-params", "5B"], "as many experts in every layer"),
    ],
)
def test_a_model_that_a_trainer_cannot_build(words, sentence):
    with pytest.raises(InputError, match=sentence):
        job(*LARGE, *words)


@pytest.mark.smoke
def test_every_trainer_has_flags_for_every_mesh_of_its_plan():
    for trainer in TRAINERS:
        plan_job = job(*LARGE, "--trainer", trainer)
        for plan in search(plan_job).fits:
            lines = plan_job.trainer.command(plan_job, plan.layout)
            assert all(len(line) <= 114 for line in lines) and all(line.endswith(" \\") for line in lines[:-1])


def kept_by_a_block(tp):
    """Numbers that a block of rank 0 keeps for backward, per token of the global batch and unit of the width."""

    def kept(layers):
        model_config = MiniGPTConfig(vocab_size=64, context=32, layers=layers, heads=4, width=64)
        mesh = Mesh(World(0, 0, tp, torch.device("cpu")), pp=1, dp=1, shard=1, cp=1, tp=tp)
        stage = Stage(MiniGPT(model_config), mesh)
        tokens = torch.zeros(8, 32, dtype=torch.long)
        return bytes_for_backward(stage.parameters(), lambda: stage(tokens, tokens))

    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=tp)
    try:
        return (kept(4) - kept(2)) / 2 / (4 * 8 * 32 * 64)
    finally:
        dist.destroy_process_group()


@pytest.mark.parametrize("tp", [2, 4])
def test_tensor_parallel_keeps_two_gathered_inputs_of_a_block_whole(tp):
    kept = job(*SMALL, "--gpus", 8).model.saved_per_token
    expected, without_gathered = (
        (kept - whole) / tp + whole for whole in (TRAINERS["parallel_ddp"].gathered_inputs, 0)
    )
    assert kept_by_a_block(tp) == pytest.approx(expected, rel=0.05) and without_gathered < 0.9 * expected
