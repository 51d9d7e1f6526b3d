"""What verification asks vLLM's own layers; no engine runs here."""

from __future__ import annotations

import pytest
import torch

from worker.errors import RefitError
from worker.refit.engine import verify

WIDTH = 64


def differences(held, fresh, dtype=torch.float32):
    return verify.differences(held, fresh, dtype)


@pytest.fixture
def layer(tmp_path):
    """Makes a linear layer as an engine on the CPU has it: its weight is packed, and no tensor shows it.

    This process is a tensor-parallel group of its own, without which vLLM makes no layer.
    """
    from vllm.config import VllmConfig, set_current_vllm_config
    from vllm.distributed import parallel_state
    from vllm.model_executor.layers.linear import ReplicatedLinear

    def make(shape=(WIDTH, WIDTH), value=1.0):
        made = ReplicatedLinear(WIDTH, WIDTH, bias=False, params_dtype=torch.float32)
        made.weight.data = torch.full(shape, value)
        made.quant_method.process_weights_after_loading(made)
        return torch.nn.ModuleDict({"layer": made})

    with set_current_vllm_config(VllmConfig()):
        parallel_state.init_distributed_environment(1, 0, f"file://{tmp_path}/group", 0, backend="gloo")
        parallel_state.initialize_model_parallel()
        yield make
    parallel_state.destroy_model_parallel()
    parallel_state.destroy_distributed_environment()


def test_packed_weights_are_compared_by_what_the_layer_computes(layer):
    assert layer()["layer"].weight.numel() == 0
    assert differences(layer(), layer()) == {}
    assert list(differences(layer(value=2.0), layer())) == ["layer (as it computes)"]


def test_a_layer_that_only_holds_a_weight_is_compared_by_value(layer):
    """As one does that of a convolution."""
    shape = (WIDTH, 1, 4)

    assert differences(layer(shape), layer(shape)) == {}
    assert list(differences(layer(shape, 2.0), layer(shape))) == ["layer.weight"]


def test_a_layer_that_does_not_compute_any_more_differs(layer):
    held = layer()
    del held["layer"].cpu_linear

    assert "does not compute: AttributeError" in differences(held, layer())["layer (as it computes)"]


def test_a_layer_that_shows_and_computes_nothing_is_refused(layer):
    held, fresh = layer(), layer()
    for one in (held, fresh):
        del one["layer"].cpu_linear

    with pytest.raises(RefitError, match="layer cannot be compared: its weight is packed"):
        differences(held, fresh)


@pytest.mark.parametrize(
    ("held", "fresh", "name"),
    [
        (1.0 + 2**-9, 1.0, []),  # a refit's value as it was sent, and a start's, rounded to bfloat16
        (1.0 + 2**-7, 1.0, ["scale"]),
        (1.0 + 2**-9, 1.0 + 2**-10, ["scale"]),  # a tensor that no start rounds
    ],
)
def test_a_wide_tensor_of_a_narrow_model_need_not_be_rounded(held, fresh, name):
    models = [torch.nn.ParameterDict({"scale": torch.tensor([value])}) for value in (held, fresh)]

    assert list(differences(*models, torch.bfloat16)) == name
