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
import json
import string
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

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

#: What all kinds share. The head is untied: the kinds with a tied one say so.
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

_KINDS = yaml.safe_load(Path(__file__).with_name("kinds.yaml").read_text(encoding="utf-8"))
#: The kinds that scenarios use. ``gemma3`` and ``gemma4`` are the text-only models.
KINDS: tuple[str, ...] = tuple(_KINDS["kinds"])
#: The configurations of the other architectures that `build` knows, by kind.
FURTHER: Mapping[str, Mapping[str, Any]] = _KINDS["further"]

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
        kind: One of `KINDS` or `FURTHER`.
        folder: Where ``config.json``, ``generation_config.json``, ``model.safetensors`` and the tokenizer's files go;
            made if it is missing.
        seed: Seed of all weights. The same kind and seed give the same weights; torch's own generator is untouched.

    Returns:
        The folder.

    Raises:
        ValueError: The kind is unknown.
    """
    if kind not in KINDS and kind not in FURTHER:
        raise ValueError(f"unknown kind of checkpoint {kind!r}; known are {', '.join((*KINDS, *FURTHER))}")
    folder.mkdir(parents=True, exist_ok=True)
    _model(kind, seed).save_pretrained(folder)
    if written := FURTHER.get(kind, {}).get("config.json"):  # what vLLM reads, and transformers takes for granted
        file = folder / "config.json"
        file.write_text(json.dumps({**json.loads(file.read_text(encoding="utf-8")), **written}, indent=2), encoding="utf-8")
    _write_tokenizer(folder)
    return folder


def configuration(kind: str) -> PreTrainedConfig:
    """Returns the configuration of a kind, of transformers' own class: vLLM registers others under some of these names."""
    import transformers
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES

    own = {**_KINDS["kinds"], **FURTHER}[kind]
    name = own.get("type", kind.partition(":")[0])
    made_of = getattr(transformers, CONFIG_MAPPING_NAMES[name])
    if made_of.model_type != name:  # vLLM gives DeepseekV3Config the name of V3.2 where it has read such a model
        made_of = type(made_of.__name__, (made_of,), {"model_type": name})
    values = {**_SHARED, **own}
    for name in ("type", "without", "config.json", *own.get("without", ())):
        values.pop(name, None)
    found: PreTrainedConfig = made_of(**values)
    return found


def _model(kind: str, seed: int) -> PreTrainedModel:
    import torch
    from transformers import AutoModelForCausalLM

    with torch.random.fork_rng(devices=[]):  # a model's own initialisation draws numbers too, and some of them stay
        torch.manual_seed(seed)
        model = AutoModelForCausalLM.from_config(configuration(kind))
    randomise(model.eval(), seed)
    return model


def randomise(model: PreTrainedModel, seed: int) -> None:
    """Overwrites every floating tensor that a checkpoint holds, in place and in order of name."""
    import torch

    generator = torch.Generator().manual_seed(seed)
    for name, tensor in sorted(model.state_dict().items()):
        if tensor.is_floating_point():
            tensor.copy_(_draw(name, tensor, generator))


def _draw(name: str, tensor: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
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
