"""Inside a rank, for 05.1: what make_data returns, and which common random number generators it changes."""

import random
import sys

import torch


def drive(make_data):
    """{"data": the data that make_data returns, "changed generators": the common ones whose state it changes}."""
    sys.modules["answer"].hash = hash_of_another_run
    # After a draw no generator is in the state that a seed gives it: if make_data seeds one, its state changes.
    torch.rand(1)
    random.random()
    sys.modules["numpy"].random.rand()
    states_before = generator_states()
    data = make_data()
    changed = [name for name, state in generator_states().items() if state != states_before[name]]
    return {"data": data, "changed generators": changed}


def hash_of_another_run(value):
    """`hash` as another run would compute it: Python salts the hash of text differently in each run."""
    return hash(("another salt", value)) if isinstance(value, str | bytes) else hash(value)


def generator_states():
    """The state of each common generator, by its name, in a form that can be compared."""
    numpy = sys.modules["numpy"]  # torch has loaded it
    return {
        "torch (dropout draws from it)": torch.get_rng_state().tolist(),
        "Python's random": random.getstate(),
        "NumPy": repr(numpy.random.get_state()),
    }
