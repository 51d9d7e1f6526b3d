"""The function that ``dummy-tied-head`` puts into vLLM.

Only engine processes import this module; vLLM and torch are imported when a function runs, because a patch may come into force
while vLLM is being imported.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

__all__ = ["wrap_initialize_model"]

_HEAD = "lm_head.weight"
_EMBEDDINGS = ("embed_tokens.weight", "wte.weight", "word_embeddings.weight", "tok_embeddings.weight")
_ONE_FILE, _INDEX = "model.safetensors", "model.safetensors.index.json"
#: Rows that are compared at a time; two different matrices mostly differ in the first.
_ROWS = 4096


def wrap_initialize_model(original: Callable[..., torch.nn.Module]) -> Callable[..., torch.nn.Module]:
    """Make a model that starts from dummy weights have a head of its own where its checkpoint has one."""

    @wraps(original)
    def initialize_model(vllm_config: Any, *args: Any, **kwargs: Any) -> torch.nn.Module:
        model_config = kwargs.get("model_config") or vllm_config.model_config
        configs = (model_config.hf_config, model_config.hf_config.get_text_config())
        ties = any(getattr(config, "tie_word_embeddings", False) for config in configs)
        if vllm_config.load_config.load_format == "dummy" and ties and differ(model_config.model, model_config.revision):
            for config in configs:
                config.tie_word_embeddings = False
        return original(vllm_config, *args, **kwargs)

    return initialize_model


def differ(model: str, revision: str | None = None) -> bool:
    """Tells whether a checkpoint's head ``[vocabulary, hidden]`` is another matrix than its embeddings.

    Args:
        model: Its folder, or its id on the hub; only files that are on this machine are read.
        revision: The revision on the hub.

    Returns:
        False also where that cannot be told: no such files, or no single pair of such tensors.
    """
    from safetensors import safe_open

    files = _files(model, revision)
    heads = [name for name in files if name.endswith(_HEAD)]
    embeddings = [name for name in files if name.endswith(_EMBEDDINGS)]
    if len(heads) != 1 or len(embeddings) != 1:
        return False
    with safe_open(files[heads[0]], "pt") as one, safe_open(files[embeddings[0]], "pt") as other:
        return _are_different(one.get_slice(heads[0]), other.get_slice(embeddings[0]))


def _are_different(one: Any, other: Any) -> bool:
    import torch

    if one.get_shape() != other.get_shape():
        return True
    starts = range(0, one.get_shape()[0], _ROWS)
    return not all(torch.equal(one[start : start + _ROWS], other[start : start + _ROWS]) for start in starts)


def _files(model: str, revision: str | None) -> dict[str, Path]:
    """Returns the file of each tensor of a checkpoint."""
    from safetensors import safe_open

    if (index := _file(model, _INDEX, revision)) is not None:
        names = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
        found = {name: _file(model, file, revision) for name, file in names.items()}
        return {name: file for name, file in found.items() if file is not None}
    if (single := _file(model, _ONE_FILE, revision)) is not None:
        with safe_open(single, "pt") as opened:
            return dict.fromkeys(opened.keys(), single)
    return {}


def _file(model: str, name: str, revision: str | None) -> Path | None:
    if Path(model).is_dir():
        file = Path(model, name)
        return file if file.is_file() else None
    from huggingface_hub import try_to_load_from_cache

    found = try_to_load_from_cache(model, name, revision=revision)
    return Path(found) if isinstance(found, str) else None
