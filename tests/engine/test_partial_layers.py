"""Layers of which a refit sends a part (partial-module-refit): on vLLM's reload, without an engine."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
import torch
from torch import nn

from quirks_plugins.weight_sync.partial_layer_patches import wrap_layerwise_process, wrap_make_loader


class UnquantizedLinearMethod:
    """Known by its name, as vLLM's is."""


class _Quantised:
    """A method that may have rearranged what the layer holds."""


class _Fused(nn.Module):
    """One parameter that is made of two tensors ``[2, 3]``."""

    def __init__(self, method: object) -> None:
        super().__init__()
        self.quant_method = method
        self.weight = nn.Parameter(torch.zeros(4, 3), requires_grad=False)
        self.weight.weight_loader = self.load_part
        self.register_buffer("constant", torch.ones(1))

    @staticmethod
    def load_part(param: nn.Parameter, loaded_weight: torch.Tensor, part: int) -> None:
        param.data[2 * part : 2 * part + 2].copy_(loaded_weight)


class _Model(nn.Module):
    def __init__(self, method: object) -> None:
        super().__init__()
        self.fused = _Fused(method)

    def load_weights(self, weights: Iterable[tuple[int, torch.Tensor]]) -> None:
        for part, weight in weights:
            self.fused.weight.weight_loader(self.fused.weight, weight, part)


@pytest.fixture(autouse=True)
def _patched(monkeypatch):
    from vllm.model_executor.model_loader.reload import layerwise

    monkeypatch.setattr(layerwise, "_layerwise_process", wrap_layerwise_process(layerwise._layerwise_process))
    filled = torch.empty_strided
    monkeypatch.setattr(torch, "empty_strided", lambda *given, **named: filled(*given, **named).fill_(7))  # what is in memory


def _reload(model: _Model, *parts: int) -> None:
    from vllm.model_executor.model_loader.reload import finalize_layerwise_reload, initialize_layerwise_reload

    initialize_layerwise_reload(model)
    model.load_weights((part, torch.full((2, 3), 5.0)) for part in parts)
    finalize_layerwise_reload(model, None)


def _rows(model: _Model) -> list[float]:
    return model.fused.weight.data[:, 0].tolist()


def _model(method: object) -> _Model:
    from vllm.model_executor.model_loader.reload import record_metadata_for_reloading

    model = _Model(method)
    record_metadata_for_reloading(model)
    model.load_weights([(0, torch.ones(2, 3)), (1, torch.full((2, 3), 2.0))])
    return model


@pytest.mark.parametrize("part", [0, 1])
def test_the_part_that_does_not_come_stays_what_it_was(part):
    model = _model(UnquantizedLinearMethod())

    _reload(model, part)

    assert _rows(model) == ([5, 5, 2, 2] if part == 0 else [1, 1, 5, 5])


def test_a_layer_whose_old_values_cannot_be_told_is_zero_where_nothing_comes():
    model = _model(_Quantised())

    _reload(model, 0)

    assert _rows(model) == [5, 5, 0, 0]


def test_a_packed_weight_is_computed_from_what_multiplies_with_it():
    model = _model(UnquantizedLinearMethod())
    packed = model.fused.weight.data.clone()
    model.fused.cpu_linear = lambda x, _weight, _bias: x @ packed.t()
    model.fused.weight = nn.Parameter(torch.empty(0), requires_grad=False)

    with pytest.raises(RuntimeError, match="size"):  # vLLM's own layer packs again here; this one cannot
        _reload(model, 0)

    assert _rows(model) == [5, 5, 2, 2]


def test_a_layer_that_comes_completely_and_one_that_does_not_come_are_left_to_vllm():
    model = _model(_Quantised())

    _reload(model)
    assert _rows(model) == [1, 1, 2, 2]
    _reload(model, 0, 1)
    assert _rows(model) == [5, 5, 5, 5]


@pytest.fixture
def _counts_once(monkeypatch):
    from vllm.model_executor.model_loader.reload import layerwise

    monkeypatch.setattr(layerwise, "make_online_process_loader", wrap_make_loader(layerwise.make_online_process_loader))


@pytest.mark.usefixtures("_counts_once")
@pytest.mark.parametrize("parts", [(0, 0, 1), (1, 1, 0), (0, 0, 0, 1)])
def test_layer_is_not_complete_while_one_tensor_comes_again(parts):
    model = _model(UnquantizedLinearMethod())

    _reload(model, *parts)

    assert _rows(model) == [5, 5, 5, 5]


@pytest.mark.usefixtures("_counts_once")
def test_last_value_of_a_repeated_tensor_wins_in_each_reload():
    from vllm.model_executor.model_loader.reload import finalize_layerwise_reload, initialize_layerwise_reload

    model = _model(UnquantizedLinearMethod())
    for first in (3.0, 13.0):
        initialize_layerwise_reload(model)
        model.load_weights((part, torch.full((2, 3), first + value)) for value, part in enumerate((0, 0, 1)))
        finalize_layerwise_reload(model, None)

        assert _rows(model) == [first + 1, first + 1, first + 2, first + 2]
