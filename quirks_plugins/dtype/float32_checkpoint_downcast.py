"""Rollouts of a float32 checkpoint: vLLM's ``dtype=auto`` computes in bfloat16, while the trainer computes in float32.

What happens: a trainer that computes in float32 gets logprobs of rounded weights. On a tiny model they differ from the
trainer's own by 0.02 to 0.05 nats on average; those of the same engine in float32 differ by 1e-5. vLLM's ``auto`` uses the
checkpoint's dtype, except for float32, which it replaces by the platform's preferred dtype: bfloat16 on CPUs and current GPUs
(float16 before vLLM 0.9.1). vLLM logs that at the level INFO. Trainers that build their engine without a dtype, as TRL's
colocate mode does, give no way to set it.

What this changes: the default of ``engine.dtype`` becomes float32 for a checkpoint whose ``config.json`` says float32. The
quirk reads it where vLLM does: ``dtype`` (or its older name ``torch_dtype``), then that of ``text_config``. The quirk does not
change three kinds of runs: a checkpoint that names no dtype there (vLLM then looks into the weight files, this quirk does
not), a quantized checkpoint, and a run whose trainer is known to compute in another dtype. Set ``train.autocast=bfloat16`` for
a trainer that computes in bfloat16 by autocast.

When it can go: when vLLM's ``auto`` keeps float32 for a float32 checkpoint.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from quirks_core import Default, Fact, Kind, ModelFlag, Quirk, Severity, StaticProbe, no, purpose, report, setting, typed, yes
from quirks_plugins.conditions import checkpoint_dtype, under_autocast

if TYPE_CHECKING:
    from worker.lab.kit.lab import Lab, Outcome

_quantized = Fact("model.config.quantization_config").is_set()
# As typed: in an engine that a trainer starts by itself, nobody may have said what the trainer computes in.
_trains_in_another = (typed("train.dtype") & setting("train.dtype").differs_from("float32")) | under_autocast

QUIRK = Quirk(
    id="float32-checkpoint-downcast",
    title="vLLM turns a float32 checkpoint into bfloat16, and its logprobs differ from a float32 trainer's",
    flag=ModelFlag.DTYPE,
    kind=Kind.RULE,
    match=purpose("rollout") & checkpoint_dtype("float32") & ~_quantized & ~_trains_in_another,
    adjustments=Default("engine.dtype", "float32"),
    severity=Severity.WRONG_OUTPUT,
    references=report("https://github.com/vllm-project/vllm/pull/18751"),
    evidence=StaticProbe(
        "vllm.config.model",
        r"if config_dtype == torch\.float32:\s+config_dtype = preferred_dtype",
        found_means_affected=True,
    ),
    examples=[
        yes({"model_type": "qwen3", "dtype": "float32"}, gives={"engine.dtype": "float32"}),
        yes({"model_type": "qwen3", "dtype": "float32"}, defaults={"engine.dtype": "auto"}, gives={"engine.dtype": "float32"}),
        yes({"model_type": "qwen3", "dtype": "float32"}, {"engine.dtype": "bfloat16"}, gives={}),
        yes({"model_type": "qwen3", "dtype": None, "torch_dtype": "float32"}),
        yes({"model_type": "gemma3", "text_config": {"dtype": "float32"}}),
        yes({"model_type": "qwen3", "dtype": "float32"}, {"train.dtype": "float32"}),
        no({"model_type": "qwen3", "dtype": "bfloat16", "torch_dtype": "float32"}),
        no({"model_type": "qwen3", "dtype": "float16"}),
        no({"model_type": "qwen3", "dtype": "float32", "quantization_config": {"quant_method": "fp8"}}),
        no({"model_type": "gemma3", "dtype": "bfloat16", "text_config": {"dtype": "float32"}}),
        no({"model_type": "qwen3", "dtype": "float32"}, {"train.dtype": "bfloat16"}),
        no({"model_type": "qwen3", "dtype": "float32"}, {"train.dtype": "float32", "train.autocast": "bfloat16"}),
        no({"model_type": "qwen3", "dtype": "float32"}, purpose="serve"),
        no("qwen3"),
    ],
    cost="twice the memory for weights and KV cache, and products at float32's rate",
)


async def scenario(lab: Lab) -> Outcome:
    """The logprobs of a rollout are those of the trainer, which has the same checkpoint in float32."""
    model = lab.checkpoint("qwen3")
    async with lab.worker(model, {"engine": {"load_format": "auto", "dtype": None}}) as worker:
        got = await lab.sample(worker)
    return lab.close_logprobs(got, lab.rescored(lab.trainer(model), got))
