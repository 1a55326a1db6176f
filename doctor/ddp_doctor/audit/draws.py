"""Watches random numbers: those of Python's and NumPy's generators, and of all generators while samples are made."""

import functools
import random
import sys
import zlib

import torch

from .log import kind_of, where

PYTHON = (
    "random uniform randint randrange choice choices gauss normalvariate betavariate triangular getrandbits".split()
)
NUMPY = "rand randn random random_sample uniform normal standard_normal randint choice beta binomial poisson".split()
MOST = 400  # draws that are recorded; of the fetches of a loader a tenth of that


def watch_draws(log):
    """Each draw of the script outside of a loader, and the generators that a loader's samples use."""
    from torch.utils.data._utils import fetch

    modules = [(random, PYTHON, "Python's random")]
    if "numpy" in sys.modules:
        modules.append((sys.modules["numpy"].random, NUMPY, "NumPy's random"))
    for module, names, title in modules:
        for name in names:
            setattr(module, name, _draws(log, getattr(module, name), module, title))
    for kind in (fetch._MapDatasetFetcher, fetch._IterableDatasetFetcher):
        kind.fetch = _fetches(log, kind.fetch)


def _draws(log, function, module, title):
    @functools.wraps(function)
    def draws(*args, **kwargs):
        own = kind_of(sys._getframe(1).f_code.co_filename) == "own"
        if not own or log.off() or log.counts.get("draw", 0) >= MOST or getattr(log, "fetching", False):
            return function(*args, **kwargs)
        state = log.quietly(lambda: _checksum(module.getstate() if module is random else module.get_state()))
        result = function(*args, **kwargs)
        log.quietly(lambda: log.event("draw", of=title, state=state, many=hasattr(result, "shape"), frames=where()))
        return result

    return draws


def _fetches(log, function):
    @functools.wraps(function)
    def fetches(fetcher, indices):
        """Also called in a loader's worker, which has been forked from the rank."""
        if getattr(log, "fetching", False) or log.counts.get("fetch", 0) >= MOST // 10:
            return function(fetcher, indices)
        log.fetching, states = True, _states(fetcher.dataset)
        try:
            return function(fetcher, indices)
        finally:
            log.fetching = False
            _record_fetch(log, states, _states(fetcher.dataset))

    return fetches


def _record_fetch(log, old_states, new_states):
    """Records which generators a fetch of samples has drawn from: those whose state it has changed."""
    worker = torch.utils.data.get_worker_info()
    log.event(
        "fetch",
        anywhere=True,
        drawn={name: state for name, state in old_states.items() if new_states.get(name) != state},
        worker=worker and worker.id,
        gradients=worker is not None or torch.is_grad_enabled(),
        frames=[] if worker else where(),
    )


def _states(dataset):
    """{name of a generator: checksum of its state}, of the global generators and of those that the dataset holds."""
    states = {"Python's random": random.getstate(), "torch": (torch.get_rng_state().numpy(),)}
    numpy = sys.modules.get("numpy")
    if numpy:
        states["NumPy's random"] = numpy.random.get_state()
    for name, value in getattr(dataset, "__dict__", {}).items():
        if isinstance(value, random.Random):
            states[f"the dataset's {name}"] = value.getstate()
        elif isinstance(value, torch.Generator):
            states[f"the dataset's {name}"] = (value.get_state().numpy(),)
        elif numpy and isinstance(value, numpy.random.Generator):
            states[f"the dataset's {name}"] = tuple(value.bit_generator.state.items())
        elif numpy and isinstance(value, numpy.random.RandomState):
            states[f"the dataset's {name}"] = value.get_state()
    return {name: _checksum(state) for name, state in states.items()}


def _checksum(state):
    """A checksum of a generator's state. Arrays count with all their bytes: their repr leaves out the middle."""
    return zlib.crc32(repr([part.tobytes() if hasattr(part, "tobytes") else part for part in state]).encode())
