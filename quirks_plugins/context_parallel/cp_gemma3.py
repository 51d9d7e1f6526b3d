"""Gemma-3 cannot be trained with context parallelism on FSDP2.

What happens: PyTorch's context parallelism replaces SDPA by a ring that knows only the causal mask. Gemma-3 passes an explicit
attention mask (sliding windows), which the ring does not take. ``gemma3_text`` is the same model without the vision tower and
needs the rule as well.

Evidence: the rule is NeMo RL's; no trainer with context parallelism runs in our tests, so there is no paired run.
"""

from __future__ import annotations

from quirks_core import Answer, Example, ModelFlag, Quirk, Refuse, Severity, model_type, report, setting

QUIRK = Quirk(
    id="cp-gemma3",
    title="Gemma-3 passes an attention mask, which context parallelism with FSDP2 cannot take",
    flag=ModelFlag.CONTEXT_PARALLEL,
    match=(
        setting("train.context_parallel_size").above(1)
        & setting("train.backend").one_of("fsdp2")
        & model_type("gemma3", "gemma3_text")
    ),
    adjustments=(
        Refuse(
            "context parallelism replaces SDPA by a ring without attention masks, and Gemma-3 needs its mask",
            "set train.context_parallel_size: 1 (tensor or sequence parallelism also shortens what each rank holds)",
        ),
    ),
    severity=Severity.CRASH,
    references=(report("https://github.com/NVIDIA-NeMo/RL/pull/450"),),
    examples=(
        Example(
            answer=Answer.YES,
            config={"model_type": "gemma3_text"},
            settings={"train.backend": "fsdp2", "train.context_parallel_size": 2},
        ),
        Example(
            answer=Answer.NO,
            config={"model_type": "qwen3"},
            settings={"train.backend": "fsdp2", "train.context_parallel_size": 2},
        ),
        Example(
            answer=Answer.NO,
            config={"model_type": "gemma3"},
            settings={"train.backend": "megatron", "train.context_parallel_size": 2},
        ),
        Example(answer=Answer.UNKNOWN, settings={"train.backend": "fsdp2", "train.context_parallel_size": 2}),
    ),
    since="0.1.0",
)
