"""The check of the replicas: its findings, its messages, and the trainer that it ends."""

import pytest
import warm
from trainer_runs import train_in_turn
from training_runs import TRAINER, arguments, metrics

from ddp_course.launcher import RunFailed, torchrun

THREE_RANKS = """
import json
import torch
from ddp_course.distributed import process_group
from ddp_course.distributed.replica_check import RandomStatesEqual, ReplicasDiffer, assert_replicas_equal

world = process_group.start(timeout_seconds=30)


def trained(seed=1):
    process_group.seed_shared(seed)
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 4))
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.randn(8, 4)).sum().backward()
    optimizer.step()
    process_group.seed_rank(seed, world.rank)
    return model, optimizer


def message(change, *, on=1, **options):
    model, optimizer = trained()
    if world.rank == on:
        with torch.no_grad():
            change(model, optimizer)
    try:
        return assert_replicas_equal(world, model, optimizer, step=12, **options)
    except (ReplicasDiffer, RandomStatesEqual) as error:
        return f"{type(error).__name__}: {error}"


changes = {
    "flip_a_bit": lambda model, _: model[2].weight.view(torch.int32)[2, 3].bitwise_xor_(1),
    "add_a_half": lambda model, _: model[2].weight[2, 3].add_(0.5),
    "swap": lambda model, _: model[2].weight[0, :2].copy_(model[2].weight[0, :2].flip(0)),
    "all_nan": lambda model, _: model[0].bias.fill_(float("nan")),
    "other_buffer": lambda model, _: model[1].running_mean.add_(1),
    "other_moment": lambda model, optimizer: optimizer.state[model[0].bias]["exp_avg"].add_(1),
    "no_moment": lambda model, optimizer: optimizer.state.pop(model[0].bias),
    "other_rate": lambda model, optimizer: optimizer.param_groups[0].update(lr=0.5),
    "other_shape": lambda model, _: model.__setitem__(0, torch.nn.Linear(5, 4)),
    "seed_of_rank_0": lambda *_: process_group.seed_rank(1, 0),
    "nothing": lambda *_: None,
}


def tensor_rate(model, optimizer):
    rate = 1e-3 + 1e-9 * (world.rank == 1)  # too little to be seen in what a tensor prints
    optimizer.param_groups[0]["lr"] = torch.tensor(rate, dtype=torch.float64)


messages = {name: message(change) for name, change in changes.items()}
messages["buffers"] = message(changes["other_buffer"], buffers=True)
messages["own_random_state"] = message(changes["seed_of_rank_0"], own_random_state=True)
messages["equal"] = message(changes["nothing"], buffers=True, own_random_state=True)
messages["tensor_rate"] = message(tensor_rate, on=world.rank)
messages["other_rank_0"] = message(changes["add_a_half"], on=0)
print(json.dumps(messages))
process_group.stop()
"""


@pytest.fixture(scope="module")
def reports(tmp_path_factory):
    """The message of each case, which has to be the same on all ranks."""
    script = tmp_path_factory.mktemp("three") / "script.py"
    script.write_text(THREE_RANKS)
    results = warm.ranks(script, nproc=3).results
    assert results[0] == results[1] == results[2]
    return results[0]


@pytest.mark.parametrize("case", ["nothing", "equal", "other_buffer", "seed_of_rank_0"])
def test_equal_replicas_pass_and_so_does_a_difference_that_is_not_compared(reports, case):
    assert reports[case] is None


@pytest.mark.parametrize(
    ("case", "text"),
    [
        ("add_a_half", "parameter 2.weight on rank 1 is up to 0.5 from rank 0's (1 of "),
        ("other_rank_0", "parameter 2.weight on rank 0 is up to 0.5 from rank 1's (1 of "),
        ("flip_a_bit", "parameter 2.weight on rank 1 is up to "),
        ("swap", "parameter 2.weight on rank 1 is up to "),
        ("all_nan", "parameter 0.bias on rank 1 is up to nan from rank 0's (1 of "),
        ("other_moment", "optimizer state exp_avg of 0.bias on rank 1 is up to 1 from rank 0's (1 of "),
        ("no_moment", "optimizer state exp_avg of 0.bias on rank 1 is not rank 0's (3 of "),
        ("other_rate", "setting lr of the optimizer's group 0 on rank 1 is not rank 0's (1 of "),
        ("tensor_rate", "setting lr of the optimizer's group 0 on rank 1 is up to 1e-09 from rank 0's (1 of "),
        ("other_shape", "parameter 0.weight on rank 1 is not rank 0's ("),
        ("buffers", "buffer 1.running_mean on rank 1 is up to 1 from rank 0's (1 of "),
    ],
)
def test_the_step_the_kind_the_tensor_and_the_rank_are_named(reports, case, text):
    assert reports[case].startswith(f"ReplicasDiffer: replicas differ after step 12: {text}")


def test_equal_random_states_are_named(reports):
    assert reports["own_random_state"].startswith("RandomStatesEqual: ranks 0 and 1 draw the same random numbers after")


FLIPPED = f"""
import os, sys
import torch
sys.argv[0] = {str(TRAINER)!r}
from ddp_course import minigpt_ddp
from ddp_course.training import command_line

healthy, steps = minigpt_ddp.clip_grad_norm_, []
def flipping(parameters, limit):
    parameters = list(parameters)
    steps.append(1)
    if os.environ["RANK"] == "1" and len(steps) == 3:
        parameters[0].data.view(torch.int32)[0, 0] ^= 1 << 20
    return healthy(parameters, limit)
minigpt_ddp.clip_grad_norm_ = flipping
command_line.run(minigpt_ddp.train, minigpt_ddp.PRESETS)
"""


@pytest.mark.usefixtures("warm_launches")
@pytest.mark.parametrize(
    ("flags", "message", "last_step", "checkpoints"),
    [
        (("--check-every", 2), "error: replicas differ after step 4: parameter ", 3, []),
        (("--steps", 5), "error: replicas differ: parameter ", 5, ["step_000005"]),
    ],
    ids=["at the next check", "at the end without a check"],
)
def test_one_bit_of_one_rank_ends_the_trainer(tmp_path, flags, message, last_step, checkpoints):
    (tmp_path / "flipped.py").write_text(FLIPPED)
    with pytest.raises(RunFailed) as failed:
        torchrun(tmp_path / "flipped.py", *arguments(tmp_path / "run", *flags), nproc=2, quiet=True, timeout=600)
    run, (line,) = failed.value.run, [line for line in failed.value.run.lines[0] if "error" in line]
    assert line.startswith(message) and " on rank 1 is up to " in line
    assert run.exit_codes[0] == 1 and not any("Traceback" in text for lines in run.lines.values() for text in lines)
    assert max(metrics(tmp_path / "run")) == last_step  # the step that a check refuses is neither reported nor saved
    assert [path.name for path in (tmp_path / "run").glob("checkpoints/*")] == checkpoints


def test_a_healthy_run_passes_every_check_and_its_losses_stay_the_same(tmp_path):
    flags, runs = ("--steps", 4, "--dropout", 0.1), {"checked": 1, "plain": 0}
    train_in_turn([arguments(tmp_path / run, *flags, "--check-every", n) for run, n in runs.items()], 2, tmp_path)
    assert metrics(tmp_path / "checked") == metrics(tmp_path / "plain")
