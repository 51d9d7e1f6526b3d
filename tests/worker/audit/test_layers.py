"""Recording the layers of plain modules; those of engines are in `tests/engine/test_refit_audit.py`."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from worker.lab.audit.logprobs import computed, first_that_differs

ROW = [3, 1, 4, 1, 5]
WIDTH = 8


class _Layer(nn.Module):
    """A layer with experts of its own, which are numbered as well."""

    def __init__(self):
        super().__init__()
        self.experts = nn.ModuleList([nn.Linear(WIDTH, WIDTH) for _ in range(2)])

    def forward(self, hidden):
        return hidden + sum(expert(hidden) for expert in self.experts)


class _Deferring(nn.Module):
    """The same layer as vLLM writes it: it returns the residual separately."""

    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def forward(self, hidden):
        whole = sum(hidden) if isinstance(hidden, tuple) else hidden
        return self.layer(whole) - whole, whole


class _Model(nn.Module):
    """A stack of layers."""

    def __init__(self, layers=None):
        super().__init__()
        self.embed = nn.Embedding(16, WIDTH)
        self.layers = nn.ModuleList(layers or [_Layer() for _ in range(3)])

    def forward(self, ids, **_):
        hidden = self.embed(ids)
        for layer in self.layers:
            hidden = layer(hidden)
        return hidden


@pytest.fixture
def model():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return _Model().eval()


def test_layers_are_recorded_without_numbered_modules_inside_them(model):
    found = computed(model, ROW)

    assert list(found) == ["layers.0", "layers.1", "layers.2"]
    assert {len(rows) for rows in found.values()} == {len(ROW)}


@pytest.mark.parametrize("wrong", [2.0, float("nan")])
def test_the_first_layer_whose_output_differs_is_named(wrong, model):
    other = copy.deepcopy(model)
    other.layers[1].experts[0].weight.data[0, 0] = wrong

    assert first_that_differs(computed(other, ROW), computed(model, ROW), 1e-3) == "layers.1"
    assert first_that_differs(computed(model, ROW), computed(model, ROW), 1e-3) is None


def test_a_layer_that_returns_the_residual_separately_is_equal(model):
    deferring = _Model([_Deferring(layer) for layer in copy.deepcopy(model.layers)]).eval()
    deferring.embed = model.embed

    assert first_that_differs(computed(deferring, ROW), computed(model, ROW), 1e-6) is None
