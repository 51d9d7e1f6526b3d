"""What a recorded refit copies afterwards, on layers that load, pack, shuffle and derive in every way that there is."""

from __future__ import annotations

import operator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
import torch
from layers import QKV, Layer, Model, drawn, pack, padded, reloadable, third
from patience import HUNG_S
from torch import nn

from quirks_core.base import private_folder
from worker.errors import RefitError
from worker.refit import send_ipc_zmq
from worker.refit.transport.channel import socket_path
from worker.refit.weights.manifest import Manifest

CONFIG = SimpleNamespace(dtype=torch.float32)


def scaled(param, loaded_weight):
    param.data.copy_(loaded_weight * 2)


def scaled_bias(param, loaded_weight):
    param.data.copy_(loaded_weight * 2 if param.dim() == 1 else loaded_weight)


def twice(param, loaded_weight):
    param.data.copy_(loaded_weight)
    param.data[:2].copy_(loaded_weight[:2])


def looking(param, loaded_weight):
    param.data[:2].copy_(loaded_weight[:2])
    param.data.sum()
    param.data[2:].copy_(loaded_weight[2:])


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


def recorded(model, values, **options):
    """Refits a model through vLLM's layerwise reload; returns what can be copied the next time."""
    from worker.refit.engine.reload import Reload

    if not hasattr(model, "was_processed"):
        reloadable(model)
    reload = Reload(model, CONFIG, is_recorded=True)
    reload.open()
    with torch.no_grad():
        reload.load(model.load_weights, [((), values.items())])
        reload.close()
    return reload.recorded(Manifest.of(values.items()), **options)


def test_weights_copied_onto_themselves_are_what_was_loaded():
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
        {"loader": lambda param, loaded_weight: param.data.copy_(loaded_weight).mul_(2)},
        {"loader": scaled_bias, "bias": True},
        {"loader": twice},
        {"loader": looking},
    ],
    ids=["pack", "shuffle", "derive", "in-place", "replace", "scale", "scaled-both", "half", "mul", "scaled-bias", "2", "look"],
)
def test_only_a_layer_that_does_more_than_copy_is_reloaded(layer):
    model = Model(other=Layer(4, 4, **layer), plain=Layer(4, 4))

    sent = {name: torch.randn(tensor.shape) for name, tensor in model.named_parameters()}

    plan = recorded(model, sent, prepares="loader" in layer)

    assert (plan.copied, plan.reloaded, plan.modules) == ({"plain.weight"}, sent.keys() - {"plain.weight"}, {"other"})


def halve(layer):
    """Quantises: another dtype in the place of the weight, and a scale."""
    scale = layer.weight.abs().amax().reshape(1)
    layer.register_parameter("weight", nn.Parameter((layer.weight / scale).half(), requires_grad=False))
    layer.register_parameter("scale", nn.Parameter(scale, requires_grad=False))


def layers():
    made = Model(
        qkv=Layer(6, 4, process=halve, loader=third, bias=True),
        head=Layer(6, 4, process=shuffle, loader=padded),
        other=Layer(4, 4, process=pack),
        scaled=Layer(4, 4, process=halve, loader=scaled),
        turned=Layer(4, 4, process=halve, loader=lambda param, loaded_weight: param.data.copy_(loaded_weight.t())),
        part=Layer(2, 4, process=halve, loader=lambda param, loaded_weight: param.data.copy_(loaded_weight[:2])),
        cast=Layer(4, 4, process=halve),
        plain=Layer(4, 4),
    )
    made.qkv.quant_method.__class__ = type("Fp8Method", (type(made.qkv.quant_method),), {})
    reloadable(made)
    for layer in made.children():
        layer.quant_method.process_weights_after_loading(layer)
    made.was_processed = True
    return made


def test_layers_that_compute_are_filled_and_processed():
    names = ("other", "scaled", "plain", "turned", "part", "cast")
    shapes = QKV | dict.fromkeys([f"{name}__weight" for name in names], (4, 4)) | {"head__weight": (5, 4)}
    first, later = drawn(**shapes), drawn(**shapes)
    for values in (first, later):
        values["cast.weight"] = values["cast.weight"].bfloat16()
    model, expected = layers(), layers()
    memory = {name: tensor.data_ptr() for name, tensor in model.named_parameters()}
    plan = recorded(model, first, prepares=True)
    recorded(expected, later)

    assert (plan.reloaded, plan.modules) == ({"scaled.weight"}, {"scaled"})
    seen = {}
    plan.see = lambda pairs: seen.update((name, tensor.clone()) for name, tensor in pairs)
    for values in (first, later):  # the first is compared with the loaders
        for name in reversed(values):  # each layer is processed when its last tensor is there
            assert list(plan.take(model, [(name, values[name])])) == [(name, values[name])] * (name == "scaled.weight")
        plan.uses += 1

    assert {name: tensor.data_ptr() for name, tensor in model.named_parameters()} == memory
    for (name, tensor), wanted in zip(model.named_parameters(), expected.parameters(), strict=True):
        assert name.startswith("scaled") or torch.equal(tensor, wanted), name
    assert torch.equal(model.other.packed, expected.other.packed)
    assert seen.keys() == plan.prepared.sources
    for name, tensor in seen.items():  # as they were sent
        assert tensor.dtype == later[name].dtype
        assert torch.equal(tensor.reshape(-1), later[name].reshape(-1)), name


class Attention(nn.Module):
    """Keeps a copy of what another layer has in its own dtype, as latent attention does."""

    def __init__(self, layer):
        super().__init__()
        self.layer = [layer]
        self.own = nn.Parameter(torch.zeros(4, 4), requires_grad=False)

    def process_weights_after_loading(self, _):
        """As vLLM calls it, after all other layers."""
        self.own.data.copy_(self.layer[0].weight.float() * self.layer[0].scale)


@pytest.mark.parametrize("fails", [None, "open", "process"])
def test_attention_sees_what_was_prepared_and_an_error_leaves_nothing_half_done(monkeypatch, fails):
    from vllm.model_executor.layers.attention_layer_base import AttentionLayerBase

    from worker.refit.engine import reload

    model = Model(one=Layer(4, 4, process=halve), two=Layer(4, 4))
    reloadable(model)
    halve(model.one)
    model.attention, model.was_processed = Attention(model.one), True
    model.attention.__class__ = type("Attention", (Attention, AttentionLayerBase), {})
    reloadable(model.attention)
    first, later = drawn(one__weight=(4, 4), two__weight=(4, 4)), drawn(one__weight=(4, 4), two__weight=(4, 4))
    plan = recorded(model, first, prepares=True)
    memory, before = model.one.weight.data_ptr(), model.one.weight.clone()

    def update(values):
        made = reload.Reload(model, CONFIG, plan.modules.__contains__, plan=plan)
        try:
            made.load(model.load_weights, [(list(values.items()), ())])
        except OSError:
            made.abandon()
            raise
        made.close()

    if fails:
        target = (reload, "materialize_layer") if fails == "open" else (model.one.quant_method, "_process")
        with monkeypatch.context() as patch:
            patch.setattr(*target, Mock(side_effect=OSError("full")))
            with pytest.raises(OSError, match="full"):
                update(later)
        assert torch.equal(model.one.weight, before)
    update(later)

    assert model.one.weight.data_ptr() == memory
    assert torch.equal(model.attention.own, model.one.weight.float() * model.one.scale)
    assert not torch.equal(model.one.weight, before)


def test_wrong_copies_into_a_layer_that_computes_leave_it_as_it_was():
    model, values = Model(one=Layer(4, 4, process=halve)), drawn(one__weight=(4, 4))
    plan = recorded(model, values, prepares=True)
    before = model.one.weight.clone()
    ((layer, write, taken),) = plan.prepared._copies["one.weight"]
    plan.prepared._copies["one.weight"] = [(layer, write, replace(taken, stride=(1, 4)))]

    with pytest.raises(RefitError, match=r"what the model's loaders do, in one\.weight"):
        plan.take(model, values.items())
    plan.prepared.abandon()

    assert torch.equal(model.one.weight, before)


def test_a_tensor_for_two_layers_goes_the_slower_way():
    class Shared(Model):
        def load_weights(self, tensors):
            tensors = list(tensors)
            return super().load_weights([*tensors, *((name.replace("one", "two"), tensor) for name, tensor in tensors)])

    model = Shared(one=Layer(4, 4), two=Layer(4, 4, process=pack))

    plan = recorded(model, drawn(one__weight=(4, 4)), prepares=True)

    assert (plan.copied, plan.modules) == (frozenset(), {"one", "two"})


def test_a_tensor_that_goes_nowhere_visible_is_loaded_again():
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


def test_everything_is_loaded_at_every_refit_once_a_loader_has_replaced_memory(tmp_path):
    """Where the values went nobody knows: this does not show in what torch runs."""
    from worker.refit.engine.transfer_engine import RefitEngine, RefitUpdateInfo

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
    parallel = SimpleNamespace(world_size=1, rank=0, data_parallel_index=0, data_parallel_size=1)
    config = SimpleNamespace(dtype=torch.float32, quantization=None)
    vllm_config = SimpleNamespace(parallel_config=parallel, model_config=config)
    engine = RefitEngine(None, vllm_config, torch.device("cpu"), reloadable(model))
    folder = private_folder.make("tests-", tmp_path)
    for value in (0.0, 1.0, 2.0):
        sent = {"plain.weight": torch.full((4, 4), value), "bias": torch.full((1,), value)}
        update = RefitUpdateInfo(transport="ipc_zmq", location=str(folder), manifest=Manifest.of(sent.items()).encode())
        engine.start_weight_update()
        with ThreadPoolExecutor() as pool, torch.no_grad():
            sending = pool.submit(send_ipc_zmq, sent.items, [socket_path(folder, 0)])
            engine.receive_weights(update)
            sending.result(HUNG_S)

        assert model.bias == value
        assert (model.plain.weight == value).all()
        assert (engine.ways["copied"], engine.ways["reloaded"]) == (0, 2)


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
