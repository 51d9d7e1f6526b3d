"""vLLM keeps the recurrent state of Qwen3-Next, OLMo-Hybrid and most Mamba-2 models in the model's dtype.

What happens: logprobs differ from the trainer's, and more so the longer a sample is. ``mamba_ssm_cache_dtype: auto`` stores the
state in the model's dtype, which rounds it at every token; a trainer's is float32. vLLM itself takes float32 for Nemotron-H
("the only one known to have no accuracy issues"), and what ``config.json`` declares for Qwen3.5. For the models below it does
neither; vllm-project/vllm#34489 says that Qwen3-Next should be started with float32. Engines in float16 are left alone, because
a float32 state overflows there (vllm-project/vllm#54308).

When it can go: when vLLM's default for these models is float32.
"""

from quirks_core import Affected, Default, Kind, Quirk, Severity, StaticProbe, no, report, unknown, yes
from quirks_core.declaration.match import model_type, platform, purpose, setting
from quirks_plugins.conditions import checkpoint_dtype, dtype_is_open

_SLOT = "engine.mamba_ssm_cache_dtype"
_NEXT = {"model_type": "qwen3_next", "dtype": "bfloat16"}

QUIRK = Quirk(
    id="recurrent-state-float32",
    title="Recurrent states of Qwen3-Next and Mamba-2 models are rounded to bfloat16 at every token, and not in the trainer",
    kind=Kind.RULE,
    match=(
        model_type("falcon_h1", "granitemoehybrid", "mamba2", "olmo_hybrid", "qwen3_next", "zamba2")
        & purpose("rollout")
        & platform("cuda")
        & (setting("engine.dtype").one_of("bfloat16") | (dtype_is_open & checkpoint_dtype("bfloat16")))
    ),
    affected=Affected("vllm", introduced="0.26.0"),
    adjustments=Default(_SLOT, "float32", reason="trainers keep the recurrent state in float32"),
    severity=Severity.WRONG_OUTPUT,
    references=[
        report("vllm-project/vllm/pull/34489"),
        report("vllm-project/vllm/pull/39032"),
        report("vllm-project/vllm#42259"),
        report("NVIDIA/TensorRT-LLM/pull/17415"),
    ],
    evidence=StaticProbe(
        "vllm.model_executor.layers.mamba.mamba_utils",
        r'if mamba_ssm_cache_dtype == "auto":\s+temporal_state_dtype = conv_state_dtype',
    ),
    examples=[
        yes(_NEXT, {_SLOT: "bfloat16"}, vllm="0.32.0", platform="cuda", gives={}),
        yes("falcon_h1", {"engine.dtype": "bfloat16"}, vllm="0.26.0", platform="cuda", gives={_SLOT: "float32"}),
        no(_NEXT, {"engine.dtype": "float32"}, vllm="0.32.0", platform="cuda"),
        no(_NEXT, vllm="0.32.0", platform="cpu"),
        no(_NEXT, vllm="0.32.0", platform="cuda", purpose="serve"),
        unknown(_NEXT, vllm="0.32.0"),
    ],
    cost="twice the memory for recurrent states, so room for fewer requests",
)
