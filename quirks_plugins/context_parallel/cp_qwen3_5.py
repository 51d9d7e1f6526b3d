"""Qwen3.5's dense models cannot be trained with context parallelism on FSDP2.

What happens: three of four layers are gated delta nets, which carry a state from token to token. PyTorch's context parallelism
gives each rank a part of the sequence and replaces SDPA by a ring; it does not pass that state on, so each rank would begin
with an empty one. NeMo RL refuses ``qwen3_5`` for that reason, and lets the MoE model pass, for which Automodel has a backend
of its own (with Transformer Engine and flash-linear-attention). ``qwen3_5_text`` is the same dense model without the vision
tower.

What this changes: the run is refused.

Evidence: the rule is NeMo RL's (``nemo_rl/models/automodel/setup.py``); no trainer with context parallelism runs in our tests,
so there is no paired run.
"""

from __future__ import annotations

from quirks_core import Kind, ModelFlag, Quirk, Refuse, Severity, model_type, no, report, unknown, yes
from quirks_plugins.conditions import context_parallel_on_fsdp2
from quirks_plugins.runs import context_parallel

QUIRK = Quirk(
    id="cp-qwen3-5",
    title="Dense Qwen3.5 carries a state along the sequence, which context parallelism with FSDP2 does not pass on",
    flag=ModelFlag.CONTEXT_PARALLEL,
    kind=Kind.RULE,
    match=context_parallel_on_fsdp2 & model_type("qwen3_5", "qwen3_5_text"),
    adjustments=Refuse(
        "context parallelism shards the sequence, and Qwen3.5's gated delta nets need the state of the rank before",
        "set train.context_parallel_size: 1 (tensor parallelism also shortens what each rank holds)",
    ),
    severity=Severity.CRASH,
    references=[
        report("https://github.com/NVIDIA-NeMo/Automodel/issues/1498"),
        report("https://github.com/NVIDIA-NeMo/RL/pull/2900"),
    ],
    examples=[
        yes("qwen3_5_text", context_parallel(), refuses="train.context_parallel_size"),
        yes({"model_type": "qwen3_5", "vision_config": {"depth": 2}}, context_parallel()),
        no("qwen3", context_parallel()),
        no("qwen3_5_moe_text", context_parallel()),
        no("qwen3_5_text", context_parallel(1)),
        no("qwen3_5_text", context_parallel(backend="megatron")),
        unknown(settings=context_parallel()),
    ],
)
