"""Tensors are told apart by whether all of their values are finite."""

from __future__ import annotations

import math
from itertools import product

import pytest
import torch
from torch import nn

from worker.refit.engine.finite import NotFinite

FLOATS = [torch.float64, torch.float32, torch.bfloat16, torch.float16]
OF_EIGHT_BITS = [torch.float8_e4m3fn, torch.float8_e5m2]


@pytest.mark.parametrize(
    ("dtype", "value"), [*product(FLOATS, [math.nan, math.inf, -math.inf]), *product(OF_EIGHT_BITS, [math.nan])]
)
@pytest.mark.parametrize("size", [1, 7, 4099])
def test_a_value_that_is_not_finite_is_found_wherever_it_is(dtype, value, size):
    for place in {0, size // 2, size - 1}:
        tensor = torch.randn(size)
        tensor[place] = value
        found = NotFinite()
        found.look([("fine", torch.randn(size).to(dtype)), ("spoilt", tensor.to(dtype))])
        assert found == {"spoilt": 1}


@pytest.mark.parametrize("dtype", FLOATS)
def test_tensors_without_nan_or_infinity_are_finite(dtype):
    found = NotFinite()
    largest = torch.full((1000, 10), torch.finfo(dtype).max, dtype=dtype)
    found.look([("positive", largest), ("negative", -largest), ("empty", largest[:0]), ("integers", torch.arange(3))])
    assert found == {}


def test_only_parts_of_one_tensor_are_counted_together():
    tensor = torch.zeros(4, 6)
    tensor[0, 0] = tensor[3, 1] = tensor[0, 5] = math.nan
    found = NotFinite()
    found.look([("part", tensor[:2, :3]), ("part", tensor[2:, :3]), ("other", tensor[1:3])])
    assert found == {"part": 2}


@pytest.mark.parametrize(
    ("dtype", "is_lost"), [(torch.float16, True), (torch.float32, False), (torch.float8_e4m3fn, False), (torch.int8, False)]
)
def test_what_a_cast_loses_counts_if_the_parameter_has_lost_it(dtype, is_lost):
    sent = torch.tensor([1.0, 1e5, -1e5, 65510.0])  # the last one rounds to the largest of float16
    model = nn.Module()
    model.weight = nn.Parameter(sent.clamp(-448, 448).to(dtype) if dtype.itemsize == 1 else sent.to(dtype), requires_grad=False)
    found = NotFinite(torch.float16)
    found.look([("sent", sent), ("fine", sent / 2)])
    assert found == {}
    found.after_casts(model)
    assert found == ({"sent": 2} if is_lost else {})
