"""``VLLM_ALLOW_LONG_MAX_MODEL_LEN=1``: sequences run past the rotations that vLLM computed.

What happens: a sequence longer than the model supports ends the engine with an illegal memory access or a device-side assert,
or it goes on with NaN, or with the memory behind the table of rotations (both seen on the CPU platform). vLLM refuses a
``max_model_len`` above the model's length, and its message names this variable. With it the engine accepts sequences that long,
but the table keeps ``max_position_embeddings`` rows. Many images and launch scripts set the variable permanently. To extend a
model, set ``rope_parameters`` in ``engine.hf_overrides``; for one that extrapolates without such a change, set
``max_position_embeddings`` there.

When it can go: when vLLM makes the table as long as ``max_model_len``, or refuses the length (vllm-project/vllm#44286 was
closed without a fix).
"""

from quirks_core import Kind, Quirk, Require, Severity, StaticProbe, described, no, report, unknown, yes
from quirks_core.declaration.match import Fact, environment, model_type, setting
from quirks_plugins.kit import Lab, Outcome
from quirks_plugins.model_config.evidence import edited, refused_or_close
from quirks_plugins.model_config.rope import num_positions, text_only

#: They have the key, and no rotary embedding.
_without_rope = model_type("nemotron_h", "jamba", "mamba", "mamba2")
_ALLOWED = {"VLLM_ALLOW_LONG_MAX_MODEL_LEN": "1"}
_LLAMA = {"model_type": "llama", "max_position_embeddings": 8192}

QUIRK = Quirk(
    id="long-length-environment",
    title="VLLM_ALLOW_LONG_MAX_MODEL_LEN lets sequences run past the table of rotations",
    kind=Kind.RULE,
    match=described(
        environment("VLLM_ALLOW_LONG_MAX_MODEL_LEN").matches(r"^\s*(1|true)\s*$"),
        "`VLLM_ALLOW_LONG_MAX_MODEL_LEN` is on",
        "`VLLM_ALLOW_LONG_MAX_MODEL_LEN` is off",
    )
    & setting("engine.max_model_len").above(Fact("model.config.max_position_embeddings"))
    & text_only
    & ~_without_rope,
    adjustments=Require(
        "engine.max_model_len",
        at_most=num_positions,
        reason="VLLM_ALLOW_LONG_MAX_MODEL_LEN switches the check off, and vLLM computes no rotations beyond this length",
        remedy="set engine.max_model_len to at most that; to extend the model, set rope_parameters in engine.hf_overrides",
    ),
    severity=Severity.WRONG_OUTPUT,
    references=[
        report("vllm-project/vllm#17924"),
        report("vllm-project/vllm/pull/44286"),
        report("vllm-project/vllm/pull/20904"),
    ],
    evidence=StaticProbe("vllm.config.model", r"if envs\.VLLM_ALLOW_LONG_MAX_MODEL_LEN:\s+logger\.warning"),
    examples=[
        yes(_LLAMA, {"engine.max_model_len": 16384}, env=_ALLOWED, refuses="engine.max_model_len"),
        no(_LLAMA, {"engine.max_model_len": 16384}),
        no(_LLAMA, {"engine.max_model_len": 8192}, env=_ALLOWED),
        no({**_LLAMA, "model_type": "nemotron_h"}, {"engine.max_model_len": 16384}, env=_ALLOWED),
        unknown({"max_position_embeddings": 8192}, {"engine.max_model_len": 16384}, env=_ALLOWED),
    ],
)


async def scenario(lab: Lab) -> Outcome:
    """Every token that the engine generates has the trainer's logprob, however many are requested."""
    model = edited(lab, "llama", "short", {"max_position_embeddings": 48})
    return await refused_or_close(lab, model, {"max_model_len": 128}, env=_ALLOWED)
