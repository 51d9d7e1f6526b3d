"""A rollout and its trainer that round differently have other logprobs; float16 on both sides differs least at no cost.

What happens: bfloat16 has 8 significant bits, float16 has 11. With SmolLM2-135M on an H200 (vLLM 0.33, TRL 1.16) the logprobs
of an engine and a trainer in bfloat16, TRL's defaults, differ by 0.041 nats on average, with float16 on both sides by 0.005,
at the same memory and speed, and with float32 on both sides by 0.002. After 40 steps of GRPO on a held-out task the reward was
0.55 (four seeds: 0.53 to 0.57), 0.73 (0.73 to 0.74) and 0.71 (0.63 to 0.75). An engine in float16 beside a trainer that stays
in bfloat16 is worse than both in bfloat16 if all weights are trained: the difference grows to 0.19 (docs/why.md).

Models that vLLM refuses to load in float16 (Gemma-2 and 3, GLM-4, until 0.26 PLaMo-2), the rest of the Gemma family, whose
activations were not measured, and checkpoints with weights beyond 65 504 are never advised float16.

When it can go: never; two programs that round differently differ.

Evidence: tests on the real engine (tests/engine/test_rollout_precision.py), and the measurements above (docs/why.md). Advice
changes nothing, so that no paired run can show it; ``quirks parity explain`` measures the user's own model.
"""

import re

from quirks_core import Advise, Default, Kind, Quirk, Refuse, RunContext, Severity, no, report, yes
from quirks_core.declaration.match import Fact, purpose, setting, typed
from quirks_core.facts.trainers import TRAINERS
from quirks_plugins.conditions import ENGINE_COMPUTES, TRAINER_COMPUTES, checkpoint_dtype, dtype_is_open, quantized

#: Mean difference of logprobs by what trainer and engine compute in, in nats: SmolLM2-135M, H200, temperature 1.
_NATS = {
    ("bfloat16", "bfloat16"): "0.041",
    ("bfloat16", "float16"): "0.027",
    ("bfloat16", "float32"): "0.027",
    ("float16", "bfloat16"): "0.034",
    ("float16", "float32"): "0.004",
    ("float32", "bfloat16"): "0.033",
    ("float32", "float16"): "0.004",
}
_ANY_TRAINER = "mixed precision in float16 with weights in float32, and train.autocast=float16 here"
#: `float32-checkpoint-downcast` makes such an engine float32.
_becomes_float32 = dtype_is_open & checkpoint_dtype("float32")
_NO_FLOAT16 = r"^(gemma|paligemma|glm4$|plamo2$)"
#: The share of weights that float16 may make 0; of normally distributed ones it is about a millionth.
_MAY_VANISH = 0.001
#: A trainer that computes in bfloat16 alone has nothing to gain but from an engine that does so, too.
_FIXED = tuple(name for name, trainer in TRAINERS.items() if not trainer.float16)
_only_bfloat16 = typed("train.framework") & setting("train.framework").one_of(*_FIXED)
_differ = (
    (TRAINER_COMPUTES.one_of("bfloat16") & ~_only_bfloat16)
    | (_only_bfloat16 & ENGINE_COMPUTES.one_of("float16"))
    | (TRAINER_COMPUTES.one_of("float16") & ENGINE_COMPUTES.one_of("bfloat16", "float32"))
    | (TRAINER_COMPUTES.one_of("float32") & ENGINE_COMPUTES.one_of("bfloat16", "float16") & ~_becomes_float32)
)
_follows = TRAINER_COMPUTES.one_of("float16") & dtype_is_open & ~Fact("model.config.model_type").matches(_NO_FLOAT16)
#: accelerate's scaler divides the gradients of the weights themselves; on a CPU it has none.
_cannot_scale = (
    typed("train.trainable_dtype")
    & setting("train.trainable_dtype").one_of("float16", "bfloat16")
    & setting("train.autocast").one_of("float16")
    & typed("train.framework")
    & setting("train.framework").one_of("trl", "ms-swift")
)


def _advice(run: RunContext) -> str:
    trainer, engine = run.fact("train.computes_in"), run.fact("engine.computes_in") or "its default"
    source = run.sources.get("train.autocast") or run.sources.get("train.dtype")
    text = f"the trainer computes in {trainer}{f' ({source})' if source else ''} and this engine in {engine}: logprobs differ"
    if nats := _NATS.get((trainer, engine)):
        text += f" by {nats} nats"
    if (trainer, engine) == ("bfloat16", "float16"):
        text += ", and by 0.19 later in training of all weights, more than with both in bfloat16"
    return f"{text}; {_remedy(run, trainer)} (SmolLM2-135M on an H200; 'quirks parity explain --model …' measures yours)"


def _remedy(run: RunContext, trainer: str) -> str:
    framework = TRAINERS.get(run.fact("train.framework"))
    if framework is not None and not framework.float16:
        return f"by 0.041 with both in bfloat16, and {framework.name} computes in nothing else: leave engine.dtype open"
    also = "" if trainer == "float32" else ", and the trainer to float32"
    float32 = f"by 0.002 with float32 on both sides, at twice the memory: set engine.dtype=float32{also}"
    if why := _why_not_float16(run):
        heads = "by a third less with both heads in float32: set engine.head_dtype=float32, and the trainer's; "
        return f"{heads if trainer == 'bfloat16' else ''}{float32}; not float16, because {why}"
    if trainer == "float16":
        return "by 0.005 with float16 on both sides: leave engine.dtype open, and the engine follows"
    words = framework.float16 if framework is not None else _ANY_TRAINER
    weights = run.settings.get("train.trainable_dtype") or run.settings.get("train.dtype")
    is_short = weights in ("bfloat16", "float16")
    price = "at the same speed, with weights in float32 (twice their memory)" if is_short else "at the same memory and speed"
    gain = f"{price}, and the reward after 40 steps of GRPO was 0.73 instead of 0.55"
    equal = f"{float32}; " if trainer == "float32" else ""
    return f"{equal}by 0.005 with float16 on both sides, {gain}: set {words}"


def _why_not_float16(run: RunContext) -> str:
    """Returns why float16 is not advised; empty if nothing speaks against it, as far as is known."""
    kind, beyond, lost = (
        run.fact(f"model.{name}") for name in ("config.model_type", "weights_beyond_float16", "weights_below_float16")
    )
    if re.match(_NO_FLOAT16, str(kind)):
        return f"{kind} overflows it, or was not measured in it"
    if isinstance(beyond, int) and beyond:
        return f"{beyond} weights of the checkpoint are beyond 65 504"
    return f"{lost:.1%} of the checkpoint's weights would be 0" if isinstance(lost, float) and lost > _MAY_VANISH else ""


_TRL = "and the reward after 40 steps of GRPO was 0.73 instead of 0.55: set GRPOConfig(fp16=True)"
_BFLOAT16 = {"model_type": "qwen3", "dtype": "bfloat16"}
_GEMMA = {"model_type": "gemma3_text", "dtype": "bfloat16"}
_AUTOCAST = {"train.dtype": "float32", "train.autocast": "bfloat16"}
_HALF = {"train.dtype": "float32", "train.autocast": "float16"}
_FLOAT32 = {"train.dtype": "float32", "train.autocast": "none"}
#: The base is float16, and the adapter that is trained is not.
_LORA = {**_HALF, "train.dtype": "float16", "train.trainable_dtype": "float32", "train.framework": "trl"}

QUIRK = Quirk(
    id="rollout-precision",
    title="A rollout and its trainer that round differently have other logprobs",
    kind=Kind.RULE,
    match=purpose("rollout") & ~quantized & (_differ | _follows | _cannot_scale),
    adjustments=[
        Default("engine.dtype", "float16", when=_follows, reason="the trainer computes in float16"),
        Advise(_advice, when=_differ & ~_follows),
        Refuse(
            "the gradient scaler of float16 cannot divide gradients of weights in 16 bits (torch: 'Attempting to unscale FP16 "
            "gradients', and on GPUs 'not implemented for BFloat16')",
            "load the weights in float32 (train.trainable_dtype), as TRL does unless model_init_kwargs says otherwise",
            when=_cannot_scale,
        ),
    ],
    severity=Severity.WRONG_OUTPUT,
    references=[
        report("https://arxiv.org/abs/2510.26788"),
        report("verl-project/verl/pull/4036"),
        report("huggingface/trl/pull/6774"),
        report("vllm-project/vllm#9729"),
    ],
    examples=[
        yes(_BFLOAT16, {**_AUTOCAST, "train.framework": "trl"}, advises=f"at the same memory and speed, {_TRL}"),
        yes(_BFLOAT16, {"train.dtype": "bfloat16", "train.autocast": "none"}, advises="with weights in float32 (twice"),
        yes(_BFLOAT16, _HALF, defaults={"engine.dtype": "auto"}, gives={"engine.dtype": "float16"}),
        yes(_BFLOAT16, {**_HALF, "engine.dtype": "bfloat16"}, gives={}, advises="leave engine.dtype open"),
        yes(_GEMMA, _AUTOCAST, advises="by a third less with both heads in float32"),
        yes(_GEMMA, _HALF, gives={}, advises="not float16, because gemma3_text"),
        yes(_BFLOAT16, {**_LORA, "engine.dtype": "float16", "train.trainable_dtype": "float16"}, refuses="scaler"),
        no(_BFLOAT16, {**_LORA, "engine.dtype": "float16"}),
        yes("qwen3", _HALF, gives={"engine.dtype": "float16"}),
        no({"model_type": "qwen3", "dtype": "float32"}, _FLOAT32),
        no({**_BFLOAT16, "quantization_config": {"quant_method": "fp8"}}, _AUTOCAST),
        no(_BFLOAT16, _AUTOCAST, purpose="serve"),
        no("qwen3", _FLOAT32),
    ],
)
