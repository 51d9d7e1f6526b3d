"""What an engine should have after an update, from a trainer's model or a checkpoint: digests by names that both sides know.

An engine fuses a trainer's tensors and splits them over ranks; most of its loaders do nothing else. So the fused and the split
tensor is made here, too, and its digest compared with the ledger's. What a kernel lays out otherwise (packed matrices, some
experts) or a loader computes has another digest; of that the digest of what the loader takes is here.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import nn

from quirks_core.base.errors import UsageError
from worker.refit.weights.digest import Digester, form
from worker.refit.weights.scope import RefitScope, gathered, layout

#: What vLLM fuses: ``packed_modules_mapping`` of its models, and the experts of a layer.
_FUSED = {
    "qkv_proj": ("q_proj", "k_proj", "v_proj"),
    "gate_up_proj": ("gate_proj", "up_proj"),
    "fused_qkv_a_proj": ("q_a_proj", "kv_a_proj_with_mqa"),
    "in_proj_qkvz": ("in_proj_qkv", "in_proj_z"),
    "in_proj_ba": ("in_proj_b", "in_proj_a"),
}
_PART_OF = {part: fused for fused, parts in _FUSED.items() for part in parts}
_EXPERT = re.compile(r"(.+\.experts)\.(\d+)\.(gate_proj|w1|up_proj|w3|down_proj|w2)\.weight$")
#: The place of an expert's matrix: gate, up, down.
_PARTS = {"gate_proj": 0, "w1": 0, "up_proj": 1, "w3": 1, "down_proj": 2, "w2": 2}
_STACKED = ("w13_weight", "w13_weight", "w2_weight")
#: Words that only the name in a trainer's module has: a loader passes over such names.
_TRAINERS = frozenset({"base_model", "module", "_checkpoint_wrapped_module", "_orig_mod"})
#: Those that a name has in a checkpoint and not in an engine, or the other way round.
_WRAPPERS = _TRAINERS | {"model", "language_model", "routed_experts", "base_layer"}
#: Layers with a row for each token, which vLLM fills up with zeros to a multiple of so many.
_VOCABULARIES = frozenset({"embed_tokens", "lm_head", "wte"})
_ROWS = 64
#: Layers that vLLM's loaders copy, fuse and split by rows or columns: their bytes must be the trainer's. Others are known by
#: what their loader took (``query_key_value``, say, is laid out by heads).
_COPIED = _VOCABULARIES | {
    *("qkv_proj", "gate_up_proj", "o_proj", "down_proj", "norm", "input_layernorm", "post_attention_layernorm"),
    *("pre_feedforward_layernorm", "post_feedforward_layernorm"),
}
#: Values of each tensor, at most, from which the size of an update is estimated.
_VALUES = 4096


@cache
def common(name: str) -> str:
    """Returns a tensor's name without the words in which checkpoints and engines differ."""
    return ".".join(word for word in name.split(".") if word not in _WRAPPERS)


def taken_name(name: str) -> str:
    """Returns the common name of what came for a loader; the name itself if it is none of a checkpoint's."""
    return name if _TRAINERS & set(name.split(".")) else common(name)


@cache
def engine_name(name: str) -> str:
    """Returns under which common name an engine has a tensor, if it fuses it as vLLM mostly does."""
    if match := _EXPERT.match(name):
        return f"{match[1]}.{_STACKED[_PARTS[match[3]]]}"
    words = name.split(".")
    return ".".join(_PART_OF.get(word, word) if place == len(words) - 2 else word for place, word in enumerate(words))


@dataclass(frozen=True, slots=True)
class Expected:
    """What an engine should have.

    Attributes:
        digests: The right digests by common name: of the whole tensor, of each rank's part, in each dtype.
        forms: The `form` of those tensors by common name, where the engine's bytes must be the trainer's if the form agrees.
        sent: The right digests of what a loader takes, by the common name that it has in a checkpoint.
        whole: Whether the digests are of every byte.
        samples: Some values of each tensor, float32 on the CPU, by common name; scaled so that they have the norm of all.
    """

    digests: Mapping[str, frozenset[str]]
    forms: Mapping[str, frozenset[str]] = field(default_factory=dict)
    sent: Mapping[str, frozenset[str]] = field(default_factory=dict)
    whole: bool = False
    samples: Mapping[str, torch.Tensor] = field(default_factory=dict, repr=False)

    def norms(self, before: Expected) -> dict[str, float]:
        """Returns the L2 norm of each tensor's change since the same model `before`, estimated from its samples."""
        pairs = ((name, now, before.samples[name]) for name, now in self.samples.items() if name in before.samples)
        return {name: float((now - then).norm()) for name, now, then in pairs}


def digest(
    model: nn.Module,
    *,
    scope: RefitScope | str = RefitScope.PARAMETERS,
    dtype: torch.dtype | None = None,
    tensor_parallel_size: int = 1,
    whole: bool = False,
) -> Expected:
    """Returns what an engine should have once it has this model's weights.

    Adapters of PEFT are merged for it, one layer at a time and in a copy: the model is left as it is. All ranks of a sharded
    model (FSDP2) have to call this together, as each tensor is gathered when its turn comes.

    Args:
        model: A transformers, FSDP2 or PEFT model, merged or not.
        scope: What the trainer sends.
        dtype: The engine's, if it is not the model's.
        tensor_parallel_size: Over how many ranks the engine splits its layers.
        whole: Digest every byte, as the ledger does with ``MODEL_QUIRKS_LEDGER=warn;whole=1``.

    Raises:
        UsageError: The model's tensors are gathered by another library (FSDP1, DeepSpeed ZeRO-3).
    """
    for name, parameter in model.named_parameters():
        if "_flat_param" in name or hasattr(parameter, "ds_id"):
            kind = "DeepSpeed ZeRO-3" if hasattr(parameter, "ds_id") else "FSDP1"
            raise UsageError(f"digest: {kind} keeps {name} in parts of its own; use FSDP2, or gather the model first")
    tensors = _merged(model, scope) if hasattr(model, "peft_config") else gathered(layout(model, scope))
    found: Expected = expected(tensors, dtype=dtype, tensor_parallel_size=tensor_parallel_size, whole=whole)
    return found


@torch.no_grad()  # type: ignore[untyped-decorator]
def expected(
    tensors: Iterable[tuple[str, torch.Tensor]],
    *,
    dtype: torch.dtype | None = None,
    tensor_parallel_size: int = 1,
    whole: bool = False,
) -> Expected:
    """Returns what an engine should have of tensors by their names in a checkpoint; the rest is as for `digest`.

    The experts of a layer must come one after the other.
    """
    digester = Digester(whole=whole)
    samples: dict[str, torch.Tensor] = {}
    laid: list[tuple[_Laid, str]] = []

    def looked_at() -> Iterator[tuple[str, torch.Tensor]]:
        for name, tensor in tensors:
            if tensor.is_floating_point() and tensor.numel():
                samples[common(name)] = _sample(tensor)
            yield name, tensor

    for one in _in_dtypes(_arranged(looked_at(), tensor_parallel_size), dtype):
        digester.add(f"{len(laid)}", one.tensor)
        laid.append((one._replace(tensor=None), form(one.tensor)))
    found, forms, sent = (defaultdict[str, set[str]](set) for _ in range(3))
    for (one, its_form), text in zip(laid, digester.result().values(), strict=True):
        if one.is_sent:
            sent[one.name].add(text)
        found[one.name].add(text)
        if one.is_copied:
            forms[one.name].add(its_form)
    return Expected(
        digests=_frozen(found),
        forms=_frozen(forms),
        sent=_frozen(sent),
        whole=whole,
        samples={name: values.cpu() for name, values in samples.items()},
    )


class _Laid(NamedTuple):
    """A tensor as an engine may have it, or as its loader takes it.

    Attributes:
        name: Its common name.
        tensor: Its values.
        is_sent: A loader takes it so.
        is_copied: An engine whose tensor of this name has this form has these bytes.
    """

    name: str
    tensor: Any
    is_sent: bool = False
    is_copied: bool = False


def _in_dtypes(laid: Iterable[_Laid], dtype: torch.dtype | None) -> Iterator[_Laid]:
    for one in laid:
        yield one
        if dtype not in (None, one.tensor.dtype) and one.tensor.is_floating_point():
            rounded = one.tensor.to(dtype)
            yield one._replace(tensor=rounded)
            if rounded.ndim < 2:  # kernels of some CPUs keep biases in float32, which a start rounds first
                yield one._replace(tensor=rounded.float(), is_copied=False)


def _arranged(tensors: Iterable[tuple[str, torch.Tensor]], tensor_parallel_size: int) -> Iterator[_Laid]:
    waiting: dict[str, dict[str, torch.Tensor]] = defaultdict(dict)
    experts: dict[tuple[int, int], torch.Tensor] = {}
    layer = ""
    for original, tensor in tensors:
        name = common(original)
        if match := _EXPERT.match(name):
            if match[1] != layer:
                yield from _experts(layer, experts, tensor_parallel_size)
                layer, experts = match[1], {}
            experts[int(match[2]), _PARTS[match[3]]] = tensor
            yield _Laid(name, tensor, is_sent=True)
            continue
        word = name.split(".")[-2] if "." in name else ""
        copied = _PART_OF.get(word, word) in _COPIED
        splits = _splits([tensor], tensor_parallel_size, is_vocabulary=word in _VOCABULARIES)
        for place, part in enumerate(splits):  # what a checkpoint has fused is split part by part
            yield _Laid(name, part, is_sent=not place, is_copied=copied and (not place or word not in _FUSED))
        if (fused := engine_name(name)) != name:
            waiting[fused][word] = tensor
            parts = _FUSED[fused.split(".")[-2]]
            if len(waiting[fused]) == len(parts):
                group = waiting.pop(fused)
                for part in _splits([group[one] for one in parts], tensor_parallel_size):
                    yield _Laid(fused, part, is_copied=fused.split(".")[-2] in _COPIED)
    yield from _experts(layer, experts, tensor_parallel_size)


def _merged(model: Any, scope: RefitScope | str) -> Iterator[tuple[str, torch.Tensor]]:
    """Yields the tensors of a PEFT model's base, with the adapters merged."""
    from peft.tuners.tuners_utils import BaseTunerLayer

    base = model.get_base_model()
    layers = {name: one for name, one in base.named_modules() if isinstance(one, BaseTunerLayer)}
    prefix, kept = model.base_model.prefix, tuple(f".modules_to_save.{name}." for name in model.active_adapters)
    for original, tensor in gathered(layout(base, scope)):
        name = original
        for one in kept:
            name = name.replace(one, ".")
        words = name.split(".")
        if any(word.startswith(prefix) for word in words) or {"original_module", "modules_to_save"} & set(words):
            continue
        module, _, word = name.replace(".base_layer.", ".").rpartition(".")
        if (layer := layers.get(module)) is not None and not layer.merged and not layer.disable_adapters:
            yield f"{module}.{word}", _with_adapters(layer, word)
        else:
            yield f"{module}.{word}" if module else word, tensor


@torch.no_grad()  # type: ignore[untyped-decorator]
def _with_adapters(layer: Any, word: str) -> torch.Tensor:
    """Returns a tensor of a layer as it is once its adapters are merged; merges a copy, and puts the original back."""
    base = layer.get_base_layer()
    own = {name: parameter.data for name, parameter in base.named_parameters(recurse=False)}
    for name, parameter in base.named_parameters(recurse=False):
        parameter.data = own[name].clone()
    try:
        layer.merge()
        found = getattr(base, word).data.clone()
        layer.unmerge()
    finally:
        for name, parameter in base.named_parameters(recurse=False):
            parameter.data = own[name]
    return next(tensor for _, tensor in gathered({word: found}))


def _experts(layer: str, parts: Mapping[tuple[int, int], torch.Tensor], size: int) -> Iterator[_Laid]:
    """Yields a layer's experts as vLLM stacks them: [experts, 2 x intermediate, hidden] and [experts, hidden, intermediate].

    Ranks have a part of each expert, or some of the experts.
    """
    numbers = sorted({number for number, _ in parts})
    if any((number, part) not in parts for number in numbers for part in range(3)) or not numbers:
        return
    gate, up, down = (torch.stack([parts[number, part] for number in numbers]) for part in range(3))
    up_too = torch.cat([gate, up], 1)
    for name, whole in ((f"{layer}.w13_weight", up_too), (f"{layer}.w2_weight", down)):
        yield _Laid(name, whole)
        if size > 1:
            yield from (_Laid(name, some) for some in whole.chunk(size))
    if size > 1:
        halves = zip(gate.chunk(size, 1), up.chunk(size, 1), strict=True)
        yield from (_Laid(f"{layer}.w13_weight", torch.cat(both, 1)) for both in halves)
        yield from (_Laid(f"{layer}.w2_weight", some) for some in down.chunk(size, 2))


def _splits(parts: Sequence[torch.Tensor], size: int, *, is_vocabulary: bool = False) -> Iterator[torch.Tensor]:
    """Yields fused tensors whole, and as each rank has them: by rows, with keys and values on several ranks, or by columns."""
    whole = torch.cat(list(parts)) if len(parts) > 1 else parts[0]
    yield whole
    if is_vocabulary and (rest := -len(whole) % _ROWS):
        whole = torch.cat([whole, whole.new_zeros(rest, *whole.shape[1:])])
        yield whole
        parts = [whole]
    if size == 1 or not whole.ndim:
        return
    for rank in range(size):
        for copies in (count for count in range(1, size + 1) if size % count == 0 and (count == 1 or len(parts) > 1)):
            sizes = [size, *([size // copies] * (len(parts) - 1))]
            if all(len(part) % count == 0 for part, count in zip(parts, sizes, strict=True)):
                mine = [part.chunk(count)[rank * count // size] for part, count in zip(parts, sizes, strict=True)]
                yield torch.cat(mine)
        if whole.ndim > 1 and whole.shape[1] % size == 0:
            yield whole.chunk(size, 1)[rank]


def _frozen(texts: Mapping[str, set[str]]) -> dict[str, frozenset[str]]:
    return {name: frozenset(found) for name, found in texts.items()}


def _sample(tensor: torch.Tensor) -> torch.Tensor:
    flat = tensor.detach().reshape(-1)
    step = max(1, -(-len(flat) // _VALUES)) | 1  # odd, as rows are mostly powers of two long
    values = flat[::step].to(torch.float32)
    return values * math.sqrt(len(flat) / len(values))  # a copy: the optimizer changes what it is taken from
