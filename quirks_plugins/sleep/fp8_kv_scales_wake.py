"""A checkpoint with calibrated scales for an FP8 KV cache: before vLLM 0.29 they are 1.0 after the first wake-up.

What happens: logprobs shift from the first sleep on, with the same weights and no message, so that importance ratios are off.
After a wake-up vLLM fills ``_k_scale`` and ``_v_scale`` of all layers with 1.0 (``init_fp8_kv_scales``), also where
compressed-tensors or ModelOpt had stored others (0.003 to 0.05 in published checkpoints). From 0.29.0 on the scales are
buffers, which a sleep saves. A cache that the user makes FP8, without scales in the checkpoint, has 1.0 before, too.

When it can go: when vLLM 0.28 is no longer supported. Read in 0.16.0, 0.22.0, 0.26.0, 0.28.0, 0.29.0 and 0.33.0, in the V1
model runner; V2 never reset them. It shows only on a GPU, because no CPU engine sleeps.
"""

from quirks_core import Advise, Affected, Fact, Quirk, Severity, StaticProbe, fix, no, report, setting, unknown, yes
from quirks_plugins.conditions import quantized_cache_of_checkpoint, v1_model_runner

_SLEEP, _DTYPE = {"engine.enable_sleep_mode": True}, "engine.kv_cache_dtype"
_SCHEME = {"quant_method": "compressed-tensors", "kv_cache_scheme": {"num_bits": 8, "type": "float", "dynamic": False}}
_STATED = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "quantization_config": _SCHEME}

QUIRK = Quirk(
    id="fp8-kv-scales-wake",
    title="A wake-up replaces a checkpoint's scales of its FP8 KV cache by 1.0",
    match=setting("engine.enable_sleep_mode").is_true()
    & quantized_cache_of_checkpoint
    & ~Fact("model.quantization.kv_cache_scheme.dynamic").is_true()
    & v1_model_runner,
    affected=Affected("vllm", introduced="0.12.0", fixed="0.29.0"),
    adjustments=Advise(
        f"after the first wake-up this vLLM computes with KV scales of 1.0 in place of the checkpoint's: set {_DTYPE}: "
        "bfloat16, or install vLLM 0.29 or newer"
    ),
    severity=Severity.WRONG_OUTPUT,
    references=[
        report("vllm-project/vllm/pull/45617"),
        report("vllm-project/vllm#48310"),
        fix("vllm-project/vllm/pull/53508"),
    ],
    evidence=StaticProbe("vllm.v1.worker.gpu_model_runner", r"def init_fp8_kv_scales"),
    examples=[
        yes(_STATED, _SLEEP, vllm="0.22.0", platform="cuda", advises="0.29"),
        yes(_STATED, _SLEEP, vllm="0.18.0", platform="cuda", purpose="serve"),
        no(_STATED, {**_SLEEP, _DTYPE: "bfloat16"}, vllm="0.22.0", platform="cuda"),
        no(_STATED, vllm="0.22.0", platform="cuda"),
        unknown(_STATED, _SLEEP, platform="cuda"),
    ],
)
