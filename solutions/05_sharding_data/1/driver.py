"""Inside a rank, for 05.1: what make_data returns, and which common random number generators it changes."""

import random
import sys

import torch


def drive(make_data):
    sys.modules["answer"].hash = hash_of_another_run
    # After a draw no generator is in the state that a seed gives it: if make_data seeds one, its state changes.
    torch.rand(1)
    random.random()
    sys.modules["numpy"].random.rand()
    old = states()
    made = make_data()
    return {"made": made, "touched": [name for name, state in states().items() if state != old[name]]}


def hash_of_another_run(value):
    """`hash` as another process computes it: Python salts that of text; ranks forked from one process share it."""
    return hash(("another salt", value)) if isinstance(value, str | bytes) else hash(value)


def states():
    """The state of each common generator, by its name, in a form that can be compared."""
    numpy = sys.modules["numpy"]  # torch has loaded it
    return {
        "torch (dropout draws from it)": torch.get_rng_state().tolist(),
        "Python's random": random.getstate(),
        "NumPy": repr(numpy.random.get_state()),
    }
