"""Inside a rank, for 04.3: replicas that are equal or not for the learner's detector, and a training for the repair."""

import copy
import gc
import math

import torch
import torch.distributed as dist
from torch import nn

from ddp_course.grader.harness.tensors import fingerprint, largest_gap

from .given import Model, batches

LEARNING_RATE = 0.1  # that of the script


def make_model():
    model = Model().double()
    generator = torch.Generator().manual_seed(0)
    for parameter in model.parameters():
        parameter.data.uniform_(-1, 1, generator=generator)
    return model


def add(name, amounts):
    """A change of a model: adds amounts[rank] to the last element of the parameter; -1 is the last rank."""

    def change(model, rank):
        amount = amounts.get(rank, amounts.get(rank - dist.get_world_size(), 0.0))
        model.get_parameter(name).data.view(-1)[-1] += amount

    return change


def swap_elements(model, rank):
    if rank == 1:
        model.head.weight.data = model.head.weight.data.flip(1)


def signed_zero(signs):
    """A change of a model: head.bias becomes zero, with the sign signs[rank] (1.0 if there is none)."""

    def change(model, rank):
        model.head.bias.data.copy_(torch.tensor([0.0 * signs.get(rank, 1.0)]))

    return change


def trained_alone(model, rank):
    train_head(model, batches(rank, 4))


def to_bfloat16(model, rank):
    model.bfloat16()


def nan_everywhere(model, rank):
    model.head.weight.data.fill_(math.nan)


CASES = {  # scenario: the changes of the model of each rank, and the first parameter and rank that differ, if any do
    "all equal": ([], None),
    "the head of each rank trained alone": ([trained_alone], ("head.weight", 1)),
    "one element of head.bias, by 1e-12, on the last rank": ([add("head.bias", {-1: 1e-12})], ("head.bias", -1)),
    "head.weight is NaN on the last rank": ([add("head.weight", {-1: math.nan})], ("head.weight", -1)),
    "all equal, head.weight a NaN on every rank": ([nan_everywhere], None),
    "all equal, in bfloat16": ([to_bfloat16], None),
    "two elements of head.weight swapped on rank 1": ([swap_elements], ("head.weight", 1)),
    "head.weight and head.bias on rank 1": (
        [add("head.weight", {1: 0.5}), add("head.bias", {1: 0.5})],
        ("head.weight", 1),
    ),
    "the frozen backbone.weight on rank 1": ([add("backbone.weight", {1: 0.5})], ("backbone.weight", 1)),
    "head.weight: rank 1 above, rank 2 as far below": ([add("head.weight", {1: 0.25, 2: -0.25})], ("head.weight", 1)),
    "head.weight of rank 0, the others agree": ([add("head.weight", {0: 0.5})], ("head.weight", 1)),
    "head.bias on rank 1, head.weight on rank 2": (
        [add("head.bias", {1: 0.5}), add("head.weight", {2: 0.5})],
        ("head.weight", 2),
    ),
    "head.bias is 0.0 on ranks 0 and 2, -0.0 on rank 1": ([signed_zero({1: -1.0})], ("head.bias", 1)),
}


def drive(function, what):
    """The report on assert_replicas_equal in the case `what`; or on train if `what` is a number of batches.

    local_losses, global_losses: of one process that trains on the global batches, for this rank's batch and for the
    global batch, before each step. gaps: of the weights after train from those of that process. The weights are held by
    the names that they have before the call, because train may wrap a part of the model.
    """
    rank, world, model = dist.get_rank(), dist.get_world_size(), make_model()
    if isinstance(what, str):
        for change in CASES[what][0]:
            change(model, rank)
        old = bits_of(model.named_parameters())
        raised, new = raised_by(function, model), bits_of(model.named_parameters())
        return {"raised": raised, "changed": [name for name in old if new[name] != old[name]]}
    one_process, weights = copy.deepcopy(model), dict(model.named_parameters())
    losses = function(model, batches(rank, what))
    del model
    gc.collect()  # a DDP wrapper must not outlive the process group
    local_losses, global_losses = [], []
    for rank_batches in zip(*(batches(peer, what) for peer in range(world)), strict=True):
        local_losses.append(loss_of(one_process, *rank_batches[rank]).item())
        global_batch = [torch.cat(parts) for parts in zip(*rank_batches, strict=True)]
        global_losses += train_head(one_process, [global_batch])
    right = dict(one_process.named_parameters())
    gaps = {name: largest_gap(parameter, right[name]) for name, parameter in weights.items()}
    if isinstance(losses, (list, tuple)) or torch.is_tensor(losses) and losses.dim() == 1:
        losses = [float(loss) if torch.is_tensor(loss) and loss.numel() == 1 else loss for loss in losses]
    report = {"gaps": gaps, "bits": bits_of(weights.items()), "losses": losses}
    return report | {"local_losses": local_losses, "global_losses": global_losses}


def bits_of(named_parameters):
    """{name of a parameter: a hash of its bits}"""
    return {name: fingerprint([parameter]) for name, parameter in named_parameters}


def raised_by(function, model):
    """[type, text] of the exception that function(model) raises, or None."""
    try:
        function(model)
    except NotImplementedError:
        raise  # a stub
    except Exception as error:
        return [type(error).__name__, str(error)]
    return None


def train_head(model, batches):
    """Train the head with plain SGD in one process; returns the loss before each step."""
    losses = []
    for inputs, targets in batches:
        model.zero_grad()
        loss = loss_of(model, inputs, targets)
        loss.backward()
        losses.append(loss.item())
        with torch.no_grad():
            for parameter in model.head.parameters():
                parameter -= LEARNING_RATE * parameter.grad
    return losses


def loss_of(model, inputs, targets):
    return nn.functional.mse_loss(model(inputs), targets)
