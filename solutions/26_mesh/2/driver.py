"""Inside a rank, for 26.2: training on a mesh, resumed on another one, and in one process."""

import torch
import torch.distributed as dist
import torch.nn.functional as F

from ddp_course.grader.harness.tensors import largest_gap

from .given import Model, Windows, new_mesh

PER_UPDATE, STEPS = 4, 3  # windows of a step; steps on each mesh
CUT = {"first.weight": 0, "first.bias": 0, "second.weight": 1}  # the dimension along which a weight is cut


def drive(build, *meshes):
    """A report for each step: the windows that this rank read, its loss, and the largest gap of its weights."""
    whole, reports, state = Model(new_mesh(dist.get_world_size(), 1).tp).double(), [], None
    optimizer = torch.optim.SGD(whole.parameters(), lr=0.2)
    for number, (dp, tp) in enumerate(meshes):
        mesh, data = new_mesh(dp, tp), SomeWithoutTargets()
        model = Model(mesh.tp).double()
        for name, parameter in model.named_parameters():
            parameter.data.copy_(part_of(whole, name, mesh.tp))
        training = build(model, torch.optim.SGD(model.parameters(), lr=0.2), data, mesh, PER_UPDATE)
        if number:
            box = [state]
            dist.broadcast_object_list(box, src=0)  # what rank 0 has saved
            training.load_state_dict(box[0])
        for step in range(number * STEPS, (number + 1) * STEPS):
            data.seen = []
            loss, right = training.step(), one_process_step(whole, optimizer, step)
            gaps = {n: largest_gap(parameter, part_of(whole, n, mesh.tp)) for n, parameter in model.named_parameters()}
            reports.append(
                {
                    "windows": data.seen,
                    "loss": loss,
                    "right": right,
                    "gap": max(gaps.items(), key=lambda item: item[1]),
                    "parameter_count": sum(parameter.numel() for parameter in model.parameters()),
                }
            )
        state = training.state_dict()
    return reports


def part_of(whole, name, tp):
    """The part of a weight of the whole model that this rank of tp holds."""
    weight = whole.get_parameter(name)
    return weight.chunk(tp.size, CUT[name])[tp.rank] if name in CUT else weight


def one_process_step(whole, optimizer, step):
    """One step of the whole model with the windows of all replicas; returns its loss."""
    inputs, targets = SomeWithoutTargets()(windows_of(step))
    loss = F.cross_entropy(whole(inputs).flatten(0, 1), targets.flatten(), ignore_index=-100)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.item()


def windows_of(step):
    """The numbers of the windows of a step, over all replicas."""
    return list(range(step * PER_UPDATE, (step + 1) * PER_UPDATE))


class SomeWithoutTargets(Windows):
    """Every fifth window has no target, so that steps have different numbers of targets."""

    def __call__(self, windows):
        inputs, targets = super().__call__(windows)
        targets[torch.tensor(list(windows), dtype=torch.int64) % 5 == 3] = -100
        return inputs, targets
