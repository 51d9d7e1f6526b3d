"""A model whose folder holds it in Mistral's format and in that of transformers, in rollouts for text and for images."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest
from installations import lay

_SCRIPT = """
import json, os, sys
from vllm import LLM

if __name__ == "__main__":
    options = {"max_model_len": 256, "max_num_seqs": 8, "enforce_eager": True, "num_gpu_blocks_override": 64}
    llm = LLM(model=sys.argv[1], load_format="dummy", language_model_only=sys.argv[2] == "text", **options)
    model = llm.llm_engine.model_executor.driver_worker.model_runner.model
    if sys.argv[2] == "text":
        name = "model.language_model.layers.0.input_layernorm.weight"  # of transformers
        norm = model.language_model.model.layers[0].input_layernorm.weight
        model.load_weights([(name, norm.data.clone().fill_(7.0))])
    print("RESULT", json.dumps(type(model).__name__), flush=True)
"""
#: What a model for text imports of torchvision; the CPU build of that is on no index.
_TORCHVISION = """
import sys
from importlib.machinery import ModuleSpec
from types import ModuleType
from unittest.mock import MagicMock


class Module(ModuleType):
    __path__ = []

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return MagicMock(name=name)


class Finder:
    def find_spec(self, name, path=None, target=None):
        return ModuleSpec(name, self, is_package=True) if name.startswith("torchvision.") else None

    def create_module(self, spec):
        return Module(spec.name)

    def exec_module(self, module):
        pass


sys.meta_path.insert(0, Finder())
"""
_VISION = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2, "patch_size": 14}


@pytest.fixture(scope="module")
def both_formats(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny Mistral3 in both formats, as Mistral Small's repository is; dummy weights need no file."""
    import mistral_common
    from transformers import Mistral3Config

    folder = tmp_path_factory.mktemp("mistral")
    sizes = {"vocab_size": 131_072, "max_position_embeddings": 512}
    text = {"model_type": "mistral", "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, **sizes}
    vision = {"model_type": "pixtral", "head_dim": 16, "image_size": 56, **_VISION}
    Mistral3Config(
        text_config={**text, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32},
        vision_config=vision,
        image_token_index=10,
        architectures=["Mistral3ForConditionalGeneration"],
        dtype="float32",
    ).save_pretrained(folder)
    own = {"dim": 64, "n_layers": 2, "head_dim": 32, "hidden_dim": 128, "n_heads": 4, "n_kv_heads": 2, "norm_eps": 1e-5}
    tokens = {"image_token_id": 10, "image_break_token_id": 12, "image_end_token_id": 13}
    merging = {"mm_projector_id": "patch_merge", "spatial_merge_size": 2, "add_pre_mm_projector_layer_norm": True}
    tower = {**_VISION, **tokens, **merging, "num_channels": 3, "image_size": 56, "max_image_size": 56, "rope_theta": 1e4}
    params = {**own, **sizes, "rope_theta": 1e6, "dtype": "float32", "vision_encoder": {**tower, "adapter_bias": False}}
    (folder / "params.json").write_text(json.dumps(params), encoding="utf-8")
    (folder / "consolidated.safetensors").touch()
    shutil.copy(Path(mistral_common.__file__).with_name("data") / "tekken_240911.json", folder / "tekken.json")
    return folder


@pytest.mark.parametrize(
    ("use", "built"), [("text", "Mistral3ForConditionalGeneration"), ("images", "PixtralForConditionalGeneration")]
)
def test_a_rollout_for_text_gets_the_names_of_transformers(use, built, both_formats, programs, tmp_path):
    """One for images starts as before."""
    package = tmp_path / "torchvision"
    package.mkdir()
    (package / "__init__.py").write_text(_TORCHVISION, encoding="utf-8")
    lay(tmp_path, "torchvision", "0.28.0")
    path = os.pathsep.join([programs.environment["PYTHONPATH"], str(tmp_path)])

    ended = programs.script(
        _SCRIPT, both_formats, use, MODEL_QUIRKS="rollout", PYTHONPATH=path, VLLM_ENABLE_V1_MULTIPROCESSING="0"
    )

    assert ended.result() == built
