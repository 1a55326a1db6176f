"""bfloat16 weights and FP8 products, emulated: rounding to the format, its mean error, and the effect of scales."""

import pytest
import torch
from torch import nn

from ddp_course.training.low_precision import (
    FLOAT8,
    Float8Linear,
    in_float8,
    replace_linears,
    round_stochastically,
    round_to_nearest,
)

pytestmark = pytest.mark.smoke


def seeded(seed):
    return torch.Generator().manual_seed(seed)


def test_both_roundings_give_bfloat16_numbers_and_keep_those():
    weight = torch.randn(1000, generator=seeded(1))
    for rounded in (round_to_nearest(weight), round_stochastically(weight, seeded(2))):
        assert torch.equal(rounded.bfloat16().float(), rounded) and not torch.equal(rounded, weight)
        assert (rounded - weight).abs().max() < weight.abs().max() / 64
    exact = weight.bfloat16().float()
    assert torch.equal(round_stochastically(exact, seeded(3)), exact)


@pytest.mark.parametrize("value", [1.001, -1.001, 0.3, 1e-30])
def test_stochastic_rounding_is_unbiased_and_rounding_to_nearest_is_not(value):
    weight = torch.full((200_000,), value)
    spacing = abs(weight[0].item()) / 128
    assert (round_stochastically(weight, seeded(1)).double().mean() - weight[0].double()).abs() < spacing / 100
    assert (round_to_nearest(weight) - weight).abs().min() > spacing / 100


def test_a_scale_keeps_values_that_are_too_small_or_too_large():
    values = torch.randn(64, 64, generator=seeded(1))
    for size in (1e-6, 1e6):
        error, unscaled_error = (
            (in_float8(size * values, scaled=scaled) - size * values).norm() / size / 64 for scaled in (True, False)
        )
        assert error < 0.05 and unscaled_error > 0.5
    assert torch.equal(in_float8(values, scaled=False), values.to(FLOAT8).float())
    assert torch.equal(in_float8(torch.zeros(4, 4)), torch.zeros(4, 4))


def test_blocks_keep_small_values_apart_from_a_large_one():
    values = torch.randn(4, 64, generator=seeded(1))
    values[0, 0] = 1e7
    whole, blocks = in_float8(values), in_float8(values, 32)
    assert (whole[1:] == 0).all() and (blocks[1:] != 0).all()
    torch.testing.assert_close(blocks[1:], values[1:], rtol=0.07, atol=0.01)


def test_a_linear_layer_in_fp8_is_near_one_in_float32_forward_and_backward():
    torch.manual_seed(1)
    linear, inputs = nn.Linear(64, 32), torch.randn(3, 32, 64, requires_grad=True)
    results = []
    for layer in (linear, Float8Linear(linear), Float8Linear(linear, 32)):
        inputs.grad, linear.weight.grad, linear.bias.grad = None, None, None
        outputs = layer(inputs)
        outputs.square().mean().backward()
        results.append((outputs, inputs.grad, linear.weight.grad, linear.bias.grad))
    in_float32, *in_fp8 = results
    for result in in_fp8:
        for values, expected in zip(result, in_float32, strict=True):
            assert 0.001 < (values - expected).norm() / expected.norm() < 0.06


def test_a_large_gradient_affects_its_block_alone():
    """Blocks lie along the dimension that is summed over: outputs for the inputs' gradient, rows for the weight's."""
    torch.manual_seed(1)
    linear, inputs, upstream = nn.Linear(32, 64, bias=False), torch.randn(64, 32), torch.randn(64, 64)
    upstream[0, 0] = 1e7

    def gradients(layer):
        leaf, linear.weight.grad = inputs.clone().requires_grad_(), None
        layer(leaf).backward(upstream)
        return leaf.grad[1:], linear.weight.grad[1:]  # of the other rows, of the other outputs

    for block, is_near in ((32, True), (None, False)):
        for values, expected in zip(gradients(Float8Linear(linear, block)), gradients(linear), strict=True):
            error = (values - expected).norm() / expected.norm()
            assert error < 0.06 if is_near else error == 1


def test_replaced_layers_share_their_parameters():
    model = nn.Sequential(nn.Embedding(32, 32), nn.Sequential(nn.Linear(32, 32)), nn.Linear(32, 32, bias=False))
    model[2].weight = model[0].weight
    parameters = list(model.parameters())
    replace_linears(model)
    assert isinstance(model[1][0], Float8Linear) and model[2].weight is model[0].weight
    assert [id(parameter) for parameter in model.parameters()] == [id(parameter) for parameter in parameters]
