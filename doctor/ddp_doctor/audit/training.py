"""Watches gradients and optimizer steps: each rank's own gradients, those that the optimizer used, and its results.

A few values of a parameter's gradient are read twice: when autograd has added to it, before DDP or the script sends
it, and again before it is clipped or the optimizer uses it.
"""

import functools
import threading
import weakref
import zlib
from dataclasses import dataclass, field

import torch

from .log import MAX_STEPS, where
from .loss import loss_kind
from .tensors import checksum, sample_checksums, some_values, sums
from .variables import checksums, tensors_in

MAX_CALLS, MAX_CLIPS, MAX_DROPOUTS = 400, 100, 100  # that are recorded


def watch_training(log):
    from torch.optim import optimizer

    training = _Training(log)
    log.is_gradient, log.replicas = training.is_gradient, training.replicas
    base = optimizer.Optimizer
    base.add_param_group = log.watched(base.add_param_group, training.before_add_param_group)
    optimizer.register_optimizer_step_pre_hook(lambda *args: log.quietly(training.before_step, *args))
    optimizer.register_optimizer_step_post_hook(lambda *args: log.quietly(training.after_step, *args))
    clip_grad = torch.nn.utils.clip_grad
    for name in ("clip_grad_norm_", "clip_grad_value_", "clip_grads_with_norm_"):
        if function := getattr(clip_grad, name, None):
            setattr(clip_grad, name, training.watched_clip(function))
            setattr(torch.nn.utils, name, getattr(clip_grad, name))
    for owner in (base, torch.nn.Module):
        owner.zero_grad = log.watched(owner.zero_grad, training.before_zero_grad)
    torch.autograd.backward = training.watched_backward(torch.autograd.backward)
    ddp = torch.nn.parallel.DistributedDataParallel
    ddp.__init__ = log.watched(ddp.__init__, training.before_ddp_init)
    torch.nn.Module.__call__ = training.watched_module_call(torch.nn.Module.__call__)
    torch.nn.functional.dropout = training.watched_dropout(torch.nn.functional.dropout)


@dataclass
class _OptimizerFacts:
    number: int  # in the order of construction
    frames: list  # where it was made
    steps: int = 0
    highest_rates: list[float] = field(default_factory=list)  # of each parameter group, so far


class _Training:
    """The state between the recorded calls of one rank.

    optimizers        optimizer -> its _OptimizerFacts
    stepping          numbers of the optimizers whose step() runs now, the outermost first
    pending           number of an optimizer -> the event of its step that runs now
    hooks             trained parameter -> the handle of its gradient hook
    local_values      parameter -> values of its gradient right after autograd added to it
    clip_values       parameter -> values of its gradient before the first clip of this step
    addresses         address of a gradient -> its parameter
    wrapped_models    the models inside of DDP
    trained_in_ddp    parameter of a DDP model -> its requires_grad when DDP wrapped it
    unused_gradients  parameter whose gradient no step has used -> values of the parameter at that time
    zero_grad_frames  where zero_grad() was last called
    weights           (model, number of steps so far) -> checksum of its parameters
    thread            .depth of nested module calls, .in_backward: whether a backward pass runs
    """

    def __init__(self, log):
        from torch.nn.modules.dropout import _DropoutNd
        from torch.utils.weak import WeakIdKeyDictionary

        self.log, self.dropout_class = log, _DropoutNd
        self.optimizers, self.stepping, self.pending = weakref.WeakKeyDictionary(), [], {}
        self.hooks, self.addresses = WeakIdKeyDictionary(), {}
        self.local_values, self.clip_values = WeakIdKeyDictionary(), WeakIdKeyDictionary()
        self.wrapped_models, self.trained_in_ddp = weakref.WeakSet(), WeakIdKeyDictionary()
        self.unused_gradients, self.zero_grad_frames = WeakIdKeyDictionary(), None
        self.weights, self.thread = {}, threading.local()

    def is_gradient(self, tensor):
        """Whether it is a parameter's gradient, or has as many values as all gradients have in sum."""
        total = sum(parameter.numel() for parameter in self.hooks if parameter.requires_grad)
        parameter = self.addresses.get(tensor.data_ptr())
        grad = None if parameter is None else parameter.grad  # its address may be another tensor's by now
        return (grad is not None and grad.data_ptr() == tensor.data_ptr()) or tensor.numel() == total > 1

    def replicas(self):
        """The ids of the DDP models' modules and buffers, and of all trained parameters: other checks compare them."""
        ids = {id(tensor) for tensor in [*self.trained_in_ddp, *self.hooks]}
        for model in self.wrapped_models:
            ids |= {id(module) for module in model.modules()} | {id(buffer) for buffer in model.buffers()}
        return ids

    def watch(self, parameters):
        for parameter in parameters:
            if parameter.requires_grad and parameter.is_leaf and parameter not in self.hooks:
                self.hooks[parameter] = parameter.register_post_accumulate_grad_hook(
                    lambda parameter: self.log.quietly(self.after_accumulate, parameter)
                )

    def after_accumulate(self, parameter):
        if parameter.grad is not None:
            self.local_values[parameter] = some_values(parameter.grad)
            self.addresses[parameter.grad.data_ptr()] = parameter
            self.unused_gradients[parameter] = some_values(parameter)

    def before_add_param_group(self, args, kwargs):
        optimizer, frames = args[0], where()

        def after(_):
            self.facts_of(optimizer, frames)
            self.watch(_parameters(optimizer))

        return after

    def facts_of(self, optimizer, frames):
        return self.optimizers.setdefault(optimizer, _OptimizerFacts(len(self.optimizers), frames))

    def before_step(self, optimizer, args, kwargs):
        facts = self.facts_of(optimizer, where())
        number, steps_before = facts.number, facts.steps
        facts.steps += 1
        if number in self.stepping:  # its last step raised an error
            del self.stepping[self.stepping.index(number) :]
        self.stepping.append(number)
        if len(self.stepping) > 1:
            return  # inside of another's step, as the optimizer within a ZeroRedundancyOptimizer
        self.log.snapshot.before_step()
        parameters = _parameters(optimizer)
        if steps_before == 0:
            self.log.event(
                "optimizer",
                number=number,
                frames=facts.frames,
                shapes=[list(parameter.shape) for parameter in parameters],
                trains=[parameter.requires_grad for parameter in parameters],
            )
        self.unused_gradients.clear()
        rates = [float(group["lr"]) for group in optimizer.param_groups if "lr" in group]
        highest = [max(pair) for pair in zip(rates, facts.highest_rates or rates, strict=False)]
        if highest != facts.highest_rates:
            facts.highest_rates = highest
            self.log.event("rates", number=number, highest=highest)
        if steps_before >= MAX_STEPS:
            return
        if steps_before < 5 or steps_before % 8 == 0:
            self.log.event("variables", steps=steps_before, sums=checksums(self.replicas()))
        has_closure = bool(args[1:] or kwargs)
        self.pending[number] = self.step_event(optimizer, number, parameters, rates, has_closure)
        for parameter in parameters:
            self.clip_values.pop(parameter, None)
            self.local_values.pop(parameter, None)

    def step_event(self, optimizer, number, parameters, rates, has_closure):
        """The event of a step as far as it is known before; its lists have an item for each parameter.

        weights_before, gradients, state   checksums; a gradient or state that does not exist: None
        local, used                        values of the gradient: this rank's own, and what the optimizer or a clip got
        ddp                                requires_grad when DDP wrapped it; None if it is in no DDP model
        """
        gradients = [parameter.grad for parameter in parameters]
        return {
            "optimizer": number,
            "frames": where(),
            "has_closure": has_closure,
            "weights_before": [checksum(parameter) for parameter in parameters],
            "has_gradient": [gradient is not None for gradient in gradients],
            "gradients": [None if gradient is None else checksum(gradient) for gradient in gradients],
            "local": [self.local_values.get(parameter) for parameter in parameters],
            "used": [self.clip_values.get(parameter) or some_values(parameter.grad) for parameter in parameters],
            "state": [_state(optimizer.state.get(parameter)) for parameter in parameters],
            "ddp": [self.trained_in_ddp.get(parameter) for parameter in parameters],
            "rates": rates,
        }

    def after_step(self, optimizer, args, kwargs):
        number = self.optimizers[optimizer].number
        while self.stepping and self.stepping.pop() != number:
            pass
        event = self.pending.pop(number, None)
        if event is not None:
            parameters = _parameters(optimizer)
            event["weights_after"] = [checksum(parameter) for parameter in parameters]
            event["sums"] = [sums(parameter) for parameter in parameters]
            self.log.event("step", **event)

    def watched_clip(self, function):
        @functools.wraps(function)
        def watched(parameters, *args, **kwargs):
            parameters = [parameters] if isinstance(parameters, torch.Tensor) else list(parameters)
            values = self.log.quietly(self.before_clip, parameters)
            result = function(parameters, *args, **kwargs)
            self.log.quietly(self.after_clip, parameters, values)
            return result

        return watched

    def before_clip(self, parameters):
        for parameter in parameters:
            if parameter.grad is not None and parameter not in self.clip_values:
                self.clip_values[parameter] = some_values(parameter.grad)
        return [some_values(parameter.grad) for parameter in parameters]

    def after_clip(self, parameters, values):
        changed = values != [some_values(parameter.grad) for parameter in parameters]
        self.log.event("clip", limit=MAX_CLIPS, frames=where(), values=values, changed=changed)

    def before_zero_grad(self, args, kwargs):
        self.zero_grad_frames = where()

    def watched_backward(self, function):
        @functools.wraps(function)
        def watched(tensors, *args, **kwargs):
            self.log.quietly(self.before_backward, tensors)
            self.thread.in_backward = True
            try:
                return function(tensors, *args, **kwargs)
            finally:
                self.thread.in_backward = False

        return watched

    def before_backward(self, tensors):
        for optimizer in self.optimizers:  # parameters that were unfrozen since have no hook yet
            self.watch(_parameters(optimizer))
        lost = [parameter for parameter in self.unused_gradients if parameter.grad is None or not parameter.grad.any()]
        if lost and all(some_values(parameter) == self.unused_gradients[parameter] for parameter in lost):
            self.log.event("cleared", frames=self.zero_grad_frames or where())
        for parameter in lost:
            del self.unused_gradients[parameter]
        loss = tensors if isinstance(tensors, torch.Tensor) else list(tensors)[0]
        reduction, factor, count = loss_kind(loss.grad_fn)
        value = loss.detach().item() if loss.numel() == 1 else None
        self.log.event("backward", frames=where(), value=value, reduction=reduction, factor=factor, count=count)

    def before_ddp_init(self, args, kwargs):
        frames = where()

        def after(_):
            model = args[0]
            self.wrapped_models.add(model.module)
            self.watch(model.parameters())
            for parameter in model.parameters():
                self.trained_in_ddp[parameter] = parameter.requires_grad
            self.log.event("ddp", frames=frames)

        return after

    def watched_module_call(self, function):
        """Records a model's outermost call, and the call inside of DDP, before which DDP has synced the buffers."""
        thread, is_compiling = self.thread, torch.compiler.is_compiling

        @functools.wraps(function)
        def watched(module, *args, **kwargs):
            if is_compiling():
                return function(module, *args, **kwargs)
            depth = getattr(thread, "depth", 0)
            if (depth == 0 or module in self.wrapped_models) and not getattr(thread, "in_backward", False):
                self.log.quietly(self.record_call, module, depth, args, kwargs)
            thread.depth = depth + 1
            try:
                return function(module, *args, **kwargs)
            finally:
                thread.depth = depth

        return watched

    def record_call(self, module, depth, args, kwargs):
        if next(module.parameters(), None) is None or self.log.counts.get("call", 0) >= MAX_CALLS:
            return
        is_ddp = isinstance(module, torch.nn.parallel.DistributedDataParallel)
        event = {
            "ddp": is_ddp,
            "inner": depth > 0,
            "frames": where(),
            "train": module.training,
            "gradients": torch.is_grad_enabled(),
            "model": type(module).__name__,
            "has_dropout": any(
                isinstance(part, self.dropout_class) and part.training and part.p > 0 for part in module.modules()
            ),
            "syncs": module.require_backward_grad_sync if is_ddp else None,
        }
        if depth == 0:
            tensors = [tensor for _, tensor in tensors_in([*args, kwargs], depth=3)]
            event["samples"], event["distinctive"] = sample_checksums(tensors)
            event["inputs_require_grad"] = any(tensor.requires_grad for tensor in tensors)
            if not torch.is_grad_enabled():
                event["weights"] = self.weights_of(module)
            input_checksums = [checksum(tensor) for tensor in tensors]
            event["inputs"] = _combined(input_checksums) if input_checksums else None
            event["constant"] = all(bool((each == each.reshape(-1)[:1]).all()) for each in tensors if each.numel())
        if not is_ddp and module.training and torch.is_grad_enabled():
            persistent = module.state_dict()
            event["buffers"] = {
                name: checksum(buffer)
                for name, buffer in module.named_buffers()
                if buffer.is_floating_point() and name in persistent
            }
        self.log.event("call", **event)

    def weights_of(self, module):
        """A checksum of the module's parameters, computed once between two steps; None if one of them has none."""
        key = id(module), sum(facts.steps for facts in self.optimizers.values())
        if key not in self.weights:
            self.weights[key] = _combined([checksum(parameter) for parameter in module.parameters()])
        return self.weights[key]

    def watched_dropout(self, function):
        is_compiling, thread = torch.compiler.is_compiling, self.thread

        @functools.wraps(function)
        def watched(input, p=0.5, training=True, inplace=False):
            if not is_compiling() and training and 0 < p < 1 and not getattr(thread, "in_backward", False):
                self.log.quietly(self.record_dropout, input)
            return function(input, p, training, inplace)

        return watched

    def record_dropout(self, input):
        if self.log.counts.get("dropout", 0) < MAX_DROPOUTS and torch.is_grad_enabled():
            on_gpu = input.device.type == "cuda"
            state = torch.cuda.get_rng_state(input.device) if on_gpu else torch.get_rng_state()
            self.log.event("dropout", frames=where(), state=checksum(state), shape=list(input.shape))


def _parameters(optimizer):
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def _combined(checksums):
    """One checksum of many; None if one of them is None."""
    return None if None in checksums else zlib.crc32(repr(checksums).encode())


def _state(state):
    """A checksum of the optimizer's state for one parameter; None if it is empty, or no dictionary."""
    if not state or not isinstance(state, dict):
        return None
    tensors = (checksum(value) if isinstance(value, torch.Tensor) else value for value in state.values())
    return zlib.crc32(repr(sorted(zip(map(str, state), map(str, tensors), strict=True))).encode())
