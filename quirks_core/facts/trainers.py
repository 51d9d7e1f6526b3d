"""What trainers that build their own vLLM engines send at a weight update: presets of facts, by trainer.

Quirks about refits need to know whether a trainer sends the parameters alone or its whole state dict, and whether caches of
older weights are dropped. A trainer does not pass this to an engine that it starts itself; these presets do. Each was read in
the source that its `Trainer.source` names, and holds for what its `Trainer.holds_for` names. Facts of a preset count as typed:
nothing in the engine changes what a trainer sends. What the user sets is stronger.

A fact that a trainer's own configuration decides is in no preset: none sets ``refit.transport`` (each trainer has several), and
those that may keep the KV cache of requests in flight leave ``refit.clear_cache`` open.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
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
        holds_for: Where they hold.
        source: Repository, and version or commit, that they were read in.
        evidence: Files there, each with what it does.
        window: The versions of vLLM that it declares to support, as pip writes them; empty if it declares none.
        numerics: How it computes unless its own configuration sets otherwise, by slot; empty if that depends on the model. They
            are assumed of an engine in bfloat16 whose trainer nothing here can read.
        engine_defaults: Engine arguments that it passes with these values where its user set nothing: they count as left open.
        passes: Engine arguments that it passes at every start, by slot; empty if none is known.
        float16: What its user sets to have both sides compute in float16; empty if it cannot.
    """

    name: str
    modules: tuple[str, ...]
    facts: Mapping[str, Any]
    holds_for: str
    source: str
    evidence: tuple[str, ...]
    window: str = ""
    numerics: Mapping[str, Any] = field(default_factory=dict)
    engine_defaults: Mapping[str, Any] = field(default_factory=dict)
    passes: Mapping[str, Any] = field(default_factory=dict)
    float16: str = ""


_PARAMETERS: Mapping[str, Any] = MappingProxyType({"refit.scope": "parameters"})
_STATE_DICT: Mapping[str, Any] = MappingProxyType({"refit.scope": "state_dict"})
_CLEARED: Mapping[str, Any] = MappingProxyType({"refit.clear_cache": True})
#: Weights in float32 of which the products are those of bfloat16: autocast, and FSDP's param_dtype where there is one.
_UNDER_AUTOCAST: Mapping[str, Any] = MappingProxyType(
    {"train.dtype": "float32", "train.autocast": "bfloat16", "train.head_dtype": "model"}
)
_PROCESSED: Mapping[str, Any] = MappingProxyType({"engine.logprobs_mode": "processed_logprobs"})
_ENGINE_IN_BFLOAT16: Mapping[str, Any] = MappingProxyType({"dtype": "bfloat16"})

_TRAINERS = (
    Trainer(
        "trl",
        ("trl",),
        MappingProxyType({**_PARAMETERS, **_CLEARED}),
        "DeepSpeed, FSDP 1 and 2, one process; colocate and server mode. In 1.10 FSDP 2 still sent the state dict",
        "huggingface/trl 1.16.0",
        (
            "trl/generation/vllm_generation.py: every branch of _iter_named_params yields named_parameters()",
            "the same file: sync_weights ends with reset_prefix_cache, while no request runs",
            "the same file and trl/scripts/vllm_serve.py: both start the engine with logprobs_mode=processed_logprobs",
            "trl/import_utils.py: is_vllm_available warns outside of the window, and goes on",
            "trl/trainer/utils.py: create_model_from_path loads float32 unless model_init_kwargs has a dtype",
            "trl/trainer/base_config.py: bf16 is on unless fp16 is: accelerate computes under autocast",
            "trl/trainer/grpo_config.py: cast_lm_head_to_fp32 is off",
            "trl/generation/vllm_generation.py: the engine of colocate mode gets no dtype, so that the checkpoint's counts",
        ),
        ">=0.22.0,<=0.31.0",
        _UNDER_AUTOCAST,
        passes=_PROCESSED,
        float16="GRPOConfig(fp16=True)",
    ),
    Trainer(
        "verl",
        ("verl",),
        MappingProxyType({**_STATE_DICT, **_CLEARED}),
        "FSDP 1 and 2 (the default) and automodel; with Megatron set refit.scope=parameters",
        "verl-project/verl 1dda039b9c6311889a9c9a26040677e1254814f9",
        (
            "verl/workers/engine/fsdp/transformer_impl.py: get_per_tensor_param sends module.state_dict()",
            "verl/workers/rollout/vllm_rollout/utils.py: _update_weights loads the parameters and copies the buffers",
            "verl/workers/rollout/vllm_rollout/vllm_rollout.py: update_weights ends with clear_kv_cache",
            "verl/workers/rollout/vllm_rollout/vllm_async_server.py: abort_all_requests leaves no request in flight",
            "verl/workers/engine/megatron/transformer_impl.py: get_per_tensor_param exports what the bridge knows",
        ),
        numerics=_UNDER_AUTOCAST,
        engine_defaults=_ENGINE_IN_BFLOAT16,
        float16="+actor_rollout_ref.actor.fsdp_config.mixed_precision.param_dtype=fp16 (FSDP reads no other key; Megatron: "
        "actor.megatron.dtype=float16) and actor_rollout_ref.rollout.dtype=float16",
    ),
    Trainer(
        "nemo-rl",
        ("nemo_rl",),
        _STATE_DICT,
        "DTensor workers, both versions; with Megatron set refit.scope=parameters. Whether caches are dropped depends on "
        "grpo.async_grpo.in_flight_weight_updates and recompute_kv_cache_after_weight_updates",
        "NVIDIA-NeMo/RL 7ea279abfbeb698b092856d0dab61e7cf39bc909",
        (
            "nemo_rl/models/policy/workers/dtensor_policy_worker_v2.py: dtensor_params_generator sends model.state_dict()",
            "nemo_rl/models/policy/workers/dtensor_policy_worker.py: the same",
            "nemo_rl/models/policy/workers/megatron_policy_worker.py: sends what megatron_bridge.export_hf_weights yields",
            "nemo_rl/models/generation/vllm/vllm_worker.py: sleep resets the prefix cache",
        ),
        numerics=_UNDER_AUTOCAST,
        engine_defaults=_ENGINE_IN_BFLOAT16,
        float16="policy.precision=float16, which recipes hand to the engine as well (Megatron: and optimizer.fp16=true; "
        "DTensor workers have no gradient scaler, so that small gradients may vanish)",
    ),
    Trainer(
        "openrlhf",
        ("openrlhf",),
        _PARAMETERS,
        "DeepSpeed, its only backend. Whether caches are dropped depends on train.partial_rollout_enable, which keeps requests",
        "OpenRLHF/OpenRLHF 3c3be6234e0cb353e76bb8019947db9dfe99fca7",
        (
            "openrlhf/trainer/ray/ppo_actor.py: broadcast_to_vllm sends model.named_parameters() after reset_prefix_cache",
            "openrlhf/trainer/ray/vllm_engine.py: pause_generation keeps requests and their cache",
        ),
        numerics=MappingProxyType({"train.dtype": "bfloat16", "train.autocast": "none", "train.head_dtype": "model"}),
        engine_defaults=_ENGINE_IN_BFLOAT16,
        float16="--ds.param_dtype fp16 and MODEL_QUIRKS_SET=train.dtype=float16 (it starts every engine in bfloat16, and its "
        "first update fails if the two differ)",
    ),
    Trainer(
        "skyrl",
        ("skyrl", "skyrl_train"),
        _STATE_DICT,
        "FSDP (the default); with Megatron set refit.scope=parameters. Whether caches are dropped depends on "
        "trainer.fully_async.clear_kv_cache_on_weight_sync",
        "NovaSky-AI/SkyRL a9564572eb8e91076be43c1bd5e4615e3de17265",
        (
            "skyrl/backends/skyrl_train/workers/fsdp/fsdp_worker.py: extract_weights sends model.state_dict()",
            "the same file: broadcast_to_inference_engines resets the prefix cache, unless fully_async says otherwise",
            "skyrl/backends/skyrl_train/workers/megatron/megatron_worker.py: sends what bridge.export_hf_weights yields",
        ),
        numerics=_UNDER_AUTOCAST,
        engine_defaults=_ENGINE_IN_BFLOAT16,
    ),
    Trainer(
        "prime-rl",
        ("prime_rl",),
        MappingProxyType({**_STATE_DICT, "train.backend": "fsdp2"}),
        "all three transports (filesystem, nccl, nixl). Requests in flight keep their cache; prefixes are not shared between "
        "weights, as each policy version has a cache salt of its own",
        "PrimeIntellect-ai/prime-rl 559b44772e471d1538537b8805cc77f3824a5e64",
        (
            "src/prime_rl/utils/weights.py: gather_weights_parallel collects model.state_dict()",
            "src/prime_rl/transports/weights/nccl.py and nixl/nixl.py: send model.state_dict()",
            "src/prime_rl/inference/vllm/server.py: pause keeps requests and cache",
            "src/prime_rl/orchestrator/dispatcher.py: cache_salt is the policy version",
        ),
        numerics=_UNDER_AUTOCAST,
    ),
    Trainer(
        "ms-swift",
        ("swift",),
        MappingProxyType({**_PARAMETERS, **_CLEARED}),
        "DeepSpeed, FSDP 2 and one process; colocate and server mode; with Megatron the bridge's export",
        "modelscope/ms-swift 3602360a562313afbf2ef6065fdf61f271a2c5b9",
        (
            "swift/rlhf_trainers/rollout_mixin.py: _collect_state_dict_for_vllm sends what named_parameters() names",
            "the same file: _move_model_to_vllm waits for requests in flight, and ends with _reset_vllm_cache",
            "swift/megatron/trainers/rollout_mixin.py: _export_and_load_weights sends what bridge.export_weights yields",
        ),
        engine_defaults=_ENGINE_IN_BFLOAT16,
        float16="--torch_dtype float16 with LoRA, DeepSpeed or FSDP (the scaler refuses full weights in float16 without them)",
    ),
    Trainer(
        "pipeline-rl",
        ("pipelinerl",),
        MappingProxyType({**_PARAMETERS, "refit.clear_cache": False}),
        "DeepSpeed and FSDP: tensors are loaded one by one into the running model; requests in flight and prefixes keep their "
        "cache",
        "ServiceNow/PipelineRL 58d393458625ad63ed539f2dcd072c85700c557f",
        (
            "pipelinerl/finetune_loop.py: send_weight_update broadcasts named_parameters()",
            "pipelinerl/vllm1.py: receive_weight_update pauses with mode=keep, clear_cache=False, and calls model.load_weights",
            "pipelinerl/launch.py: --quantization bf16_last_layer_fp32, a head in float32 on both sides",
            "conf/finetune/base.yaml: load_as_bf16; conf/base.yaml: --dtype bfloat16; there is no float16",
        ),
        numerics=MappingProxyType({"train.dtype": "bfloat16", "train.autocast": "none", "train.head_dtype": "float32"}),
        engine_defaults=_ENGINE_IN_BFLOAT16,
    ),
)

#: The trainers by name.
TRAINERS: Mapping[str, Trainer] = MappingProxyType({trainer.name: trainer for trainer in _TRAINERS})
#: Libraries that others of the list build on: they count only if none of the others is imported.
_LIBRARIES = ("trl",)


def find(environ: Mapping[str, str], modules: Container[str]) -> Trainer | None:
    """Finds the trainer that starts an engine in this process.

    Args:
        environ: The process environment; its variable is stronger than what is imported.
        modules: Names of imported modules, as `sys.modules` has them.

    Returns:
        The trainer; None if none is found, or what is imported fits several.

    Raises:
        UsageError: The variable names a trainer that is not known.
    """
    if name := environ.get(VARIABLE):
        if name not in TRAINERS:
            raise UsageError(f"{VARIABLE}={name!r}: no such trainer{nearest(name, TRAINERS)} (known: {', '.join(TRAINERS)})")
        return TRAINERS[name]
    imported = [trainer for trainer in _TRAINERS if any(module in modules for module in trainer.modules)]
    found = [trainer for trainer in imported if trainer.name not in _LIBRARIES] or imported
    return found[0] if len(found) == 1 else None


def numerics(name: str) -> Mapping[str, Any]:
    """Returns how a trainer computes by default, by slot.

    Raises:
        UsageError: There is no such trainer, or its defaults are not known here.
    """
    if name not in TRAINERS:
        raise UsageError(f"there is no trainer {name!r}{nearest(name, TRAINERS)} (known: {', '.join(TRAINERS)})")
    if not TRAINERS[name].numerics:
        known = ", ".join(trainer.name for trainer in _TRAINERS if trainer.numerics)
        raise UsageError(
            f"how {name} computes by default is unknown (known: {known}): set train.dtype (of its weights), train.autocast and "
            "train.head_dtype"
        )
    return TRAINERS[name].numerics
