"""A rollout with a quantised KV cache: its logprobs are those of rounded keys and values, and a trainer's are not.

What happens: every importance ratio carries that rounding, also where the policy has not changed. The user sets such a cache,
or the checkpoint does: where the setting is open, vLLM follows ``kv_cache_scheme`` of compressed-tensors and
``kv_cache_quant_algo`` of ModelOpt. GLM-5 from vLLM 0.32 on, and GLM-5.3 from 0.33 on, have an FP8 cache by default on GPUs of
capability 10.x. The scales stay while the policy moves, unless the trainer calculates and sends others, as NeMo RL does
(NVIDIA-NeMo/RL#1212). An FP8 KV cache holds twice as many tokens, so it is a choice, and no mistake. DeepSeek-V4 is left out:
which cache it has depends on its attention backend.

When it can go: never; two programs that round differently differ.

Evidence: none of ours; advice changes nothing, so that no paired run can show it.
"""

from quirks_core import Advise, Kind, Quirk, Severity, no, report, unknown, yes
from quirks_core.declaration.match import Fact, model_type, package, platform, purpose, setting
from quirks_plugins.conditions import cache_dtype_is_open, quantized_cache_of_checkpoint

_SLOT = "engine.kv_cache_dtype"
_dtype, _gpu = setting(_SLOT), Fact("platform.gpu.capability")
_by_user = _dtype.is_set() & ~_dtype.one_of("auto", "bfloat16", "float16", "float32")
_by_model = (
    (
        (model_type("glm_moe_dsa") & package("vllm", introduced="0.32.0"))
        | (model_type("glm5_next") & package("vllm", introduced="0.33.0"))
    )
    & cache_dtype_is_open
    & platform("cuda")
    & _gpu.above(99)
    & _gpu.below(110)
)
_FP8 = {"quant_method": "compressed-tensors", "kv_cache_scheme": {"num_bits": 8, "type": "float"}}
_MODELOPT = {"producer": {"name": "modelopt"}, "quantization": {"quant_algo": "FP8", "kv_cache_quant_algo": "FP8"}}

QUIRK = Quirk(
    id="fp8-kv-rollout",
    title="Keys and values of a rollout are quantised, and the trainer's are not",
    kind=Kind.RULE,
    match=purpose("rollout") & (_by_user | quantized_cache_of_checkpoint | _by_model),
    adjustments=Advise(
        "the KV cache is quantised: logprobs differ from a trainer's, which does not round keys and values; set "
        f"{_SLOT}: bfloat16, or correct for it in the trainer"
    ),
    severity=Severity.WRONG_OUTPUT,
    references=[
        report("NVIDIA-NeMo/RL/pull/1212"),
        report("PrimeIntellect-ai/prime-rl/pull/3555"),
        report("verl-project/verl/pull/4435"),
    ],
    examples=[
        yes(settings={_SLOT: "fp8"}, advises="does not round keys and values"),
        yes({"model_type": "llama", "quantization_config": _FP8}, {_SLOT: "auto"}),
        yes({"model_type": "llama", "quantization_config": _MODELOPT}),
        yes("glm_moe_dsa", vllm="0.32.0", platform="cuda", extra={"platform.gpu.capability": 100}),
        no("glm_moe_dsa", vllm="0.32.0", platform="cuda", extra={"platform.gpu.capability": 90}),
        no("glm_moe_dsa", vllm="0.32.0", platform="rocm"),
        no("glm5_next", vllm="0.32.0", extra={"platform.gpu.capability": 100}),
        no({"model_type": "llama", "quantization_config": _FP8}, {_SLOT: "bfloat16"}),
        no("qwen3", {_SLOT: "auto"}),
        no(settings={_SLOT: "fp8"}, purpose="serve"),
        unknown("glm5_next", vllm="0.33.0", platform="cuda"),
    ],
)
