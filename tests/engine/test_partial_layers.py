"""Layers of which a refit sends a part, or one tensor twice, and copies of weights: on vLLM's reload, without an engine."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
import torch
from layers import Layer, Model, reloadable, reloading, third
from torch import nn

from quirks_plugins.weight_sync.derived_weights_refit import wrap_finalize, wrap_initialize
from quirks_plugins.weight_sync.partial_layer_patches import (
    wrap_layerwise_process,
    wrap_make_loader,
    wrap_process_with_buffers,
)
from quirks_plugins.weight_sync.raw_weight_load import wrap_load_model
from quirks_plugins.weight_sync.reload_patches import wrap_place


class UnquantizedLinearMethod:
    """Known by its name, as vLLM's is."""


class _LowLatency(UnquantizedLinearMethod):
    """As GLM-5.2's, with kernels of its own for some shapes."""


class _Quantised:
    """A method that may have rearranged what the layer holds."""


@pytest.fixture(autouse=True)
def _patched(monkeypatch):
    from vllm.model_executor.model_loader.reload import layerwise

    monkeypatch.setattr(layerwise, "_layerwise_process", wrap_layerwise_process(layerwise._layerwise_process))
    filled = torch.empty_strided
    monkeypatch.setattr(torch, "empty_strided", lambda *given, **named: filled(*given, **named).fill_(7))  # what is in memory


def _parts(values: Iterable[tuple[str, float]]) -> list[tuple[str, torch.Tensor]]:
    return [(f"{part}.weight", torch.full((2, 3), value)) for part, value in values]


def _reload(model: Model, parts: str) -> None:
    with reloading(model):
        model.load_weights(_parts((part, 5.0) for part in parts))


def _rows(model: Model) -> list[float]:
    """The first value of each part of the layer."""
    return model.qkv.weight.data[::2, 0].tolist()


def _model(method: object) -> Model:
    """One parameter that is made of three tensors ``[2, 3]``."""
    layer = Layer(6, 3, loader=third)
    layer.quant_method = method
    layer.register_buffer("constant", torch.ones(1))
    model = reloadable(Model(qkv=layer))
    model.load_weights(_parts(zip("qkv", (1.0, 2.0, 3.0), strict=True)))
    return model


@pytest.mark.parametrize(
    ("method", "parts", "rows"),
    [
        (UnquantizedLinearMethod(), "q", [5, 2, 3]),
        (UnquantizedLinearMethod(), "v", [1, 2, 5]),
        (_LowLatency(), "q", [5, 2, 3]),
        (_Quantised(), "q", [5, 0, 0]),
        (_Quantised(), "", [1, 2, 3]),
        (_Quantised(), "qkv", [5, 5, 5]),
    ],
)
def test_the_part_that_does_not_come_stays_what_it_was(method, parts, rows):
    """It is zero where the old values are not known; a layer that does not come in part is left to vLLM."""
    model = _model(method)

    _reload(model, parts)

    assert _rows(model) == rows


def test_a_packed_weight_is_computed_from_what_multiplies_it():
    model = _model(UnquantizedLinearMethod())
    packed = model.qkv.weight.data.clone()
    model.qkv.cpu_linear = lambda x, _weight, _bias: x @ packed.t()
    model.qkv.weight = nn.Parameter(torch.empty(0), requires_grad=False)

    with pytest.raises(RuntimeError, match="size"):  # vLLM's own layer packs again here; this one cannot
        _reload(model, "q")

    assert _rows(model) == [5, 2, 3]


def test_buffer_that_is_not_sent_keeps_its_value(monkeypatch):
    from vllm.model_executor.model_loader.reload import layerwise

    model = _model(_Quantised())
    monkeypatch.setattr(layerwise, "_layerwise_process", wrap_process_with_buffers(layerwise._layerwise_process))

    _reload(model, "qkv")

    assert model.qkv.constant.item() == 1


@pytest.mark.parametrize("parts", ["qqqqkv", "vvvkq", "qqqqqqqkv"])
def test_the_last_value_of_a_repeated_tensor_wins_in_each_reload(parts, monkeypatch):
    """A layer is not complete while one tensor comes again."""
    from vllm.model_executor.model_loader.reload import layerwise

    monkeypatch.setattr(layerwise, "make_online_process_loader", wrap_make_loader(layerwise.make_online_process_loader))
    model = _model(UnquantizedLinearMethod())
    for first in (3.0, 13.0):
        with reloading(model):
            model.load_weights(_parts((part, first + value) for value, part in enumerate(parts)))

        assert _rows(model) == [first + parts.rindex(part) for part in "qkv"]


def _split(layer: nn.Module) -> None:
    """What `_GateLinearMethod` does on an MI350."""
    from vllm.model_executor.layers.fused_moe.router.bf16x3_router_gemm_rocm import split_bf16x3

    layer.made = split_bf16x3(layer.weight)


def _keep_for_gather(layer: nn.Module) -> None:
    """What ModelOpt's method does with the head of a DSpark draft."""
    layer.register_buffer("made", layer.weight.detach().clone(), persistent=False)


@pytest.mark.parametrize("make", [_split, _keep_for_gather])
def test_buffer_that_a_layer_makes_of_its_weight_is_renewed(make, monkeypatch):
    """In its old memory."""
    from vllm.model_executor.model_loader.reload import layerwise

    monkeypatch.setattr(layerwise, "_place_kernel_tensors", wrap_place(layerwise._place_kernel_tensors))
    layer = Layer(2, 4, process=make)
    layer.register_buffer("made", None, persistent=False)
    layer.register_buffer("constant", torch.ones(1), persistent=False)
    model = reloadable(Model(gate=layer))
    make(layer)
    made = layer.made
    for value in (5.0, 7.0):
        with reloading(model):
            model.load_weights([("gate.weight", torch.full((2, 4), value))])

        assert layer._buffers["made"] is made
        assert made.float().reshape(-1, 2, 4).sum(0).unique().tolist() == [value]
        assert (layer.constant.item(), layer.state_dict().keys()) == (1.0, {"weight"})


class _Linear(nn.Module):
    def __init__(self, rows: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(rows, 2), requires_grad=False)


class _Router(nn.Module):
    """Joins its gates in the first forward pass by vLLM's own function."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.shared_expert_gate = _Linear(3), _Linear(1)
        self._combined_gate_weight: torch.Tensor | None = None

    def load_weights(self, value: float) -> None:
        from vllm.model_executor.model_loader.weight_utils import default_weight_loader

        for layer in (self.gate, self.shared_expert_gate):
            loader = getattr(layer.weight, "weight_loader", default_weight_loader)
            loader(layer.weight, torch.full_like(layer.weight, value, device="cpu"))


@pytest.fixture
def renewed():
    """Reloads a router with other weights, with the patch for copies of them."""
    from vllm.model_executor.model_loader.reload import layerwise

    def reload(model):
        wrap_initialize(layerwise.initialize_layerwise_reload)(model)
        model.load_weights(5.0)
        wrap_finalize(layerwise.finalize_layerwise_processing)(model, None)

    return reload


def test_copy_of_weights_is_renewed_in_its_old_memory(renewed):
    from vllm.model_executor.layers.fused_moe.runner.moe_runner import MoERunner

    model = reloadable(_Router())
    with torch.inference_mode():
        MoERunner._maybe_fuse_gate_weights(model)
    copy = model._combined_gate_weight

    renewed(model)

    assert model._combined_gate_weight is copy
    assert torch.equal(copy, torch.full((4, 2), 5.0))


class _Broadcast(_Router):
    """As DeepSeek-V4 up to vLLM 0.28: each load makes a new tensor, before the weights are."""

    def load_weights(self, value: float) -> None:
        super().load_weights(value)
        self.finalize_mhc_broadcast_weights()

    def finalize_mhc_broadcast_weights(self) -> None:
        self.hc_attn_fn_broadcast = self.gate.weight.detach().sum(dim=1)


def test_a_copy_that_a_model_makes_anew_keeps_its_old_memory(renewed):
    """Graphs read it."""
    model = reloadable(_Broadcast())
    model.load_weights(1.0)
    first = model.hc_attn_fn_broadcast

    renewed(model)
    renewed(model)

    assert model.hc_attn_fn_broadcast is first
    assert torch.equal(first, torch.full((3,), 10.0))


class _Finalize:
    """What Muse Spark does after its experts: the norm's weight is cast in the first forward pass. vLLM has it from 0.33 on."""

    def __init__(self, norm: torch.nn.Module) -> None:
        self._norm = norm
        self._fused_weight = norm.weight.detach().to(torch.float32)


def test_copy_that_an_object_beside_the_model_keeps_is_renewed(renewed):
    model = _Router()
    model.gate.has_weight = True
    model.gate.to(torch.bfloat16)
    reloadable(model).post_expert_finalize = _Finalize(model.gate)
    copy = model.post_expert_finalize._fused_weight

    renewed(model)

    assert model.post_expert_finalize._fused_weight is copy
    assert torch.equal(copy, torch.full((3, 2), 5.0))


@pytest.mark.parametrize(("method", "warnings"), [(_Quantised(), 1), (UnquantizedLinearMethod(), 0), (_LowLatency(), 0)])
def test_load_past_the_reload_warns_once(method, warnings, caplog):
    """If a kernel reads other tensors."""
    model = wrap_load_model(lambda: _model(method))()
    parts = _parts((part, 5.0) for part in "qkv")

    with reloading(model):
        model.load_weights(parts)
    assert not caplog.records
    model.load_weights(parts)
    model.load_weights(parts)

    assert [record.levelname for record in caplog.records] == ["WARNING"] * warnings
