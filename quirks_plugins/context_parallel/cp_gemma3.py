"""Gemma-3 cannot be trained with context parallelism on FSDP2.

What happens: PyTorch's context parallelism replaces SDPA by a ring that knows only the causal mask. Gemma-3 passes an explicit
mask even where it masks nothing, and the ring does not accept it. ``gemma3_text`` is the same model without the vision tower,
so the rule holds for it as well.

What this changes: the run is refused.

Evidence: the rule is NeMo RL's, which refuses ``gemma3`` and names ``Gemma3ForCausalLM`` in its message; no trainer with
context parallelism runs in our tests, so there is no paired run.
"""

from __future__ import annotations

from quirks_core import Kind, ModelFlag, Quirk, Refuse, Severity, model_type, no, report, unknown, yes
from quirks_plugins.conditions import context_parallel_on_fsdp2
from quirks_plugins.runs import context_parallel

QUIRK = Quirk(
    id="cp-gemma3",
    title="Gemma-3 passes an attention mask, which context parallelism with FSDP2 cannot take",
    flag=ModelFlag.CONTEXT_PARALLEL,
    kind=Kind.RULE,
    match=context_parallel_on_fsdp2 & model_type("gemma3", "gemma3_text"),
    adjustments=Refuse(
        "context parallelism replaces SDPA by a ring without attention masks, and Gemma-3 needs its mask",
        "set train.context_parallel_size: 1 (tensor or sequence parallelism also shortens what each rank holds)",
    ),
    severity=Severity.CRASH,
    references=report("https://github.com/NVIDIA-NeMo/RL/pull/450"),
    examples=[
        yes("gemma3_text", context_parallel(), refuses="train.context_parallel_size"),
        yes({"model_type": "gemma3", "vision_config": {"depth": 2}}, context_parallel()),
        no("qwen3", context_parallel()),
        no("gemma2", context_parallel()),
        no("gemma3", context_parallel(1)),
        no("gemma3", context_parallel(backend="megatron")),
        unknown(settings=context_parallel()),
    ],
)
