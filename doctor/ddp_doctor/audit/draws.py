"""Watches random numbers: the script's draws from Python's and NumPy's global generators, and the draws of samples."""

import functools
import random
import sys
import zlib

import torch

from .log import caller, where

PYTHON_FUNCTIONS = (
    "random uniform randint randrange choice choices gauss normalvariate betavariate triangular getrandbits".split()
)
NUMPY_FUNCTIONS = (
    "rand randn random random_sample uniform normal standard_normal randint choice beta binomial poisson".split()
)
MAX_DRAWS, MAX_FETCHES = 400, 40  # that are recorded; a fetch makes the samples of one batch


def watch_draws(log):
    """Each draw of the script outside of a loader, and the generators that a loader's samples use."""
    from torch.utils.data._utils import fetch

    log.fetching = False
    modules = [(random, PYTHON_FUNCTIONS, random.getstate, "Python's random")]
    if numpy := sys.modules.get("numpy"):
        modules.append((numpy.random, NUMPY_FUNCTIONS, numpy.random.get_state, "NumPy's random"))
    for module, names, get_state, title in modules:
        for name in names:
            setattr(module, name, _watched_draw(log, getattr(module, name), get_state, title))
    for fetcher in (fetch._MapDatasetFetcher, fetch._IterableDatasetFetcher):
        fetcher.fetch = _watched_fetch(log, fetcher.fetch)


def _watched_draw(log, function, get_state, title):
    def before_draw(args, kwargs):
        if log.fetching or log.counts.get("draw", 0) >= MAX_DRAWS or caller() != "own":
            return None
        facts = {"generator": title, "state": _checksum(get_state()), "frames": where()}
        return lambda result: log.event("draw", **facts, is_array=hasattr(result, "shape"))

    return log.watched(function, before_draw)


def _watched_fetch(log, function):
    # Also called in a loader's worker, which has been forked from the rank.
    @functools.wraps(function)
    def watched(fetcher, indices):
        if log.fetching or log.counts.get("fetch", 0) >= MAX_FETCHES:
            return function(fetcher, indices)
        log.fetching, old_states = True, _states(fetcher.dataset)
        try:
            return function(fetcher, indices)
        finally:
            log.fetching = False
            _record_fetch(log, old_states, _states(fetcher.dataset))

    return watched


def _record_fetch(log, old_states, new_states):
    """Records which generators a fetch of samples has drawn from: those whose state it has changed."""
    worker = torch.utils.data.get_worker_info()
    log.event(
        "fetch",
        in_forks=True,
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
