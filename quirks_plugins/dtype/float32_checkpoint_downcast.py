"""Rollouts of a float32 checkpoint: vLLM's ``dtype=auto`` computes in bfloat16, while the trainer may compute in float32.

What happens: a trainer that computes in float32 gets logprobs of rounded weights. On a tiny model they differ from the
trainer's own by between 0.02 and 0.05 nats on average; those of the same engine in float32 differ by 1e-5. vLLM's ``auto`` uses
the checkpoint's dtype, except for float32, which it replaces by the platform's preferred dtype (bfloat16 on CPUs and current
GPUs). Float32 doubles the memory, and many trainers compute in bfloat16 by autocast, so the engine follows only a trainer that
is known to compute in float32. If no dtype stands in ``config.json``, vLLM looks into the weight files, and this quirk does
not.

When it can go: when vLLM's ``auto`` keeps float32 for a float32 checkpoint.
"""

from quirks_core import Advise, Default, Kind, Quirk, Severity, StaticProbe, no, purpose, report, setting, typed, yes
from quirks_plugins.conditions import checkpoint_dtype, dtype_is_open, quantized
from quirks_plugins.kit import Lab, Outcome

# As typed: an engine that a trainer starts by itself may have no setting for the trainer's dtype.
_trains_in_another = (typed("train.dtype") & setting("train.dtype").differs_from("float32")) | (
    typed("train.autocast") & setting("train.autocast").one_of("bfloat16", "float16")
)
_FLOAT32 = {"model_type": "qwen3", "dtype": "float32"}
_TOLD = {"train.dtype": "float32"}

QUIRK = Quirk(
    id="float32-checkpoint-downcast",
    title="vLLM turns a float32 checkpoint into bfloat16, and its logprobs differ from a float32 trainer's",
    kind=Kind.RULE,
    match=purpose("rollout") & checkpoint_dtype("float32") & ~quantized & ~_trains_in_another,
    adjustments=[
        Default("engine.dtype", "float32", when=typed("train.dtype")),
        Advise(
            "the checkpoint is float32, and vLLM computes in a shorter dtype: if the trainer computes in float32, set "
            "train.dtype: float32, and the engine does so too, at twice the memory; else set train.dtype or train.autocast to "
            "what it computes in",
            when=~typed("train.dtype") & dtype_is_open,
        ),
    ],
    severity=Severity.WRONG_OUTPUT,
    references=report("vllm-project/vllm/pull/18751"),
    evidence=StaticProbe("vllm.config.model", r"if config_dtype == torch\.float32:\s+config_dtype = preferred_dtype"),
    examples=[
        yes(_FLOAT32, {**_TOLD, "engine.dtype": "bfloat16"}, gives={}),
        yes(_FLOAT32, advises="at twice the memory"),
        yes(_FLOAT32, {"engine.dtype": "bfloat16"}, gives={}),
        yes({"model_type": "qwen3", "dtype": None, "torch_dtype": "float32"}, _TOLD, gives={"engine.dtype": "float32"}),
        yes({"model_type": "gemma3", "text_config": {"dtype": "float32"}}, _TOLD, gives={"engine.dtype": "float32"}),
        no({**_FLOAT32, "quantization_config": {"quant_method": "fp8"}}),
        no({"model_type": "gemma3", "dtype": "bfloat16", "text_config": {"dtype": "float32"}}),
        no(_FLOAT32, {"train.dtype": "bfloat16"}),
        no(_FLOAT32, {"train.dtype": "float32", "train.autocast": "bfloat16"}),
        no(_FLOAT32, purpose="serve"),
        no("qwen3"),
    ],
    cost="twice the memory for weights and KV cache, and products at float32's rate",
)


async def scenario(lab: Lab) -> Outcome:
    """The logprobs of a rollout are those of the trainer, which has the same checkpoint in float32."""
    model = lab.checkpoint("qwen3")
    values = {"engine": {"load_format": "auto", "dtype": None}, "train": {"dtype": "float32"}}
    async with lab.worker(model, values) as worker:
        got = await lab.sample(worker)
    return lab.close_logprobs(got, lab.rescored(lab.trainer(model), got))
