"""A model whose folder holds it in Mistral's format and in that of transformers, in a rollout for text."""

from __future__ import annotations

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
    llm = LLM(model=sys.argv[1], load_format="dummy", language_model_only=True, **options)
    model = llm.llm_engine.model_executor.driver_worker.model_runner.model
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


@pytest.fixture(scope="module")
def both_formats(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny Mistral3 in both formats, as Mistral Small's repository is; dummy weights need no file."""
    import mistral_common
    from transformers import Mistral3Config

    folder = tmp_path_factory.mktemp("mistral")
    sizes = {"vocab_size": 131_072, "max_position_embeddings": 512}
    text = {"model_type": "mistral", "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, **sizes}
    vision = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2, "patch_size": 14}
    vision |= {"model_type": "pixtral", "head_dim": 16, "image_size": 56}
    Mistral3Config(
        text_config={**text, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32},
        vision_config=vision,
        image_token_index=10,
        architectures=["Mistral3ForConditionalGeneration"],
        dtype="float32",
    ).save_pretrained(folder)
    (folder / "params.json").write_text("{}", encoding="utf-8")
    (folder / "consolidated.safetensors").touch()
    shutil.copy(Path(mistral_common.__file__).with_name("data") / "tekken_240911.json", folder / "tekken.json")
    return folder


def test_a_rollout_for_text_gets_the_names_of_transformers(both_formats, programs, tmp_path):
    """One for images is advised alone, as the quirk's examples show."""
    package = tmp_path / "torchvision"
    package.mkdir()
    (package / "__init__.py").write_text(_TORCHVISION, encoding="utf-8")
    lay(tmp_path, "torchvision", "0.28.0")
    path = os.pathsep.join([programs.environment["PYTHONPATH"], str(tmp_path)])

    ended = programs.script(_SCRIPT, both_formats, MODEL_QUIRKS="rollout", PYTHONPATH=path, VLLM_ENABLE_V1_MULTIPROCESSING="0")

    assert ended.result() == "Mistral3ForConditionalGeneration"
