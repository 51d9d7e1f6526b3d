"""Layers that load and process their weights as vLLM's do, and a model of them, for its layerwise reload without an engine."""

from __future__ import annotations

from contextlib import contextmanager

import torch
from torch import nn


def reloadable(model):
    """Returns a model, which vLLM's reload knows from now on."""
    from vllm.model_executor.model_loader.reload import record_metadata_for_reloading

    record_metadata_for_reloading(model)
    return model


@contextmanager
def reloading(model, config=None):
    """One update of a model by vLLM's reload."""
    from vllm.model_executor.model_loader.reload import finalize_layerwise_reload, initialize_layerwise_reload

    initialize_layerwise_reload(model)
    yield
    finalize_layerwise_reload(model, config)


class Method:
    """How a layer is processed once its weights are there."""

    def __new__(cls, *_):
        """Derives from vLLM's class when a test runs, not while tests are collected."""
        from vllm.model_executor.layers.quantization.base_config import QuantizeMethodBase

        if not issubclass(cls, QuantizeMethodBase):
            cls = type("UnquantizedMethod", (Method, QuantizeMethodBase), {})
        return object.__new__(cls)

    def __init__(self, process):
        self._process = process

    def create_weights(self, layer, *_, **__):
        """The layer made them itself."""

    def apply(self, layer, x, bias=None):
        """Nobody computes here."""

    def process_weights_after_loading(self, layer):
        """Does what the test says."""
        self._process(layer)


class Layer(nn.Module):
    """A layer with a weight, and a bias if asked for."""

    def __init__(self, *shape, process=lambda _: None, loader=None, bias=False):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(shape), requires_grad=False)
        self.bias = nn.Parameter(torch.randn(shape[0]), requires_grad=False) if bias else None
        self.quant_method = Method.__new__(Method)
        self.quant_method.__init__(process)
        for parameter in self.parameters():
            parameter.weight_loader = loader or whole


def whole(param, loaded_weight):
    param.data.copy_(loaded_weight)


def third(param, loaded_weight, shard):
    rows = len(param) // 3
    param.data.narrow(0, shard * rows, rows).copy_(loaded_weight)


def padded(param, loaded_weight):
    param.data[: len(loaded_weight)].copy_(loaded_weight)
    param.data[len(loaded_weight) :].fill_(0)


def pack(layer):
    layer.packed = layer.weight.t().contiguous()


class Model(nn.Module):
    """Layers by name; ``q``, ``k`` and ``v`` go into ``qkv``."""

    def __init__(self, **layers):
        super().__init__()
        for name, layer in layers.items():
            self.add_module(name, layer)

    def load_weights(self, tensors):
        """Loads each tensor through its parameter's loader, as vLLM's models do."""
        parameters, loaded = dict(self.named_parameters()), set()
        for name, tensor in tensors:
            first, _, rest = name.partition(".")
            own = f"qkv.{rest}" if first in "qkv" else name
            shard = ["qkv".index(first)] if first in "qkv" else []
            parameters[own].weight_loader(parameters[own], tensor, *shard)
            loaded.add(own)
        return loaded


def drawn(**shapes):
    return {name.replace("__", "."): torch.randn(shape) for name, shape in shapes.items()}


QKV = {f"{part}__{name}": shape for part in "qkv" for name, shape in (("weight", (2, 4)), ("bias", (2,)))}
