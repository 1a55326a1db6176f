"""Runs of trainers, one after the other in one process group: given JOBS.json, a list of jobs.

A job is a dict with `script`, one of TRAINERS, and `flags`. Optional keys:

fault      the name of one of FAULTS
copy       [run directory, step, target]: before the job the run directory is copied, without later checkpoints
printed    a folder, into whose file printed_R rank R writes what the job printed

Each rank prints the outcomes and the bytes of its all-reduces, as a line of JSON.
"""

import contextlib
import functools
import importlib
import io
import json
import os
import pickle
import signal
import sys
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import torch
import torch.distributed as dist
import torch.nn.functional as F
import warm
from disturbance import copy_up_to
from shared_groups import shared_groups
from stopped_within_a_step import stopped_within
from torch._C._distributed_c10d import _dump_fr_trace  # gloo's flight recorder, which is always on
from training_runs import ROOT, one_process_group

from ddp_course import diloco_ddp, experts_ddp, finetune_ddp, minigpt_ddp, parallel_ddp
from ddp_course.base.errors import InputError
from ddp_course.data import density
from ddp_course.data.token_file import Tokens
from ddp_course.data.windows import validation_batches
from ddp_course.distributed import parameter_shards, tensor_parallel
from ddp_course.distributed.mesh import Mesh
from ddp_course.distributed.pipeline import Pipeline
from ddp_course.distributed.replica_check import ReplicasDiffer
from ddp_course.trainers import minigpt_stage
from ddp_course.trainers.pretraining import PretrainingConfig
from ddp_course.training.command_line import parse
from ddp_course.training.diloco import DiLoCo

TRAINERS = {name: importlib.import_module(f"ddp_course.{name}_ddp") for name in warm.SCRIPTS if name != "ladder"}
SIZES = {"Float": 4, "Double": 8}


def patch(owner: object, name: str, replacement: object) -> Callable:
    """A fault: while a job runs, `name` of a module or class is this."""
    return functools.partial(mock.patch.object, owner, name, replacement)


def nothing(*_) -> None:
    pass


@contextmanager
def stopped_in_the_second_step(trainer=diloco_ddp, name="clip_grad_norm_"):
    """SIGTERM to the last rank, as a scheduler sends it."""
    clip, calls = getattr(trainer, name), []

    def signalled(*arguments):
        calls.append(1)
        if len(calls) == 2 and dist.get_rank() == dist.get_world_size() - 1:
            os.kill(os.getpid(), signal.SIGTERM)
        return clip(*arguments)

    with mock.patch.object(trainer, name, signalled):
        yield


def without(*names: str) -> Callable:
    """The mistake: DiLoCo's part of a checkpoint lacks these entries."""
    save = DiLoCo.state_dict
    return patch(DiLoCo, "state_dict", lambda self: {name: x for name, x in save(self).items() if name not in names})


def wrong_sign(self, weights=DiLoCo._local_weights):
    """The mistake: the change from the global weights has the wrong sign."""
    return 2 * self._global_weights.detach() - weights(self) if hasattr(self, "outer") else weights(self)


def small_only(tensor, *more, send=dist.all_reduce, **options):
    """The mistake: the workers' gradients are not sent."""
    return send(tensor, *more, **options) if tensor.numel() <= 100 else None


def averaged(parameters, group, add=experts_ddp.add_gradients):
    """The mistake: the gradients of experts, which are tensors of three dimensions, are divided by the ranks."""
    add(parameters, group)
    for parameter in parameters:
        parameter.grad /= dist.get_world_size() if parameter.dim() == 3 else 1


def own_answer_tokens(examples, numbers, count=finetune_ddp.count_targets):
    """The mistake: each rank takes the mean over its own tokens, and DDP the mean of these."""
    return dist.get_world_size() * count(examples, numbers[dist.get_rank() :: dist.get_world_size()])


def own_normaliser(weights, mode, cap, factors=density.factors, **_):
    """The mistake: each rank normalises by the weights of its own pairs."""
    ranks = dist.get_world_size()
    return factors(weights, mode, cap, total_weight=weights.sum().item() * ranks, pairs=len(weights) * ranks)


def averaged_over_ep(shards, mesh):
    """The mistake: an expert's gradient is averaged over the ranks of ep, which hold other experts."""
    for shard in shards:
        if mesh.ep in shard.placements:
            dist.all_reduce(gradient := shard.parameter.grad.to_local(), group=mesh.ep.group)
            gradient /= mesh.ep.size


def apart_on_dp(shards, mesh, average=parameter_shards.average_expert_gradients):
    """The mistake: the gradients of experts differ between replicas."""
    average(shards, mesh)
    for shard in shards:
        if mesh.ep in shard.placements:
            shard.parameter.grad.to_local().mul_(1 + mesh.dp.rank)


def without_all_reduce(module) -> Callable:
    """The mistake: the module's all-reduces do nothing."""
    names = {name: getattr(dist, name) for name in ("group", "all_gather", "all_gather_object")}
    return patch(module, "dist", SimpleNamespace(all_reduce=lambda *_, **__: None, **names))


def own_tokens_only(query, key, value, positions, axis, drop):
    return F.scaled_dot_product_attention(query, key, value, is_causal=True)


def column_in_one(whole, axis, groups=1, enter=None):
    return tensor_parallel.Column(whole, axis, 1, enter)


def own_vocabulary_loss(logits, targets, axis):
    return F.cross_entropy(logits, targets % logits.shape[-1], reduction="sum")


def divided_again(self, inputs, targets, scale, run=Pipeline.forward_backward, **options):
    return run(self, inputs, targets, scale / 4, **options)


def sgd(model, _, decay):
    """The optimizer of diloco_ddp.py with --inner sgd, for minigpt_ddp.py, which has AdamW only."""
    return diloco_ddp.make_inner(diloco_ddp.DiLoCoConfig(inner="sgd", weight_decay=decay), model)


on_a_mesh = functools.partial(patch, parallel_ddp)
draw_keys, step_biases = parallel_ddp.window_keys, parallel_ddp.step_router_biases
FAULTS = {
    "plain SGD": patch(minigpt_ddp, "make_adamw", sgd),
    "stopped": stopped_in_the_second_step,
    "stopped experts": lambda: stopped_in_the_second_step(experts_ddp, "clip_gradients"),
    "experts averaged over the ranks": patch(experts_ddp, "add_gradients", averaged),
    "gradients not added": patch(experts_ddp, "add_gradients", nothing),
    "balance of the own choices": without_all_reduce(experts_ddp),
    "own norm": without_all_reduce(parameter_shards),
    "wrong sign": patch(DiLoCo, "_local_weights", wrong_sign),
    "weights are not handed out": patch(DiLoCo, "_copy_to_model", nothing),
    "no message": patch(dist, "all_reduce", small_only),
    "no outer momentum saved": without("outer_momentum"),
    "averages of rank 0 alone saved": without("others"),
    "tp: gradients of the input are not summed": patch(
        tensor_parallel.GatherTokens, "backward", tensor_parallel.JoinTokens.backward
    ),
    "tp: gradients of the norms are not added": on_a_mesh("add_tensor_gradients", nothing),
    "tp: queries, keys and values are cut as one": patch(minigpt_stage, "Column", column_in_one),
    "tp: the softmax is over the own vocabulary": patch(minigpt_stage, "vocabulary_loss_sum", own_vocabulary_loss),
    "cp: attention over the own tokens": patch(minigpt_stage, "ring_attention", own_tokens_only),
    "pp: ends of the tied table apart": on_a_mesh("add_other_end", nothing),
    "pp: gradients divided by the micro-batches": patch(Pipeline, "forward_backward", divided_again),
    "dp: windows by rank, not by place": patch(Mesh, "replica", property(lambda mesh: mesh.world.rank % mesh.replicas)),
    "dropout: another mask on each rank": on_a_mesh("window_keys", lambda *of: draw_keys(*of) + dist.get_rank()),
    "dropout: one mask for all shares": on_a_mesh("window_keys", lambda *of: draw_keys(*of)[:1].repeat(of[-1])),
    "ep: gradients of experts not divided": on_a_mesh("average_expert_gradients", nothing),
    "ep: gradients of experts averaged over its ranks": on_a_mesh("average_expert_gradients", averaged_over_ep),
    "ep: biases by the own load": on_a_mesh(
        "step_router_biases", lambda mixtures, axes, rate: step_biases(mixtures, (), rate)
    ),
    "ep: a copy of an expert apart": on_a_mesh("average_expert_gradients", apart_on_dp),
    "stopped fine-tuning": lambda: stopped_in_the_second_step(finetune_ddp),
    "stopped within a step": lambda: stopped_within(2, call=2),
    "stopped while sampling": lambda: stopped_within(7, call=1),
    "own answer tokens": patch(finetune_ddp, "count_targets", own_answer_tokens),
    "own normaliser": patch(density, "factors", own_normaliser),
    "stopped mesh": lambda: stopped_in_the_second_step(parallel_ddp, "clip_gradients"),
}


def outcome(job: dict, world) -> str:
    """Run the job. Returns its exit code, or the error that it raised."""
    if world.is_main and "copy" in job:
        source, step, target = job["copy"]
        copy_up_to(Path(source), step, Path(target))
    dist.barrier()
    trainer, printed = TRAINERS[job["script"]], io.StringIO()
    with FAULTS[job["fault"]]() if "fault" in job else contextlib.nullcontext():
        try:
            with contextlib.redirect_stdout(printed):
                return str(trainer.train(parse(trainer.PRESETS, job["flags"])))
        except (InputError, ReplicasDiffer) as error:
            return f"{type(error).__name__}: {error}"
        finally:
            if "printed" in job:
                Path(job["printed"], f"printed_{world.rank}").write_text(printed.getvalue())


def reduced() -> list[tuple[int, int]]:
    """(number, bytes) of each all-reduce that this rank has started, of the last 2000 collectives."""
    sent = []
    for entry in pickle.loads(_dump_fr_trace(True, False, False))["entries"]:
        if "reduce" in entry["profiling_name"]:
            tensors = zip(entry["input_sizes"], entry["input_dtypes"], strict=True)
            size = sum(torch.Size(shape).numel() * SIZES.get(kind, 0) for shape, kind in tensors)
            sent.append((entry["record_id"], size))
    return sent


def main() -> None:
    with one_process_group() as world, shared_groups():
        outcomes, sent = [], []
        for job in json.loads(Path(sys.argv[1]).read_text()):
            last_number = max((number for number, _ in reduced()), default=-1)
            outcomes.append(outcome(job, world))
            sent.append([size for number, size in reduced() if number > last_number])
        print(json.dumps({"outcomes": outcomes, "sent": sent}))


@dataclass(frozen=True)
class JobRuns:
    """Jobs that have run on `nproc` ranks and wrote into `folder`. The dicts are by the name of the job."""

    nproc: int
    folder: Path
    outcomes: dict[str, str]  # an exit code, or the error that was raised
    sent: dict[str, list[int]]  # bytes of each all-reduce of rank 0; on a mesh other ranks have others


def run_jobs(folder: Path, jobs: dict[str, dict], nproc: int) -> JobRuns:
    """Run the jobs, one after the other on the same ranks. Assert that the ranks agree on the outcomes."""
    (folder / f"jobs_{nproc}.json").write_text(json.dumps(list(jobs.values()), default=str))
    run = warm.ranks(ROOT / "tests/trainer_runs.py", folder / f"jobs_{nproc}.json", nproc=nproc)
    mesh = any(job["script"] == "parallel" for job in jobs.values())
    agreed = [of_rank["outcomes"] if mesh else of_rank for of_rank in run.results.values()]
    assert len({json.dumps(rank_results) for rank_results in agreed}) == 1, "ranks disagree"
    by_name = {what: dict(zip(jobs, run.results[0][what], strict=True)) for what in ("outcomes", "sent")}
    return JobRuns(nproc, folder, **by_name)


def train_in_turn(runs: list[list[str]], nproc: int, folder: Path) -> None:
    """Run minigpt_ddp.py once for each command line of `runs`, on the same ranks."""
    jobs = {str(number): {"script": "minigpt", "flags": flags} for number, flags in enumerate(runs)}
    assert set(run_jobs(folder, jobs, nproc).outcomes.values()) == {"0"}


def plain_adamw(model: torch.nn.Module) -> torch.optim.AdamW:
    """AdamW with the trainers' betas and weight decay."""
    matrices, vectors = ([p for p in model.parameters() if (p.dim() > 1) == wanted] for wanted in (True, False))
    groups = {"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0}
    return torch.optim.AdamW(groups, betas=(0.9, 0.95))


def validation_loss(model: torch.nn.Module, tokens: Tokens, config: PretrainingConfig) -> float:
    """The mean loss per target over all validation windows, computed in one process."""
    sizes = {"context": config.context, "max_windows": config.validation_windows}
    batches = validation_batches(tokens.val, batch_size=99, rank=0, world_size=1, **sizes)
    model.eval()
    sums = [(model(inputs, targets).item(), (targets >= 0).sum().item()) for inputs, targets in batches]
    return sum(loss for loss, _ in sums) / sum(count for _, count in sums)


if __name__ == "__main__":
    main()
