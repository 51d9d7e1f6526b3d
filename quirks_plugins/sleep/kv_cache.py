"""Sleep mode and the KV cache: its size, its scales and its layout after a wake-up, one row each.

What happens: ``sleep-kv-cache-size``: the engine runs out of memory while it starts, or wakes up beside a trainer (5.16 GiB of
cache with sleep mode, 3.17 GiB without, in vllm-project/vllm#40256). vLLM counts the memory that is not PyTorch's as what is in
use less what PyTorch has reserved, and its allocator for sleep gives memory back without PyTorch's knowledge. From 0.27.0 on it
asks the GPU.

``fp8-kv-scales-wake``: after a wake-up vLLM fills ``_k_scale`` and ``_v_scale`` of all layers with 1.0
(``init_fp8_kv_scales``), also where the checkpoint has others (0.003 to 0.05 in published ones), and logprobs shift. From
0.29.0 on the scales are buffers, which a sleep saves; model runner V2 never reset them.

``hybrid-fp8-kv-wake``: ``wake_up`` fails with ``AttributeError: 'list' object has no attribute 'zero_'``, because layers with a
recurrent state have a list of tensors. From then on requests hang, while the health check succeeds.

When it can go: when vLLM 0.26, of the scales 0.28, is no longer supported. Read in 0.11.1, 0.16.0 and 0.22.0 to 0.33.0. No CPU
engine sleeps, and nothing was measured by us.
"""

from quirks_core import Advise, Affected, Quirk, Require, Severity, StaticProbe, fix, no, report, unknown, yes
from quirks_core.declaration.match import Fact, model_type, platform, setting
from quirks_plugins.conditions import quantized_cache_of_checkpoint, v1_model_runner

_SIZE = "engine.kv_cache_memory_bytes"
_ASLEEP = {"engine.enable_sleep_mode": True}

SLEEP_KV_CACHE_SIZE = Quirk(
    id="sleep-kv-cache-size",
    title="With sleep mode the KV cache is larger than the memory that is left for it",
    match=setting("engine.enable_sleep_mode").is_true() & platform("cuda") & ~setting(_SIZE).is_set(),
    affected=Affected("vllm", introduced="0.17.0", fixed="0.27.0"),
    adjustments=Advise(
        f"this vLLM counts too little memory as used in sleep mode, and makes the KV cache too large: set {_SIZE}, for example "
        'to "Available KV cache memory" in the log of an engine without sleep mode'
    ),
    severity=Severity.CRASH,
    references=[
        report("vllm-project/vllm#40256"),
        report("vllm-project/vllm/pull/37111"),
        report("vllm-project/vllm/pull/32947"),
        report("NVIDIA-NeMo/RL/pull/3280"),
    ],
    evidence=StaticProbe("vllm.utils.mem_utils", r"result\.total_consumed = ", found_means_affected=False),
    examples=[
        yes("qwen3", _ASLEEP, vllm="0.26.0", platform="cuda", advises=_SIZE),
        yes("qwen3", _ASLEEP, vllm="0.17.0", platform="cuda"),
        no("qwen3", {**_ASLEEP, _SIZE: 2**34}, vllm="0.26.0", platform="cuda"),
        no("qwen3", _ASLEEP, vllm="0.27.0", platform="cuda"),
        no("qwen3", _ASLEEP, vllm="0.16.0", platform="cuda"),
        no("qwen3", vllm="0.26.0", platform="cuda"),
        unknown("qwen3", _ASLEEP, platform="cuda"),
    ],
)

_DTYPE = "engine.kv_cache_dtype"
_SCHEME = {"quant_method": "compressed-tensors", "kv_cache_scheme": {"num_bits": 8, "type": "float", "dynamic": False}}
_STATED = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "quantization_config": _SCHEME}

FP8_KV_SCALES_WAKE = Quirk(
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
        yes(_STATED, _ASLEEP, vllm="0.22.0", platform="cuda", advises="0.29"),
        yes(_STATED, _ASLEEP, vllm="0.18.0", platform="cuda", purpose="serve"),
        no(_STATED, _ASLEEP, vllm="0.29.0", platform="cuda"),
        no(_STATED, {**_ASLEEP, _DTYPE: "bfloat16"}, vllm="0.22.0", platform="cuda"),
        no(_STATED, vllm="0.22.0", platform="cuda"),
        no("llama", {**_ASLEEP, _DTYPE: "fp8"}, vllm="0.22.0", platform="cuda"),
        unknown(_STATED, _ASLEEP, platform="cuda"),
    ],
)

_HYBRID = (
    *("NemotronH_Nano_VL_V2", "bailing_hybrid", "bamba", "falcon_h1", "granitemoehybrid", "jamba", "kimi_linear"),
    *("lfm2", "lfm2_moe", "lfm2_vl", "nemotron_h", "olmo_hybrid", "plamo2", "qwen3_5", "qwen3_5_moe"),
    *("qwen3_5_moe_text", "qwen3_5_text", "qwen3_next", "zamba2"),
)
_FP8 = {_DTYPE: "fp8", **_ASLEEP}
_by_user = setting(_DTYPE).matches("^fp8|per_token_head$|^nvfp4$")
_HYBRID_STATED = {"model_type": "nemotron_h", "quantization_config": {"quant_method": "modelopt", "kv_cache_quant_algo": "FP8"}}

HYBRID_FP8_KV_WAKE = Quirk(
    id="hybrid-fp8-kv-wake",
    title="An engine of a hybrid model with an FP8 KV cache hangs after it was woken up",
    match=model_type(*_HYBRID) & (_by_user | quantized_cache_of_checkpoint) & setting("engine.enable_sleep_mode").is_true(),
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
        yes("nemotron_h", {**_FP8, _DTYPE: "fp8_e4m3"}, vllm="0.26.0"),
        *(yes(name, _FP8, vllm="0.26.0") for name in ("qwen3_5_text", "qwen3_5_moe_text", "olmo_hybrid", "lfm2_vl")),
        yes(_HYBRID_STATED, _ASLEEP, vllm="0.26.0", gives={_DTYPE: "bfloat16"}),
        no(_HYBRID_STATED, {**_ASLEEP, _DTYPE: "bfloat16"}, vllm="0.26.0"),
        no("nemotron_h", _FP8, vllm="0.27.0"),
        no("nemotron_h", _FP8, vllm="0.11.1"),
        no("nemotron_h", {_DTYPE: "auto", **_ASLEEP}, vllm="0.26.0"),
        no("nemotron_h", {_DTYPE: "fp8"}, vllm="0.26.0"),
        no("qwen3", _FP8, vllm="0.26.0"),
        unknown("nemotron_h", _FP8),
    ],
    cost="a KV cache of half as many tokens",
)
