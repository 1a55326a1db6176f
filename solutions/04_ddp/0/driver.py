"""Inside a rank, for 04.0: call the learner's train and report what it returned, refused and computed."""

import gc

import torch
import torch.distributed as dist
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.nn.utils import parameters_to_vector


def drive(train, steps, batch_size):
    """{"weights": one tensor with all of them, "samples": the number in each forward pass}.

    {"refusal": text of the ValueError} if train raised one, {"returned": repr} if it returned no module.
    """
    samples = []

    def note_samples(module, inputs):
        if isinstance(module, torch.nn.Linear) and module.in_features == 8:
            samples.append(len(inputs[0]))

    hook = register_module_forward_pre_hook(note_samples)
    try:
        network = train(dist.get_rank(), dist.get_world_size(), torch.device("cpu"), steps, batch_size)
    except ValueError as error:
        return {"refusal": str(error)}
    finally:
        hook.remove()
    if not isinstance(network, torch.nn.Module):
        return {"returned": repr(network)[:60]}
    weights = parameters_to_vector(network.parameters()).detach()
    del network
    gc.collect()  # a DDP wrapper must not outlive the process group
    return {"weights": weights, "samples": samples}
