"""The wrappers of the quirks on LoRA adapters as functions, without an engine; the scenarios run them in one."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

msgspec = pytest.importorskip("msgspec")

from quirks_plugins.lora.adapter_patches import wrap_activate_adapter, wrap_add_lora  # noqa: E402 - msgspec may be missing
from quirks_plugins.lora.lora_unread_settings import wrap_from_dict  # noqa: E402 - msgspec may be missing

_PLAIN = {"r": 8, "lora_alpha": 8, "target_modules": ["q_proj"], "rank_pattern": {}, "init_lora_weights": True}


class Request(msgspec.Struct):
    """What vLLM's `LoRARequest` has of it."""

    lora_int_id: int
    lora_path: str
    load_inplace: bool = False


@pytest.fixture
def adapter(tmp_path):
    (tmp_path / "adapter_model.safetensors").write_bytes(b"first")
    return Request(1, str(tmp_path))


def test_an_adapter_whose_files_are_as_before_is_not_read_again(adapter):
    runner, add = SimpleNamespace(), wrap_add_lora(lambda _self, request: request.load_inplace)

    assert [add(runner, adapter) for _ in range(2)] == [True, False]


def test_an_adapter_that_failed_to_load_is_read_again(adapter):
    def fail(_self, _request):
        raise OSError

    runner = SimpleNamespace()
    with pytest.raises(OSError):
        wrap_add_lora(fail)(runner, adapter)

    assert wrap_add_lora(lambda _self, request: request.load_inplace)(runner, adapter) is True


def manager(*weights):
    """A manager of a model with the module ``layers.0.q_proj``, and adapter 1 with weights of these names."""
    adapter = SimpleNamespace(loras=dict.fromkeys(weights))
    made = SimpleNamespace(modules={"layers.0.q_proj": None}, _registered_adapters={1: adapter}, _active_adapters={})
    made._get_lora_layer_weights = lambda model, name: name in model.loras
    return made


@pytest.mark.parametrize(
    ("weights", "said"),
    [(("layers.0.q_proj", "other"), ["1 of its 2 modules (other, ...)"]), ((), [])],
    ids=["a part matches", "a classification head alone"],
)
def test_an_adapter_is_activated_and_what_has_no_effect_named(caplog, weights, said):
    assert wrap_activate_adapter(lambda *_: "activated")(manager(*weights), 1) == "activated"

    assert [part in record.message for record, part in zip(caplog.records, said, strict=True)] == [True] * len(said)


#: Of PEFT's EVA, in an adapter of rank and alpha 8.
_EVA = {"rank_pattern": {"layers.0.q_proj": 12}, "alpha_pattern": {"layers.0.q_proj": 12.0}}


@pytest.mark.parametrize(
    "setting",
    [
        {"alpha_pattern": {"q_proj": 64}},
        {"rank_pattern": {"layers.0.q_proj": 12}},
        {"rank_pattern": {"layers.0.q_proj": 12}, "alpha_pattern": {"layers.1.q_proj": 12}},
        {**_EVA, "use_rslora": True},
        {"layer_replication": [[0, 2]]},
        {"init_lora_weights": "pissa"},
    ],
)
def test_a_setting_that_vllm_drops_is_named(setting):
    with pytest.raises(ValueError, match=next(iter(setting))):
        wrap_from_dict(lambda _cls, config: config)(None, {**_PLAIN, **setting})


@pytest.mark.parametrize("setting", [{"init_lora_weights": "gaussian"}, {**_EVA, "init_lora_weights": "EVA"}, {}])
def test_an_adapter_without_such_settings_is_read(setting):
    config = {**_PLAIN, **setting}

    assert wrap_from_dict(lambda _cls, given: given)(None, config) == config


@pytest.fixture
def wrapped_model():
    """A model whose only layer is wrapped for LoRA."""
    torch = pytest.importorskip("torch")
    layers = pytest.importorskip("vllm.lora.layers")
    from quirks_plugins.lora.lora_base_refit import wrap_load_lora_model

    class Wrapper(layers.BaseLayerWithLoRA):
        def __init__(self, base_layer):
            super().__init__()
            self.base_layer = base_layer

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.down = torch.nn.Linear(2, 2, bias=False)

        def load_weights(self, weights):
            parameters = dict(self.named_parameters())
            for name, weight in weights:
                parameters[name].data.copy_(weight)
            return set(parameters)

    def wrap(_, model):
        model.down = Wrapper(model.down)
        return model

    made = Model()
    as_loaded = made.load_weights
    made.load_weights = lambda weights: as_loaded(weights)  # as another patch does
    return wrap_load_lora_model(wrap)(None, made)


@pytest.mark.parametrize("name", ["down.weight", "down.base_layer.weight"])
@pytest.mark.parametrize("owner", ["the model", "its class"])
def test_lora_loads_by_names_of_checkpoints_and_peft_models(wrapped_model, owner, name):
    load = wrapped_model.load_weights if owner == "the model" else type(wrapped_model).load_weights.__get__(wrapped_model)

    assert load([(name, wrapped_model.down.base_layer.weight.new_full((2, 2), 3.0))]) == {"down.weight"}

    assert wrapped_model.down.base_layer.weight.tolist() == [[3.0, 3.0], [3.0, 3.0]]


def test_a_model_with_lora_stays_wrapped_after_a_load_that_fails(wrapped_model):
    with pytest.raises(KeyError):
        wrapped_model.load_weights([("no.weight", wrapped_model.down.base_layer.weight)])

    assert [name for name, _ in wrapped_model.named_parameters()] == ["down.base_layer.weight"]
