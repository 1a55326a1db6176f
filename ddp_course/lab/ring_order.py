"""A ring all-reduce step by step: the chunk that each rank sends, and which ranks' numbers are summed in its chunks.

Notebook 02b sends these chunks between real ranks; a test compares.
"""

from ddp_course.base.errors import InputError

MOST_RANKS = 8  # of more, the colours could not be distinguished


def steps(ranks: int) -> int:
    """The number of steps of both laps: a reduce-scatter, then an all-gather."""
    return 2 * (ranks - 1)


def sent_chunk(rank: int, step: int, ranks: int) -> int:
    """The chunk that `rank` sends to the next rank; in the same step it receives the one that its predecessor sends."""
    return (rank - step) % ranks


def ring_states(ranks: int) -> list[list[list[frozenset[int]]]]:
    """states[step][rank][chunk]: the ranks whose numbers are summed in it, before each step and after the last one.

    Raises InputError unless there are 2 to MOST_RANKS ranks.
    """
    if not 2 <= ranks <= MOST_RANKS:
        raise InputError(f"a ring has from 2 to {MOST_RANKS} ranks here, got {ranks}")
    states = [[[frozenset([rank])] * ranks for rank in range(ranks)]]
    for step in range(steps(ranks)):
        state = [list(chunks) for chunks in states[-1]]
        for rank in range(ranks):
            source = (rank - 1) % ranks
            chunk = sent_chunk(source, step, ranks)
            received = states[-1][source][chunk]
            state[rank][chunk] = received | state[rank][chunk] if step < ranks - 1 else received
        states.append(state)
    return states
