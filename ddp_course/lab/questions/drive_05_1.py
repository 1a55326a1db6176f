"""Inside a rank, for 05.1: what make_data returns, and whether it touches the generator that everybody uses."""

import torch


def drive(make_data):
    before = torch.get_rng_state()
    made = make_data()
    return {"made": made, "left alone": torch.equal(before, torch.get_rng_state())}
