"""The tiny checkpoints: real, loadable, repeatable, small; tests/engine has whether vLLM agrees with transformers on them."""

from __future__ import annotations

import json

import pytest

from worker.lab.kit import checkpoints

_MOST_BYTES = 2_000_000


@pytest.fixture(scope="module", params=checkpoints.KINDS)
def made(request, tmp_path_factory):
    """One checkpoint of each kind."""
    return request.param, checkpoints.build(request.param, tmp_path_factory.mktemp(request.param))


def test_a_small_checkpoint_of_its_kind_generates(made):
    """With every tensor loaded."""
    import torch
    from transformers import AutoModelForCausalLM

    kind, folder = made

    model, loading = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, output_loading_info=True)
    generated = model.eval().generate(torch.arange(3, 27)[None], max_new_tokens=8, do_sample=False, eos_token_id=None)

    assert kind.startswith(model.config.model_type.removesuffix("_text"))
    assert (folder / "model.safetensors").stat().st_size < _MOST_BYTES
    assert not any(loading.values()), loading
    assert generated.shape == (1, 32)
    assert len(set(generated[0, 24:].tolist())) > 1


def test_the_seed_determines_the_weights(made, tmp_path):
    import torch

    kind, folder = made
    torch.manual_seed(7)
    expected = torch.rand(1)

    torch.manual_seed(7)
    again = checkpoints.build(kind, tmp_path / "again")
    drawn = torch.rand(1)
    other = checkpoints.build(kind, tmp_path / "other", seed=1)

    weights = [(path / "model.safetensors").read_bytes() for path in (folder, again, other)]
    assert weights[0] == weights[1]
    assert weights[0] != weights[2]
    assert torch.equal(drawn, expected)


def test_any_text_survives_the_tokenizer_of_a_checkpoint(made):
    from transformers import AutoTokenizer

    _, folder = made
    tokenizer = AutoTokenizer.from_pretrained(folder)
    text = "Grüße, 世界! ab"

    assert len(tokenizer) == checkpoints.VOCAB_SIZE
    assert tokenizer.decode(tokenizer(text)["input_ids"]) == text


def test_a_class_that_vllm_renamed_makes_its_own_kind(tmp_path, monkeypatch):
    """VLLM gives ``DeepseekV3Config`` the name of V3.2 in a process that reads such a model."""
    from transformers import DeepseekV3Config

    monkeypatch.setattr(DeepseekV3Config, "model_type", "deepseek_v32")

    folder = checkpoints.build("deepseek_v3", tmp_path / "made")

    assert json.loads((folder / "config.json").read_text(encoding="utf-8"))["model_type"] == "deepseek_v3"
