"""A head that differs from the embeddings in the checkpoint is not tied to them because their dummy weights are equal."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import save_file

from quirks_plugins.weight_sync.tied_head_patches import wrap_retie

TIED, UNTIED = {"model_type": "llama", "tie_word_embeddings": True}, {"model_type": "llama", "tie_word_embeddings": False}
DUMMY, AUTO = {"engine.load_format": "dummy"}, {"engine.load_format": "auto"}
HEAD, EMBEDDINGS = "lm_head.weight", "model.embed_tokens.weight"
ZEROS, ONES = torch.zeros(3, 2), torch.ones(3, 2)


@pytest.mark.parametrize(("model", "typed", "is_patched"), [(TIED, DUMMY, True), (TIED, AUTO, False), (UNTIED, DUMMY, False)])
def test_it_is_for_dummy_weights_of_a_model_that_may_be_tied(plan_for, model, typed, is_patched):
    assert bool(plan_for(model, typed, assume=["vllm==0.32.0"]).patched) is is_patched


@pytest.mark.parametrize("index", [True, False], ids=["index", "one file"])
@pytest.mark.parametrize(
    ("tensors", "untied", "ties"),
    [
        ({HEAD: ZEROS, EMBEDDINGS: ONES}, True, False),
        ({HEAD: ONES, EMBEDDINGS: ONES}, True, True),
        ({HEAD: ZEROS, EMBEDDINGS: ONES}, False, True),  # vLLM itself returns at once
        ({HEAD: ZEROS}, True, True),
        ({HEAD: ZEROS, EMBEDDINGS: ONES, f"draft.{HEAD}": ZEROS}, True, True),
    ],
)
def test_the_checkpoint_decides_and_where_it_does_not_tell_vllm_does(tensors, untied, ties, index, tmp_path):
    tensors = {name: tensor.clone() for name, tensor in tensors.items()}
    if index:
        save_file(tensors, tmp_path / "one.safetensors")
        weight_map = dict.fromkeys(tensors, "one.safetensors")
        (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}), encoding="utf-8")
    else:
        save_file(tensors, tmp_path / "model.safetensors")
    calls = []
    config = SimpleNamespace(model=str(tmp_path), revision=None, word_embeddings_untied_by_checkpoint=untied)

    wrap_retie(lambda *given: calls.append(given))(torch.nn.Module(), config)

    assert bool(calls) is ties
