"""A head that differs from the embeddings in the checkpoint is not tied to them by a dummy start."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import save_file

from quirks_plugins.weight_sync.tied_head_patches import wrap_initialize_model

TIED, UNTIED = {"model_type": "llama", "tie_word_embeddings": True}, {"model_type": "llama", "tie_word_embeddings": False}
DUMMY, AUTO = {"engine.load_format": "dummy"}, {"engine.load_format": "auto"}
HEAD, EMBEDDINGS = "lm_head.weight", "model.embed_tokens.weight"
ZEROS, ONES = torch.zeros(3, 2), torch.ones(3, 2)


@pytest.mark.parametrize(("model", "typed", "is_patched"), [(TIED, DUMMY, True), (TIED, AUTO, False), (UNTIED, DUMMY, False)])
def test_it_is_for_dummy_weights_of_a_model_that_may_be_tied(plan_for, model, typed, is_patched):
    assert bool(plan_for(model, typed, assume=["vllm==0.32.0"]).patched) is is_patched


@pytest.mark.parametrize("index", [True, False], ids=["index", "one file"])
@pytest.mark.parametrize(
    ("tensors", "load_format", "tied"),
    [
        ({HEAD: ZEROS, EMBEDDINGS: ONES}, "dummy", False),
        ({HEAD: ONES, EMBEDDINGS: ONES}, "dummy", True),
        ({HEAD: ZEROS, EMBEDDINGS: ONES}, "auto", True),  # vLLM itself has looked by then
        ({EMBEDDINGS: ONES}, "dummy", True),
        ({HEAD: ZEROS, EMBEDDINGS: ONES, f"draft.{HEAD}": ZEROS}, "dummy", True),  # which is the head?
    ],
)
def test_the_checkpoint_decides_what_a_dummy_start_ties(tensors, load_format, tied, index, tmp_path):
    tensors = {name: tensor.clone() for name, tensor in tensors.items()}
    if index:
        save_file(tensors, tmp_path / "one.safetensors")
        weight_map = dict.fromkeys(tensors, "one.safetensors")
        (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}), encoding="utf-8")
    else:
        save_file(tensors, tmp_path / "model.safetensors")
    text = SimpleNamespace(tie_word_embeddings=True)
    whole = SimpleNamespace(tie_word_embeddings=True, get_text_config=lambda: text)
    model_config = SimpleNamespace(model=str(tmp_path), revision=None, hf_config=whole)
    config = SimpleNamespace(model_config=model_config, load_config=SimpleNamespace(load_format=load_format))

    seen = wrap_initialize_model(lambda given: (whole.tie_word_embeddings, text.tie_word_embeddings, given))(config)

    assert seen == (tied, tied, config)
