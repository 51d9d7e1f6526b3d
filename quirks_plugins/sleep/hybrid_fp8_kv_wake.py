"""Hybrid models with an FP8 KV cache before vLLM 0.27.0: the engine hangs after it was woken up.

What happens: ``wake_up`` fails with ``AttributeError: 'list' object has no attribute 'zero_'``. From then on requests hang,
while the engine's health check still succeeds. After a sleep vLLM zeroes a quantised KV cache tensor by tensor
(``init_fp8_kv_scales``), also one that the checkpoint states, as ModelOpt's FP8 checkpoints of Nemotron-H do; but layers with a
recurrent state (Mamba, DeltaNet) have a list of tensors instead.

When it can go: when vLLM 0.26 is no longer supported. vllm-project/vllm#41602 fixed it in 0.27.0. It shows only on a GPU,
because no CPU engine sleeps; the static probe looks for the loop, which 0.11.1 does not have yet.
"""

from quirks_core import Affected, Quirk, Require, Severity, StaticProbe, fix, model_type, no, report, setting, unknown, yes
from quirks_plugins.conditions import quantized_cache_of_checkpoint

_HYBRID = (
    *("NemotronH_Nano_VL_V2", "bailing_hybrid", "bamba", "falcon_h1", "granitemoehybrid", "jamba", "kimi_linear"),
    *("lfm2", "lfm2_moe", "lfm2_vl", "nemotron_h", "olmo_hybrid", "plamo2", "qwen3_5", "qwen3_5_moe"),
    *("qwen3_5_moe_text", "qwen3_5_text", "qwen3_next", "zamba2"),
)
_DTYPE, _SLEEP = "engine.kv_cache_dtype", "engine.enable_sleep_mode"
_FP8 = {_DTYPE: "fp8", _SLEEP: True}
_by_user = setting(_DTYPE).matches("^fp8|per_token_head$|^nvfp4$")
_STATED = {"model_type": "nemotron_h", "quantization_config": {"quant_method": "modelopt", "kv_cache_quant_algo": "FP8"}}

QUIRK = Quirk(
    id="hybrid-fp8-kv-wake",
    title="An engine of a hybrid model with an FP8 KV cache hangs after it was woken up",
    match=model_type(*_HYBRID) & (_by_user | quantized_cache_of_checkpoint) & setting(_SLEEP).is_true(),
    affected=Affected("vllm", introduced="0.12.0", fixed="0.27.0"),
    adjustments=[
        Require(_DTYPE, "auto", remedy=f"set {_DTYPE}: auto, or engine.enable_sleep_mode: false", when=_by_user),
        Require(_DTYPE, "bfloat16", reason="the checkpoint states a quantised cache", when=quantized_cache_of_checkpoint),
    ],
    severity=Severity.CRASH,
    references=[report("vllm-project/vllm#41564"), report("vllm-project/vllm#49237"), fix("vllm-project/vllm/pull/41602")],
    evidence=StaticProbe("vllm.v1.worker.gpu_model_runner", r"for cache_tensor in kv_caches:\s+if cache_tensor is not None:"),
    examples=[
        yes("nemotron_h", _FP8, vllm="0.26.0", refuses=[_DTYPE, "engine.enable_sleep_mode: false"]),
        yes(_STATED, {_SLEEP: True}, vllm="0.26.0", gives={_DTYPE: "bfloat16"}),
        no(_STATED, {_SLEEP: True, _DTYPE: "bfloat16"}, vllm="0.26.0"),
        no("nemotron_h", _FP8, vllm="0.27.0"),
        no("nemotron_h", _FP8, vllm="0.11.1"),
        no("nemotron_h", {_DTYPE: "auto", _SLEEP: True}, vllm="0.26.0"),
        no("nemotron_h", {_DTYPE: "fp8"}, vllm="0.26.0"),
        unknown("nemotron_h", _FP8),
    ],
    cost="a KV cache of half as many tokens",
)
