"""Weights that a trainer loads into a running model (cpu-load-into-live-model): on vLLM's reload, without an engine."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from layers import Layer, Model, reloadable, reloading
from torch import nn

from quirks_plugins.runtime.cpu_load_into_live_model import wrap_load_model

_NAMES = ("first.weight", "first.bias", "second.weight", "second.bias")


class _Running(Model):
    """A model whose answer shows its weights."""

    def forward(self) -> list[float]:
        return [float(parameter.sum()) for parameter in self.parameters()]


@pytest.fixture
def model() -> nn.Module:
    """A running model of two layers with two weights each, with the patch on the loader that made it."""
    model = reloadable(_Running(first=Layer(2, bias=True), second=Layer(2, bias=True)))
    for parameter in model.parameters():
        parameter.data.zero_()
    return wrap_load_model(lambda *_: model)(None, None, SimpleNamespace(dtype=torch.float32))


@pytest.mark.parametrize("size", [1, 3, 8])
def test_two_updates_without_a_request_between_them(model, size):
    sent = [(name, torch.full((2,), value)) for value in (1.0, 2.0) for name in _NAMES]

    loaded = [model.load_weights(iter(sent[start : start + size])) for start in range(0, len(sent), size)]

    assert model() == [4.0] * 4
    assert set.union(*loaded) == set(_NAMES)


def test_a_part_that_comes_twice_begins_no_update(model):
    for name, value in (("first.weight", 1.0), ("first.weight", 3.0), ("first.bias", 2.0)):
        model.load_weights([(name, torch.full((2,), value))])

    assert model()[0] == 6.0


def test_layers_that_were_not_sent_keep_their_weights(model):
    for name in _NAMES:
        model.load_weights([(name, torch.ones(2))])
    model()

    model.load_weights([("first.weight", torch.full((2,), 5.0)), ("first.bias", torch.full((2,), 6.0))])

    assert model() == [10.0, 12.0, 2.0, 2.0]


def test_the_memory_of_a_tensor_may_be_used_again(model):
    buffer = torch.empty(2)
    for value, name in enumerate(_NAMES):
        model.load_weights([(name, buffer.fill_(value))])

    assert model() == [0.0, 2.0, 4.0, 6.0]


def test_a_layer_with_a_part_of_its_weights_fails_requests(model):
    model.load_weights([("first.weight", torch.ones(2))])

    for _ in range(2):
        with pytest.raises(RuntimeError, match=r"load_weights: first got only a part of .* send all weights of a layer"):
            model()
    model.load_weights([("first.bias", torch.ones(2))])

    assert model() == [2.0, 2.0, 0.0, 0.0]


@pytest.mark.parametrize("before", [0, 1])
def test_a_reload_that_others_have_opened_is_theirs_to_close(model, before):
    """Also after an update."""
    for _ in range(before):
        model.load_weights([(name, torch.ones(2)) for name in _NAMES])
    with reloading(model, SimpleNamespace(dtype=torch.float32)):
        model.load_weights([(name, torch.full((2,), 2.0)) for name in _NAMES])
        hooks = len(model._forward_pre_hooks)

    assert hooks == before, "it opens no update of its own"
    assert model() == [4.0] * 4
