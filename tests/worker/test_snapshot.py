"""What a snapshot of a model's tensors notices; what a trainer's model is described anew for is in `test_source`."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from worker.refit.weights.snapshot import Snapshot


@pytest.fixture
def model():
    return nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))


def test_new_values_are_no_change(model):
    snapshot = Snapshot(model)

    model(torch.randn(3, 4)).sum().backward()
    with torch.no_grad():
        model[0].weight.mul_(2)

    assert snapshot.holds(model)
    assert not snapshot.holds(nn.Sequential(*model))


def _replaced_layer(model):
    model[0] = nn.Linear(4, 4)


def _other_memory(model):
    model[0].weight.data = model[0].weight.data.clone()


def _other_order(model):
    model[0].weight.data = model[0].weight.data.t()


def _emptied(model):
    model[0].bias = None


def _other_buffer(model):
    model[1].running_mean = torch.ones(4)


@pytest.mark.parametrize("change", [_replaced_layer, _other_memory, _other_order, _emptied, _other_buffer])
def test_a_change_of_a_tensor_is_noticed(model, change):
    snapshot = Snapshot(model)

    change(model)

    assert not snapshot.holds(model)


def _new_buffer(model):
    model[1].register_buffer("cache", torch.zeros(2))


def _new_layer(model):
    model.append(nn.Linear(4, 4))


@pytest.mark.parametrize("change", [_other_buffer, _new_buffer, _new_layer])
def test_of_named_tensors_nothing_else_counts(model, change):
    everything, named = Snapshot(model), Snapshot(model, {"0.weight", "0.bias"})

    change(model)

    assert named.holds(model)
    assert not everything.holds(model)
    model[0].weight.data = model[0].weight.data.clone()
    assert not named.holds(model)
