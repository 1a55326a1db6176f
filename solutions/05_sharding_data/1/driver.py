"""Inside a rank, for 05.1: what make_data returns, and whether it touches a generator that everybody uses."""

import random
import sys

import torch


def drive(make_data):
    sys.modules["answer"].hash = hash_of_another_run
    torch.rand(1), random.random(), sys.modules["numpy"].random.rand()  # who seeds them again does not come back here
    old = states()
    made = make_data()
    return {"made": made, "touched": [name for name, state in states().items() if state != old[name]]}


def hash_of_another_run(value):
    """As `hash` may answer in another process: Python salts those of texts anew. The ranks here are forked from one."""
    return hash(("another salt", value)) if isinstance(value, str | bytes) else hash(value)


def states():
    """By the name of a common generator: its state, in a form that can be compared."""
    numpy = sys.modules["numpy"]  # torch has loaded it
    return {
        "torch (dropout draws from it)": torch.get_rng_state().tolist(),
        "Python's random": random.getstate(),
        "NumPy": repr(numpy.random.get_state()),
    }
