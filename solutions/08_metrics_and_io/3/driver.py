"""Inside a rank, for 08.3: call the learner's evaluate, and note the dict `sums` before and after the call."""


def drive(evaluate, sums, count):
    """The result of evaluate, and `sums` before and after it, with the repr of each value: a nan equals no nan."""
    before = {name: repr(value) for name, value in sums.items()}
    returned = evaluate(sums, count)
    return {"returned": returned, "before": before, "after": {name: repr(value) for name, value in sums.items()}}
