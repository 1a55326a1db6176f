"""Training steps for 07.1, right and wrong ones. The ranks import this file, so it imports nothing of the grader."""

import math
from dataclasses import dataclass

import torch
import torch.distributed as dist


@dataclass
class TrainStep:
    """A function like `train_step` in given.py, put together from its parts. The default is right.

    when     "late": average, unscale, clip; "early": unscale, clip, average; "scaled": average, clip, and leave it to
             scaler.step to unscale; "limit scaled": the same, with the limit multiplied by the scale, which is right
    clip     "global": one norm over all weights; "torch": the same by clip_grad_norm_; "rank 0": the same, on rank 0
             only; "nan": the same, and the last tensor's gradient becomes NaN; "each": a norm for each tensor; "none";
             "always": also make short gradients as long as the limit; "sign": of the right length, but in the
             direction of the signs; "long": the same as "global", and 0.5 % too long
    average  "mean", "sum" or "float32": the mean, computed in float32
    keep     add the gradient that the step before has left in `grad`, as if nothing had zeroed it
    """

    when: str = "late"
    clip: str = "global"
    average: str = "mean"
    keep: bool = False

    def __call__(self, weights, optimizer, scaler, loss, limit):
        previous = [weight.grad for weight in weights]
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        if self.when == "early":
            scaler.unscale_(optimizer)
            norm = self._clip(weights, limit)
        self._average(weights)
        if self.when == "scaled":
            norm = self._clip(weights, limit)
        elif self.when == "limit scaled":
            norm = self._clip(weights, limit * scaler.get_scale())  # this norm is scaled: is_right does not judge it
        elif self.when == "late":
            scaler.unscale_(optimizer)
            if self.keep:
                self._add(previous, weights)
            norm = self._clip(weights, limit)
        scaler.step(optimizer)
        scaler.update()
        return norm

    def _average(self, weights):
        for weight in weights:
            gradient = weight.grad.float() if self.average == "float32" else weight.grad
            dist.all_reduce(gradient)
            weight.grad.copy_(gradient / (1 if self.average == "sum" else dist.get_world_size()))

    def _add(self, gradients, weights):
        for weight, gradient in zip(weights, gradients, strict=True):
            if gradient is not None:
                weight.grad += gradient

    def _clip(self, weights, limit):
        if self.clip == "torch":
            return torch.nn.utils.clip_grad_norm_(weights, limit).item()
        norm = torch.cat([weight.grad.flatten() for weight in weights]).norm().item()
        for weight in weights:
            norm_to_clip = weight.grad.norm().item() if self.clip == "each" else norm
            too_long = norm_to_clip > limit or (self.clip == "always" and norm_to_clip > 0)
            if too_long and self.clip != "none" and (self.clip != "rank 0" or dist.get_rank() == 0):
                weight.grad *= limit / norm_to_clip
        if self.clip == "sign":
            count = sum(weight.numel() for weight in weights)
            for weight in weights:
                weight.grad.copy_(weight.grad.sign() * min(norm, limit) / count**0.5)
        if self.clip == "long":
            for weight in weights:
                weight.grad *= 1.005
        if self.clip == "nan":
            weights[-1].grad *= math.nan  # after unscale_: the scaler does not look again
        return norm
