"""Inside a rank, for 08.4: call the learner's evaluate with a model that notes its forward passes."""

import torch
import torch.nn.functional as F
from torch import nn

from ddp_course.data.windows import IGNORED

VOCABULARY = 16
PARTS = (
    "the model",
    "its dropout",
    "its frozen part",
    "its block",
    "the dropout in its block",
    "the frozen part of its block",
)


def drive(evaluate, lengths, batch_size, training):
    """The result of evaluate, its forward passes, and whether it left modes, gradients and samples as they were."""
    model = Model()
    model.train(training)
    model.frozen.eval()
    model.block[1].train(not training)
    model.table.grad = torch.ones_like(model.table)  # accumulated before the evaluation
    modes_before, samples = modes(model), texts(lengths)
    returned = evaluate(model, samples, batch_size)
    report = {
        "result": returned,
        "forwards": model.forwards,
        "modes_before": modes_before,
        "modes_after": modes(model),
        "gradients_enabled_after": torch.is_grad_enabled(),
        "requires_grad": model.table.requires_grad and not model.scale.requires_grad,
        "gradient_unchanged": model.table.grad is not None and bool((model.table.grad == 1).all()),
        "samples_unchanged": [text.tolist() for text in samples] == [text.tolist() for text in texts(lengths)],
    }
    torch.set_grad_enabled(True)  # for the next call
    return report


class SharedNotes(list):
    """A list that deepcopy does not copy, so that the model notes the forward passes of its copies, too."""

    def __deepcopy__(self, memo):
        return self


class Model(nn.Module):
    """Next-token losses of a causal model: model(inputs, targets) is their sum over all targets but -100.

    The prediction at a position depends on all tokens of the row up to there.
    """

    def __init__(self):
        super().__init__()
        self.table = nn.Parameter(2 * torch.randn(VOCABULARY, VOCABULARY, generator=torch.Generator().manual_seed(5)))
        self.scale = nn.Parameter(torch.ones(()), requires_grad=False)
        self.dropout = nn.Dropout(0.5)
        self.frozen = nn.Dropout(0.5)  # in evaluation mode, in which it has to stay
        self.block = nn.Sequential(nn.Dropout(0.5), nn.Dropout(0.5))  # the second one is frozen, in the other mode
        self.forwards = SharedNotes()

    def forward(self, inputs, targets):
        rows = int((targets != IGNORED).any(dim=1).sum())
        self.forwards.append({"rows": rows, "gradients": torch.is_grad_enabled() and self.table.requires_grad})
        means = self.table[inputs].cumsum(dim=1) / torch.arange(1, inputs.shape[1] + 1)[:, None]
        logits = self.block(self.frozen(self.dropout(self.scale * means)))
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=IGNORED, reduction="sum")


def modes(model):
    """Whether each of PARTS is in training mode."""
    return [part.training for part in (model, model.dropout, model.frozen, model.block, *model.block)]


def texts(lengths):
    """Samples of these lengths: int64 of shape (length,), the same on every rank."""
    generator = torch.Generator().manual_seed(7)
    return [torch.randint(VOCABULARY, (length,), generator=generator) for length in lengths]
