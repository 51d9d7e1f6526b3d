"""What trainers that build their own vLLM engines send at a weight update: presets of facts, by trainer.

Quirks about refits need to know whether a trainer sends the parameters alone or its whole state dict, and whether caches of
older weights are dropped. A trainer does not pass this to an engine that it starts itself; these presets do. Each was read in
the source that its `Trainer.source` names; docs/trainers.md says for which of its backends it holds. Facts of a preset count as
typed: nothing in the engine changes what a trainer sends. What the user sets is stronger.

A fact that a trainer's own configuration decides is in no preset: none sets ``refit.transport`` (each trainer has several), and
those that may keep the KV cache of requests in flight leave ``refit.clear_cache`` open.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import dataclass, field
from typing import Any

from quirks_core.base.errors import UsageError, nearest

#: Names the trainer, where it is not found by what is imported.
VARIABLE = "MODEL_QUIRKS_TRAINER"


@dataclass(frozen=True, slots=True)
class Trainer:
    """A trainer, and what its weight updates do.

    Attributes:
        name: Its name, as the variable takes it.
        modules: Its top-level packages: whoever imports vLLM has imported one of them.
        facts: Values by slot.
        source: Repository, and version or commit, that they were read in.
        window: The versions of vLLM that it declares to support, as pip writes them; empty if it declares none.
        numerics: How it computes unless its own configuration sets otherwise, by slot; empty if that depends on the model. They
            are assumed of an engine in bfloat16 whose trainer nothing here can read.
        engine_defaults: Engine arguments that it passes with these values where its user set nothing: they count as left open.
        passes: Engine arguments that it passes at every start, by slot; empty if none is known.
        colocates: Those that it passes besides to an engine in its own process.
        float16: What its user sets to have both sides compute in float16; empty if it cannot.
    """

    name: str
    modules: tuple[str, ...]
    facts: Mapping[str, Any]
    source: str
    window: str = ""
    numerics: Mapping[str, Any] = field(default_factory=dict)
    engine_defaults: Mapping[str, Any] = field(default_factory=dict)
    passes: Mapping[str, Any] = field(default_factory=dict)
    colocates: Mapping[str, Any] = field(default_factory=dict)
    float16: str = ""


_PARAMETERS: Mapping[str, Any] = {"refit.scope": "parameters"}
_STATE_DICT: Mapping[str, Any] = {"refit.scope": "state_dict"}
_CLEARED: Mapping[str, Any] = {"refit.clear_cache": True}
#: Weights in float32 of which the products are those of bfloat16: autocast, and FSDP's param_dtype where there is one.
_UNDER_AUTOCAST: Mapping[str, Any] = {"train.dtype": "float32", "train.autocast": "bfloat16", "train.head_dtype": "model"}
_PROCESSED: Mapping[str, Any] = {"engine.logprobs_mode": "processed_logprobs"}
_ENGINE_IN_BFLOAT16: Mapping[str, Any] = {"dtype": "bfloat16"}

_TRAINERS = (
    Trainer(
        "trl",
        ("trl",),
        {**_PARAMETERS, **_CLEARED},
        "huggingface/trl 1.16.0",
        ">=0.22.0,<=0.31.0",
        _UNDER_AUTOCAST,
        passes=_PROCESSED,
        colocates={"engine.distributed_executor_backend": "external_launcher"},
        float16="GRPOConfig(fp16=True)",
    ),
    Trainer(
        "verl",
        ("verl",),
        {**_STATE_DICT, **_CLEARED},
        "verl-project/verl 1dda039b9c6311889a9c9a26040677e1254814f9",
        numerics=_UNDER_AUTOCAST,
        engine_defaults=_ENGINE_IN_BFLOAT16,
        float16="+actor_rollout_ref.actor.fsdp_config.mixed_precision.param_dtype=fp16 (FSDP reads no other key; Megatron: "
        "actor.megatron.dtype=float16) and actor_rollout_ref.rollout.dtype=float16",
    ),
    Trainer(
        "nemo-rl",
        ("nemo_rl",),
        _STATE_DICT,
        "NVIDIA-NeMo/RL 7ea279abfbeb698b092856d0dab61e7cf39bc909",
        numerics=_UNDER_AUTOCAST,
        engine_defaults=_ENGINE_IN_BFLOAT16,
        float16="policy.precision=float16, which recipes hand to the engine as well (Megatron: and optimizer.fp16=true; "
        "DTensor workers have no gradient scaler, so that small gradients may vanish)",
    ),
    Trainer(
        "openrlhf",
        ("openrlhf",),
        _PARAMETERS,
        "OpenRLHF/OpenRLHF 3c3be6234e0cb353e76bb8019947db9dfe99fca7",
        numerics={"train.dtype": "bfloat16", "train.autocast": "none", "train.head_dtype": "model"},
        engine_defaults=_ENGINE_IN_BFLOAT16,
        float16="--ds.param_dtype fp16 and MODEL_QUIRKS_SET=train.dtype=float16 (it starts every engine in bfloat16, and its "
        "first update fails if the two differ)",
    ),
    Trainer(
        "skyrl",
        ("skyrl", "skyrl_train"),
        _STATE_DICT,
        "NovaSky-AI/SkyRL a9564572eb8e91076be43c1bd5e4615e3de17265",
        numerics=_UNDER_AUTOCAST,
        engine_defaults=_ENGINE_IN_BFLOAT16,
    ),
    Trainer(
        "prime-rl",
        ("prime_rl",),
        {**_STATE_DICT, "train.backend": "fsdp2"},
        "PrimeIntellect-ai/prime-rl 559b44772e471d1538537b8805cc77f3824a5e64",
        numerics=_UNDER_AUTOCAST,
    ),
    Trainer(
        "ms-swift",
        ("swift",),
        {**_PARAMETERS, **_CLEARED},
        "modelscope/ms-swift 3602360a562313afbf2ef6065fdf61f271a2c5b9",
        engine_defaults=_ENGINE_IN_BFLOAT16,
        float16="--torch_dtype float16 with LoRA, DeepSpeed or FSDP (the scaler refuses full weights in float16 without them)",
    ),
    Trainer(
        "pipeline-rl",
        ("pipelinerl",),
        {**_PARAMETERS, "refit.clear_cache": False},
        "ServiceNow/PipelineRL 58d393458625ad63ed539f2dcd072c85700c557f",
        numerics={"train.dtype": "bfloat16", "train.autocast": "none", "train.head_dtype": "float32"},
        engine_defaults=_ENGINE_IN_BFLOAT16,
    ),
)

#: The trainers by name.
TRAINERS: Mapping[str, Trainer] = {trainer.name: trainer for trainer in _TRAINERS}
#: Libraries that others of the list build on: they count only if none of the others is imported.
_LIBRARIES = ("trl",)


def find(environ: Mapping[str, str], modules: Container[str]) -> Trainer | None:
    """Finds the trainer that starts an engine in this process: by our variable, or else by what is imported.

    Returns:
        The trainer; None if none is found, or what is imported fits several.

    Raises:
        UsageError: The variable names a trainer that is not known.
    """
    if name := environ.get(VARIABLE):
        return _named(name, f"{VARIABLE}={name!r}: no such trainer")
    imported = [trainer for trainer in _TRAINERS if any(module in modules for module in trainer.modules)]
    found = [trainer for trainer in imported if trainer.name not in _LIBRARIES] or imported
    return found[0] if len(found) == 1 else None


def numerics(name: str) -> Mapping[str, Any]:
    """Returns how a trainer computes by default, by slot.

    Raises:
        UsageError: There is no such trainer, or its defaults are not known here.
    """
    trainer = _named(name, f"there is no trainer {name!r}")
    if not trainer.numerics:
        known = ", ".join(trainer.name for trainer in _TRAINERS if trainer.numerics)
        raise UsageError(
            f"how {name} computes by default is unknown (known: {known}): set train.dtype (of its weights), train.autocast and "
            "train.head_dtype"
        )
    return trainer.numerics


def _named(name: str, problem: str) -> Trainer:
    if name not in TRAINERS:
        raise UsageError(f"{problem}{nearest(name, TRAINERS)} (known: {', '.join(TRAINERS)})")
    return TRAINERS[name]
