"""How the trainer of this process computes, read from its own objects: accelerate's state, and the caller's model.

A trainer that starts an engine in its own process (TRL's colocate mode, ms-swift) has made its model and accelerator before.
Nothing is imported here, and no attribute is called but ``parameters``.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from quirks_core.facts.trainers import Trainer

_STATE = "accelerate.state"
#: What accelerate's launcher and transformers' arguments set, for processes that have no state of accelerate's.
_VARIABLE = "ACCELERATE_MIXED_PRECISION"
#: By accelerate's word, the dtype of the products; others (fp8) are not known.
_AUTOCAST = {"no": "none", "bf16": "bfloat16", "fp16": "float16"}
#: Kinds of processes in which the optimizer updates the weights as they are; FSDP and DeepSpeed make copies in float32.
_KEEP_DTYPE = ("NO", "MULTI_GPU")
_DTYPES = ("bfloat16", "float16", "float32")


class Read(NamedTuple):
    """A value that was read, and where."""

    value: Any
    source: str


def precision(trainer: Trainer | None) -> dict[str, Read]:
    """Returns how the trainer of this process computes, by slot; what cannot be read is missing."""
    found = dict(_autocast())
    if trainer is not None:
        found.update(_weights(trainer))
    return found


def sampling(trainer: Trainer | None) -> dict[str, Read]:
    """Returns how the trainer samples, by slot, from its object that starts the engine and has ``top_p`` and ``top_k``."""
    for caller in _callers(trainer) if trainer is not None else ():
        found = {name: getattr(caller, name, None) for name in ("top_p", "top_k")}
        if all(isinstance(value, int | float) for value in found.values()):
            return {f"sampling.{name}": Read(value, f"{type(caller).__name__}.{name}") for name, value in found.items()}
    return {}


def accelerate_state() -> Mapping[str, Any]:
    """Returns accelerate's state; empty if no accelerator was made in this process."""
    return getattr(getattr(sys.modules.get(_STATE), "AcceleratorState", None), "_shared_state", None) or {}


def _autocast() -> Iterator[tuple[str, Read]]:
    state = accelerate_state()
    word, source = state.get("_mixed_precision"), "accelerate's state"
    if word is None:
        word, source = os.environ.get(_VARIABLE), _VARIABLE
    elif word == "fp16" and getattr(state.get("device"), "type", "") == "cpu":
        word = "no"  # accelerate computes in the dtype of the weights there, without a word
    if word in _AUTOCAST:
        yield "train.autocast", Read(_AUTOCAST[word], source)


def _weights(trainer: Trainer) -> Iterator[tuple[str, Read]]:
    """Reads the dtypes of the model of the trainer's object that starts the engine, and its option for the head."""
    for caller in _callers(trainer):
        model: Any = getattr(caller, "model", None)
        if not callable(getattr(model, "parameters", None)):
            continue
        source = f"{type(caller).__name__}.model"
        sizes: Counter[str] = Counter()
        trained: Counter[str] = Counter()
        for parameter in model.parameters():
            dtype = str(parameter.dtype).removeprefix("torch.")
            if dtype in _DTYPES:  # a quantised weight has no dtype of its products
                size = getattr(parameter, "ds_numel", None) or parameter.numel()
                sizes[dtype] += size
                trained[dtype] += size if parameter.requires_grad else 0
        if sizes:
            yield "train.dtype", Read(sizes.most_common(1)[0][0], source)
        if +trained and str(accelerate_state().get("distributed_type")).rpartition(".")[2] in _KEEP_DTYPE:
            yield "train.trainable_dtype", Read(trained.most_common(1)[0][0], source)
        break
    for caller in _callers(trainer):
        cast = getattr(getattr(caller, "args", None), "cast_lm_head_to_fp32", None)
        if isinstance(cast, bool):
            yield "train.head_dtype", Read("float32" if cast else "model", f"{type(caller).__name__}.args")
            break


def _callers(trainer: Trainer) -> Iterator[Any]:
    """Yields the trainer's objects whose methods are being called, the innermost first."""
    for frame, _ in traceback.walk_stack(sys._getframe()):
        if str(frame.f_globals.get("__name__")).partition(".")[0] in trainer.modules and "self" in frame.f_locals:
            yield frame.f_locals["self"]
