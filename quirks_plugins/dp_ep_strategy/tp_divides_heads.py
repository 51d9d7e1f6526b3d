"""If the tensor-parallel size does not divide the model's attention heads, every engine fails after it was placed.

What happens: the error comes minutes late, and in a trainer's log it stands below the traces of all ranks. Examples: 28 heads
on 8 GPUs (Qwen2.5-7B and its distillations) and 40 heads on 3.

When it can go: when vLLM supports such a number of heads; vllm-project/vllm#11797, which requested it, was closed as stale.
"""

from quirks_core import Affected, Fact, Kind, Quirk, Refuse, Severity, StaticProbe, no, report, unknown, yes
from quirks_plugins.conditions import TP
from quirks_plugins.dp_ep_strategy.evidence import refused_or_started
from quirks_plugins.kit import Lab, Outcome
from quirks_plugins.runs import parallel

_QWEN2 = {"model_type": "qwen2", "num_attention_heads": 28}

QUIRK = Quirk(
    id="tp-divides-heads",
    title="vLLM shards whole attention heads: their number is a multiple of the tensor-parallel size",
    kind=Kind.RULE,
    match=Fact("model.text_config.num_attention_heads").indivisible_by(TP),
    affected=Affected("vllm", introduced="0.26.0"),
    adjustments=Refuse(
        "the model's attention heads cannot be shared evenly by the tensor-parallel ranks",
        "set engine.tensor_parallel_size to a divisor of num_attention_heads in config.json, and use further GPUs by "
        "engine.data_parallel_size or engine.pipeline_parallel_size",
    ),
    severity=Severity.CRASH,
    crash="must be divisible by tensor parallel size",
    references=[report("vllm-project/vllm#11797"), report("THU-KEG/AdaptThink#1")],
    evidence=StaticProbe("vllm.config.model", r"if total_num_attention_heads % tensor_parallel_size != 0:"),
    examples=[
        yes(_QWEN2, parallel(tp=8), vllm="0.32.0", refuses="engine.tensor_parallel_size"),
        yes({"model_type": "qwen3_omni_moe", "thinker_config": {"text_config": _QWEN2}}, parallel(tp=8), vllm="0.32.0"),
        no("mamba2", parallel(tp=8), vllm="0.32.0"),
        unknown(_QWEN2, parallel(tp=8)),
    ],
)


async def scenario(lab: Lab) -> Outcome:
    """Two heads on three ranks are refused, or the engine starts."""
    return await refused_or_started(
        lab, lab.checkpoint("llama"), {"engine": {"tensor_parallel_size": 3}}, "two attention heads on three ranks"
    )
