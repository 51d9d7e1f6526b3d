"""Tiny random checkpoints, made on the spot and offline, small enough for a real engine on two CPU cores.

Every weight is drawn from one seeded generator, so a folder is a function of its kind and seed. Nothing is left at a
value that an engine would also have without the checkpoint: norms are not one, Gemma-4's ``layer_scalar`` is not
one, xIELU's ``beta`` is not its default. A tensor that gets lost on the way therefore shows in the output.

The weights are float32. vLLM turns a float32 checkpoint into bfloat16 under ``dtype="auto"``: pass ``dtype="float32"``
where log-probabilities are compared. They then agree with transformers to about 1e-5, except for Apertus: vLLM keeps
xIELU in bfloat16, so compare engine with engine there (the difference to transformers is of the order of 1e-2).
"""

from __future__ import annotations

import itertools
import string
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedConfig, PreTrainedModel

#: Rows of the embedding, which is also the number of tokens that the tokenizer knows.
VOCAB_SIZE = 512

#: Special tokens in the order of their ids: 0, 1 and 2, where the Gemma configurations expect them.
_SPECIAL_TOKENS = {"pad_token": "<pad>", "eos_token": "<eos>", "bos_token": "<bos>"}

_CHAT_TEMPLATE = (
    "{% for message in messages %}{{ message['role'] + ': ' + message['content'] + '\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ 'assistant: ' }}{% endif %}"
)

#: What all kinds share. vLLM's CPU attention needs heads of at least 32. The head is untied because vLLM's CPU build
#: keeps a packed copy of a tied one, which no refit renews (see `worker.refit.tensors`).
_SHARED: dict[str, Any] = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "max_position_embeddings": 1024,
    "tie_word_embeddings": False,
    "pad_token_id": 0,
    "eos_token_id": 1,
    "bos_token_id": 2,
    "dtype": "float32",
}

#: A window shorter than any test's prompt and output together, so that both kinds of attention layer differ.
_SLIDING: dict[str, Any] = {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 16}


def _gemma3() -> PreTrainedConfig:
    from transformers import Gemma3TextConfig

    return Gemma3TextConfig(**_SHARED, **_SLIDING, head_dim=32, query_pre_attn_scalar=32)


def _gemma4() -> PreTrainedConfig:
    from transformers import Gemma4TextConfig

    # `global_head_dim` is that of the full-attention layers; its default of 512 would be most of the model.
    return Gemma4TextConfig(
        **_SHARED,
        **_SLIDING,
        head_dim=32,
        global_head_dim=32,
        hidden_size_per_layer_input=16,
        vocab_size_per_layer_input=VOCAB_SIZE,
    )


def _apertus() -> PreTrainedConfig:
    from transformers import ApertusConfig

    return ApertusConfig(**_SHARED, rope_parameters={"rope_type": "default", "rope_theta": 10_000.0})


def _qwen3() -> PreTrainedConfig:
    from transformers import Qwen3Config

    return Qwen3Config(**_SHARED, head_dim=32)


def _qwen3_moe() -> PreTrainedConfig:
    from transformers import Qwen3MoeConfig

    return Qwen3MoeConfig(
        **_SHARED, head_dim=32, moe_intermediate_size=64, num_experts=8, num_experts_per_tok=2, norm_topk_prob=True
    )


_CONFIGS: dict[str, Callable[[], PreTrainedConfig]] = {
    "gemma3": _gemma3,
    "gemma4": _gemma4,
    "apertus": _apertus,
    "qwen3": _qwen3,
    "qwen3_moe": _qwen3_moe,
}

#: The kinds that `build` knows. ``gemma3`` and ``gemma4`` are the text-only models.
KINDS: tuple[str, ...] = tuple(_CONFIGS)


def build(kind: str, folder: Path, *, seed: int = 0) -> Path:
    """Writes a tiny random checkpoint with its tokenizer.

    Two layers, 64 wide, 512 tokens, float32, about a megabyte at most; the logits are spread widely enough that greedy
    decoding does not hang on rounding.

    Args:
        kind: One of `KINDS`.
        folder: Where ``config.json``, ``generation_config.json``, ``model.safetensors`` and the tokenizer's files go;
            made if it is missing.
        seed: Seed of all weights. The same kind and seed give the same weights; torch's own generator is untouched.

    Returns:
        The folder.

    Raises:
        ValueError: The kind is unknown.
    """
    if kind not in _CONFIGS:
        raise ValueError(f"unknown kind of checkpoint {kind!r}; known are {', '.join(KINDS)}")
    folder.mkdir(parents=True, exist_ok=True)
    _model(kind, seed).save_pretrained(folder)
    _write_tokenizer(folder)
    return folder


def _model(kind: str, seed: int) -> PreTrainedModel:
    import torch
    from transformers import AutoModelForCausalLM

    with torch.random.fork_rng(devices=[]):  # the initialisation that `_randomise` overwrites also draws numbers
        model = AutoModelForCausalLM.from_config(_CONFIGS[kind]())
    _randomise(model.eval(), seed)
    return model


def _randomise(model: PreTrainedModel, seed: int) -> None:
    """Overwrites every tensor that a checkpoint holds, in order of name."""
    import torch

    generator = torch.Generator().manual_seed(seed)
    for name, tensor in sorted(model.state_dict().items()):
        tensor.copy_(_draw(name, tensor, generator))


def _draw(name: str, tensor: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Draws the new value of one tensor.

    Args:
        name: Its name in the state dict.
        tensor: Its present value, any shape, floating.
        generator: Where the numbers come from.

    Returns:
        A tensor of the same shape and dtype.
    """
    import torch

    leaf = name.rpartition(".")[2]
    noise = torch.randn(tensor.shape, generator=generator, dtype=tensor.dtype)
    if leaf == "eps":  # xIELU clamps with it; only a tiny negative number makes sense
        return tensor
    if leaf == "layer_scalar":  # clear of one and of zero (that of the last layer is without effect: a norm follows)
        return 1.0 + 0.4 * noise.sign() + 0.05 * noise.tanh()
    if leaf == "beta":
        return tensor + 0.2 + 0.05 * noise.tanh()
    if tensor.dim() < 2:  # norms and other small vectors: near what the architecture starts from
        return tensor + 0.1 * noise
    if name.startswith("lm_head"):  # a normed row of 64 entries has length 8, so logits get a deviation of about 4
        return 0.5 * noise
    # Variance-preserving over the input dimension, so that no layer dies or drowns the others.
    return noise / tensor.shape[-1] ** 0.5


def _write_tokenizer(folder: Path) -> None:
    """Writes a byte-level BPE tokenizer: any text survives encoding and decoding, every id below 512 is a token."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    tokens = [*_SPECIAL_TOKENS.values(), *sorted(pre_tokenizers.ByteLevel.alphabet())]
    pairs = ((left, right) for left in string.ascii_lowercase for right in string.ascii_lowercase)
    merges = list(itertools.islice(pairs, VOCAB_SIZE - len(tokens)))
    tokens += [left + right for left, right in merges]
    tokenizer = Tokenizer(models.BPE(vocab={token: index for index, token in enumerate(tokens)}, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        chat_template=_CHAT_TEMPLATE,
        clean_up_tokenization_spaces=False,
        **_SPECIAL_TOKENS,
    ).save_pretrained(folder)
