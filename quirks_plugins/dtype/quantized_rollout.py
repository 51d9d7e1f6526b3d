"""A rollout with quantised weights: its logprobs are those of rounded weights, and a trainer's are not.

What happens: every importance ratio carries the rounding of weights and activations, also where the policy has not changed.
NeMo RL refuses FP8 rollouts unless the loss corrects for this. With Qwen3-0.6B, PrimeIntellect-ai/prime-rl#1962 measured a
perplexity that is 2 % higher than in bfloat16. Quantised rollouts are faster and smaller, so they are a choice, and no mistake.
A trainer that computes with the checkpoint's own rounded weights (QLoRA) can ignore the note.

When it can go: never; two programs that round differently differ.

Evidence: none of ours; advice changes nothing, so that no paired run can show it.
"""

from quirks_core import Advise, Affected, Kind, Quirk, Severity, no, purpose, report, setting, unknown, yes
from quirks_plugins.conditions import quantized

_SLOT = "engine.quantization"
_CORRECT = "correct for it in the trainer's loss (truncated importance sampling)"
_AWQ = {"model_type": "qwen3", "quantization_config": {"quant_method": "awq"}}

QUIRK = Quirk(
    id="quantized-rollout",
    title="Weights of a rollout are quantised, and the trainer's are not",
    kind=Kind.RULE,
    match=purpose("rollout") & (quantized | setting(_SLOT).is_set()),
    affected=Affected("vllm", introduced="0.26.0"),
    adjustments=[
        Advise(
            f"{_SLOT}: logprobs differ from a trainer's, which does not round its weights so; leave it open, or {_CORRECT}",
            when=~quantized,
        ),
        Advise(
            "the checkpoint is quantised: logprobs differ from those of a trainer that does not round its weights so; take "
            f"another checkpoint, or {_CORRECT}",
            when=quantized,
        ),
    ],
    severity=Severity.WRONG_OUTPUT,
    references=[report("NVIDIA-NeMo/RL/pull/543"), report("PrimeIntellect-ai/prime-rl/pull/1962")],
    examples=[
        yes("qwen3", {_SLOT: "fp8"}, vllm="0.32.0", advises="correct for it in the trainer's loss"),
        no("qwen3", {_SLOT: "fp8"}, vllm="0.32.0", purpose="serve"),
        yes(_AWQ, vllm="0.32.0", advises="the checkpoint is quantised"),
        no(_AWQ, {"engine.hf_overrides": {"quantization_config": {}}}, vllm="0.32.0"),
        unknown("qwen3", {_SLOT: "fp8"}),
    ],
)
