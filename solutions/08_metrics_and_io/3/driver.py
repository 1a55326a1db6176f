"""Inside a rank, for 08.3: call the learner's evaluate, and look at the dict that it was handed."""


def drive(evaluate, sums, count):
    """The result of evaluate, and the dict before and after, as text: nan is equal to nan there."""
    handed_over = {name: repr(value) for name, value in sums.items()}
    result = evaluate(sums, count)
    return {
        "returned": result,
        "handed over": handed_over,
        "after": {name: repr(value) for name, value in sums.items()},
    }
