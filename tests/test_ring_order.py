"""The ring of the site's page: it sums, and it is the one that notebook 02b runs."""

from pathlib import Path

import pytest
import warm

from ddp_course.base.errors import InputError
from ddp_course.lab.ring_order import MOST_RANKS, ring_states, sent_chunk, steps
from ddp_course.lab.source import write_script

NOTEBOOK = Path(__file__).parents[1] / "notebooks/02b_every_collective.ipynb"


@pytest.mark.parametrize("ranks", range(2, MOST_RANKS + 1))
def test_after_the_first_lap_each_chunk_is_summed_on_one_rank_and_after_the_second_on_all(ranks):
    states, all_ranks = ring_states(ranks), frozenset(range(ranks))
    assert len(states) == steps(ranks) + 1
    summed = [[rank for rank in range(ranks) if states[ranks - 1][rank][chunk] == all_ranks] for chunk in range(ranks)]
    assert sorted(summed) == [[rank] for rank in range(ranks)]
    assert all(chunk == all_ranks for chunks in states[-1] for chunk in chunks)


@pytest.mark.parametrize("ranks", range(2, MOST_RANKS + 1))
def test_the_first_lap_adds_no_number_twice(ranks):
    for step, state in enumerate(ring_states(ranks)[: ranks - 1]):
        for rank in range(ranks):
            chunk = sent_chunk((rank - 1) % ranks, step, ranks)
            assert not state[rank][chunk] & state[(rank - 1) % ranks][chunk]


@pytest.mark.parametrize("ranks", (2, 3))
def test_notebook_02b_sends_the_same_chunks_and_holds_the_same_sums(tmp_path, monkeypatch, ranks):
    monkeypatch.chdir(tmp_path)
    for script in ("scripts/02b_ring.py", "scripts/02b_prove_ring.py"):
        write_script(NOTEBOOK, script)
    run = warm.ranks("scripts/02b_prove_ring.py", 8 * 1024, nproc=ranks)
    states = ring_states(ranks)
    for rank, result in run.results.items():
        sums = [[(n + 1) * sum(10**r for r in of) for n, of in enumerate(state[rank])] for state in states]
        assert [step["numbers"] for step in result["steps"]] == sums
        sent = [sent_chunk(rank, step, ranks) for step in range(steps(ranks))]
        assert [step["chunk"] for step in result["steps"]] == [*sent, None]


@pytest.mark.parametrize("ranks", (1, MOST_RANKS + 1))
def test_a_ring_that_cannot_be_drawn_is_refused(ranks):
    with pytest.raises(InputError, match=f"from 2 to {MOST_RANKS} ranks"):
        ring_states(ranks)
