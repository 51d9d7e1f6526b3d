"""Tiny random checkpoints, made on the spot and offline, small enough for a real engine on two CPU cores.

Every weight is drawn from one seeded generator, so a folder is a function of its kind and seed. Nothing is left at a
value that an engine would also have without the checkpoint: norms are not one, Gemma-4's ``layer_scalar`` is not
one, xIELU's ``beta`` is not its default. A tensor that gets lost on the way therefore shows in the output.

The weights are float32. vLLM turns a float32 checkpoint into bfloat16 under ``dtype="auto"``: pass ``dtype="float32"``
where log-probabilities are compared. Measured with that on vLLM 0.32.0 for CPU, eager, over 72 greedy tokens: every kind
outside `NOT_ON_CPU` gives the tokens of transformers, and logprobs within about 1e-5; except gemma2 (2e-3), nemotron_h
(6e-3) and apertus (of the order of 1e-2 without the quirk apertus-xielu-bfloat16: vLLM keeps xIELU in bfloat16).
"""

from __future__ import annotations

import itertools
import string
from collections.abc import Callable, Mapping
from functools import partial
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

#: What all kinds share. vLLM's CPU attention needs heads of at least 32. The head is untied: the kinds with a tied one say so.
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


def _gemma2() -> PreTrainedConfig:
    from transformers import Gemma2Config

    # Tied: vLLM's Gemma-2 has no head of its own.
    shared = {**_SHARED, "tie_word_embeddings": True}
    return Gemma2Config(**shared, **_SLIDING, head_dim=32, query_pre_attn_scalar=32)


def _llama(*, tied: bool = False) -> PreTrainedConfig:
    from transformers import LlamaConfig

    return LlamaConfig(**{**_SHARED, "tie_word_embeddings": tied})


def _mistral() -> PreTrainedConfig:
    from transformers import MistralConfig

    return MistralConfig(**_SHARED, head_dim=32, sliding_window=None)


def _olmo2() -> PreTrainedConfig:
    from transformers import Olmo2Config

    return Olmo2Config(**_SHARED)


def _phi3() -> PreTrainedConfig:
    from transformers import Phi3Config

    return Phi3Config(**_SHARED)


def _qwen2() -> PreTrainedConfig:
    from transformers import Qwen2Config

    return Qwen2Config(**_SHARED)


def _gpt_oss() -> PreTrainedConfig:
    from transformers import GptOssConfig

    # Its rotary embedding stays what it is in every released checkpoint (YaRN): vLLM takes no other.
    return GptOssConfig(**_SHARED, **_SLIDING, head_dim=32, num_local_experts=4, num_experts_per_tok=2)


def _glm4_moe() -> PreTrainedConfig:
    from transformers import Glm4MoeConfig

    # The first layer is dense, the second one routes.
    return Glm4MoeConfig(
        **_SHARED,
        head_dim=32,
        moe_intermediate_size=64,
        n_routed_experts=4,
        num_experts_per_tok=2,
        first_k_dense_replace=1,
        use_qk_norm=True,
    )


def _deepseek_v3() -> PreTrainedConfig:
    from transformers import DeepseekV3Config

    return DeepseekV3Config(
        **{**_SHARED, "num_key_value_heads": 2},
        moe_intermediate_size=64,
        n_routed_experts=4,
        num_experts_per_tok=2,
        n_group=2,
        topk_group=1,
        first_k_dense_replace=1,
        # What transformers takes for granted, vLLM reads from the checkpoint; every released one says so.
        scoring_func="sigmoid",
        topk_method="noaux_tc",
        q_lora_rank=32,
        # Together 576, the only width that multi-head latent attention has kernels for.
        kv_lora_rank=512,
        qk_rope_head_dim=64,
        qk_nope_head_dim=32,
        v_head_dim=32,
    )


def _nemotron_h(*layers: str) -> PreTrainedConfig:
    from transformers import NemotronHConfig

    # A layer is a mixer or a feed-forward network, never both, so two of them would not make a model.
    shared = {name: value for name, value in _SHARED.items() if name != "num_hidden_layers"}
    return NemotronHConfig(
        **shared,
        layers_block_type=["linear_attention", "mlp", "full_attention", *layers],
        head_dim=32,
        ssm_state_size=16,
        mamba_num_heads=4,
        mamba_head_dim=32,
        n_groups=2,
        chunk_size=16,
        n_routed_experts=4,
        num_experts_per_tok=2,
        moe_intermediate_size=64,
        moe_shared_expert_intermediate_size=64,
    )


def _granitemoehybrid() -> PreTrainedConfig:
    from transformers import GraniteMoeHybridConfig

    return GraniteMoeHybridConfig(
        **_SHARED,
        layer_types=["linear_attention", "full_attention"],
        shared_intermediate_size=64,
        num_local_experts=4,
        num_experts_per_tok=2,
        attention_multiplier=32**-0.5,
        mamba_n_heads=4,
        mamba_d_state=16,
        mamba_chunk_size=16,
    )


def _falcon_h1() -> PreTrainedConfig:
    from transformers import FalconH1Config

    return FalconH1Config(**_SHARED, mamba_d_ssm=128, mamba_n_heads=4, mamba_d_head=32, mamba_d_state=16, mamba_chunk_size=16)


def _mamba2() -> PreTrainedConfig:
    from transformers import Mamba2Config

    names = ("num_attention_heads", "num_key_value_heads", "intermediate_size", "max_position_embeddings")
    shared = {name: value for name, value in _SHARED.items() if name not in names}
    return Mamba2Config(**shared, num_heads=4, head_dim=32, state_size=16, n_groups=1, chunk_size=16)


def _qwen3_next() -> PreTrainedConfig:
    from transformers import Qwen3NextConfig

    return Qwen3NextConfig(
        **_SHARED,
        head_dim=32,
        layer_types=["linear_attention", "full_attention"],
        linear_key_head_dim=128,
        linear_value_head_dim=128,
        linear_num_key_heads=2,
        linear_num_value_heads=4,
        moe_intermediate_size=64,
        shared_expert_intermediate_size=64,
        num_experts=4,
        num_experts_per_tok=2,
    )


def _phi() -> PreTrainedConfig:
    from transformers import PhiConfig

    return PhiConfig(**{**_SHARED, "num_key_value_heads": 2}, partial_rotary_factor=0.5)


def _minimax_m2() -> PreTrainedConfig:
    from transformers import MiniMaxM2Config

    # What vLLM reads beside transformers' fields; its CPU router knows no sigmoid, which released checkpoints have.
    own = {"rotary_dim": 32, "scoring_func": "softmax", "use_routing_bias": True, "use_qk_norm": True, "attention_bias": False}
    return MiniMaxM2Config(**_SHARED, **own, head_dim=32, num_local_experts=4, num_experts_per_tok=2)


_CONFIGS: dict[str, Callable[[], PreTrainedConfig]] = {
    "gemma3": _gemma3,
    "gemma4": _gemma4,
    "apertus": _apertus,
    "qwen3": _qwen3,
    "qwen3_moe": _qwen3_moe,
    "gemma2": _gemma2,
    "llama": _llama,
    "llama_tied": partial(_llama, tied=True),
    "mistral": _mistral,
    "olmo2": _olmo2,
    "phi3": _phi3,
    "qwen2": _qwen2,
    "gpt_oss": _gpt_oss,
    "glm4_moe": _glm4_moe,
    "deepseek_v3": _deepseek_v3,
    "nemotron_h": _nemotron_h,
    "nemotron_h_moe": partial(_nemotron_h, "moe"),
    "granitemoehybrid": _granitemoehybrid,
    "falcon_h1": _falcon_h1,
    "mamba2": _mamba2,
    "qwen3_next": _qwen3_next,
    "phi": _phi,
    "minimax_m2": _minimax_m2,
}

#: The kinds that `build` knows. ``gemma3`` and ``gemma4`` are the text-only models.
KINDS: tuple[str, ...] = tuple(_CONFIGS)

#: Kinds on which vLLM 0.32.0 for CPU does not agree with transformers in float32, with what was seen. They serve matching,
#: transformers and GPUs.
NOT_ON_CPU: Mapping[str, str] = {
    "minimax_m2": "runs, but routes by softmax, because vLLM's CPU router knows no sigmoid; transformers routes by sigmoid",
    "deepseek_v3": "3 of 72 greedy tokens are transformers' without the quirk cpu-mla-rotary, and all 72 with it",
    "nemotron_h_moe": "NotImplementedError: is_act_and_mul=False is supported only for CUDA, XPU and ROCm for now",
    "qwen3_next": "AssertionError: CPU GDN attention requires BF16.",
}


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

    with torch.random.fork_rng(devices=[]):  # a model's own initialisation draws numbers too, and some of them stay
        torch.manual_seed(seed)
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
        unk_token=_SPECIAL_TOKENS["pad_token"],  # never met; left open, Qwen-2's class would add a 513th token for it
        **_SPECIAL_TOKENS,
    ).save_pretrained(folder)
