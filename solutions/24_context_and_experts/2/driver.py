"""Inside a rank, for 24.2: a model that notes its inputs, and the same model in one process on whole windows."""

import torch
import torch.distributed as dist
import torch.nn.functional as F

from .given import KINDS, PAD, Model

WINDOWS, LENGTH = 4, 16
LENGTHS = {  # of the windows; what follows is PAD
    "no padding": (16, 16, 16, 16),
    "windows of 16, 9, 5 and 12 tokens": (16, 9, 5, 12),
    "windows of 2, 1, 2 and 1 tokens": (2, 1, 2, 1),  # targets at one position only, so that one of two ranks has none
}


def drive(backward, scenario):
    """The loss and the gradients of the learner's backward, the inputs of its model, and what one process has."""
    windows, model = windows_of(scenario), RecordingModel()
    one_process = RecordingModel(gather=lambda part: part)
    logits = one_process(windows, torch.arange(LENGTH))
    targets = F.pad(windows[:, 1:], (0, 1), value=PAD)
    F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=PAD).backward()
    loss = backward(model, windows.clone())
    return {
        "loss": loss,
        "calls": model.calls,
        "logits": logits.detach(),
        "right": {name: parameter.grad for name, parameter in one_process.named_parameters()},
        "gradients": {name: parameter.grad for name, parameter in model.named_parameters()},
    }


def windows_of(scenario):
    windows = torch.randint(1, KINDS, (WINDOWS, LENGTH), generator=torch.Generator().manual_seed(1))
    return windows.masked_fill(torch.arange(LENGTH) >= torch.tensor(LENGTHS[scenario])[:, None], PAD)


class RecordingModel(Model):
    """Notes the tokens and positions of each call."""

    def __init__(self, **options):
        torch.manual_seed(1)
        super().__init__(**options)
        self.calls = []
        self.double()

    def forward(self, tokens, positions):
        assert_equal_shapes(tokens, positions)
        self.calls.append([tokens.tolist(), positions.tolist()])
        return super().forward(tokens, positions)


def assert_equal_shapes(tokens, positions):
    """Raise ValueError, on all ranks, if the ranks' parts have different shapes: they cannot be gathered."""
    if tokens.ndim != 2 or positions.shape != tokens.shape[1:]:
        raise ValueError(f"model got tokens of shape {list(tokens.shape)} and positions of {list(positions.shape)}")
    shapes = [torch.zeros(2, dtype=torch.long) for _ in range(dist.get_world_size())]
    dist.all_gather(shapes, torch.tensor(tokens.shape))
    if len({tuple(shape.tolist()) for shape in shapes}) > 1:
        raise ValueError(f"model got tokens of shapes {[shape.tolist() for shape in shapes]}, by rank; not of one")
