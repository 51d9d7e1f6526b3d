"""What a dummy start takes from the checkpoint (gemma4-layer-scalar and others): on vLLM's loader, without an engine."""

from __future__ import annotations

from collections.abc import Iterable
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from quirks_plugins.weight_sync.dummy_start_patches import is_constant, wrap_dummy_load
from quirks_plugins.weight_sync.dummy_tied_head import wrap_initialize_model


class _Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.full((2,), 3.0), requires_grad=False)
        self.register_buffer("layer_scalar", torch.ones(1))
        self.register_buffer("normalizer", torch.tensor(8.0))
        self.register_buffer("uninitialised", torch.tensor([float("nan")]))

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> None:
        for name, weight in weights:
            self.get_buffer(name).copy_(weight)


@pytest.fixture
def dummy_start(tmp_path):
    """Loads a model with dummy weights, and a checkpoint beside it."""
    from vllm.config.load import LoadConfig
    from vllm.model_executor.model_loader.dummy_loader import DummyModelLoader

    load = wrap_dummy_load(DummyModelLoader.load_weights)

    def start(path: str) -> _Model:
        model = _Model()
        load(DummyModelLoader(LoadConfig(load_format="dummy")), model, SimpleNamespace(model=path, revision=None))
        return model

    tensors = {"weight": torch.full((2,), 7.0), "layer_scalar": torch.full((1,), 0.5)}
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    return start


def test_only_parameters_are_noise_after_a_dummy_start(dummy_start, tmp_path):
    model = dummy_start(str(tmp_path))

    assert (model.layer_scalar.item(), model.normalizer.item()) == (0.5, 8.0)
    assert model.weight.abs().max() < 1e-2
    assert model.uninitialised.isfinite().all()


@pytest.mark.parametrize("model", ["nobody/no-such-model", "empty"])
def test_missing_files_leave_buffers_with_a_warning(dummy_start, model, caplog, tmp_path):
    (tmp_path / "empty").mkdir()

    started = dummy_start(str(tmp_path / "empty") if model == "empty" else model)

    assert (started.layer_scalar.item(), started.normalizer.item()) == (1.0, 8.0)
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "no safetensors files on this machine" in caplog.text


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("model.layers.0.layer_scalar", True),
        ("model.layers.0.mlp.gate.e_score_correction_bias", True),
        ("layers.0.ffn.gate.tid2eid", True),
        ("layers.0.ffn.gate.bias", True),
        ("model.layers.0.mlp.act_fn.beta", True),
        ("model.layers.0.self_attn.q_proj.bias", False),
        ("model.layers.0.mlp.experts.0.up_proj.weight_scale_inv", False),
        ("model.layers.0.mlp.experts.gate_up_proj_blocks", False),
        ("lm_head.weight", False),
    ],
)
def test_constants_are_told_from_parameters_by_name(name, expected):
    assert is_constant(name) is expected


def test_tied_head_of_a_checkpoint_that_is_not_here_is_a_warning(caplog):
    config = SimpleNamespace(tie_word_embeddings=True)
    config.get_text_config = lambda: config
    model_config = SimpleNamespace(hf_config=config, model="nobody/no-such-model", revision=None)
    vllm_config = SimpleNamespace(model_config=model_config, load_config=SimpleNamespace(load_format="dummy"))

    wrap_initialize_model(lambda _: None)(vllm_config)

    assert config.tie_word_embeddings
    assert [record.levelname for record in caplog.records] == ["WARNING"]
