"""The by-hand wrappers, optimizer and sharded layers on real ranks, against one process on the global batch.

by_hand_ranks.py makes every observation, in one launch for each world size.
"""

import itertools
from types import SimpleNamespace

import by_hand_ranks
import pytest
import torch
import warm
from by_hand_ranks import ACCUMULATED, WRAPPERS
from tensor_bytes import TensorBytes
from torch import nn

from ddp_course.distributed.by_hand import BucketedDataParallel


@pytest.fixture(scope="module", params=[1, 2, 4])
def ranks(request):
    """{rank: its observations}, at one world size."""
    return warm.ranks(by_hand_ranks.__file__, nproc=request.param).results


@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_construction_gives_every_rank_the_parameters_and_buffers_of_rank_0(ranks, wrapper):
    assert all(results[f"{wrapper} starts as rank 0"] for results in ranks.values())


@pytest.mark.parametrize("how", ACCUMULATED)
@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_every_step_equals_one_process_on_the_global_batch(ranks, wrapper, how):
    # Gradients and weights of about 1, added up in another order; None where one process has None, too.
    assert max(results[f"{wrapper}, {how}"] for results in ranks.values()) < 1e-14


@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_parameters_of_two_types_equal_one_process(ranks, wrapper):
    # One layer is in float32, and its rounding reaches every other tensor.
    assert max(results[f"{wrapper}, two types"] for results in ranks.values()) < 1e-6


@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_gradients_are_the_mean_also_after_no_sync_and_where_a_loss_uses_no_parameter(ranks, wrapper):
    size = len(ranks)
    for rank, results in ranks.items():
        mean = (size + 1) / 2
        assert results[f"{wrapper} special"] == [rank + 1, *map(pytest.approx, (mean, 1, 2 * mean))]


@pytest.mark.parametrize("model", ["MiniGPT", "HeadFirst"])
def test_messages_and_bytes_are_as_few_as_documented(ranks, model):
    for results in ranks.values():
        for wrapper in WRAPPERS:
            result = results[f"{model}, {wrapper}"]
            expected = {"flat": 1, "bucketed": 1, "overlapped": len(result["numels"])}
            for step in result["steps"]:
                if wrapper in expected:
                    assert step["messages"] == expected[wrapper]
                # For each tensor one number more: how many ranks have its gradient.
                assert sum(step["sizes"]) == 4 * sum(numel + 1 for numel in result["numels"])
            assert result["quiet"] == 0


def test_buckets_are_filled_up_to_their_size(ranks):
    result, limit = ranks[0]["MiniGPT, small buckets"], 0.002 * 2**20
    single = {4 * (numel + 1) for numel in result["numels"]}  # a gradient larger than a bucket travels by itself
    for step in result["steps"]:
        sizes = step["sizes"]
        assert 1 < len(sizes) < len(result["numels"])
        assert all(size in single or size <= limit + 4 * len(result["numels"]) for size in sizes)
        assert all(sum(pair) > limit for pair in itertools.pairwise(sizes)), "two neighbours would fit into one bucket"


def test_buckets_are_in_the_order_of_their_completion():
    parameters = [nn.Parameter(torch.ones(2, dtype=dtype)) for dtype in (torch.float16, *[torch.float32] * 3)]
    buckets = BucketedDataParallel.group_into_messages(SimpleNamespace(bucket_bytes=8), parameters)
    assert [list(map(id, bucket)) for bucket in buckets] == [[id(parameter)] for parameter in parameters]


@pytest.mark.parametrize("wrapper", ["overlapped", "small buckets"])
def test_messages_are_sent_while_backward_runs(ranks, wrapper):
    for results in ranks.values():
        for step in results[f"MiniGPT, {wrapper}"]["steps"]:
            assert step["early"] == step["messages"] - 1  # all but the one with the last gradient
            assert step["before any"] == 0
        assert all(step["early"] == 0 for step in results["MiniGPT, flat"]["steps"])


def test_an_unused_layer_costs_the_overlap_of_the_first_step_only(ranks):
    for results in ranks.values():
        first, second = results["HeadFirst, overlapped"]["steps"]
        assert first["early"] == 0 and second["early"] >= 4


@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_gradients_are_those_of_torchs_ddp(ranks, wrapper):
    # The sum of two numbers does not depend on their order: every bit is equal. Four are added up in an order that
    # depends on their position in a message, so messages of another length round differently. Measured: up to 9
    # times 2**-23 of a tensor's largest gradient over three steps; a wrong mean is off by more than 1.
    rounding = 64 * 2**-23
    bound = 0 if len(ranks) <= 2 else rounding
    assert max(results[f"{wrapper} to DDP, 1"] for results in ranks.values()) <= bound
    # With two backward passes per step DDP takes the mean after each; flat adds them up first, and rounds differently.
    bound = rounding if wrapper == "flat" else bound
    assert max(results[f"{wrapper} to DDP, 2"] for results in ranks.values()) <= bound


@pytest.mark.parametrize("kind, moments", [("AdamW", 2), ("SGD", 1)])
def test_the_sharded_optimizer_is_the_whole_one_with_its_state_divided(ranks, kind, moments):
    results = [result[kind] for result in ranks.values()]
    assert all(result["equal"] for result in results)
    shares = [result["share"] for result in results]
    assert sum(shares) == results[0]["whole"]
    assert max(shares) - min(shares) <= moments * results[0]["largest"]
    assert [result["kept"] for result in results] == shares
    assert all(result["lr"] == 1e-3 / 4 and result["loss"] > 0 for result in results)
    assert {"lr", "initial_lr", "weight_decay"} <= set(results[0]["options"])


def test_the_sharded_optimizer_takes_more_ranks_than_tensors(ranks):
    assert all(result["few"] == ranks[0]["few"] != [1.0, 1.0] for result in ranks.values())
    assert sorted(ranks[0]["few_loads"]) == [0] * (len(ranks) - 1) + [2]


def test_muons_matrices_are_balanced_by_their_cost(ranks):
    for result in ranks.values():
        assert result["muon_loads"] == result["muon"] == ranks[0]["muon"]
        assert max(result["muon"]) <= max(result["muon_by_elements"])
    if len(ranks) == 2:  # by the number of elements, the square matrix would count as one of the others
        assert max(ranks[0]["muon"]) < 0.8 * max(ranks[0]["muon_by_elements"])


def test_fully_sharded_equals_one_process(ranks):
    for results in ranks.values():
        assert results["sharded_gap"] < 1e-12
        assert results["logits_gap"] < 1e-12
        assert results["sharded_names"]


def test_a_fully_sharded_rank_holds_its_share_and_a_layer_at_a_time(ranks):
    layers, size = 8, len(ranks)
    for results in ranks.values():
        assert results["peak_whole"] >= 4  # weights, gradients, and AdamW's two averages
        # Its share of these, and of one layer the weights, their gradient, and a copy of that as it is scattered.
        assert 4 / size <= results["peak_sharded"] <= 4 / size + 4.2 / layers


def test_a_fully_sharded_layer_gathers_new_weights_after_an_interrupted_backward(ranks):
    for results in ranks.values():
        assert results["interruption"].startswith("ZeroDivisionError")
        assert results["gradient_after_it"] == [[12.0] * 4]


def test_bad_input_is_named_on_every_rank(ranks):
    for results in ranks.values():
        assert results["bad_bucket"].startswith("InputError: A bucket needs a positive size in megabytes, got 0")
        assert "one dtype, found ['torch.float32', 'torch.float64']" in results["bad_types"]
        assert "found none" in results["bad_frozen"]
        assert "A parameter of shape (2, 2) is tied across layers" in results["bad_tie"]
        assert "sparse=False" in results["bad_sparse"]
        assert "use_reentrant=False" in results["bad_checkpoint"]
        if len(ranks) > 1:
            last = len(ranks) - 1
            assert results["bad_model"].endswith(
                f"tensor 2 is 1.weight (2, 2) torch.float64 on rank 0, 1.weight (3, 2) torch.float64 on rank {last}."
            )


def test_tensor_bytes_counts_a_storage_once_and_until_it_is_freed():
    outside = torch.zeros(10)
    with TensorBytes() as memory:
        whole = torch.zeros(100, dtype=torch.float64)
        view = whole[:10]
        assert memory.now == 800
        del whole
        assert memory.now == 800  # the view keeps all of it
        outside.add_(1)
        del view
        assert (memory.now, memory.peak) == (0, 800)


@pytest.mark.parametrize("ranks", [2], indirect=True)
def test_weights_sent_in_half_precision_train_as_torchs_fully_shard_does(ranks):
    """To the bit: losses of every step and all weights after four, while shards and momentum stay float32."""
    for results in ranks.values():
        assert results["half_losses"]["ours"] == results["half_losses"]["theirs"]
        assert len(results["half_gaps"]) > 10 and set(results["half_gaps"]) == {0.0}
        assert results["half_types"] == ["torch.float32"] and results["half_output"] == "torch.bfloat16"
