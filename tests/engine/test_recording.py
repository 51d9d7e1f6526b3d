"""What a recorded refit copies afterwards, on layers that load, pack, shuffle and derive in every way that there is."""

from __future__ import annotations

import operator
from functools import partial
from types import SimpleNamespace

import pytest
import torch
from layers import QKV, Layer, Model, drawn, pack, padded, reloadable, third
from torch import nn

from worker.refit.weights.manifest import Manifest

CONFIG = SimpleNamespace(dtype=torch.float32)


def scaled(param, loaded_weight):
    param.data.copy_(loaded_weight * 2)


def shuffle(layer):
    """Moves rows where no operator of torch's is seen to do it."""
    rows = layer.weight.numpy()
    rows[:] = rows[::-1].copy()


def derive(layer):
    """Keeps something that was made of the weight in a way that no operator shows."""
    layer.answer = partial(operator.matmul, layer.weight.numpy().copy())


def as_on_a_gpu(layer):
    """What vLLM does to experts whose kernel takes them as they are: it pads nothing, and copies them onto themselves."""
    from vllm.model_executor.utils import replace_parameter

    layer.weight.data = layer.weight.data
    replace_parameter(layer, "weight", layer.weight.contiguous(), prefer_copy=True)


def recorded(model, values):
    """Refits a model through vLLM's layerwise reload; returns what can be copied the next time."""
    from worker.refit.engine.reload import Reload

    reload = Reload(reloadable(model), CONFIG, is_recorded=True)
    reload.open()
    with torch.no_grad():
        reload.load(model.load_weights, values.items())
        reload.close()
    return reload.plan(Manifest.of(values.items()))


def test_copied_layers_hold_what_their_loaders_would_write():
    model = Model(qkv=Layer(6, 4, loader=third, bias=True), embed=Layer(12, 4, loader=padded), head=Layer(12, 4))
    model.head.weight = model.embed.weight
    shapes = QKV | {"embed__weight": (10, 4)}
    plan = recorded(model, drawn(**shapes))
    new = drawn(**shapes)

    assert (plan.copied, plan.reloaded) == (new.keys(), frozenset())
    assert plan.fits(Manifest.of(new.items()), model)
    plan.copy(new.items())

    assert torch.equal(model.qkv.weight, torch.cat([new[f"{part}.weight"] for part in "qkv"]))
    assert torch.equal(model.qkv.bias, torch.cat([new[f"{part}.bias"] for part in "qkv"]))
    assert torch.equal(model.embed.weight, torch.cat([new["embed.weight"], torch.zeros(2, 4)]))
    assert model.head.weight is model.embed.weight
    assert not plan.differing(model, new.items())


def test_weights_that_are_copied_onto_themselves_are_still_what_was_loaded():
    model = Model(experts=Layer(4, 4, process=as_on_a_gpu))
    plan = recorded(model, drawn(experts__weight=(4, 4)))

    assert (plan.copied, plan.modules) == ({"experts.weight"}, frozenset())


@pytest.mark.parametrize(
    "layer",
    [
        {"process": pack},
        {"process": shuffle},
        {"process": derive},
        {"process": lambda layer: layer.weight.mul_(2)},
        {"process": lambda layer: layer.register_parameter("weight", nn.Parameter(layer.weight + 1, requires_grad=False))},
        {"loader": scaled},
        {"loader": scaled, "bias": True},
        {"loader": lambda param, loaded_weight: param.data[:2].copy_(loaded_weight[:2])},
    ],
    ids=["pack", "shuffle", "derive", "in-place", "replace", "scale", "scaled-bias", "half"],
)
def test_only_a_layer_whose_weights_are_more_than_copied_is_reloaded(layer):
    model = Model(other=Layer(4, 4, **layer), plain=Layer(4, 4))

    sent = {name: torch.randn(tensor.shape) for name, tensor in model.named_parameters()}

    plan = recorded(model, sent)

    assert (plan.copied, plan.reloaded, plan.modules) == ({"plain.weight"}, sent.keys() - {"plain.weight"}, {"other"})


def test_a_tensor_that_two_layers_take_goes_the_way_of_the_slower_one():
    class Shared(Model):
        def load_weights(self, tensors):
            tensors = list(tensors)
            return super().load_weights([*tensors, *((name.replace("one", "two"), tensor) for name, tensor in tensors)])

    model = Shared(one=Layer(4, 4), two=Layer(4, 4, process=pack))

    plan = recorded(model, drawn(one__weight=(4, 4)))

    assert (plan.copied, plan.modules) == (frozenset(), {"one", "two"})


def test_a_tensor_that_goes_nowhere_visible_is_given_to_the_loaders_again():
    class Hiding(Model):
        def load_weights(self, tensors):
            for name, tensor in tensors:
                if name == "hidden":
                    self.kept.numpy()[:] = tensor.view(-1).numpy()
                else:
                    super().load_weights([(name, tensor)])
            return {"plain.weight"}

    model = Hiding(plain=Layer(4, 4))
    model.kept = torch.zeros(4)

    plan = recorded(model, drawn(hidden=(2, 2), plain__weight=(4, 4)))

    assert (plan.copied, plan.reloaded) == ({"plain.weight"}, {"hidden"})


def test_a_tensor_that_nobody_looks_at_goes_nowhere():
    class Ignoring(Model):
        def load_weights(self, tensors):
            return super().load_weights((name, tensor) for name, tensor in tensors if name != "of another rank")

    plan = recorded(Ignoring(plain=Layer(4, 4)), drawn(plain__weight=(4, 4)) | {"of another rank": torch.randn(3)})

    assert (plan.copied, plan.reloaded) == ({"plain.weight"}, frozenset())


def test_nothing_is_copied_once_a_loader_has_replaced_the_memory_of_a_tensor():
    class Replacing(Model):
        def load_weights(self, tensors):
            for name, tensor in tensors:
                if name == "bias":
                    self.bias.data = tensor
                else:
                    super().load_weights([(name, tensor)])
            return {"plain.weight"}

    model = Replacing(plain=Layer(4, 4))
    model.bias = nn.Parameter(torch.ones(1), requires_grad=False)  # vLLM's reload leaves tensors of that name where they are

    plan = recorded(model, drawn(bias=(1,), plain__weight=(4, 4)))

    assert plan.copied == frozenset()


@pytest.mark.parametrize("what", ["dtype", "shape", "name", "memory", "tensor"])
def test_a_plan_fits_only_what_it_was_recorded_from(what):
    model = Model(one=Layer(4, 4))
    values = drawn(one__weight=(4, 4))
    plan = recorded(model, values)
    changed = {
        "dtype": {"one.weight": values["one.weight"].to(torch.bfloat16)},
        "shape": {"one.weight": values["one.weight"][:2]},
        "name": {"two.weight": values["one.weight"]},
    }
    if what == "memory":
        model.one.weight.data = model.one.weight.data.clone()
    if what == "tensor":
        model.one.weight = None

    assert not plan.fits(Manifest.of(changed.get(what, values).items()), model)
