"""A rollout with weights that vLLM quantises: its logprobs are those of rounded weights, and a trainer's are not.

What happens: every importance ratio carries the rounding of weights and activations, also where the policy has not changed.
With ``quantization: fp8`` and a checkpoint in bfloat16, vLLM quantises what it loads. NeMo RL refuses FP8 rollouts unless the
loss corrects for this (``use_importance_sampling_correction``). With Qwen3-0.6B, PrimeIntellect-ai/prime-rl#1962 measured a
perplexity that is 2 % higher than in bfloat16.

What this changes: nothing; the plan advises. Quantised rollouts are faster and smaller, so they are a choice, and no mistake.
``fp8-kv-rollout`` gives the same advice for the KV cache.

When it can go: never; two programs that round differently differ.

Evidence: none of ours; advice changes nothing, so that no paired run can show it.
"""

from __future__ import annotations

from quirks_core import Advise, Affected, Kind, ModelFlag, Quirk, Severity, no, purpose, report, setting, unknown, yes
from quirks_plugins.conditions import quantized

_SLOT = "engine.quantization"

QUIRK = Quirk(
    id="quantized-rollout",
    title="Weights of a rollout are rounded as vLLM quantises them, and the trainer's are not",
    flag=ModelFlag.DTYPE,
    kind=Kind.RULE,
    match=purpose("rollout") & setting(_SLOT).is_set() & ~quantized,
    affected=Affected("vllm", introduced="0.26.0"),
    adjustments=Advise(
        f"{_SLOT}: logprobs differ from a trainer's, which does not round its weights so; leave it open, or correct for it in "
        "the trainer's loss (truncated importance sampling)"
    ),
    severity=Severity.WRONG_OUTPUT,
    references=[
        report("https://github.com/NVIDIA-NeMo/RL/pull/543"),
        report("https://github.com/PrimeIntellect-ai/prime-rl/pull/1962"),
    ],
    examples=[
        yes("qwen3", {_SLOT: "fp8"}, vllm="0.32.0", advises="correct for it in the trainer's loss"),
        yes("qwen3", {_SLOT: "mxfp8"}, vllm="0.33.0"),
        no("qwen3", vllm="0.32.0"),
        no("qwen3", {_SLOT: "fp8"}, vllm="0.32.0", purpose="serve"),
        no({"model_type": "qwen3", "quantization_config": {"quant_method": "fp8"}}, {_SLOT: "fp8"}, vllm="0.32.0"),
        unknown("qwen3", {_SLOT: "fp8"}),
    ],
)
