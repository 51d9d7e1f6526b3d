"""LoRA on Qwen3.5 before vLLM 0.20: the engine ends with "list index out of range", while it starts or at the first adapter.

What happens: ``IndexError`` in ``set_lora`` or ``slice_lora_b`` of ``column_parallel_linear.py``. The gated delta net has one
layer for q, k, v and z, in four slices, and the model declares two names for it (``in_proj_qkv``, ``in_proj_z``). In 0.17 and
0.18 the adapter with which vLLM warms up fails already; builds after them fail with tensor parallelism. 0.20.0 makes two layers
of it where LoRA is enabled, and later releases know adapters of a part of it.

When it can go: when vLLM 0.19 is no longer supported. Read in 0.18.0, 0.22.0 and 0.24.0; 0.16.0 does not have the model. The
reports are of both sizes, dense and MoE; not run by us. From 0.21 to 0.27 an adapter with ``in_proj_qkv`` and without
``in_proj_z`` fails in another way (vllm-project/vllm#47639), which no setting shows.
"""

from quirks_core import Advise, Affected, Quirk, Severity, StaticProbe, model_type, no, report, setting, unknown, yes

_LORA = {"engine.enable_lora": True}

QUIRK = Quirk(
    id="qwen3-5-lora-projections",
    title="LoRA fails on the gated delta net of Qwen3.5",
    match=setting("engine.enable_lora").is_true() & model_type("qwen3_5", "qwen3_5_moe", "qwen3_5_moe_text", "qwen3_5_text"),
    affected=Affected("vllm", introduced="0.17.0", fixed="0.20.0"),
    adjustments=Advise(
        "this vLLM cannot set up LoRA for the linear attention of Qwen3.5, and ends with an IndexError: install vLLM 0.20 or "
        "newer, or merge the adapter and leave engine.enable_lora off"
    ),
    severity=Severity.CRASH,
    crash="list index out of range",
    references=[
        report("vllm-project/vllm#35286"),
        report("vllm-project/vllm#40869"),
        report("vllm-project/vllm/pull/36652"),
        report("vllm-project/vllm/pull/38927"),
        report("modelscope/ms-swift#9103"),
    ],
    evidence=StaticProbe("vllm.model_executor.models.qwen3_5", r"output_sizes=\[key_dim, key_dim, value_dim, value_dim\]"),
    examples=[
        yes("qwen3_5", _LORA, vllm="0.18.0", advises="0.20"),
        yes("qwen3_5_moe", {**_LORA, "engine.tensor_parallel_size": 2}, vllm="0.19.1", purpose="serve"),
        no("qwen3_5", _LORA, vllm="0.20.0"),
        no("qwen3_5", vllm="0.18.0"),
        no("qwen3_next", _LORA, vllm="0.18.0"),
        unknown("qwen3_5", _LORA),
    ],
)
