"""Experts that are quantised together have the bits that vLLM gives each of them, and its kernel gets all."""

from types import SimpleNamespace

import pytest
import torch

from quirks_plugins.moe_backend import fp8_block_experts


@pytest.fixture
def quantised():
    """Returns what vLLM's kernel gets of a layer of six experts, by vLLM's own method or another."""
    from vllm.model_executor.layers.quantization.online.fp8 import Fp8PerBlockOnlineMoEMethod

    weights = torch.randn(6, 256, 384).bfloat16(), torch.randn(6, 384, 128).bfloat16()

    class Method(Fp8PerBlockOnlineMoEMethod):
        def __init__(self):
            self.weight_block_size = [128, 128]

        def _zero_padding(self, layer, *weights):
            """There is no padding."""

        def _setup_kernel(self, layer, *made, **_):
            assert layer.local_num_experts == 6
            layer.made = made

    def made(process):
        layer = SimpleNamespace(w13_weight=weights[0], w2_weight=weights[1], local_num_experts=6)
        layer.w13_input_scale, layer.w2_input_scale = torch.arange(2.0)[:, None]
        process(method := Method(), layer)
        assert layer.local_num_experts == 6
        assert "_setup_kernel" not in vars(method)
        return layer.made

    return made


@pytest.mark.parametrize("together", [1, 1 << 26, 2 * 256 * 384])
def test_experts_together_have_their_own_bits(quantised, monkeypatch, together):
    from vllm.model_executor.layers.quantization.online.fp8 import Fp8PerBlockOnlineMoEMethod

    original = Fp8PerBlockOnlineMoEMethod.process_weights_after_loading
    monkeypatch.setattr(fp8_block_experts, "_TOGETHER", together)

    with torch.compiler.set_stance("force_eager"):
        expected = quantised(original)
        monkeypatch.delattr("vllm.model_executor.layers.quantization.online.fp8.per_block_cast_to_fp8")  # one expert's
        found = quantised(fp8_block_experts.wrap_process(original))

    for one, other in zip(expected, found, strict=True):
        assert (one.shape, one.dtype) == (other.shape, other.dtype)
        assert torch.equal(one.view(torch.uint8), other.view(torch.uint8))
