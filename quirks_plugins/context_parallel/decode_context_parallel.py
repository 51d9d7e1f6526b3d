"""Decode context parallelism with latent attention: random tokens, or gibberish that grows with the context.

What happens: GLM-5.3 (sparse latent attention) with ``decode_context_parallel_size`` 4 was right on vLLM 0.27, crashed on 0.28
and returns vocabulary soup from some 128 tokens on on 0.29 (vllm-project/vllm#54300). Kimi-K2.6 with 8 on A100 drifts into
gibberish on 0.21 (vllm-project/vllm#41623); DeepSeek-V2-Lite with 4 was right up to 12 000 tokens.

When it can go: when both reports are closed with a cause.

Evidence: the reports; the group needs several GPUs, and no such engine was run by us, so that this only advises to compare.
"""

from quirks_core import Advise, Affected, Quirk, Severity, model_type, no, package, report, setting, unknown, yes
from quirks_plugins.conditions import latent_attention
from quirks_plugins.runs import MOONLIGHT

_SIZE = "engine.decode_context_parallel_size"
_ON = {"engine.tensor_parallel_size": 8, _SIZE: 8}
_sparse = model_type("deepseek_v32", "glm5_next", "glm_moe_dsa")
_GLM = {"model_type": "glm_moe_dsa", "kv_lora_rank": 512, "qk_rope_head_dim": 64}

QUIRK = Quirk(
    id="decode-context-parallel",
    title="Decode context parallelism returned random tokens for models with latent attention",
    match=setting(_SIZE).above(1) & ((latent_attention & ~_sparse) | (_sparse & package("vllm", introduced="0.28.0"))),
    affected=Affected("vllm", introduced="0.21.0"),
    adjustments=Advise(
        "decode context parallelism was seen to return gibberish for such a model: compare greedy answers to a prompt of "
        f"some thousand tokens with those of {_SIZE}: 1 before you trust it"
    ),
    severity=Severity.WRONG_OUTPUT,
    references=[report("vllm-project/vllm#54300"), report("vllm-project/vllm#41623")],
    examples=[
        yes(_GLM, _ON, vllm="0.29.0", purpose="serve", advises=f"{_SIZE}: 1"),
        yes({"model_type": "kimi_k25", "text_config": MOONLIGHT}, _ON, vllm="0.21.0"),
        no(_GLM, _ON, vllm="0.27.0"),
        no(_GLM, {_SIZE: 1}, vllm="0.29.0"),
        no("qwen3", _ON, vllm="0.29.0"),
        unknown(_GLM, _ON),
    ],
)
