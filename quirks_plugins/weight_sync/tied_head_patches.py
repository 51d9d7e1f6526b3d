"""The function that ``dummy-tied-head`` puts into vLLM.

Only engine processes import this module; vLLM and torch are imported when a function runs, because a patch may come into force
while vLLM is being imported.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import wraps
from typing import TYPE_CHECKING, Any

from quirks_plugins.weight_sync.dummy_start_patches import NoFilesError, files_of

if TYPE_CHECKING:
    import torch

__all__ = ["wrap_initialize_model"]

_LOG = logging.getLogger("model_quirks")

_HEAD = "lm_head.weight"
_EMBEDDINGS = ("embed_tokens.weight", "wte.weight", "word_embeddings.weight", "tok_embeddings.weight")
#: Rows that are compared at a time; two different matrices mostly differ in the first.
_ROWS = 4096


def wrap_initialize_model(original: Callable[..., torch.nn.Module]) -> Callable[..., torch.nn.Module]:
    """Make a model that starts from dummy weights have a head of its own where its checkpoint has one."""

    @wraps(original)
    def initialize_model(vllm_config: Any, *args: Any, **kwargs: Any) -> torch.nn.Module:
        model_config = kwargs.get("model_config") or vllm_config.model_config
        configs = (model_config.hf_config, model_config.hf_config.get_text_config())
        ties = any(getattr(config, "tie_word_embeddings", False) for config in configs)
        if vllm_config.load_config.load_format == "dummy" and ties and _is_untied(model_config):
            for config in configs:
                config.tie_word_embeddings = False
        return original(vllm_config, *args, **kwargs)

    return initialize_model


def _is_untied(model_config: Any) -> bool:
    try:
        return differ(model_config.model, model_config.revision)
    except NoFilesError as error:
        _LOG.warning(
            "%s: whether its head differs from its embeddings is unknown, so they are tied as config.json says; a refit leaves "
            "out a head that differs",
            error,
        )
        return False


def differ(model: str, revision: str | None = None) -> bool:
    """Returns whether a checkpoint's head ``[vocabulary, hidden]`` is another matrix than its embeddings.

    Args:
        model: Its folder, or its id on the hub; only files that are on this machine are read.
        revision: The revision on the hub.

    Returns:
        False also where there is no single pair of such tensors.

    Raises:
        NoFilesError: Its files are not here.
    """
    from safetensors import safe_open

    files = files_of(model, revision)
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
