"""The bubble of orders that can be computed by hand."""

import pytest

from ddp_course.lab.pipeline_order import gpipe, most_in_flight, one_f_one_b, order_bubble, timed


def steps(*kinds_and_numbers):
    return [{"kind": kind, "number": number} for kind, number in kinds_and_numbers]


@pytest.mark.parametrize("ranks", (1, 2, 4))
@pytest.mark.parametrize("micro_batches", (1, 4, 8))
def test_gpipe_idles_as_the_formula_says(ranks, micro_batches):
    order = steps(*((kind, number) for kind in ("forward", "backward") for number in range(micro_batches)))
    assert order_bubble([order] * ranks) == pytest.approx((ranks - 1) / (micro_batches + ranks - 1))


def test_weights_fill_the_gap_that_a_full_backward_leaves():
    whole = [steps(("forward", 0), ("backward", 0))] * 2
    split = [steps(("forward", 0), ("input", 0), ("weights", 0))] * 2
    assert order_bubble(whole) == 1 - 6 / 12 and order_bubble(split) == 1 - 6 / 10


def test_all_wait_for_a_stage_that_takes_longer():
    orders = one_f_one_b(2, 2)
    # Rank 0 works for 6 of 15: F0 0-1, F1 1-2, B0 7-9, B1 13-15. Rank 1 for 12: F0 1-3, B0 3-7, F1 7-9, B1 9-13.
    assert order_bubble(orders, [1, 2]) == 1 - 18 / 30
    assert order_bubble(orders, [2, 2]) == order_bubble(orders) < order_bubble(orders, [1, 2])


def test_an_output_that_is_sent_with_the_next_one_comes_later():
    orders = [steps(("forward", 0), ("forward", 1)), steps(("forward", 0), ("forward", 1))]
    orders[0][0]["sent_with_next"] = True
    assert [event["start"] for event in timed(orders)[1]] == [2, 3]


def written(events):
    return " ".join(f"{event['kind'][0].upper()}{event['number']}" for event in events)


def test_1f1b_on_two_and_more_ranks():
    assert list(map(written, one_f_one_b(2, 3))) == ["F0 F1 B0 F2 B1 B2", "F0 B0 F1 B1 F2 B2"]
    assert list(map(written, one_f_one_b(3, 1))) == ["F0 B0"] * 3
    assert written(one_f_one_b(3, 4)[0]) == "F0 F1 F2 B0 F3 B1 B2 B3"


def test_1f1b_keeps_fewer_micro_batches_and_idles_as_long():
    for stages, micro_batches in ((2, 4), (4, 8), (4, 4)):
        orders = gpipe(stages, micro_batches), one_f_one_b(stages, micro_batches)
        assert order_bubble(orders[0]) == order_bubble(orders[1])
        assert [most_in_flight(events) for events in orders[0]] == [micro_batches] * stages
        assert [most_in_flight(events) for events in orders[1]] == [stages - rank for rank in range(stages)]


def test_no_step_begins_before_its_input_is_there():
    lanes = timed(one_f_one_b(3, 5))
    ends = {(rank, e["kind"], e["number"]): e["end"] for rank, events in enumerate(lanes) for e in events}
    for rank, events in enumerate(lanes):
        for event in events:
            source = rank - 1 if event["kind"] == "forward" else rank + 1
            assert event["start"] >= ends.get((source, event["kind"], event["number"]), 0)
