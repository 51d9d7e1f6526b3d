"""What the quirks of this folder put into vLLM."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import wraps
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

#: Where a configuration has the ids that stand for images, videos and sounds in a prompt.
PLACEHOLDERS = (
    "image_token_id",
    "video_token_id",
    "audio_token_id",
    "image_token_index",
    "video_token_index",
    "audio_token_index",
)


def wrap_tokenize(original: Callable[..., Any]) -> Callable[..., Any]:
    """Make a text that begins with BOS be encoded without special tokens."""

    @wraps(original)
    def _tokenize_prompt(self: Any, prompt: Any, params: Any) -> Any:
        bos = getattr(self.get_tokenizer(), "bos_token", None)
        if params.add_special_tokens and bos and prompt["prompt"].startswith(bos):
            params = replace(params, add_special_tokens=False)
        return original(self, prompt, params)

    return _tokenize_prompt


def wrap_generation_config(original: Callable[..., dict[str, Any]]) -> Callable[..., dict[str, Any]]:
    """Make a model without a tokenizer end its samples at the EOS of ``config.json`` where no other is named."""

    @wraps(original)
    def try_get_generation_config(self: Any) -> dict[str, Any]:
        found = original(self)
        if not self.skip_tokenizer_init or found.get("eos_token_id") is not None:
            return found
        eos = getattr(self.hf_config, "eos_token_id", None) or getattr(self.hf_text_config, "eos_token_id", None)
        return found if eos is None else {**found, "eos_token_id": eos}

    return try_get_generation_config


def wrap_init_known(original: Callable[..., None]) -> Callable[..., None]:
    """Make the layer that computes logits know which of them have no token."""
    return _noting(original, "_model_quirks_unknown", _unknown_ids)


def wrap_forward_known(original: Callable[..., Any]) -> Callable[..., Any]:
    """Make the logits of ids that have no token -inf."""
    return _masking(original, "_model_quirks_unknown")


def wrap_init_text(original: Callable[..., None]) -> Callable[..., None]:
    """Make the layer that computes logits know the ids that stand for images, videos and sounds."""
    return _noting(original, "_model_quirks_placeholders", _placeholder_ids)


def wrap_forward_text(original: Callable[..., Any]) -> Callable[..., Any]:
    """Make the logits of ids that stand for images, videos and sounds -inf."""
    return _masking(original, "_model_quirks_placeholders")


def _noting(original: Callable[..., None], name: str, ids: Callable[[Any], list[range]]) -> Callable[..., None]:
    @wraps(original)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807 - it wraps one
        from vllm.config import get_current_vllm_config

        original(self, *args, **kwargs)
        config = get_current_vllm_config().model_config
        # A draft model may have a vocabulary of its own.
        is_whole = config is not None and self.org_vocab_size == config.get_vocab_size()
        setattr(self, name, ids(config) if is_whole else [])

    return __init__


def _masking(original: Callable[..., Any], name: str) -> Callable[..., Any]:
    @wraps(original)
    def forward(self: Any, *args: Any, **kwargs: Any) -> torch.Tensor | None:
        logits: torch.Tensor | None = original(self, *args, **kwargs)
        layer = getattr(self, "base_layer", self)  # with LoRA
        # Ranks of a tensor-parallel group that keep their parts of the vocabulary have no such columns.
        if logits is not None and logits.shape[-1] == layer.org_vocab_size:
            for tokens in getattr(layer, name, ()):
                logits[..., tokens.start : tokens.stop].fill_(float("-inf"))
        return logits

    return forward


def _unknown_ids(config: Any) -> list[range]:
    from vllm.tokenizers import cached_tokenizer_from_config

    if config.skip_tokenizer_init:
        return []
    tokenizer = cached_tokenizer_from_config(config)
    last = tokenizer.max_token_id
    # Until vLLM 0.31 that can be ``vocab_size``, a number of tokens.
    if last == tokenizer.vocab_size and last not in tokenizer.get_vocab().values():
        last -= 1
    found = range(last + 1, config.get_vocab_size())
    return [found] if found else []


def _placeholder_ids(config: Any) -> list[range]:
    parts = (config.hf_config, getattr(config.hf_config, "thinker_config", None))  # Qwen's omni models have them there
    found = {getattr(part, name, None) for part in parts for name in PLACEHOLDERS}
    return [range(token, token + 1) for token in found if isinstance(token, int) and 0 <= token < config.get_vocab_size()]
