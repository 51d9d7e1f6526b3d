"""Writes that a model does itself during a reload (gptoss-experts-refit and others): on vLLM's reload, without an engine."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import pytest
import torch
from layers import reloadable, reloading
from torch import nn

from quirks_plugins.weight_sync import direct_write_patches

SHAPE = (4, 3)


class _Layer(nn.Module):
    """One parameter whose loader takes a row at a time, as an expert's does."""

    def __init__(self) -> None:
        super().__init__()
        self.w13_weight = nn.Parameter(torch.zeros(SHAPE), requires_grad=False)
        self.w13_weight.weight_loader = self.load_row

    @staticmethod
    def load_row(param: nn.Parameter, loaded_weight: torch.Tensor, row: int) -> None:
        param.data[row].copy_(loaded_weight)


def _whole(parameter: nn.Parameter, weight: torch.Tensor) -> None:
    parameter.copy_(weight)


def _data(parameter: nn.Parameter, weight: torch.Tensor) -> None:
    parameter.data.copy_(weight)


def _slices(parameter: nn.Parameter, weight: torch.Tensor) -> None:
    parameter.narrow(0, 0, 1).copy_(weight[:1])
    parameter.data[1].copy_(weight[1])
    parameter.data[2:] = weight[2:]


def _columns(parameter: nn.Parameter, weight: torch.Tensor) -> None:
    parameter.data[:, 1:].copy_(weight[:, 1:])
    parameter.data.t()[0].copy_(weight[:, 0])


def _rows(parameter: nn.Parameter, weight: torch.Tensor) -> None:
    for row in range(len(weight)):
        parameter.weight_loader(parameter, weight[row], row)


class _Model(nn.Module):
    """A model that loads its one weight in a given way."""

    def __init__(self, write: Callable[[nn.Parameter, torch.Tensor], None]) -> None:
        super().__init__()
        self.experts = _Layer()
        self._write = write

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> set[str]:
        for _, weight in weights:
            self._write(self.experts.w13_weight, weight)
        return {"experts.w13_weight"}


def _reload(model: _Model, weight: torch.Tensor, *, patched: bool) -> None:
    load = direct_write_patches.wrap_expert_load(_Model.load_weights) if patched else _Model.load_weights
    with reloading(model):
        assert load(model, [("weight", weight)]) == {"experts.w13_weight"}


def test_only_the_first_load_walks_the_model(monkeypatch):
    model, walks, walk = _Model(_whole), [], _Model.named_modules
    monkeypatch.setattr(
        _Model, "named_modules", lambda self, *given, **named: walks.append(self) or walk(self, *given, **named)
    )
    load = direct_write_patches.wrap_expert_load(_Model.load_weights)

    for _ in range(3):
        load(model, [("weight", torch.ones(SHAPE))])

    assert len(walks) == 1


@pytest.mark.parametrize("write", [_whole, _data, _slices, _columns])
def test_a_write_past_the_loader_counts_only_with_the_patch(write):
    model, memory = reloadable(_Model(write)), {}
    for patched in (False, True, True):
        weight = torch.rand(SHAPE)
        _reload(model, weight, patched=patched)
        memory[patched] = model.experts.w13_weight.data_ptr()
        assert torch.equal(model.experts.w13_weight, weight) is patched

    assert len(set(memory.values())) == 1, "captured CUDA graphs read the first"


def test_a_loader_that_is_called_works_as_before():
    """Also after a reload that wrote past it."""
    model = reloadable(_Model(_whole))
    for write in (_rows, _whole, _rows):
        model._write = write
        weight = torch.rand(SHAPE)
        _reload(model, weight, patched=True)
        assert torch.equal(model.experts.w13_weight, weight)


def test_a_first_load_is_left_alone():
    model = reloadable(_Model(_slices))
    weight = torch.rand(SHAPE)

    direct_write_patches.wrap_expert_load(_Model.load_weights)(model, [("weight", weight)])

    assert torch.equal(model.experts.w13_weight, weight)
    assert model.experts.w13_weight.weight_loader.__name__ == "load_row"
