"""Rollouts in bfloat16 or float16 for a trainer that computes in float32: the logprobs differ.

What happens: a trainer loads a bfloat16 checkpoint and computes in float32. Its first weights are the engine's, exactly; after
one update they are not representable in bfloat16 any more, and a refit rounds them. The engine also computes in bfloat16. On a
tiny model the logprobs differ from the trainer's own by up to 0.13 nats; those of an engine in float32 by 7e-6.

What this changes: nothing; the plan advises ``engine.dtype: float32`` and names the cost. It is no default, because the memory
may not be there. The quirk does not guess: it concerns only runs whose ``train.dtype`` was set to float32, and engines whose
dtype is known, from ``engine.dtype`` or from the checkpoint's ``config.json``. ``train.dtype`` is the dtype of the weights;
trainers such as TRL compute in bfloat16 by autocast unless they are configured otherwise. If ``train.autocast`` was not set,
the advice is to set it. A trainer with ``train.autocast: bfloat16`` rounds as much as the engine does, and an engine in float32
alone removes less than half of the difference (docs/why.md; ``quirks parity explain`` measures it). If the checkpoint itself
declares float32, ``float32-checkpoint-downcast`` sets the dtype.

When it can go: never; two programs that round differently differ.

Evidence: a test on the real engine, with a bfloat16 checkpoint that was updated once, in both dtypes
(tests/engine/test_float32_trainer.py). Advice changes nothing, so that no paired run can show it.
"""

from __future__ import annotations

from quirks_core import Advise, Kind, ModelFlag, Quirk, Severity, no, purpose, report, setting, typed, yes
from quirks_plugins.conditions import half, quantized, under_autocast

_BFLOAT16 = {"model_type": "qwen3", "dtype": "bfloat16"}
_FLOAT32 = {"train.dtype": "float32"}
_says_autocast = typed("train.autocast")
_SET = "set engine.dtype=float32, which costs twice the memory for weights and KV cache, and products at float32's rate"

QUIRK = Quirk(
    id="float32-trainer-rollout",
    title="A rollout in bfloat16 or float16 has other logprobs than its trainer in float32",
    flag=ModelFlag.DTYPE,
    kind=Kind.RULE,
    match=purpose("rollout")
    & typed("train.dtype")
    & setting("train.dtype").one_of("float32")
    & ~under_autocast
    & ~quantized
    & half,
    adjustments=[
        Advise(
            f"the trainer computes in float32 and the engine does not, so their logprobs differ: {_SET}", when=_says_autocast
        ),
        Advise(
            "the trainer's weights are float32, and whether it computes in float32 is unknown: under autocast (TRL's default) "
            f"set train.autocast=bfloat16; without it set train.autocast=null, and {_SET}",
            when=~_says_autocast,
        ),
    ],
    severity=Severity.WRONG_OUTPUT,
    references=report("https://github.com/vllm-project/vllm/issues/9729"),
    examples=[
        yes(_BFLOAT16, _FLOAT32, advises="whether it computes in float32 is unknown"),
        yes(_BFLOAT16, {**_FLOAT32, "engine.dtype": "half"}),
        yes(_BFLOAT16, {**_FLOAT32, "engine.dtype": "auto"}),
        yes({"model_type": "qwen3", "torch_dtype": "float16"}, _FLOAT32),
        yes({"model_type": "qwen3", "dtype": "float32"}, {**_FLOAT32, "engine.dtype": "bfloat16"}),
        no(_BFLOAT16, {**_FLOAT32, "engine.dtype": "float32"}),
        no(_BFLOAT16, {"train.dtype": "bfloat16"}),
        no(_BFLOAT16, {**_FLOAT32, "train.autocast": "bfloat16"}),
        no(_BFLOAT16),
        no({"model_type": "qwen3", "dtype": "float32"}, _FLOAT32),
        no({**_BFLOAT16, "quantization_config": {"quant_method": "fp8"}}, _FLOAT32),
        no("qwen3", _FLOAT32),
        no(_BFLOAT16, _FLOAT32, purpose="serve"),
    ],
)
