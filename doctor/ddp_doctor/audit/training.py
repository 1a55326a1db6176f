"""Watches gradients and updates: what each rank computed, what became of it, and what the optimizer made of that.

The gradient of a parameter is looked at when autograd has added to it, before DDP or the script sends it, and once
more before it is clipped or the optimizer uses it.
"""

import functools
import threading
import weakref
import zlib

import torch

from .log import UPDATES, where
from .loss import loss_kind
from .tensors import checksum, rows, some_values, sums
from .variables import checksums, tensors_in

CALLS = 400  # of models


def watch_training(log):
    from torch.optim import optimizer

    state = _Training(log)
    log.is_gradient, log.replicas = state.is_gradient, state.replicas
    optimizer.Optimizer.add_param_group = log.watched(optimizer.Optimizer.add_param_group, state.new_parameters)
    optimizer.register_optimizer_step_pre_hook(lambda *args: log.quietly(state.before_step, *args))
    optimizer.register_optimizer_step_post_hook(lambda *args: log.quietly(state.after_step, *args))
    clipping = torch.nn.utils.clip_grad
    for name in ("clip_grad_norm_", "clip_grad_value_", "clip_grads_with_norm_"):
        if function := getattr(clipping, name, None):
            setattr(clipping, name, state.clips(function))
            setattr(torch.nn.utils, name, getattr(clipping, name))
    for kind in (optimizer.Optimizer, torch.nn.Module):
        kind.zero_grad = log.watched(kind.zero_grad, state.clears)
    torch.autograd.backward = state.backward(torch.autograd.backward)
    ddp = torch.nn.parallel.DistributedDataParallel
    ddp.__init__ = log.watched(ddp.__init__, state.wraps)
    torch.nn.Module.__call__ = state.calls(torch.nn.Module.__call__)
    torch.nn.functional.dropout = state.drops(torch.nn.functional.dropout)


class _Training:
    def __init__(self, log):
        from torch.nn.modules.dropout import _DropoutNd
        from torch.utils.weak import WeakIdKeyDictionary

        self.log, self.dropouts = log, _DropoutNd
        self.optimizers = weakref.WeakKeyDictionary()  # its number, its frames and its updates so far
        self.local, self.at_clip = WeakIdKeyDictionary(), WeakIdKeyDictionary()
        self.watched, self.wrapped = WeakIdKeyDictionary(), weakref.WeakSet()
        self.addresses = {}  # of gradients
        self.in_ddp = WeakIdKeyDictionary()  # parameter -> was it trained when DDP wrapped it?
        self.waiting, self.cleared_at = WeakIdKeyDictionary(), None  # gradients that no step of an optimizer has used
        self.evaluated = {}  # (model, number of updates) -> checksum of its parameters
        self.pending, self.stepping = {}, []
        self.thread = threading.local()  # depth of module calls, and whether a backward pass runs

    def is_gradient(self, tensor):
        """Is it a parameter's gradient, or as large as all of them together?"""
        total = sum(parameter.numel() for parameter in self.watched if parameter.requires_grad)
        parameter = self.addresses.get(tensor.data_ptr())  # a gradient that was cleared leaves its address to others
        now = parameter is not None and parameter.grad is not None and parameter.grad.data_ptr() == tensor.data_ptr()
        return now or tensor.numel() == total > 1

    def watch(self, parameters):
        for parameter in parameters:
            if parameter.requires_grad and parameter.is_leaf and parameter not in self.watched:
                self.watched[parameter] = parameter.register_post_accumulate_grad_hook(
                    lambda parameter: self.log.quietly(self.accumulated, parameter)
                )

    def accumulated(self, parameter):
        if parameter.grad is not None:
            self.local[parameter] = some_values(parameter.grad)
            self.addresses[parameter.grad.data_ptr()] = parameter
            self.waiting[parameter] = some_values(parameter)

    def new_parameters(self, args, kwargs):
        optimizer, frames = args[0], where()

        def then(_):
            self.optimizers.setdefault(optimizer, [len(self.optimizers), frames, 0, []])
            self.watch(parameter for group in optimizer.param_groups for parameter in group["params"])

        return then

    def before_step(self, optimizer, args, kwargs):
        number, frames, done, highest = self.optimizers.setdefault(optimizer, [len(self.optimizers), where(), 0, []])
        self.optimizers[optimizer][2] += 1
        if number in self.stepping:  # its last step raised an error
            del self.stepping[self.stepping.index(number) :]
        self.stepping.append(number)
        if len(self.stepping) > 1:
            return  # one that another uses, such as ZeroRedundancyOptimizer's for its share of the parameters
        self.log.kept.before_update()
        parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        if not done:
            self.log.event(
                "optimizer",
                number=number,
                frames=frames,
                shapes=[list(parameter.shape) for parameter in parameters],
                trains=[parameter.requires_grad for parameter in parameters],
            )
        self.waiting.clear()
        rates = [float(group["lr"]) for group in optimizer.param_groups if "lr" in group]
        new_highest = [max(pair) for pair in zip(rates, highest or rates, strict=False)]
        if new_highest != highest:
            self.optimizers[optimizer][3] = new_highest
            self.log.event("rates", number=number, highest=new_highest)
        if done >= UPDATES:
            return
        if done < 5 or done % 8 == 0:
            self.log.event("variables", updates=done, sums=checksums(self.replicas()))
        gradients = [parameter.grad for parameter in parameters]
        self.pending[number] = {
            "optimizer": number,
            "frames": where(),
            "closure": bool(args[1:] or kwargs),
            "before": [checksum(parameter) for parameter in parameters],
            "has": [gradient is not None for gradient in gradients],
            "gradients": [None if gradient is None else checksum(gradient) for gradient in gradients],
            "local": [self.local.get(parameter) for parameter in parameters],
            "used": [self.at_clip.get(parameter) or some_values(parameter.grad) for parameter in parameters],
            "state": [_state(optimizer.state.get(parameter)) for parameter in parameters],
            "ddp": [self.in_ddp.get(parameter) for parameter in parameters],
            "rates": rates,
        }
        for parameter in parameters:
            self.at_clip.pop(parameter, None)
            self.local.pop(parameter, None)

    def after_step(self, optimizer, args, kwargs):
        number = self.optimizers[optimizer][0]
        while self.stepping and self.stepping.pop() != number:
            pass
        facts = self.pending.pop(number, None)
        if facts is not None:
            parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
            facts["after"] = [checksum(parameter) for parameter in parameters]
            facts["sums"] = [sums(parameter) for parameter in parameters]
            self.log.event("update", **facts)

    def clips(self, function):
        @functools.wraps(function)
        def clips(parameters, *args, **kwargs):
            parameters = [parameters] if isinstance(parameters, torch.Tensor) else list(parameters)
            values = self.log.quietly(self.look_before_clipping, parameters)
            result = function(parameters, *args, **kwargs)
            self.log.quietly(self.look_after_clipping, parameters, values)
            return result

        return clips

    def look_before_clipping(self, parameters):
        for parameter in parameters:
            if parameter.grad is not None and parameter not in self.at_clip:
                self.at_clip[parameter] = some_values(parameter.grad)
        return [some_values(parameter.grad) for parameter in parameters]

    def look_after_clipping(self, parameters, values):
        after = [some_values(parameter.grad) for parameter in parameters]
        self.log.event("clip", most=100, frames=where(), values=values, changed=after != values)

    def clears(self, args, kwargs):
        self.cleared_at = where()

    def replicas(self):
        """The ids of what the other checks compare: wrapped models, and parameters of theirs."""
        skip = {id(tensor) for tensor in [*self.in_ddp, *self.watched]}
        for model in self.wrapped:
            skip |= {id(module) for module in model.modules()} | {id(buffer) for buffer in model.buffers()}
        return skip

    def backward(self, function):
        @functools.wraps(function)
        def backward(tensors, *args, **kwargs):
            self.log.quietly(self.look_before_backward, tensors)
            self.thread.backward = True
            try:
                return function(tensors, *args, **kwargs)
            finally:
                self.thread.backward = False

        return backward

    def look_before_backward(self, tensors):
        for optimizer in self.optimizers:  # what has been unfrozen since
            self.watch(parameter for group in optimizer.param_groups for parameter in group["params"])
        lost = [parameter for parameter in self.waiting if parameter.grad is None or not parameter.grad.any()]
        if lost and all(some_values(parameter) == self.waiting[parameter] for parameter in lost):
            self.log.event("cleared", frames=self.cleared_at or where())
        for parameter in lost:
            del self.waiting[parameter]
        loss = tensors if isinstance(tensors, torch.Tensor) else list(tensors)[0]
        kind, factor, count = loss_kind(loss.grad_fn)
        value = loss.detach().item() if loss.numel() == 1 else None
        self.log.event("backward", frames=where(), value=value, loss=kind, factor=factor, count=count)

    def wraps(self, args, kwargs):
        frames = where()

        def then(_):
            model = args[0]
            self.wrapped.add(model.module)
            self.watch(model.parameters())
            for parameter in model.parameters():
                self.in_ddp[parameter] = parameter.requires_grad
            self.log.event("ddp", frames=frames)

        return then

    def calls(self, function):
        """The outermost call of a model is looked at, and the one within DDP, which has its buffers by then."""
        thread, compiling = self.thread, torch.compiler.is_compiling

        @functools.wraps(function)
        def calls(module, *args, **kwargs):
            if compiling():
                return function(module, *args, **kwargs)
            depth = getattr(thread, "depth", 0)
            if (depth == 0 or module in self.wrapped) and not getattr(thread, "backward", False):
                self.log.quietly(self.look_at_call, module, depth, args, kwargs)
            thread.depth = depth + 1
            try:
                return function(module, *args, **kwargs)
            finally:
                thread.depth = depth

        return calls

    def look_at_call(self, module, depth, args, kwargs):
        if next(module.parameters(), None) is None or self.log.counts.get("call", 0) >= CALLS:
            return
        ddp = isinstance(module, torch.nn.parallel.DistributedDataParallel)
        facts = {
            "ddp": ddp,
            "inner": depth > 0,
            "frames": where(),
            "train": module.training,
            "gradients": torch.is_grad_enabled(),
            "model": type(module).__name__,
            "drops": any(isinstance(part, self.dropouts) and part.training and part.p > 0 for part in module.modules()),
            "sends": module.require_backward_grad_sync if ddp else None,
        }
        if depth == 0:
            tensors = [tensor for _, tensor in tensors_in([*args, kwargs], depth=3)]
            facts["rows"], facts["rich"] = rows([tensor for tensor in tensors if tensor.dim()])
            facts["leaf"] = any(tensor.requires_grad for tensor in tensors)
            if not torch.is_grad_enabled():
                facts["state"] = self.state_of(module)
            sums = [checksum(tensor) for tensor in tensors]
            facts["inputs"] = zlib.crc32(repr(sums).encode()) if sums and None not in sums else None
            facts["constant"] = all(
                bool((tensor == tensor.reshape(-1)[:1]).all()) for tensor in tensors if tensor.numel()
            )
        if not ddp and module.training and torch.is_grad_enabled():
            persistent = module.state_dict()
            facts["buffers"] = {
                name: checksum(buffer)
                for name, buffer in module.named_buffers()
                if buffer.is_floating_point() and name in persistent
            }
        self.log.event("call", **facts)

    def state_of(self, module):
        key = id(module), sum(optimizer[2] for optimizer in self.optimizers.values())
        if key not in self.evaluated:
            sums = [checksum(parameter) for parameter in module.parameters()]
            self.evaluated[key] = None if None in sums else zlib.crc32(repr(sums).encode())
        return self.evaluated[key]

    def drops(self, function):
        compiling, thread = torch.compiler.is_compiling, self.thread

        @functools.wraps(function)
        def drops(input, p=0.5, training=True, inplace=False):
            if not compiling() and training and 0 < p < 1 and not getattr(thread, "backward", False):
                self.log.quietly(self.look_at_dropout, input)
            return function(input, p, training, inplace)

        return drops

    def look_at_dropout(self, input):
        if self.log.counts.get("dropout", 0) < 100 and torch.is_grad_enabled():
            gpu = input.device.type == "cuda"
            state = torch.cuda.get_rng_state(input.device) if gpu else torch.get_rng_state()
            self.log.event("dropout", frames=where(), state=checksum(state), shape=list(input.shape))


def _state(state):
    """A checksum of what an optimizer has gathered for one parameter; None if that is nothing, or not known."""
    if not state or not isinstance(state, dict):
        return None
    tensors = (checksum(value) if isinstance(value, torch.Tensor) else value for value in state.values())
    return zlib.crc32(repr(sorted(zip(map(str, state), map(str, tensors), strict=True))).encode())
