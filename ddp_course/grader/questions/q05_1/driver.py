"""Inside a rank, for 05.1: what make_data returns, and whether it touches a generator that everybody uses."""

import random
import sys

import torch


def drive(make_data):
    torch.rand(1), random.random(), sys.modules["numpy"].random.rand()  # who seeds them again does not come back here
    before = states()
    made = make_data()
    return {"made": made, "touched": [name for name, state in states().items() if state != before[name]]}


def states():
    """By the name of a common generator: its state, in a form that can be compared."""
    numpy = sys.modules["numpy"]  # torch has loaded it
    return {
        "torch (dropout draws from it)": torch.get_rng_state().tolist(),
        "Python's random": random.getstate(),
        "NumPy": repr(numpy.random.get_state()),
    }
